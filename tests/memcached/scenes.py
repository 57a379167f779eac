"""What the tests of memcached on real servers share."""

from collections.abc import Callable, Coroutine, Generator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest

from tenure import AsyncClient, AsyncLease, StoreUnavailable
from tenure.runtimes.threads import ThreadsRuntime
from tenure.stores.memcached.items import Items
from tenure.stores.memcached.link import MemcachedLink
from tenure.stores.memcached.options import deployment_of
from tenure_testing.conformance.check import API_FORMS
from tests.servers import MemcachedServer, Proxy

both_forms = pytest.mark.parametrize("form", API_FORMS)
"""Runs a test in both forms of the API."""

LONG = 60.0
"""A ttl after which no test waits."""

HANDSHAKE = 2
"""How many requests a client sends on each connection before its first own one."""


@contextmanager
def behind_proxy(server: MemcachedServer) -> Generator[Proxy, None, None]:
    """Put a proxy in front of a server."""
    with Proxy(server.address, spared=HANDSHAKE) as proxy:
        yield proxy


def url_of(*places: MemcachedServer | Proxy, prefix: str = "") -> str:
    """Return the URL of servers or proxies."""
    hosts = ",".join(f"{host}:{port}" for host, port in (place.address for place in places))
    return f"memcached://{hosts}/{prefix}"


def items_at(url: str) -> tuple[Items, MemcachedLink, Callable[[], float]]:
    """Return the items at servers, to be looked at without a client, their link, and a deadline for each step."""
    runtime, deployment = ThreadsRuntime(), deployment_of(urlsplit(url))
    link = MemcachedLink(runtime, deployment)
    return Items(link, deployment), link, lambda: runtime.now() + 10.0


def key_of_name(client: AsyncClient, name: str, prefix: str = "tenure") -> bytes:
    """Return the key of a plain name of a client."""
    return f"{prefix}:{client.namespace}:{name}".encode()


def stats(server: MemcachedServer) -> dict[str, int]:
    """Return the counters of a server."""
    said = server.command(b"stats\r\n", b"END\r\n").decode()
    words = [line.split() for line in said.splitlines() if line.startswith("STAT")]
    return {each[1]: int(each[2]) for each in words if each[2].isdigit()}


def fill(server: MemcachedServer, size: int, until: Callable[[bytes], bool], key_size: int = 20) -> None:
    """Store items of a size, without end, until the reply to some of them is enough."""
    for number in range(0, 200_000, 200):
        batch = b"".join(
            b"ms f%0*d %d T0\r\n%b\r\n" % (key_size - 1, 1000 * place + size, size, b"x" * size)
            for place in range(number, number + 200)
        )
        if until(server.command(batch + b"mn\r\n", b"MN\r\n")):
            return
    raise AssertionError("memory without end")


async def extend(lease: AsyncLease) -> None:
    """Extend a lease, again if the connection breaks: `extend` sends one request."""
    try:
        await lease.extend()
    except StoreUnavailable:
        await lease.extend()


async def gather(kit_start: Callable[..., Any], works: Sequence[Callable[[], Coroutine[Any, Any, None]]]) -> None:
    """Run works side by side, in threads or tasks, and wait for all."""
    for running in [kit_start(work) for work in works]:
        await running.result(280.0)


__all__ = [
    "HANDSHAKE",
    "LONG",
    "behind_proxy",
    "both_forms",
    "extend",
    "fill",
    "gather",
    "items_at",
    "key_of_name",
    "stats",
    "url_of",
]
