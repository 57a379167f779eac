"""The history of a name: what clients write of it, in order, once each, within its bounds."""

import asyncio
import json
import threading
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tenure import AsyncClient, Client, HistoryEntry, LeaseState, LockTimeout, StoreUnavailable, UsageError
from tenure.contracts.cells import Cell
from tenure.contracts.messages import Notification
from tenure.contracts.runtime import Runtime, ShuttingDown
from tenure.contracts.store import StoreSource
from tenure.core import history
from tenure.core.history import LONGEST_PERIOD, MOST_BYTES, MOST_ENTRIES, Recorder, Told, added
from tenure.core.session import Session
from tenure.errors import OutcomeUnknown
from tenure.runtimes import threads
from tenure.stores.memory import MemoryStore, MemoryTable, memory_source
from tests import virtual
from tests.hazards.helpers import Script, eventually
from tests.planting import planted
from tests.servers import PostgresServer, RedisServer

SECOND = 1_000_000
NOW = 1_800_000_000 * SECOND


def wall() -> int:
    """Return a wall clock that goes with the steady one."""
    return NOW + virtual.micros()


def table() -> MemoryTable:
    """Make a table in virtual time."""
    return MemoryTable(virtual.micros, wall)


def granted(token: int, at: float = 0.0, owner: str = "anna") -> Told:
    """Return a grant at a local instant."""
    return Told("name", at, "granted", str(token), token, owner, 0, "")


def ended(token: int, at: float = 0.0, how: str = "released") -> Told:
    """Return the end of a lease."""
    return Told("name", at, "", str(token), token, "anna", 0, how)


def write(state: Any, *events: Told, local_now: float = 0.0, now: int = NOW) -> list[list[Any]]:  # noqa: ANN401 - what JSON knows
    """Return what a history is after a batch."""
    after: list[list[Any]] = added(state, now, events=events, local_now=local_now).state
    return after


