"""Many asyncio tasks of one process contend for one name."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

from bench.contenders import NAME, SQLITE_ASYNCIO, clock, sqlite_url
from bench.crowd import START_AFTER, Crowd, crowd_report
from bench.harness import Report, Size, interleave
from tenure import AsyncClient

MEANINGS = {
    SQLITE_ASYNCIO: "tenure.AsyncClient, the embedded file",
    "memory asyncio": "tenure.AsyncClient, memory://",
    "asyncio.Lock": "floor: no ttl, no fencing token",
}

Acquire = Callable[[], Awaitable[Callable[[], Awaitable[object]]]]
"""Waits until the lock is held, and returns a function that releases it."""


def run(size: Size, folder: Path) -> Report:
    """Let the tasks of each contender contend for some seconds in turns."""
    opened = {
        SQLITE_ASYNCIO: lambda: _client(sqlite_url(folder)),
        "memory asyncio": lambda: _client("memory://bench-tasks"),
        "asyncio.Lock": _plain,
    }
    contenders = {label: _round(opener, size) for label, opener in opened.items()}
    title = f"{size.tasks} asyncio tasks of one process on one name; each holds it for one turn of the event loop"
    return crowd_report("tasks256", title, interleave(contenders, size.rounds), MEANINGS, "asyncio.Lock")


def _round(opener: Callable[[], AbstractAsyncContextManager[Acquire]], size: Size) -> Callable[[], Crowd]:
    return lambda: asyncio.run(_contend(opener, size))


@asynccontextmanager
async def _client(url: str) -> AsyncGenerator[Acquire]:
    client = AsyncClient(url)
    await client.names()  # opens the store
    lock = client.lock(NAME)

    async def acquire() -> Callable[[], Awaitable[object]]:
        return (await lock.acquire()).release

    try:
        yield acquire
    finally:
        await client.close()


@asynccontextmanager
async def _plain() -> AsyncGenerator[Acquire]:
    lock = asyncio.Lock()

    async def release() -> None:
        lock.release()

    async def acquire() -> Callable[[], Awaitable[object]]:
        await lock.acquire()
        return release

    yield acquire


async def _contend(opener: Callable[[], AbstractAsyncContextManager[Acquire]], size: Size) -> Crowd:
    async with opener() as acquire:
        crowd = Crowd(size.tasks, clock() + START_AFTER, size.seconds)
        await asyncio.gather(*(_acquire_on(acquire, crowd, member) for member in range(size.tasks)))
    return crowd


async def _acquire_on(acquire: Acquire, crowd: Crowd, member: int) -> None:
    await asyncio.sleep(max(0.0, crowd.start - clock()))
    while clock() < crowd.until:
        release = await acquire()
        crowd.enter(member)
        await asyncio.sleep(0)
        crowd.withdraw()
        await release()
