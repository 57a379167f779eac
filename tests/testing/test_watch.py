"""`watch` and `slow` replace every function that they can, say which they cannot, and leave nothing behind."""

import asyncio
import re
import sqlite3
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from unittest.mock import AsyncMock, MagicMock

import pytest

from tenure import StaleTokenError, UsageError
from tenure.client import Client
from tenure_testing.pytest import Chaos
from tenure_testing.pytest.places import caller
from tests.testing.samples import HEAD


class Table:
    """What the code under test writes to."""

    @classmethod
    def make(cls) -> str:
        """Tell which class was asked."""
        return cls.__name__

    @staticmethod
    def empty(row: int) -> int:
        """Return what was given."""
        return row

    @property
    def size(self) -> int:
        """Return a number."""
        return 0

    def save(self, row: int, token: object = None) -> int:
        """Return what was given."""
        return row

    def rows(self) -> Iterator[int]:
        """Write one after another."""
        yield 1

    async def stream(self) -> AsyncIterator[int]:
        """Write one after another."""
        yield 1

    @contextmanager
    def transaction(self) -> Generator[None, None, None]:
        """Write at the end."""
        yield

    @asynccontextmanager
    async def async_transaction(self) -> AsyncGenerator[None, None]:
        """Write at the end."""
        yield


class Special(Table):
    """One kind of it."""


class Proxy:
    """What hands all on to a table."""

    def __init__(self) -> None:
        self._table = Table()

    def __getattr__(self, name: str) -> object:
        return getattr(self._table, name)


@pytest.mark.parametrize("name", ["rows", "stream", "transaction", "async_transaction"])
@pytest.mark.parametrize("owner", [Table, Table()], ids=["class", "object"])
def test_what_works_after_its_call_is_refused(tenure_chaos: Chaos, owner: object, name: str) -> None:
    """Generators and context managers would be judged too early: the error says what to name instead."""
    for replace in (tenure_chaos.watch, tenure_chaos.slow):
        with pytest.raises(UsageError, match=rf"Table\.{name} is a (generator|context manager).* called inside it"):
            replace(owner, name)


def test_a_special_method_is_watched_in_its_class(tenure_chaos: Chaos) -> None:
    """Python would never call that of an object."""
    with pytest.raises(UsageError, match="give the class, Table"):
        tenure_chaos.watch(Table(), "__setitem__")


def test_what_cannot_be_replaced_is_refused(tenure_chaos: Chaos) -> None:
    """A property is no function, and what is written in C is not to be changed: neither disturbs the end of a test."""
    with sqlite3.connect(":memory:") as connection:
        for builtin in (connection, sqlite3.Connection):
            with pytest.raises(UsageError, match="a function of your own that calls it"):
                tenure_chaos.watch(builtin, "execute")
    connection.close()
    for owner in (Table, Table()):
        with pytest.raises(UsageError, match="is no function"):
            tenure_chaos.watch(owner, "size")


def test_a_class_method_is_called_with_its_class(tenure_client: Client, tenure_chaos: Chaos) -> None:
    """Class methods and static methods are bound as before, by the class that was watched and those below it."""
    tenure_chaos.watch(Table, "make")
    tenure_chaos.watch(Special, "empty")
    with tenure_client.lock("name"):
        assert (Table.make(), Special.make(), Special().make()) == ("Table", "Special", "Special")
        assert (Special.empty(1), Special().empty(2)) == (1, 2)
    assert tenure_chaos.writes.count == 5


@pytest.mark.parametrize("owner", [MagicMock(), MagicMock(spec=Table), Proxy()], ids=["mock", "spec", "proxy"])
def test_fakes_can_be_watched(tenure_client: Client, tenure_chaos: Chaos, owner: Table) -> None:
    """Also functions that an object makes when it is asked for them."""
    tenure_chaos.watch(owner, "save")
    tenure_chaos.slow(owner, "save")
    with tenure_client.lock("name"):
        owner.save(1)
    assert tenure_chaos.writes.count == 1


def test_an_async_fake_can_be_watched(tenure_client: Client, tenure_chaos: Chaos) -> None:
    """It is judged when it is awaited."""
    table = AsyncMock()
    tenure_chaos.watch(table, "save")

    async def work() -> None:
        await table.save(1)

    with tenure_client.lock("name"):
        asyncio.run(work())
    assert tenure_chaos.writes.count == 1


def test_a_token_may_be_anything_that_is_a_number(tenure_client: Client, tenure_chaos: Chaos) -> None:
    """A token that was made a text is as good; what is none is no stale one."""
    table = Table()
    tenure_chaos.watch(table, "save", token="token")  # noqa: S106 - the name of a parameter
    lease = tenure_client.lock("name").acquire()
    table.save(1, token=str(lease.token))
    with pytest.raises(UsageError, match=r"of type list.*lease\.token"):
        table.save(1, token=[])
    tenure_chaos.lose(lease)
    with pytest.raises(StaleTokenError):
        table.save(1, token=str(lease.token))


def test_what_outlives_its_test_does_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """A monkeypatch of the test that is undone later puts the watched function back: it judges nothing any more."""
    chaos = Chaos()
    chaos.watch(Special, "save")
    monkeypatch.setattr(Special, "save", None)
    chaos.close()
    monkeypatch.undo()
    assert Special().save(1) == 1
    assert not chaos.writes.count
    del Special.save
    assert Special.save is Table.save


CALLED_BY_THREADS = """
def test_it(tenure_async_client, database):
    async def work():
        async with tenure_async_client.lock("name") as lease:
            lease.check()
            writing = asyncio.create_task(asyncio.to_thread(database.save, 1))
            try:
                await asyncio.shield(writing)
            finally:
                await writing
    asyncio.run(work())
"""


def test_no_line_of_the_plugin_is_named(pytester: pytest.Pytester) -> None:
    """A thread that runs nothing but the watched function has no line of the user: the function is named."""
    pytester.makepyfile(test_it=HEAD + CALLED_BY_THREADS)
    report = pytester.runpytest_inprocess("-p", "no:cacheprovider", "-p", "no:valkey").stdout.str()
    assert re.search(r"written at Database\.save, called directly by a thread", report), report
    assert "writes.py" not in report


def test_places_are_found_without_a_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Code under test may remove the directory that it works in."""
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert "test_watch.py" in caller()


def test_only_the_last_run_records_properties(pytester: pytest.Pytester) -> None:
    """What a test says of itself is reported once, however often it runs."""
    pytester.makepyfile(
        test_it=HEAD
        + """
def test_it(tenure_client, database, record_property):
    record_property("size", 1)
    with tenure_client.lock("name"):
        database.save(1)
"""
    )
    pytester.runpytest_inprocess(
        "-p", "no:cacheprovider", "-p", "no:valkey", "--junitxml=report.xml", "-o", "junit_family=xunit1"
    )
    assert (pytester.path / "report.xml").read_text("utf-8").count('name="size"') == 1
