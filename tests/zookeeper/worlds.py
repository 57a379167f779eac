"""Directories for threads or asyncio, and what tests do to their sessions."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import Any, Protocol, TypeVar
from urllib.parse import urlsplit

import pytest

import tenure
from tenure.contracts.runtime import Runtime
from tenure.errors import StoreError, StoreUnavailable
from tenure.runtimes.aio import AsyncioRuntime
from tenure.runtimes.threads import ThreadsRuntime, drive
from tenure.stores.ordered import Entry, Kind, Record
from tenure.stores.zookeeper.directory import ZooKeeperDirectory
from tenure.stores.zookeeper.library import QuietLogger, make_client
from tenure.stores.zookeeper.options import access_of
from tests.servers import Proxy, ZooKeeperServer, wait_until

T = TypeVar("T")

TEST_TIMEOUT = 10.0
"""How long to wait for what must happen, in seconds."""


class World(Protocol):
    """A runtime, and how its coroutines are run."""

    runtime: Runtime

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run an operation."""
        ...


class ThreadsWorld:
    """Each operation blocks."""

    def __init__(self) -> None:
        self.runtime: Runtime = ThreadsRuntime()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run an operation."""
        return drive(work)


class AsyncioWorld:
    """Operations run in an event loop of their own, which stands still between them."""

    def __init__(self, runner: asyncio.Runner) -> None:
        self._runner = runner
        self.runtime: Runtime = runner.run(_make_runtime())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run an operation."""
        return self._runner.run(work)


async def _make_runtime() -> AsyncioRuntime:
    return AsyncioRuntime()


@contextmanager
def world_of(form: str) -> Generator[World, None, None]:
    """Make a world."""
    if form == "threads":
        yield ThreadsWorld()
        return
    with asyncio.Runner() as runner:
        yield AsyncioWorld(runner)


@dataclass(slots=True)
class Notes:
    """A watcher that notes what it hears."""

    woke: list[str] = field(default_factory=list[str])
    messages: list[str] = field(default_factory=list[str])
    losses: int = 0
    gaps: int = 0

    def woken(self, request_id: str) -> None:
        """Note it."""
        self.woke.append(request_id)

    def told(self, message: str) -> None:
        """Note it."""
        self.messages.append(message)

    def lost(self) -> None:
        """Note it."""
        self.losses += 1

    def gap(self) -> None:
        """Note it."""
        self.gaps += 1


class Member:
    """A directory, its world, and what it has heard."""

    def __init__(self, world: World, url: str, **options: str) -> None:
        query = "&".join(f"{key}={value}" for key, value in {"session_timeout": "8", **options}.items())
        self.world = world
        self.notes = Notes()
        self.directory = ZooKeeperDirectory(world.runtime, access_of(urlsplit(f"{url}/{world.runtime.form}?{query}")))

    @property
    def until(self) -> float:
        """The end of an operation that begins now."""
        return self.world.runtime.now() + TEST_TIMEOUT

    def soon(self, seconds: float) -> float:
        """Return an instant."""
        return self.world.runtime.now() + seconds

    def open(self) -> "Member":
        """Begin a session."""
        self.world.run(self.directory.open(self.notes, self.until))
        return self

    def close(self) -> None:
        """End it."""
        self.world.run(self.directory.close())

    def join(self, name: str, request_id: str, weight: int = 1, capacity: int = 1) -> Entry:
        """Contend."""
        return self.world.run(self.directory.join(name, contender(request_id, weight, capacity), self.until))[0]

    def look(self, name: str) -> list[Entry]:
        """List a name."""
        return self.world.run(self.directory.look(name, self.until)).entries

    def requests(self, name: str) -> list[str]:
        """List who stands in a name."""
        return [entry.request_id for entry in self.look(name)]

    def wait(self, condition: Callable[[], object]) -> None:
        """Let time pass until something has been heard."""
        self.world.run(self._wait(condition))

    def wait_for(self, request: Callable[[], Coroutine[Any, Any, T]], condition: Callable[[T], object]) -> None:
        """Ask until the answer is the right one."""
        until = self.until
        while not condition(self.world.run(request())):
            assert self.world.runtime.now() < until, "what was waited for has not happened"
            self.world.run(self.world.runtime.sleep(0.02))

    def await_gaps(self, number: int) -> None:
        """Let time pass until it has heard of so many."""
        self.wait(lambda: self.notes.gaps == number)

    def await_losses(self, number: int) -> None:
        """Let time pass until it has heard of so many."""
        self.wait(lambda: self.notes.losses == number)

    async def _wait(self, condition: Callable[[], object]) -> None:
        until = self.until
        while not condition():
            assert self.world.runtime.now() < until, "what was waited for has not happened"
            await self.world.runtime.sleep(0.005)


