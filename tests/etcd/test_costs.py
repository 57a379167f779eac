"""What operations cost: how many requests they wait for."""

from collections.abc import Awaitable
from typing import TypeVar
from urllib.parse import urlsplit

from tenure.contracts.deadlines import micros
from tenure.contracts.messages import AcquireRequest, Busy, Granted, Queued, ReleaseRequest, WithdrawRequest
from tenure.contracts.runtime import Runtime
from tenure.outcome import Outcome
from tenure.stores.etcd import etcd_directory
from tenure.stores.etcd.http import EtcdReply, EtcdRequest
from tenure.stores.etcd.options import deployment_of
from tenure.stores.ordered.store import OrderedStore
from tenure.transport.link import ServerAddress
from tests.etcd.scenes import TEST_TIMEOUT, Run
from tests.servers import EtcdServer

T = TypeVar("T")

LONG = micros(60.0)


class Counted:
    """A store that counts what it asks of the server."""

    def __init__(self, runtime: Runtime, url: str) -> None:
        """Prepare; nothing is connected yet."""
        directory = etcd_directory(deployment_of(urlsplit(url)), runtime)
        self.store = OrderedStore(runtime, directory)
        self.until = runtime.now() + TEST_TIMEOUT
        self._link = directory._gateway._link
        self._paths: list[str] = []
        self._exchange, self._link.exchange = self._link.exchange, self._count  # type: ignore[method-assign, assignment]

    async def _count(self, address: ServerAddress, request: EtcdRequest, until: float) -> EtcdReply:
        self._paths.append(request.path)
        return await self._exchange(address, request, until)

    async def asked_for(self, operation: Awaitable[T]) -> tuple[T, int]:
        """Return what an operation returns, and how many requests it took."""
        before = len(self._paths)
        return await operation, len(self._paths) - before


def exchange(name: str, request: str, *, wait: bool = True, span: int = 1) -> AcquireRequest:
    """Ask for a lock."""
    return AcquireRequest(name, request, "", "somebody", LONG, LONG, LONG, wait=wait, span=span)


def test_operations_take_no_more_requests_than_they_need(run: Run, etcd_server: EtcdServer, name: str) -> None:
    """One to acquire, to be refused and to release; two to leave."""

    async def scene(runtime: Runtime) -> None:
        one = Counted(runtime, etcd_server.url)
        store, until = one.store, one.until
        await store.open(lambda _: None, until)
        try:
            granted, requests = await one.asked_for(store.acquire(exchange(name, "a-1/0"), until))
            assert isinstance(granted, Granted)
            assert requests == 1
            waiting, requests = await one.asked_for(store.acquire(exchange(name, "a-1/1"), until))
            assert isinstance(waiting, Queued)
            assert requests == 1
            busy, requests = await one.asked_for(store.acquire(exchange(name, "a-1/2", wait=False), until))
            assert isinstance(busy, Busy)
            assert busy.holders == ("somebody",)
            assert requests == 1
            left, requests = await one.asked_for(store.withdraw(WithdrawRequest(name, "a-1/1", unsure=False), until))
            assert left.holders == ("somebody",)
            assert requests == 2
            released = store.release(ReleaseRequest(name, "a-1/0", granted.token), until)
            assert await one.asked_for(released) == (Outcome.RELEASED, 1)
        finally:
            await store.close()

    run(scene)


def test_reserved_tokens_cost_nothing_until_somebody_waits(run: Run, etcd_server: EtcdServer, name: str) -> None:
    """A grant and a release take one request each; each waiter sends one message."""

    async def scene(runtime: Runtime) -> None:
        one = Counted(runtime, etcd_server.url)
        store, until = one.store, one.until
        await store.open(lambda _: None, until)
        try:
            granted, requests = await one.asked_for(store.acquire(exchange(name, "a-1/0", span=1024), until))
            assert isinstance(granted, Granted)
            assert requests == 1
            assert await one.asked_for(store.release(ReleaseRequest(name, "a-1/0", granted.token), until)) == (
                Outcome.RELEASED,
                1,
            )
            held = await store.acquire(exchange(name, "a-1/1", span=1024), until)
            assert isinstance(held, Granted)
            waiting, requests = await one.asked_for(store.acquire(exchange(name, "a-1/2", span=1024), until))
            assert isinstance(waiting, Queued)
            assert requests == 2
            behind, requests = await one.asked_for(store.acquire(exchange(name, "a-1/3", span=1024), until))
            assert isinstance(behind, Queued)
            assert requests == 2
        finally:
            await store.close()

    run(scene)
