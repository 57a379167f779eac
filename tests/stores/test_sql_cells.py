"""Cells in a database: versions never recur, and old cells go."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from tenure.contracts.cells import Cell
from tenure.runtimes.threads import ThreadsRuntime, drive
from tenure.stores.sql.store import SqlStore
from tenure.stores.urls import store_source

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


def test_a_sweep_looks_at_some_cells_at_a_time(cells: Cells, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says where to go on."""
    monkeypatch.setattr(cells.store._cells, "_at", float("inf"))  # the writes themselves sweep none
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
