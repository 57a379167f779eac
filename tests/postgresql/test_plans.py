"""What a lock costs does not depend on how many names there are, whatever the server knew when it made its plans."""

from uuid import uuid4

import pytest

from tenure import Client
from tests.hazards.helpers import eventually
from tests.servers import PgBouncer, PostgresServer
from tests.servers.postgresql import Row

TABLES = "WHERE relname IN ('tenure_names', 'tenure_cells')"


class Database:
    """A database of a test's own, whose statistics nothing analyzes meanwhile."""

    def __init__(self, server: PostgresServer, pooler: PgBouncer | None) -> None:
        """Make it; a client reaches it through the pooler, if there is one."""
        self._server = server
        self._name = f"plans_{uuid4().hex[:12]}"
        self._direct = server.create_database(self._name)
        self.url = self._direct if pooler is None else pooler.url.rpartition("/")[0] + f"/{self._name}"

    def reads(self, names: int) -> tuple[int, float]:
        """Use so many names, the first of them alone; return what was read in a row, and for each name by an index."""
        with Client(f"{self.url}?connections=1") as client:
            client.names()
            for table in ("tenure_names", "tenure_cells"):
                self._ask(f"ALTER TABLE {table} SET (autovacuum_enabled = false)")
            for number in range(names):
                use(client, f"name-{number}")
        elsewhere = f"FROM pg_stat_activity WHERE datname = '{self._name}' AND pid <> pg_backend_pid()"
        self._ask(f"SELECT pg_terminate_backend(pid) {elsewhere}")  # a session tells what it has read when it ends
        eventually(lambda: self._ask(f"SELECT count(*) {elsewhere}") == [(0,)], "the end of all sessions")
        ((in_a_row,),) = self._ask(f"SELECT sum(seq_tup_read) FROM pg_stat_user_tables {TABLES}")  # noqa: S608 - a constant
        ((by_index,),) = self._ask(f"SELECT sum(idx_tup_read) FROM pg_stat_user_indexes {TABLES}")  # noqa: S608 - a constant
        return int(in_a_row), int(by_index) / names

    def _ask(self, sql: str) -> list[Row]:
        with self._server.connect(self._direct) as connection:
            cursor = connection.execute(sql.encode())
            return [] if cursor.description is None else cursor.fetchall()


def use(client: Client, name: str) -> None:
    """Make every kind of request that reads rows of names or cells, for new names."""
    with client.lock(name, ttl=30) as lease:
        lease.extend()
        client.inspect(name)
    with client.multilock([f"{name}-a", f"{name}-b"], ttl=30):
        pass
    with client.semaphore(f"{name}-s", 2, ttl=30), client.semaphore(f"{name}-s", 2, ttl=30) as second:
        second.extend()
    client.counter(f"{name}-c").add(1)


@pytest.mark.parametrize("through", ["server", "pooler"])
def test_no_request_reads_all_names(
    postgres_server: PostgresServer, through: str, request: pytest.FixtureRequest
) -> None:
    """The plans that were made when the tables had one row serve when they have hundreds."""
    pooler: PgBouncer | None = request.getfixturevalue("pgbouncer") if through == "pooler" else None
    for_few = Database(postgres_server, pooler).reads(20)
    for_many = Database(postgres_server, pooler).reads(120)
    assert (for_few[0], for_many[0]) == (0, 0)
    assert for_many[1] < 2 * for_few[1]
