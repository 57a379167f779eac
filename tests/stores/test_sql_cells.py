"""Cells in a database: versions never recur, and old cells go."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

import tenure
from tenure import StoreUnavailable
from tenure.contracts.cells import Cell
from tenure.runtimes.threads import ThreadsRuntime, drive
from tenure.stores.mysql import statements
from tenure.stores.mysql.database import MySqlDatabase
from tenure.stores.mysql.statements import MySqlStatements
from tenure.stores.postgresql import schema
from tenure.stores.sql.store import SqlStore
from tenure.stores.urls import store_source
from tests.planting import planted

if TYPE_CHECKING:
    from tests.servers import MariaDbServer, PostgresServer


class Database:
    """A database of one test."""

    def __init__(self, url: str, execute: Callable[[str], object]) -> None:
        """Use a URL, and a function that executes SQL there as administrator."""
        self.url = url
        self.execute = execute


@pytest.fixture(params=["postgresql", "mysql"])
def database(request: pytest.FixtureRequest) -> Database:
    """Make a database."""
    name = f"cells_{uuid4().hex[:12]}"
    if request.param == "mysql":
        mariadb: MariaDbServer = request.getfixturevalue("mariadb_server")
        url = mariadb.create_database(name)

        def execute(sql: str) -> None:
            with mariadb.connect(database=name) as connection, connection.cursor() as cursor:
                cursor.execute(sql)

        return Database(url, execute)
    postgres: PostgresServer = request.getfixturevalue("postgres_server")
    url = postgres.create_database(name)

    def execute_there(sql: str) -> None:
        with postgres.connect(url) as connection:
            connection.execute(sql.encode())

    return Database(url, execute_there)


class Cells:
    """Cells of a store without the protocol of a client."""

    def __init__(self, url: str) -> None:
        """Open the store."""
        self._runtime = ThreadsRuntime()
        store = store_source(url).make(self._runtime)
        assert isinstance(store, SqlStore)
        self.store = store
        drive(store.open(lambda _: None, self._until()))

    def close(self) -> None:
        """Disconnect."""
        drive(self.store.close())

    def read(self, name: str) -> Cell:
        """Return a cell."""
        return drive(self.store.read_cell(name, self._until()))

    def write(self, name: str, value: bytes, version: int, keep: int = 0) -> Cell:
        """Write a cell."""
        return drive(self.store.write_cell(name, value, version, keep, self._until()))

    def sweep(self) -> str:
        """Remove cells whose time is over."""
        return drive(self.store._database.sweep_cells("", self._until()))

    def _until(self) -> float:
        return self._runtime.now() + 20.0


@pytest.fixture
def cells(database: Database) -> Iterator[Cells]:
    """Open a store on the database."""
    cells = Cells(database.url)
    cells.store._cells._at = float("inf")  # the writes themselves sweep nothing, however long a test takes
    yield cells
    cells.close()


def test_cells_whose_time_is_over_go_and_their_versions_do_not_come_again(cells: Cells, database: Database) -> None:
    """A sweep removes them and no others, however old these are."""
    seen = {cells.write("brief", b"1", 0, keep=1).version, cells.write("kept", b"2", 0, keep=10**12).version}
    seen.add(cells.write("for ever", b"3", 0).version)
    assert cells.sweep() == ""
    assert cells.read("brief").version == 0
    assert cells.read("kept").value == b"2"
    assert cells.read("for ever").value == b"3"
    for number in range(3):
        written = cells.write("brief", b"%d" % number, 0, keep=1)
        assert written.written
        assert written.version not in seen
        seen.add(written.version)
        removed = cells.write("brief", b"", written.version)
        assert (removed.written, removed.version, removed.value) == (True, 0, b"")
        database.execute("UPDATE tenure_cells SET kept_until = 1 WHERE name = 'brief'")
        cells.sweep()


def lag_behind(database: Database) -> Callable[[], None]:
    """Return the function that makes of the database what a standby is that has not heard of later writes."""
    database.execute("CREATE TABLE behind AS SELECT * FROM tenure_cells")

    def promote() -> None:
        database.execute("DELETE FROM tenure_cells")
        database.execute("INSERT INTO tenure_cells SELECT * FROM behind")
        database.execute("UPDATE tenure_meta SET timeline = 'the old primary'")

    return promote


@pytest.mark.parametrize("guard", ["observed", "strict", "off"])
def test_a_cell_that_was_read_before_a_failover_is_not_written_after_it(database: Database, guard: str) -> None:
    """The promoted server has given the version that the reader knows to something else."""
    url = f"{database.url}?guard={guard}"
    with closing(Cells(url)) as reader, closing(Cells(url)) as other:
        first = reader.write("count", b"5", 0)
        promote = lag_behind(database)
        known = reader.write("count", b"6", first.version)  # what the standby has not heard of
        promote()
        there = other.read("count")
        assert there.value == b"5"
        assert other.write("count", b"7", there.version).written
        database.execute(f"UPDATE tenure_cells SET version = {known.version}")  # noqa: S608 - a number
        late = reader.write("count", b"8", known.version)
        assert (late.written, late.value) == (False, b"7")
        assert reader.write("count", b"8", late.version).written
        assert other.read("count").value == b"8"


def test_the_first_request_to_a_promoted_server_may_be_a_late_write(database: Database) -> None:
    """It is refused, and begins the quarantine."""
    with closing(Cells(database.url)) as reader:
        first = reader.write("count", b"5", 0)
        promote = lag_behind(database)
        known = reader.write("count", b"6", first.version)
        promote()
        database.execute(f"UPDATE tenure_cells SET version = {known.version}")  # noqa: S608 - a number
        late = reader.write("count", b"7", known.version)
        assert (late.written, late.value) == (False, b"5")
        assert reader.write("count", b"7", late.version).written


def test_a_server_that_lags_does_not_count_up_to_the_versions_of_the_other(cells: Cells, database: Database) -> None:
    """A version is at least the clock, also of a cell that is made, written or removed."""
    first = cells.write("count", b"5", 0)
    lag_behind(database)
    known = cells.write("count", b"6", first.version)
    database.execute("DELETE FROM tenure_cells")
    database.execute("INSERT INTO tenure_cells SELECT * FROM behind")
    again = cells.write("count", b"7", first.version)
    assert again.written
    assert again.version > known.version
    assert again.version >= again.now - 1_000_000
    assert cells.write("count", b"", again.version).written
    assert cells.write("count", b"8", 0).version > again.version


def test_versions_grow_although_the_clock_steps_back(cells: Cells, database: Database) -> None:
    """A cell from a time ahead, and one that was removed and swept then, are followed by larger versions."""
    ahead = cells.write("old", b"1", 0).version + 10**12
    cells.write("gone", b"1", 0)
    database.execute(f"UPDATE tenure_cells SET version = {ahead}, kept_until = 0 WHERE name = 'old'")  # noqa: S608 - a number
    database.execute(f"UPDATE tenure_cells SET version = {ahead}, kept_until = 1 WHERE name = 'gone'")  # noqa: S608 - a number
    assert cells.write("old", b"2", cells.read("old").version).version == ahead + 1
    cells.sweep()
    assert cells.write("gone", b"2", 0).version > ahead


def test_a_cell_is_not_taken_for_gone_if_the_settings_are(cells: Cells, database: Database) -> None:
    """A counter would begin at 0 again."""
    cells.write("count", b"5", 0)
    database.execute("DELETE FROM tenure_meta")
    with pytest.raises(StoreUnavailable, match="settings is empty; try again"):
        cells.read("count")


def test_a_sweep_looks_at_some_cells_at_a_time(cells: Cells) -> None:
    """It says where to go on."""
    for number in range(502):
        cells.write(f"{number:04}", b"x", 0, keep=1)
    database = cells.store._database
    after = drive(database.sweep_cells("", cells._until()))
    assert after == "0499"
    assert cells.read("0499").version == 0
    assert cells.read("0500").value == b"x"
    assert drive(database.sweep_cells(after, cells._until())) == ""
    assert cells.read("0501").version == 0


def test_a_write_sweeps_now_and_then(cells: Cells, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else removes cells."""
    cells.write("brief", b"x", 0, keep=1)
    monkeypatch.setattr(cells.store._cells, "_at", 0.0)
    cells.write("other", b"x", 0)
    assert cells.read("brief").version == 0


