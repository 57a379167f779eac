"""The clients of the fixtures. Each is closed at the end of its test, whatever the state in which the test left it."""

import asyncio
from collections.abc import Generator
from contextlib import contextmanager

from tenure.client import AsyncClient, Client
from tenure.contracts.runtime import Runtime
from tenure.runtimes.aio import AsyncioRuntime
from tenure.runtimes.threads import drive
from tenure_testing.pytest.chaos import Chaos
from tenure_testing.pytest.stores import TestStore

RETRY_FOR = 0.1
"""For how long these clients repeat requests to a store that is down, in seconds: a test should be quick."""


@contextmanager
def client_of(chaos: Chaos) -> Generator[Client, None, None]:
    """Make a client of the store of a test."""
    with Client(chaos.url, retry_for=RETRY_FOR) as client:
        yield client
        chaos.store_up()


@contextmanager
def async_client_of(chaos: Chaos) -> Generator[AsyncClient, None, None]:
    """Make an asyncio client of the store of a test, and close it even if its event loop has ended."""
    used: list[Runtime] = []

    def make(runtime: Runtime) -> TestStore:
        used.append(runtime)
        return chaos.store(runtime)

    client = AsyncClient(store=chaos.source(make), retry_for=RETRY_FOR)
    yield client
    chaos.store_up()
    _close(client, used[-1] if used else None)


def _close(client: AsyncClient, runtime: Runtime | None) -> None:
    """Close a client from outside of its event loop, which may have ended."""
    if not isinstance(runtime, AsyncioRuntime):
        drive(client.close())
    elif runtime.loop.is_running():
        asyncio.run_coroutine_threadsafe(client.close(), runtime.loop).result(timeout=5)
    elif not runtime.loop.is_closed():
        runtime.loop.run_until_complete(client.close())
    else:
        asyncio.run(client.close())
