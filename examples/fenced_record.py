"""Update a record of a database under a lock, so that not even a holder that was paused for too long can harm it.

The lock keeps processes apart as long as they are well. The fence is for the one that is stopped in the middle, loses
its lease, and wakes up just to write: the record has seen a larger token by then, and refuses it.
"""

import sqlite3
import tempfile
from pathlib import Path

import tenure

TOUCH = "UPDATE stock SET fence = :token WHERE item = :item AND fence <= :token"
WRITE = "UPDATE stock SET pieces = :pieces WHERE item = :item AND fence = :token"


def sell(client: tenure.Client, database: sqlite3.Connection, item: str) -> int:
    """Sell one piece, and return how many are left."""
    with client.lock(f"stock:{item}", ttl=10, timeout=5) as lease:
        touch(database, item, lease.token)  # before anything is read
        (pieces,) = database.execute("SELECT pieces FROM stock WHERE item = ?", (item,)).fetchone()
        write(database, item, pieces - 1, lease.token)
        return int(pieces) - 1


def touch(database: sqlite3.Connection, item: str, token: int) -> None:
    """Shut out every older holder."""
    if not database.execute(TOUCH, {"item": item, "token": token}).rowcount:
        raise tenure.StaleTokenError(f"{item} has been touched by a later holder than {token}")


def write(database: sqlite3.Connection, item: str, pieces: int, token: int) -> None:
    """Write, unless a later holder has touched the record since."""
    if not database.execute(WRITE, {"item": item, "pieces": pieces, "token": token}).rowcount:
        raise tenure.StaleTokenError(f"{item} has been touched by a later holder than {token}")


def main() -> None:
    """Sell two pieces; then let a holder from before the second sale try to write."""
    with tempfile.TemporaryDirectory() as folder, tenure.Client(f"sqlite://{folder}/locks.db") as client:
        database = sqlite3.connect(Path(folder) / "shop.db", isolation_level=None)
        database.execute("CREATE TABLE stock (item TEXT PRIMARY KEY, pieces INTEGER, fence INTEGER DEFAULT 0)")
        database.execute("INSERT INTO stock (item, pieces) VALUES ('lamp', 10)")
        with client.lock("stock:lamp").acquire() as early:
            token = early.token
        print("left:", sell(client, database, "lamp"))
        print("left:", sell(client, database, "lamp"))
        try:
            write(database, "lamp", 9, token)
        except tenure.StaleTokenError as refused:
            print("refused:", refused)
        database.close()


if __name__ == "__main__":
    main()
