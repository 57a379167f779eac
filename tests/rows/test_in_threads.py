"""A table for threads in asyncio: its calls have threads of their own."""

import asyncio
import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType

import pytest

from tenure import AsyncClient
from tenure.errors import StoreUnavailable
from tenure.stores.rows import Row, bounded, row_source
from tests.planting import module_with
from tests.rows.tables import DictTable, Rows

LONG = 20.0
ROOT = Path(__file__).parents[2]


async def lock_while_threads_are_busy() -> bool:
    """Use a lock while the program keeps all threads of its loop busy; return whether they still are."""
    loop, over = asyncio.get_running_loop(), threading.Event()
    busy = [loop.run_in_executor(None, over.wait) for _ in range(100)]
    end = loop.call_later(LONG, over.set)
    async with AsyncClient(store=row_source("a dict", lambda: DictTable(Rows()))) as client, client.lock("a", ttl=90):
        were_busy = not over.is_set()
    end.cancel()
    over.set()
    await asyncio.gather(*busy)
    return were_busy


def test_a_busy_program_loses_no_lease() -> None:
    """Renewals do not wait for the threads that `asyncio.to_thread` gives to the program's own work."""
    assert asyncio.run(lock_while_threads_are_busy())


def test_the_threads_end_with_the_client() -> None:
    """Nothing of it is left."""
    before = set(threading.enumerate())
    asyncio.run(lock_while_threads_are_busy())
    for each in set(threading.enumerate()) - before:
        each.join(LONG)
    assert set(threading.enumerate()) <= before


class StuckTable(DictTable):
    """A table whose reads of `lock.stuck` wait for the test."""

    def __init__(self) -> None:
        super().__init__(Rows())
        self.goes_on = threading.Event()

    def read(self, key: str, timeout: float) -> Row:
        """Return a row."""
        if key == "lock.stuck":
            self.goes_on.wait()
        return super().read(key, timeout)


async def stuck_calls_stop_nobody(source: ModuleType) -> None:
    """Each ends in its time, more than a bound wait their turn, and no more threads stand still than a bound."""
    table, before = StuckTable(), set(threading.enumerate())
    rows = source.InThreads("a dict", table)
    try:
        stuck = [asyncio.create_task(rows.read("lock.stuck", LONG)) for _ in range(source.AT_ONCE)]
        await asyncio.sleep(0)
        with pytest.raises(TimeoutError):
            await rows.read("lock.a", 0.05)
        for each in stuck:
            each.cancel()
        assert await rows.read("lock.a", LONG) == Row()
        for _ in range(source.MOST - source.AT_ONCE):
            with pytest.raises(TimeoutError):
                await rows.read("lock.stuck", 0.001)
        assert len(set(threading.enumerate()) - before) == source.MOST
        with pytest.raises(StoreUnavailable, match="have not ended"):
            await rows.read("lock.a", LONG)
    finally:
        table.goes_on.set()
        for thread in set(threading.enumerate()) - before:
            thread.join(LONG)
    for _ in range(source.MOST + 1):
        assert await rows.read("lock.a", LONG) == Row()
    await rows.close()


def test_stuck_calls_stop_nobody() -> None:
    """Neither the loop nor the calls of others."""
    asyncio.run(stuck_calls_stop_nobody(bounded))


STUCK = """
import asyncio
from tenure.stores.rows.bounded import InThreads
from tests.rows.test_in_threads import StuckTable

async def read():
    try:
        await InThreads("a dict", StuckTable()).read("lock.stuck", 0.1)
    except TimeoutError:
        print("gave up")

asyncio.run(read())
"""


def test_a_stuck_call_keeps_no_process() -> None:
    """It ends with the process, which waits for nothing that nobody waits for."""
    ended = subprocess.run(
        [sys.executable, "-c", STUCK], capture_output=True, text=True, timeout=60, check=False, cwd=ROOT
    )
    assert (ended.stdout, ended.stderr, ended.returncode) == ("gave up\n", "", 0)


class InterruptError(BaseException):
    """What a signal handler raises."""


def test_an_interrupt_as_a_call_begins_frees_one_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether its thread has begun by then or not."""
    start = threading.Thread.start

    def begun(thread: threading.Thread) -> None:
        start(thread)
        raise InterruptError

    def not_begun(_thread: threading.Thread) -> None:
        raise InterruptError

    monkeypatch.setattr(bounded, "MOST", 1)
    table, before = StuckTable(), set(threading.enumerate())
    rows = bounded.BoundedTable("a dict", table)
    for interrupted in (not_begun, begun):
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", interrupted)
            with pytest.raises(InterruptError):
                rows.read("lock.a", LONG)
        for thread in set(threading.enumerate()) - before:
            thread.join(LONG)
        assert rows.read("lock.a", LONG) == Row()
    with pytest.raises(TimeoutError):
        rows.read("lock.stuck", 0.001)
    with pytest.raises(StoreUnavailable, match="have not ended"):
        rows.read("lock.a", 0.001)
    table.goes_on.set()


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("asyncio.timeout(timeout), self._turns", "asyncio.timeout(timeout)"),
        ("BoundedSemaphore(MOST)", "BoundedSemaphore(MOST + 1)"),
        ("    else:\n        _leave(slot)", "    else:"),
    ],
)
def test_a_planted_bug_is_found(right: str, wrong: str) -> None:
    """Nobody waits for a turn, more threads begin than should, or they are counted for ever."""
    source = module_with(bounded, (right, wrong))
    with pytest.raises((AssertionError, StoreUnavailable, pytest.fail.Exception)):
        asyncio.run(stuck_calls_stop_nobody(source))