def read_before(database: Database) -> None:
    """Read a cell before a failover, and write it after that."""
    test_a_cell_that_was_read_before_a_failover_is_not_written_after_it(database, "observed")


def with_cells(test: Callable[[Cells, Database], None]) -> Callable[[Database], None]:
    """Return a test that opens the store by itself."""

    def run(database: Database) -> None:
        cells = Cells(database.url)
        try:
            test(cells, database)
        finally:
            cells.close()

    return run


lagging = with_cells(test_a_server_that_lags_does_not_count_up_to_the_versions_of_the_other)
stepping = with_cells(test_versions_grow_although_the_clock_steps_back)

ANY_SERVER = "AND %(since)s AND m.timeline = $timeline AND (m.started = $started OR $started = 0))"
first_write = test_the_first_request_to_a_promoted_server_may_be_a_late_write

PLANTED: dict[str, tuple[str, str, str, Callable[[Database], None]]] = {
    "a write does not look at the quarantine": ("SCHEMA", " AND in_since = since\n", "\n", read_before),
    "a request for a cell begins no quarantine": (
        "SCHEMA",
        "    IF doubtful THEN\n",
        "    IF false THEN\n",
        first_write,
    ),
    "a version counts on": ("SCHEMA", "greatest(c.version + 1, @now)", "c.version + 1", lagging),
    "a version is the clock": ("SCHEMA", "greatest(c.version + 1, @now)", "@now", stepping),
    "a new cell does not look at the floor": ("SCHEMA", "greatest(m.floor + 1, @now)", "@now", stepping),
    "a sweep leaves the floor": ("SCHEMA", "UPDATE @meta SET floor = highest WHERE floor < highest;", "", stepping),
    "MySQL: a write does not look at the quarantine": ("WRITE_CELL", "AND %(since)s ", "", read_before),
    "MySQL: a write begins no quarantine": ("WRITE_CELL", ANY_SERVER, ")", first_write),
    "MySQL: a version counts on": ("WRITE_CELL", "GREATEST(version + 1, $now)", "version + 1", lagging),
    "MySQL: a version is the clock": ("WRITE_CELL", "GREATEST(version + 1, $now)", "$now", stepping),
    "MySQL: a new cell does not look at the floor": ("MAKE_CELL", "GREATEST($now, m.floor)", "$now", stepping),
}
"""By bug: the SQL in which it is, what that says, what it says then, and the test that fails."""


