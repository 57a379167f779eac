"""The ZooKeeper servers of the fixtures work as their names say."""

from pathlib import Path

import pytest

from tests.servers import ServerFailedError, ZooKeeperEnsemble, ZooKeeperServer
from tests.servers.waiting import wait_until
from tests.servers.zookeeper import CLASSPATH, find_classpath, find_java


def test_a_server_stands_alone(zookeeper_server: ZooKeeperServer) -> None:
    """A standalone server serves and reports its role."""
    assert zookeeper_server.role() == "standalone"
    assert zookeeper_server.say("ruok") == "imok"


def test_a_killed_server_comes_back(zookeeper_server: ZooKeeperServer) -> None:
    """A killed server starts again on its port."""
    address = zookeeper_server.address
    zookeeper_server.kill()
    assert not zookeeper_server.serves
    zookeeper_server.mend()
    assert zookeeper_server.address == address
    assert zookeeper_server.role() == "standalone"


def test_an_ensemble_replaces_its_leader(zookeeper_ensemble: ZooKeeperEnsemble) -> None:
    """An ensemble elects a new leader, and the old leader returns as a follower."""
    old = zookeeper_ensemble.kill_leader()
    assert old.role() == ""
    assert zookeeper_ensemble.await_election(old) is not old
    wait_until(lambda: len(zookeeper_ensemble.followers()) == 1, "the other server to follow the new leader")
    zookeeper_ensemble.mend()
    assert zookeeper_ensemble.is_whole()


def test_the_next_test_finds_a_whole_ensemble(zookeeper_ensemble: ZooKeeperEnsemble) -> None:
    """The fixture repairs a follower that was killed or paused."""
    assert zookeeper_ensemble.is_whole()
    zookeeper_ensemble.kill_follower()
    zookeeper_ensemble.followers()[0].pause()
    zookeeper_ensemble.mend()
    assert [server.port for server in zookeeper_ensemble.followers()] != []
    assert zookeeper_ensemble.url.count(",") == 2


def test_what_is_missing_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The error without ZooKeeper names the package to install; an environment variable names another place."""
    monkeypatch.setenv(CLASSPATH, "/opt/zookeeper/lib/*")
    assert find_classpath() == "/opt/zookeeper/lib/*"
    monkeypatch.delenv(CLASSPATH)
    monkeypatch.setattr("tests.servers.zookeeper.JARS", tmp_path)
    with pytest.raises(ServerFailedError, match="libzookeeper-java"):
        find_classpath()
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(ServerFailedError, match="jre"):
        find_java()
