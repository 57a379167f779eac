"""Members of an ensemble, in both forms of the API."""

import threading
from collections.abc import Callable, Iterator

import pytest

from tests.servers import ZooKeeperServer, wait_until
from tests.zookeeper.worlds import Member, World, world_of

MakeMember = Callable[..., Member]


@pytest.fixture(params=["threads", "asyncio"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    """Run what follows in threads or in asyncio."""
    with world_of(request.param) as world:
        yield world


@pytest.fixture
def member(world: World, zookeeper_server: ZooKeeperServer) -> Iterator[MakeMember]:
    """Return what opens members; all are closed in the end, and leave no thread."""
    made: list[Member] = []

    def make(url: str = "", **options: str) -> Member:
        made.append(Member(world, url or zookeeper_server.url, **options))
        return made[-1].open()

    yield make
    for each in made:
        each.close()
    wait_until(lambda: not _threads(), "the end of all threads")


def _threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("tenure-zookeeper")]