def test_a_batch_that_is_written_twice_is_told_once() -> None:
    """The first reply was lost: grants are known by their tokens, waits by their ids."""
    gave_up = Told("name", 0.5, "not granted", "anna 7", 0, "anna", SECOND, "timeout")
    batch = granted(5, 0.0), gave_up, ended(5, 1.0)
    once = write(None, *batch, local_now=1.0)
    assert write(once, *batch, local_now=3.0, now=NOW + 2 * SECOND) == once
    assert [(each[0] - NOW, each[6] and each[6] - NOW) for each in once] == [(-SECOND, 0), (-SECOND // 2, 0)]


def test_batches_of_different_clients_are_in_the_order_of_time() -> None:
    """Whoever writes first; each counts back from the clock of the store."""
    late = write(None, granted(8, at=9.0), local_now=9.0)
    both = write(late, granted(7, at=100.0), ended(7, at=101.0), local_now=105.0)
    assert [each[3] for each in both] == [7, 8]


@pytest.mark.parametrize("owner", ["anna", "名" * 500])
def test_a_history_has_bounds(owner: str) -> None:
    """The last entries are kept: so many, and so many bytes, whatever the owners are called."""
    state: list[list[Any]] = []
    for token in range(1, 3 * MOST_ENTRIES):
        state = write(state, granted(token, owner=owner[: history.LONGEST_TEXT]), ended(token))
        assert len(state) <= MOST_ENTRIES
        assert len(json.dumps(state, separators=(",", ":"))) <= MOST_BYTES
    assert state[-1][3] == 3 * MOST_ENTRIES - 1
    assert len(state) > 5
    if owner == "anna":
        assert len(state) == MOST_ENTRIES


def short(entries: list[HistoryEntry]) -> list[tuple[object, ...]]:
    """Return what tells an entry from others."""
    return [(each.what, each.token, each.owner, each.ended is not None, each.how) for each in entries]


async def incident(anna: AsyncClient, ben: AsyncClient) -> list[tuple[object, ...]]:
    """Play an incident, and return what the history must tell."""
    expected: list[tuple[object, ...]] = []
    async with anna.lock("orders") as first:
        expected.append(("granted", first.token, "anna", True, "released"))
    stuck = await anna.lock("orders").acquire()
    with pytest.raises(LockTimeout):
        await ben.lock("orders").acquire(timeout=0.05)
    assert await ben.lock("orders").try_acquire() is None  # which nobody has to know of
    await ben.revoke("orders", force=True)
    assert await stuck.lost.wait(30)
    expected += [("granted", stuck.token, "anna", True, "lost: revoked"), ("not granted", 0, "ben", False, "timeout")]
    await stuck.release()
    after = await ben.lock("orders").acquire()
    expected.append(("granted", after.token, "ben", True, "released"))
    await after.release()
    return expected


async def tell(source: Callable[[], dict[str, Any]]) -> None:
    """Play the incident, and compare the history when both clients are closed."""
    async with (
        AsyncClient(owner="anna", record=True, **source()) as anna,
        AsyncClient(owner="ben", record=True, **source()) as ben,
    ):
        await ben.names()  # so that it is connected
        expected = await incident(anna, ben)
    async with AsyncClient(**source()) as later:
        found = await later.history("orders")
        assert await later.history("others") == []
    assert sorted(short(found), key=str) == sorted(expected, key=str)
    assert [each for each in short(found) if each[1]] == [each for each in expected if each[1]]
    assert [each.at for each in found] == sorted(each.at for each in found)


def test_an_incident_is_told() -> None:
    """In order, with its tokens."""
    virtual.run(_tell_in_memory)


async def _tell_in_memory() -> None:
    source = memory_source(table())
    await tell(lambda: {"store": source})


def test_redis_keeps_histories(redis_server: RedisServer) -> None:
    """As every store does that keeps cells."""
    url = redis_server.url
    asyncio.run(tell(lambda: {"url": url, "namespace": "history", "operation_timeout": 10.0}))


def test_postgresql_keeps_histories(postgres_server: PostgresServer) -> None:
    """As every store does that keeps cells."""
    url = postgres_server.url
    asyncio.run(tell(lambda: {"url": url, "namespace": "history", "operation_timeout": 10.0}))


def test_a_store_without_cells_refuses() -> None:
    """When the client is made, rather than in silence."""
    with pytest.raises(UsageError, match="keeps no history of names"):
        Client("memcached://127.0.0.1:1", record=True)
    with Client("memcached://127.0.0.1:1") as client, pytest.raises(UsageError, match="keeps no history of names"):
        client.history("name")


class Failing(MemoryStore):
    """A store whose cells fail when a test says so, before or after they are written."""

    fails: list[Exception]

    async def write_cell(self, name: str, value: bytes, version: int, keep: int, until: float) -> Cell:
        """Write a cell, or fail."""
        if self.fails:
            error = self.fails.pop()
            if isinstance(error, OutcomeUnknown):
                await super().write_cell(name, value, version, keep, until)
            raise error
        return await super().write_cell(name, value, version, keep, until)


def failing(errors: list[Exception]) -> StoreSource:
    """Return the source of a store whose first writes of cells fail so."""
    in_memory = table()

    def make(runtime: Runtime) -> MemoryStore:
        store = Failing(runtime, in_memory)
        store.fails = errors
        return store

    return StoreSource("failing", MemoryStore.capabilities, make)


async def _play_failures() -> None:
    errors: list[Exception] = []
    async with AsyncClient(store=failing(errors), owner="anna", record=True, retry_for=0.0) as client:
        tokens: list[int] = []
        for error, times in ((StoreUnavailable("down"), 100), (OutcomeUnknown("lost"), 2)):
            errors += [error] * times
            async with client.lock("name") as lease:
                tokens.append(lease.token)
            await asyncio.sleep(600)
            assert not errors, "the history is written again and again, until it is written"
            async with client.lock("other"):
                pass
        await asyncio.sleep(60)
        found = await client.history("name")
        assert [(each.token, each.how) for each in found] == [(token, "released") for token in tokens]
        assert len(await client.history("other")) == 2


def test_a_history_waits_for_the_store() -> None:
    """What could not be written is written later, once."""
    virtual.run(_play_failures)


class Closed(MemoryStore):
    """A store that opens only when a test says so, and notes each try."""

    tries: list[float]
    works = False

    async def open(self, deliver: Callable[[Notification], None], until: float) -> str:
        """Open the store, or fail."""
        self.tries.append(virtual.micros() / SECOND)
        if not self.works:
            raise StoreUnavailable("down")
        return await super().open(deliver, until)

    async def write_cell(self, name: str, value: bytes, version: int, keep: int, until: float) -> Cell:
        """Write a cell so slowly that the next event comes meanwhile."""
        await asyncio.sleep(0.6)
        return await super().write_cell(name, value, version, keep, until)


async def _play_outage() -> None:
    stores: list[Closed] = []

    def make(runtime: Runtime) -> MemoryStore:
        stores.append(Closed(runtime, table()))
        stores[-1].tries = []
        return stores[-1]

    source = StoreSource("closed", MemoryStore.capabilities, make)
    async with AsyncClient(store=source, owner="anna", record=True, retry_for=0.0) as client:
        with pytest.raises(StoreUnavailable):
            await client.lock("name").acquire()
        await asyncio.sleep(600)
        (store,) = stores
        pauses = [later - one for one, later in pairwise(store.tries)]
        assert pauses[:5] == [pytest.approx(each, abs=0.5) for each in (1, 2, 4, 8, 16)]
        assert len(pauses) > 20, "it goes on"
        assert max(pauses) < LONGEST_PERIOD + 0.5
        store.works = True
        for _ in range(80):
            async with client.lock("name"):
                await asyncio.sleep(0.5)
        await asyncio.sleep(4)
        assert [each.how for each in await client.history("name")] == ["error", *["released"] * 80], "soon, as before"


def test_a_store_that_cannot_be_opened_is_tried_less_and_less_often() -> None:
    """Up to every half minute, and every second again once it has answered."""
    virtual.run(_play_outage)


async def _play_end() -> None:
    source = memory_source(table())
    async with AsyncClient(store=source, record=True) as client:
        first = await client.lock("name").acquire()
        await asyncio.sleep(60)
        (present,) = await client.history("name")
        assert (present.ended, present.how) == (None, "")
        await first.release()
        await asyncio.sleep(60)
        (past,) = await client.history("name")
        assert past.ended is not None
        assert 59 < (past.ended - past.at).total_seconds() < 61
        last = await client.lock("name").acquire()
    assert last.state is LeaseState.RELEASED, "closing the client has released it"
    async with AsyncClient(store=source) as client:
        assert [each.how for each in await client.history("name")] == ["released", "released"]


def test_ends_are_added_while_the_client_works_and_when_it_is_closed() -> None:
    """The task starts anew with each event that comes after it had nothing to do."""
    virtual.run(_play_end)


KILLED = """
import os, sys, time, tenure
client = tenure.Client(sys.argv[1], owner="killed", record=True)
lease = client.lock("name", ttl=1000).acquire()
while not client.history("name"):
    time.sleep(0.01)
os.kill(os.getpid(), 9)
"""


def test_a_killed_holder_leaves_a_grant_without_an_end(tmp_path: Path) -> None:
    """Threads write too, in the background."""
    url = f"sqlite://{tmp_path}/locks.db"
    script = Script(KILLED, url)
    script.end()
    assert script.status == -9
    with Client(url) as client:
        (found,) = client.history("name")
    assert (found.owner, found.ended, found.how) == ("killed", None, "")


def test_threads_write_when_they_are_done() -> None:
    """The history task of threads ends when it has nothing to write, and starts again."""
    with Client("memory://history-of-threads", record=True) as client:
        for count in (1, 2):
            with client.lock("name"):
                pass
            eventually(partial(_is_written, client, count), "the history is written")
            recorder = client.session().recorder
            assert recorder is not None
            eventually(partial(_has_ended, recorder), "the task has ended")


def _is_written(client: Client, count: int) -> bool:
    return len(client.history("name")) == count


def _has_ended(recorder: Recorder) -> bool:
    return recorder._task is not None and recorder._task.ended()


def test_closing_writes_where_no_thread_starts() -> None:
    """As in functions of `atexit`, in the first releases of Python 3.12."""

    def shut_down(_run: object, name: str) -> threading.Thread:
        raise ShuttingDown(name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threads, "start_thread", shut_down)
        with Client("memory://history-at-exit", record=True) as client, client.lock("name") as lease:
            token = lease.token
    with Client("memory://history-at-exit") as client:
        assert (token, "released") in [(each.token, each.how) for each in client.history("name")]


PLANTED: list[tuple[type, str, str, str]] = [
    (Told, "added_to", "elif there is None:", "else:"),
    (Told, "added_to", "if there is not None and not there[ENDED]:", "if False:"),
    (Told, "added_to", "insort(entries, [at, self", "entries.append([at, self"),
    (Recorder, "_goes_on", "bool(self._waiting) and not self._stopping", "False"),
    (Recorder, "_run", "min(2 * pause, LONGEST_PERIOD)", "PERIOD"),
    (Recorder, "_run", "min(2 * pause, LONGEST_PERIOD)", "2 * pause"),
    (Recorder, "_run", "PERIOD if await self._write() else", "pause if await self._write() else"),
    (Recorder, "_write", "self._waiting.extendleft", "list"),
    (Recorder, "_write", "del by_name[name]", "by_name.clear()"),
    (Recorder, "end", "if write and self._runtime.now() < until:", "if False:"),
]


@pytest.mark.parametrize("bug", range(len(PLANTED)))
def test_a_planted_bug_is_noticed(bug: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """By one of the tests above that need no server."""
    owner, method, right, wrong = PLANTED[bug]
    if "insort" in right:
        right, wrong = right + ".what", wrong + ".what"
    monkeypatch.setattr(owner, method, planted(owner, method, right, wrong))
    with pytest.raises((AssertionError, TypeError)):
        _check_all()


def _check_all() -> None:
    test_a_batch_that_is_written_twice_is_told_once()
    test_batches_of_different_clients_are_in_the_order_of_time()
    test_an_incident_is_told()
    test_a_history_waits_for_the_store()
    test_a_store_that_cannot_be_opened_is_tried_less_and_less_often()
    test_ends_are_added_while_the_client_works_and_when_it_is_closed()
    test_closing_writes_where_no_thread_starts()


CALLS: dict[str, Callable[[Client], object]] = {
    "a history": lambda client: client.history("name"),
    "a counter": lambda client: client.counter("name").get(),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_client_that_is_closed_as_its_session_begins_says_so(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the session begins before the call is driven or within it, it is closed, and the error says so."""
    client = Client("memory://")
    start = client._start

    def close_meanwhile(runtime: Runtime) -> Session:
        session = start(runtime)
        thread = threading.Thread(target=client.close)
        thread.start()
        thread.join()
        return session

    monkeypatch.setattr(client, "_start", close_meanwhile)
    with pytest.raises(UsageError, match="closed"):
        CALLS[call](client)
    assert client._session is None