@pytest.mark.parametrize(
    ("database", "bug"),
    [("postgresql" if planted[0] == "SCHEMA" else "mysql", bug) for bug, planted in PLANTED.items()],
    indirect=["database"],
)
def test_a_planted_bug_is_found(database: Database, bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test of the guarantee fails with the bug."""
    where, before, after, test = PLANTED[bug]
    module = schema if where == "SCHEMA" else statements
    text: str = getattr(module, where)
    assert before in text
    monkeypatch.setattr(module, where, text.replace(before, after))
    with pytest.raises(AssertionError):
        test(database)


INTERRUPTED = "SIGNAL SQLSTATE '70100' SET MYSQL_ERRNO = 1317, MESSAGE_TEXT = 'Query execution was interrupted'"


def interrupt_the_next_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have somebody end the statement by which the next write of a cell looks what is there then."""
    write, read, ends = MySqlStatements.write_cell, MySqlStatements.read_cell, [False, True]

    def write_cell(*args: Any) -> str:  # noqa: ANN401
        ends[0] = ends[1]
        return write(*args)

    def read_cell(*args: Any) -> str:  # noqa: ANN401
        if ends[0]:
            ends[:] = [False, False]
            return INTERRUPTED
        return read(*args)

    monkeypatch.setattr(MySqlStatements, "write_cell", write_cell)
    monkeypatch.setattr(MySqlStatements, "read_cell", read_cell)


def test_a_cell_is_changed_once_if_the_look_after_the_write_fails(
    mariadb_server: "MariaDbServer", monkeypatch: pytest.MonkeyPatch
) -> None:
    """The write was done, so it is not made again as if nothing had been done."""
    with tenure.Client(mariadb_server.create_database(f"cells_{uuid4().hex[:12]}")) as client:
        counter = client.counter("orders")
        interrupt_the_next_look(monkeypatch)
        assert counter.add() == 1
        assert counter.get() == 1


def test_a_cell_is_changed_once_in_asyncio_too(
    mariadb_server: "MariaDbServer", monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other driver tells as well that the write was done."""

    async def main() -> None:
        async with tenure.AsyncClient(mariadb_server.create_database(f"cells_{uuid4().hex[:12]}")) as client:
            counter = client.counter("orders")
            interrupt_the_next_look(monkeypatch)
            assert await counter.add() == 1
            assert await counter.get() == 1

    asyncio.run(main())


def test_a_planted_bug_after_a_write_is_found(mariadb_server: "MariaDbServer", monkeypatch: pytest.MonkeyPatch) -> None:
    """The error of the look says that nothing was done."""
    wrong = planted(MySqlDatabase, "_write_and_read", "len(error.results) < len(writes)", "error.results")
    monkeypatch.setattr(MySqlDatabase, "_write_and_read", wrong)
    with pytest.raises(AssertionError):
        test_a_cell_is_changed_once_if_the_look_after_the_write_fails(mariadb_server, monkeypatch)
