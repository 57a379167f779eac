"""What a store remembers of an unused name, and for how long."""

import contextlib
from collections.abc import Callable, Coroutine, Generator, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tenure.contracts.messages import AcquireRequest, Granted, ReleaseRequest, Withdrawn
from tenure.outcome import Outcome
from tenure.runtimes.threads import ThreadsRuntime, drive
from tenure.stores.memory import REMEMBERED, MemoryStore, MemoryTable
from tenure.stores.sqlite import SqliteStore
from tenure.stores.sqlite.database import SWEEP_AT_MOST, SWEEP_EVERY
from tenure.stores.tabled import RETENTION

T = TypeVar("T")

SECOND = 1_000_000
NEVER = 1e12


@dataclass
class Bench:
    """A store whose clock the test sets."""

    now: int = 1_000_000_000 * SECOND
    store: MemoryStore | SqliteStore | None = None

    def clock(self) -> int:
        """Return the time that the test has set."""
        return self.now

    def do(self, work: Callable[[MemoryStore | SqliteStore], Coroutine[Any, Any, T]]) -> T:
        """Carry out an operation."""
        assert self.store is not None
        return drive(work(self.store))


@contextlib.contextmanager
def opened(bench: Bench, store: MemoryStore | SqliteStore) -> Generator[Bench]:
    """Open a store for a block, and close it whatever fails."""
    bench.store = store
    drive(store.open(lambda notification: None, NEVER))
    try:
        yield bench
    finally:
        drive(store.close())


