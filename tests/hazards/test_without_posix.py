"""Tenure without the parts that only POSIX systems have, as on Windows: server stores and memory work."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers.etcd import EtcdServer
from tests.servers.redis import RedisServer
from tests.servers.zookeeper import ZooKeeperServer

CHILD = Path(__file__).with_name("without_posix.py")


def run(*arguments: str) -> str:
    """Carry out a task of `without_posix.py`; return its output and its warnings."""
    command = [sys.executable, str(CHILD), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stderr + done.stdout.removesuffix("done\n")


def test_every_module_can_be_imported() -> None:
    """No module needs POSIX to be imported."""
    assert run("import") == ""


class TestContention:
    """Threads and tasks contend for a name: each is granted it once, with growing tokens."""

    def test_in_memory(self) -> None:
        """They share a table."""
        run("use", "memory://without-posix")

    def test_in_redis(self, redis_server: RedisServer) -> None:
        """They share a server."""
        run("use", redis_server.url)

    def test_in_a_quorum(self, redis_five: list[RedisServer]) -> None:
        """They share three servers, with concurrent requests."""
        run("use", " ".join(f"{server.url}?guard=off" for server in redis_five[:3]))

    def test_in_etcd(self, etcd_server: EtcdServer) -> None:
        """They share a server."""
        run("use", etcd_server.url)

    def test_in_zookeeper(self, zookeeper_server: ZooKeeperServer) -> None:
        """They share a server."""
        run("use", zookeeper_server.url)


@pytest.mark.parametrize("action", ["default", "sqlite", "unix", "node", "client", "sections", "run", "lock", "demo"])
def test_a_store_that_needs_posix_is_refused(action: str) -> None:
    """The error says in one sentence what to do instead."""
    said = run("refuse", action).strip()
    assert "needs a POSIX system such as Linux or macOS, which this is not: " in said
    assert said.count(". ") == 0
    assert said.endswith(".")
