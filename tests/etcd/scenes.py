"""What the tests of the etcd directory start from: a directory for threads or asyncio, and what its watcher hears."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

from tenure.contracts.runtime import Runtime
from tenure.errors import StoreError
from tenure.reentry import outside
from tenure.runtimes.aio import AsyncioRuntime
from tenure.runtimes.threads import ThreadsRuntime, drive
from tenure.stores.etcd import etcd_directory
from tenure.stores.etcd.options import deployment_of
from tenure.stores.ordered import Kind, Record

TEST_TIMEOUT = 10.0
"""How long to wait, in seconds, for what must happen."""

Run = Callable[[Callable[[Runtime], Coroutine[Any, Any, None]]], None]
"""Runs a scene in threads or in asyncio."""


def run_threads(scene: Callable[[Runtime], Coroutine[Any, Any, None]]) -> None:
    """Run a scene in this thread."""
    drive(scene(ThreadsRuntime()))


def run_asyncio(scene: Callable[[Runtime], Coroutine[Any, Any, None]]) -> None:
    """Run a scene in an event loop."""

    async def main() -> None:
        await scene(AsyncioRuntime())

    asyncio.run(main())


class Meanwhile:
    """A mutex before which another thread gets something done, once."""

    def __init__(self, happens: Callable[[], object]) -> None:
        """Have this happen."""
        self._happens = [happens]
        self._mutex = threading.Lock()

    def __enter__(self) -> None:
        while self._happens:
            outside(self._happens.pop())
        self._mutex.acquire()

    def __exit__(self, *_: object) -> None:
        self._mutex.release()


class Heard:
    """A watcher that keeps what it was told, and can be waited for."""

    def __init__(self, runtime: Runtime) -> None:
        """Hear nothing yet."""
        self.events: list[str] = []
        self._runtime = runtime
        self._news = runtime.event()

    def _note(self, event: str) -> None:
        self.events.append(event)
        self._news.set()

    def woken(self, request_id: str) -> None:
        """Note it."""
        self._note(f"woken {request_id}")

    def told(self, message: str) -> None:
        """Note it."""
        self._note(f"told {message}")

    def lost(self) -> None:
        """Note it."""
        self._note("lost")

    def gap(self) -> None:
        """Note it."""
        self._note("gap")

    async def wait_for(self, event: str, count: int = 1) -> None:
        """Wait until something was told so many times."""
        until = self._runtime.now() + TEST_TIMEOUT
        while self.events.count(event) < count:
            self._news.clear()
            if self.events.count(event) < count:
                assert await self._news.wait(until), f"not told: {event}; told: {self.events}"


class Member:
    """One client: its directory, and what it heard."""

    def __init__(self, runtime: Runtime, url: str) -> None:
        """Prepare; nothing is connected yet."""
        self.runtime = runtime
        self.heard = Heard(runtime)
        self.directory = etcd_directory(deployment_of(urlsplit(url)), runtime)

    def soon(self, seconds: float = TEST_TIMEOUT) -> float:
        """Return an instant until which something may take."""
        return self.runtime.now() + seconds


@asynccontextmanager
async def member(runtime: Runtime, url: str) -> AsyncGenerator[Member]:
    """Have a client with a session, and close it."""
    one = Member(runtime, url)
    try:
        await one.directory.open(one.heard, one.soon())
        yield one
    finally:
        await one.directory.close()


def contender(request_id: str, text: str = "", weight: int = 1, capacity: int = 1) -> Record:
    """Return what is written for a contender."""
    return Record(Kind.CONTENDER, request_id, weight, capacity, text=text)


async def eventually(one: Member, attempt: Callable[[], Awaitable[Any]]) -> Any:  # noqa: ANN401 - whatever it returns
    """Try until it works, as who asks again would."""
    until = one.soon()
    while one.runtime.now() < until:
        with suppress(StoreError):
            return await attempt()
        await one.runtime.sleep(0.02)
    return await attempt()
