"""The embedded store keeps every guarantee."""

import contextlib
import gc
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from tenure import Client, StoreError
from tenure.contracts.messages import Queued
from tenure.contracts.store import StoreSource
from tenure.runtimes.threads import ThreadsRuntime, drive
from tenure.stores.sqlite import opening, sqlite_source
from tenure.stores.sqlite.database import Database
from tenure.stores.sqlite.errors import LockedError
from tenure.stores.sqlite.store import SqliteStore
from tenure_testing.conformance import StoreConformance
from tenure_testing.conformance.kit import RawClient


class TestSqlite(StoreConformance):
    """`sqlite:///path`."""

    capabilities = SqliteStore.capabilities

    @pytest.fixture
    def source(self, tmp_path: Path) -> StoreSource:
        """Return a lock file that only this test uses."""
        return sqlite_source(tmp_path / "locks.db")


HOUR = 3_600_000_000


class _Clock:
    """A clock that a test moves, in microseconds."""

    def __init__(self) -> None:
        self.now = 1_000 * HOUR

    def __call__(self) -> int:
        return self.now


def test_a_forgotten_name_is_not_taken_for_a_new_one(tmp_path: Path) -> None:
    """A client that knew a name before it was forgotten and made anew does not overwrite its new holder."""
    clock = _Clock()
    stores = [SqliteStore(ThreadsRuntime(), tmp_path / "locks.db", clock, clock) for _ in range(2)]
    raws = [RawClient(ThreadsRuntime(), store, "") for store in stores]
    for raw in raws:
        drive(raw.open())
    old, new = raws
    request = old.request("name")
    drive(old.release(request, drive(old.acquire_free(request))))
    clock.now += 3 * HOUR
    drive(old.acquire_free(old.request("other")))  # which sweeps
    newer = new.request("name", ttl=60)
    token = drive(new.acquire_free(newer))
    drive(new.renew(newer, token, 60))
    assert isinstance(drive(old.acquire(old.request("name"))), Queued)
    for raw in raws:
        drive(raw.close())


class _Interrupted:
    """A connection that calls a function just before the second query about the file."""

    def __init__(self, connection: sqlite3.Connection, happens: Callable[[], None]) -> None:
        self._connection = connection
        self._happens = happens

    def execute(self, statement: str) -> sqlite3.Cursor:
        if "sqlite_master" in statement:
            self._happens()
        return self._connection.execute(statement)


def test_a_file_that_is_just_being_made_is_not_refused(tmp_path: Path) -> None:
    """A client that opens a file while another one makes it does not take it for another program's file."""
    path = tmp_path / "locks.db"
    clock = _Clock()
    there = Database(path, clock, clock, lambda _: True)
    connection = sqlite3.connect(path, timeout=0, isolation_level=None)

    def make() -> None:
        with contextlib.suppress(LockedError):
            there.open()

    opening._check_owner(path, cast("sqlite3.Connection", _Interrupted(connection, make)))
    connection.close()
    there.close()


def test_a_store_that_cannot_be_opened_leaves_nothing_open(tmp_path: Path) -> None:
    """A client whose store cannot be opened holds no socket or file."""
    gc.collect()
    before = len(list(Path("/proc/self/fd").iterdir()))
    client = Client(store=sqlite_source(tmp_path / "missing" / "locks.db"))
    with pytest.raises(StoreError, match="does not exist"):
        client.lock("name").acquire()
    client.close()
    assert len(list(Path("/proc/self/fd").iterdir())) == before