@pytest.fixture(params=["memory", "sqlite"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    """Return a store of each kind."""
    made = Bench()
    runtime = ThreadsRuntime()
    store: MemoryStore | SqliteStore
    if request.param == "memory":
        store = MemoryStore(runtime, MemoryTable(made.clock, made.clock))
    else:
        store = SqliteStore(runtime, tmp_path / "locks.db", made.clock, made.clock)
    with opened(made, store):
        yield made


def ask(name: str, request_id: str) -> AcquireRequest:
    """Return a request for ten seconds."""
    ttl = 10 * SECOND
    return AcquireRequest(name, request_id, "", "somebody", ttl, SECOND, 4 * SECOND, wait=False)


def test_a_release_is_remembered_although_its_name_is_unused(bench: Bench) -> None:
    """A release that is repeated a minute later, after sweeps, gets the same answer; so does a late request."""
    granted = bench.do(lambda store: store.acquire(ask("name", "mine"), NEVER))
    assert isinstance(granted, Granted)
    release = ReleaseRequest("name", "mine", granted.token)
    assert bench.do(lambda store: store.release(release, NEVER)) is Outcome.RELEASED
    bench.now += RETENTION // 2
    bench.do(lambda store: store.acquire(ask("other", "another"), NEVER))  # sweeps on its way
    assert bench.do(lambda store: store.release(release, NEVER)) is Outcome.RELEASED
    assert bench.do(lambda store: store.acquire(ask("name", "mine"), NEVER)) == Withdrawn()


def test_a_name_is_forgotten_after_the_retention_and_its_tokens_grow_on(bench: Bench) -> None:
    """An unused name costs nothing in the end; its next token is larger although the wall clock went back."""
    granted = bench.do(lambda store: store.acquire(ask("name", "mine"), NEVER))
    assert isinstance(granted, Granted)
    bench.do(lambda store: store.release(ReleaseRequest("name", "mine", granted.token), NEVER))
    bench.now += RETENTION + 2 * SECOND
    bench.do(lambda store: store.acquire(ask("other", "another"), NEVER))
    assert bench.do(lambda store: store.names("", NEVER)).names == ["other"]
    bench.now -= RETENTION + 4 * SECOND
    again = bench.do(lambda store: store.acquire(ask("name", "later"), NEVER))
    assert isinstance(again, Granted)
    assert again.token > granted.token


def use(bench: Bench, name: str) -> int:
    """Acquire a name and release it a millisecond later; return its token."""
    bench.now += SECOND // 1000
    request_id = f"at {bench.now}"
    granted = bench.do(lambda store: store.acquire(ask(name, request_id), NEVER))
    assert isinstance(granted, Granted)
    assert (
        bench.do(lambda store: store.release(ReleaseRequest(name, request_id, granted.token), NEVER))
        is Outcome.RELEASED
    )
    return granted.token


def test_a_table_in_memory_remembers_few_names_that_nobody_uses() -> None:
    """However many names are used within a moment, few are remembered; no token is issued twice."""
    bench = Bench()
    table = MemoryTable(bench.clock, bench.clock)
    bench.store = MemoryStore(ThreadsRuntime(), table)
    held = replace(ask("held", "mine"), ttl=600 * SECOND)
    bench.do(lambda store: store.acquire(held, NEVER))
    first, most = use(bench, "0"), 0
    for number in range(4 * REMEMBERED):
        use(bench, f"{number}")
        most = max(most, len(table._states))
    assert most <= 2 * REMEMBERED + 10
    assert bench.do(lambda store: store.inspect("held", NEVER)).holders, "a name that is held is never forgotten"
    bench.now -= 3600 * SECOND
    last = use(bench, "1")
    assert last > first
    assert use(bench, "0") > first


def test_a_lock_file_forgets_names_as_fast_as_they_come(tmp_path: Path) -> None:
    """A file with ever new names has rows for those of the last minutes only, and does not grow."""
    bench = Bench()
    store = SqliteStore(ThreadsRuntime(), tmp_path / "locks.db", bench.clock, bench.clock)
    rows: list[int] = []
    with opened(bench, store):
        for number in range(3000):
            bench.now += RETENTION // 1000 - SECOND // 1000
            use(bench, f"{number}")
            if number % 1000 == 999:
                connection = store._database._connection
                assert connection is not None
                rows.append(connection.execute("SELECT count(*) FROM names").fetchone()[0])
        assert max(rows) <= 1000 * (1 + SWEEP_EVERY / RETENTION) + SWEEP_AT_MOST


def test_a_table_that_forgets_counters_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted bug: the counters of forgotten names do not go into the floor, so a token is issued twice."""
    sweep = MemoryTable._sweep

    def forgetful(self: MemoryTable, now: int) -> None:
        floor = self._floor
        sweep(self, now)
        self._floor = floor

    monkeypatch.setattr(MemoryTable, "_sweep", forgetful)
    with pytest.raises(AssertionError, match=" > "):
        test_a_table_in_memory_remembers_few_names_that_nobody_uses()


def test_a_table_that_sweeps_by_the_clock_only_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted bug: the table sweeps once a minute only, however many names there are."""
    monkeypatch.setattr("tenure.stores.memory.REMEMBERED", 2**60)
    with pytest.raises(AssertionError, match=" <= "):
        test_a_table_in_memory_remembers_few_names_that_nobody_uses()


def forget_whatever(self: MemoryTable, now: int) -> None:
    """Forget the names whose last use is the oldest, even if they are held."""
    for name in list(self._states)[:-REMEMBERED]:
        self._floor = max(self._floor, self._states.pop(name).counter)
    self._crowded = 2 * REMEMBERED


def forget_the_last(self: MemoryTable, now: int) -> None:
    """Use the counter of the last name that is forgotten as the floor, instead of the largest."""
    unused = [name for name, state in self._states.items() if state.idle_after() < now]
    for name in unused[:-REMEMBERED]:
        self._floor = self._states.pop(name).counter
    self._floor //= 2
    self._crowded = 2 * REMEMBERED


def look_each_time(self: MemoryTable, now: int) -> None:
    """Forget no name that was used within the retention, however many there are."""
    unused = [name for name, state in self._states.items() if state.idle_after() + RETENTION < now]
    for name in unused:
        self._floor = max(self._floor, self._states.pop(name).counter)


@pytest.mark.parametrize("sweep", [forget_whatever, forget_the_last, look_each_time], ids=lambda bug: bug.__name__)
def test_a_table_that_sweeps_wrongly_is_found(
    sweep: Callable[[MemoryTable, int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted bugs: the table forgets too much or too little, or issues a token twice."""
    monkeypatch.setattr("tests.stores.test_retention.REMEMBERED", 64)
    monkeypatch.setattr("tenure.stores.memory.REMEMBERED", 64)
    test_a_table_in_memory_remembers_few_names_that_nobody_uses()
    monkeypatch.setattr(MemoryTable, "_sweep", sweep)
    with pytest.raises(AssertionError):
        test_a_table_in_memory_remembers_few_names_that_nobody_uses()


def test_a_file_that_sweeps_at_most_once_a_minute_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted bug: names that one sweep leaves wait for the next minute, and more come meanwhile."""
    monkeypatch.setattr("tenure.stores.sqlite.database.SWEEP_ON", SWEEP_EVERY)
    monkeypatch.setattr("tenure.stores.sqlite.database.SWEEP_AT_MOST", 10)
    with pytest.raises(AssertionError, match="<="):
        test_a_lock_file_forgets_names_as_fast_as_they_come(tmp_path)


def test_a_file_that_forgets_counters_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted bug: the counters of forgotten names do not go into the floor, so a token is issued twice."""
    monkeypatch.setattr("tenure.stores.sqlite.database.RAISE_FLOOR", "SELECT ?, ?")
    bench = Bench()
    bench.store = SqliteStore(ThreadsRuntime(), tmp_path / "locks.db", bench.clock, bench.clock)
    drive(bench.store.open(lambda notification: None, NEVER))
    with pytest.raises(AssertionError):
        test_a_name_is_forgotten_after_the_retention_and_its_tokens_grow_on(bench)
    drive(bench.store.close())


def test_a_store_that_forgets_too_soon_is_found(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted bug: a release is forgotten while it may still be repeated."""
    monkeypatch.setattr("tenure.stores.memory.RETENTION", SECOND)
    monkeypatch.setattr("tenure.stores.sqlite.database.RETENTION", SECOND)
    monkeypatch.setattr("tenure.stores.memory.SWEEP_EVERY", SECOND)
    with pytest.raises(AssertionError):
        test_a_release_is_remembered_although_its_name_is_unused(bench)
