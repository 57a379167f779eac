"""An ensemble loses its data while clients are open: they go on in a new session, as a new client does."""

import asyncio
import logging
import shutil
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest

from tenure import AsyncClient, Client, StoreUnavailable
from tenure.stores.zookeeper.link import ZooKeeperLink
from tenure.stores.zookeeper.sockets import Attempts
from tests.servers import ZooKeeperServer

SESSION = 1.0
TEST_TIMEOUT = 30.0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ZooKeeperServer]:
    """Run a server of this test's own."""
    with ZooKeeperServer(tmp_path) as server:
        yield server


def empty(server: ZooKeeperServer) -> None:
    """Restart a server without its data."""
    server.kill()
    shutil.rmtree(server.folder / "data" / "version-2")
    server.start()


def used(client: Client) -> None:
    """Let a client see later changes than those of a server that begins anew."""
    for _ in range(20):
        client.lock("used", ttl=5.0).acquire().release()


def go_on(server: ZooKeeperServer) -> None:
    """Acquire by the client that was open before."""
    with Client(f"{server.url}?session_timeout={SESSION}", retry_for=TEST_TIMEOUT) as client:
        used(client)
        lease = client.lock("name", ttl=5.0).acquire()
        empty(server)
        with client.lock("other", ttl=5.0, timeout=TEST_TIMEOUT) as other:
            assert other.token > 0
        assert lease.lost.wait(TEST_TIMEOUT)


def test_a_client_goes_on_after_its_servers_lost_their_data(
    server: ZooKeeperServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Its leases are lost, it says why, and later requests are served."""
    with caplog.at_level(logging.WARNING, "tenure"):
        go_on(server)
    assert caplog.text.count("servers do that lost their data") == 1


def test_a_client_of_asyncio_goes_on_too(server: ZooKeeperServer) -> None:
    """A waiter that waited through the loss is granted in the new session."""

    async def main() -> None:
        url = f"{server.url}?session_timeout={SESSION}"
        async with AsyncClient(url) as holder, AsyncClient(url, retry_for=TEST_TIMEOUT) as client:
            for _ in range(20):
                await (await client.lock("used", ttl=5.0).acquire()).release()
            lease = await holder.lock("name", ttl=5.0).acquire()
            waiting = asyncio.create_task(client.lock("name", ttl=5.0).acquire(timeout=TEST_TIMEOUT))
            await asyncio.to_thread(empty, server)
            await (await waiting).release()
            await asyncio.wait_for(lease.lost.wait(), TEST_TIMEOUT)

    asyncio.run(main())


def test_a_session_that_may_live_is_kept(server: ZooKeeperServer) -> None:
    """A server that restarts with its data, while it closes connections at first, costs no session."""
    with Client(f"{server.url}?session_timeout=20", retry_for=TEST_TIMEOUT) as client:
        lease = client.lock("name", ttl=60.0).acquire()
        with patch.object(Attempts, "turned_away", return_value=True):
            server.kill()
            server.start()
            client.lock("other", ttl=5.0, timeout=TEST_TIMEOUT).acquire().release()
        assert lease.release().kept


def test_a_planted_bug_is_caught(server: ZooKeeperServer) -> None:
    """A client that keeps to what it has seen fails for good."""
    with (
        patch.object(ZooKeeperLink, "_replace_outdated"),
        patch(f"{__name__}.TEST_TIMEOUT", 4 * SESSION),
        pytest.raises(StoreUnavailable),
    ):
        go_on(server)
