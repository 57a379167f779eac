"""A store of another form: its number is kept, a later one is refused, and releases work beside the next one."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.forms import scenes
from tests.forms.stores import (
    Kept,
    KeptInEtcd,
    KeptInFile,
    KeptInMemcached,
    KeptInMySql,
    KeptInPostgres,
    KeptInQuorum,
    KeptInRedis,
    KeptInZooKeeper,
)
from tests.servers import EtcdServer, RedisServer, ZooKeeperServer

OF_A_SERVER: dict[str, tuple[str, Callable[..., Kept]]] = {
    "postgresql": ("postgres_server", KeptInPostgres),
    "mysql": ("mariadb_server", KeptInMySql),
    "memcached": ("memcached_server", KeptInMemcached),
}


class Forms:
    """The scenes, at the store of a subclass."""

    def test_the_first_client_writes_the_number_and_the_second_finds_it(self, kept: Kept) -> None:
        """It is the number that this release writes, with the release that reads it."""
        scenes.play(kept, scenes.first_and_second_client)

    def test_a_later_number_is_refused(self, kept: Kept) -> None:
        """At opening and while running: by an error that names the release that is needed; nothing is changed."""
        if not kept.numbered:
            return
        scenes.play(kept, scenes.later_number)

    def test_a_value_of_a_later_form_is_left_alone(self, kept: Kept) -> None:
        """Whoever meets it is refused, and it stays as it is."""
        scenes.play(kept, scenes.later_value)

    def test_a_rolling_deploy_works_forward_and_back(self, kept: Kept) -> None:
        """No second holder, tokens grow, and the name passes between the releases."""
        scenes.play(kept, scenes.rolling_deploy)


class TestRedis(Forms):
    """One server."""

    @pytest.fixture
    def kept(self, tmp_path: Path) -> Iterator[Kept]:
        """Start a server of this test's own: a raised number concerns all of it."""
        with RedisServer(tmp_path) as server:
            yield KeptInRedis(server)


class TestQuorum(Forms):
    """Three servers."""

    @pytest.fixture
    def kept(self, tmp_path: Path) -> Iterator[Kept]:
        """Start servers of this test's own."""
        with contextlib.ExitStack() as stack:
            yield KeptInQuorum([stack.enter_context(RedisServer(tmp_path / str(place))) for place in range(3)])


class TestFile(Forms):
    """A lock file."""

    @pytest.fixture
    def kept(self, tmp_path: Path) -> Kept:
        """Name a file."""
        return KeptInFile(tmp_path / "locks.db")


@pytest.mark.parametrize("store", OF_A_SERVER)
class TestServer(Forms):
    """A store in a server that processes of the test run have each for themselves."""

    @pytest.fixture
    def kept(self, store: str, request: pytest.FixtureRequest) -> Kept:
        """Take a part of the server."""
        fixture, make = OF_A_SERVER[store]
        return make(request.getfixturevalue(fixture))


class TestEtcd(Forms):
    """One server."""

    @pytest.fixture
    def kept(self, etcd_server: EtcdServer) -> Kept:
        """Take a prefix."""
        return KeptInEtcd(etcd_server)


class TestZooKeeper(Forms):
    """One server."""

    @pytest.fixture
    def kept(self, zookeeper_server: ZooKeeperServer) -> Kept:
        """Take a path."""
        return KeptInZooKeeper(zookeeper_server)
