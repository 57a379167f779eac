"""The shared record: one JSON document in a table, and its fence.

A holder raises the fence to its token in its *first transaction*, before it reads anything. From then on the record
refuses the late write of an older holder. See `tenure.Fence`.
"""

import sqlite3
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Self

from demo.tally import Tally, load
from tenure import StaleTokenError

CREATE = "CREATE TABLE record (fence INTEGER NOT NULL, document TEXT NOT NULL)"
INSERT = "INSERT INTO record (fence, document) VALUES (0, ?)"
TOUCH = "UPDATE record SET fence = :token WHERE fence <= :token"
READ = "SELECT document FROM record"
WRITE_UNFENCED = "UPDATE record SET document = :document"
WRITE = "UPDATE record SET document = :document WHERE fence = :token"
FENCE = "SELECT fence FROM record"


def connect(path: str | Path) -> sqlite3.Connection:
    """Open data that processes share; each statement is a transaction of its own."""
    return sqlite3.connect(path, timeout=20, isolation_level=None)


def create(path: str | Path, *statements: str) -> None:
    """Make data that processes share."""
    with closing(connect(path)) as data:
        data.execute("PRAGMA journal_mode = WAL")
        for each in statements:
            data.execute(each)


class SharedRecord:
    """The connection of one process to the shared record."""

    def __init__(self, path: Path) -> None:
        """Open the connection."""
        self._connection = connect(path)

    @classmethod
    def create(cls, path: Path) -> Self:
        """Make an empty record."""
        create(path, CREATE)
        record = cls(path)
        record._connection.execute(INSERT, (Tally().dump(),))
        return record

    def touch(self, token: int) -> None:
        """Raise the fence to `token`. Raises StaleTokenError if a later holder has raised it further."""
        self._execute_fenced(TOUCH, {"token": token})

    def read(self) -> Tally:
        """Read the document."""
        return load(self._connection.execute(READ).fetchone()[0])

    def write(self, tally: Tally, token: int | None) -> None:
        """Write the document. Raises StaleTokenError if a later holder has raised the fence since `touch`.

        Without a token the write is not checked.
        """
        if token is None:
            self._connection.execute(WRITE_UNFENCED, {"document": tally.dump()})
        else:
            self._execute_fenced(WRITE, {"document": tally.dump(), "token": token})

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _execute_fenced(self, statement: str, values: dict[str, int | str]) -> None:
        if self._connection.execute(statement, values).rowcount == 0:
            highest = self._connection.execute(FENCE).fetchone()[0]
            message = f"token {values['token']} is stale: a holder with token {highest} has used the record since."
            raise StaleTokenError(message)
