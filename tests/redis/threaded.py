"""What the tests of the threads link share: a link that is closed at the end, scripts, and an ear for what it hears."""

import dataclasses
import queue
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

from tenure.runtimes.threads import ThreadsRuntime, complete
from tenure.stores.redis import scripts
from tenure.stores.redis.links.link import RedisAccess, RedisAddress, RedisCallbacks, RedisReply
from tenure.stores.redis.links.threads import RedisThreadLink
from tenure.stores.redis.scripts import Script
from tests.servers import RedisServer

TEST_TIMEOUT = 20.0
"""How long to wait, in seconds, for what must happen: only ever used up by a failure."""


def script(body: str) -> Script:
    """Make a script."""
    return dataclasses.replace(scripts.INSPECT, name="test", text=f"#!lua\n{body}\n")


ECHO = script("return ARGV[1]")
WHOLE = script("return {KEYS[1], ARGV[1], ARGV[2]}")
COUNT = script("return redis.call('INCR', KEYS[1])")


class Ear:
    """Hears what a link hears."""

    def __init__(self) -> None:
        self.pushes: queue.Queue[bytes] = queue.Queue()
        self.gaps: queue.Queue[str] = queue.Queue()
        self.callbacks = RedisCallbacks(self.pushes.put, lambda: self.gaps.put("gap"))

    def push(self) -> bytes:
        """Return the next message."""
        return self.pushes.get(timeout=TEST_TIMEOUT)

    def gap(self) -> None:
        """Wait for a gap to be told."""
        self.gaps.get(timeout=TEST_TIMEOUT)


class Driven:
    """A link whose operations are driven in the calling thread, and end in `TEST_TIMEOUT` unless told otherwise."""

    def __init__(self, address: RedisAddress, *, access: RedisAccess | None = None, **flags: Any) -> None:  # noqa: ANN401 - of any link
        self.runtime = ThreadsRuntime()
        self.ear = Ear()
        self.link = RedisThreadLink(self.runtime, access or RedisAccess(), address, self.ear.callbacks, **flags)

    def soon(self, seconds: float = TEST_TIMEOUT) -> float:
        """Return an instant."""
        return self.runtime.now() + seconds

    def run(self, what: Script, *args: str | bytes, key: str = "key", within: float = TEST_TIMEOUT) -> Any:  # noqa: ANN401
        """Run a script, return its value."""
        return self.ask(what, *args, key=key, within=within).value

    def ask(self, what: Script, *args: str | bytes, key: str = "key", within: float = TEST_TIMEOUT) -> RedisReply:
        """Run a script."""
        return complete(self.link.run(what, (key,), args, self.soon(within)))

    def command(self, *words: str | bytes, within: float = TEST_TIMEOUT) -> Any:  # noqa: ANN401
        """Send a plain command."""
        return complete(self.link.command(*words, until=self.soon(within)))

    def listen(self, channel: str, within: float = TEST_TIMEOUT) -> None:
        """Subscribe."""
        complete(self.link.listen(channel, self.soon(within)))

    def ignore(self, channel: str) -> None:
        """Unsubscribe."""
        complete(self.link.ignore(channel))

    def close(self) -> None:
        """Close."""
        complete(self.link.close())

    def listener(self) -> Any:  # noqa: ANN401 - it is looked into
        """Return what listens."""
        assert self.link._listener is not None
        return self.link._listener


@contextmanager
def linked(
    place: RedisServer | RedisAddress | tuple[str, int],
    *,
    access: RedisAccess | None = None,
    **flags: Any,  # noqa: ANN401
) -> Generator[Driven, None, None]:
    """Make a link to a server, and close it."""
    address = place.address if isinstance(place, RedisServer) else place
    driven = Driven(address if isinstance(address, RedisAddress) else RedisAddress(*address), access=access, **flags)
    try:
        yield driven
    finally:
        driven.close()


def at_once(works: list[Callable[[], None]]) -> None:
    """Run all, each in a thread, and wait for their ends; raise the first error."""
    errors: list[BaseException] = []

    def run(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - it is raised below
            errors.append(error)

    threads = [threading.Thread(target=run, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TEST_TIMEOUT * 2)
        assert not thread.is_alive()
    if errors:
        raise errors[0]
