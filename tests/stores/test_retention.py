"""What a store remembers of a name that nobody uses any more, and for how long."""

from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest

from holdfast.core.messages import Ask, Gone, Granted, Release
from holdfast.outcome import Outcome
from holdfast.runtimes.threads import ThreadsRuntime, drive
from holdfast.stores.memory import MemoryStore, MemoryTable
from holdfast.stores.sqlite import SqliteStore
from holdfast.stores.tabled import RETENTION

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
    made.store = store
    drive(store.open(lambda notice: None, NEVER))
    yield made
    drive(store.close())


def ask(name: str, request: str) -> Ask:
    """Return an ask for ten seconds."""
    ttl = 10 * SECOND
    return Ask(name, request, "", "somebody", ttl, SECOND, 4 * SECOND, wait=False)


def test_a_release_is_remembered_although_its_name_is_unused(bench: Bench) -> None:
    """A release that is asked again half an hour later, after sweeps, gets the same answer; so does a late ask."""
    granted = bench.do(lambda store: store.acquire(ask("name", "mine"), NEVER))
    assert isinstance(granted, Granted)
    release = Release("name", "mine", granted.token)
    assert bench.do(lambda store: store.release(release, NEVER)) is Outcome.RELEASED
    bench.now += RETENTION // 2
    bench.do(lambda store: store.acquire(ask("other", "another"), NEVER))  # sweeps on its way
    assert bench.do(lambda store: store.release(release, NEVER)) is Outcome.RELEASED
    assert bench.do(lambda store: store.acquire(ask("name", "mine"), NEVER)) == Gone()


def test_a_name_is_forgotten_after_the_retention_and_its_tokens_grow_on(bench: Bench) -> None:
    """An unused name costs nothing in the end, and its next token is larger although the wall clock went back."""
    granted = bench.do(lambda store: store.acquire(ask("name", "mine"), NEVER))
    assert isinstance(granted, Granted)
    bench.do(lambda store: store.release(Release("name", "mine", granted.token), NEVER))
    bench.now += RETENTION + 2 * SECOND
    bench.do(lambda store: store.acquire(ask("other", "another"), NEVER))
    assert bench.do(lambda store: store.names("", NEVER)) == ["other"]
    bench.now -= RETENTION + 4 * SECOND
    again = bench.do(lambda store: store.acquire(ask("name", "later"), NEVER))
    assert isinstance(again, Granted)
    assert again.token > granted.token
