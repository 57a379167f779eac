"""Virtual time, and how a test uses it: examples to copy."""

import asyncio

import pytest

from tenure import AsyncClient, Client, LeaseLost
from tests import virtual


def test_asyncio_in_virtual_time() -> None:
    """A sleep takes no real time, and leases are renewed meanwhile. A process that stands still loses its leases."""

    async def main() -> None:
        store = virtual.source()  # made in here, so that its clock is the virtual one
        async with AsyncClient(store=store) as client, AsyncClient(store=store) as other:
            lease = await client.lock("name", ttl=10).acquire()
            await asyncio.sleep(3600)
            lease.check()
            virtual.stand_still(11)
            with pytest.raises(LeaseLost):
                lease.check()
            async with other.lock("name", ttl=10, timeout=0) as following:
                assert following.token > lease.token

    virtual.run(main)


def test_threads_with_a_stopped_clock() -> None:
    """Leases age only when the test moves the clock."""
    with virtual.stopped_clock() as clock, Client(store=virtual.source()) as client:
        lease = client.lock("name", ttl=10).acquire()
        clock.advance(9)
        lease.check()
        clock.advance(2)
        with pytest.raises(LeaseLost):
            lease.check()


def test_a_wait_without_end_is_reported() -> None:
    """A test that would wait for ever fails instead."""

    async def main() -> None:
        await asyncio.Event().wait()

    with pytest.raises(RuntimeError, match="cannot make progress"):
        virtual.run(main)