def contender(request_id: str, weight: int = 1, capacity: int = 1, text: str = "") -> Record:
    """Return the record of one who contends."""
    return Record(Kind.CONTENDER, request_id, weight, capacity, text=text)


def hand_over(world: World, url: str) -> None:
    """Have a client hold a lock, and another wait for it and get it."""
    if world.runtime.form == "threads":
        _hand_over(url)
    else:
        asyncio.run(_hand_over_async(url))


def _hand_over(url: str) -> None:
    with (
        tenure.Client(url, operation_timeout=TEST_TIMEOUT) as one,
        tenure.Client(url, operation_timeout=TEST_TIMEOUT) as two,
    ):
        first = one.lock("handed").acquire()
        assert two.lock("handed").try_acquire() is None
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(two.lock("handed", timeout=TEST_TIMEOUT).acquire)
            wait_until(lambda: one.inspect("handed").waiters, "a waiter")
            first.release()
            second = waiting.result()
        assert second.token > first.token
        second.release()


async def _hand_over_async(url: str) -> None:
    async with (
        tenure.AsyncClient(url, operation_timeout=TEST_TIMEOUT) as one,
        tenure.AsyncClient(url, operation_timeout=TEST_TIMEOUT) as two,
    ):
        first = await one.lock("handed").acquire()
        assert await two.lock("handed").try_acquire() is None
        waiting = asyncio.create_task(two.lock("handed", timeout=TEST_TIMEOUT).acquire())
        while not (await one.inspect("handed")).waiters:
            assert not waiting.done()
            await asyncio.sleep(0.002)
        await first.release()
        second = await waiting
        assert second.token > first.token
        await second.release()


def let_read(server: ZooKeeperServer, path: str, user: str, password: str) -> None:
    """Make a node that a login may read, and do nothing else with."""
    host, port = server.address
    security = import_module("kazoo.security")
    client = import_module("kazoo.client").KazooClient(hosts=f"{host}:{port}")
    client.start(TEST_TIMEOUT)
    try:
        client.ensure_path(path)
        client.set_acls(path, [security.make_digest_acl(user, password, read=True)])
    finally:
        client.stop()
        client.close()


@contextmanager
def proxied(server: ZooKeeperServer) -> Generator[tuple[Proxy, str], None, None]:
    """Run a proxy in front of a server; yield it with its URL."""
    with Proxy(server.address) as proxy:
        host, port = proxy.address
        yield proxy, f"zookeeper://{host}:{port}"


def _set(came: threading.Event, _state: str) -> None:
    came.set()


def end_session(server: ZooKeeperServer, member: Member) -> None:
    """Have the server end a session, as its time does."""
    from tenure.stores.zookeeper.handler import Handler

    client = member.directory._session.link._client
    assert client is not None
    taken = session = client.client_id
    assert session is not None
    host, port = server.address
    handler = Handler(access_of(urlsplit(server.url)), member.world.runtime)
    while taken == session:  # or the member took it back before it was ended
        options = {"client_id": session, "timeout": 8.0}
        other = make_client(f"{host}:{port}", handler, QuietLogger(), options, private=False)
        came = threading.Event()
        other.add_listener(partial(_set, came))
        other.start_async()
        assert came.wait(TEST_TIMEOUT)
        taken = other.client_id
        other.stop()
        other.close()


def refusal(world: World, url: str, **options: str) -> str:
    """Return what a client is told that can't be served, long before its time is over."""
    one, patience = Member(world, url, **options), 300.0
    until = one.soon(patience)
    try:
        with pytest.raises(StoreError) as caught:
            world.run(one.directory.open(one.notes, until))
    finally:
        one.close()
    assert world.runtime.now() < until - patience / 2
    assert not isinstance(caught.value, StoreUnavailable)
    return str(caught.value)
