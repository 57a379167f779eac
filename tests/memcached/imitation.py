"""An imitation of a memcached server, in a time of the test's own, and a link to it that loses and delays requests."""

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from tenure.errors import OutcomeUnknown
from tenure.runtimes.threads import ThreadsRuntime
from tenure.stores.memcached.options import PORT, MemcachedDeployment
from tenure.stores.memcached.protocol import MemcachedAnswer, MemcachedRequest, MemcachedServer, MetaReply
from tenure.stores.memcached.store import MemcachedStore
from tenure.transport.errors import OtherProcess
from tenure.transport.link import ServerAddress

if TYPE_CHECKING:
    from tenure.stores.memcached.link import MemcachedLink

ADDRESS = ServerAddress("imitation", PORT)
PHASE = 0.37
"""When in a second the clock of the server ticks."""


@dataclass(slots=True)
class Clock:
    """The time of a test, in seconds."""

    now: float = 1000.0


@dataclass(slots=True)
class Stored:
    """An item."""

    data: bytes
    cas: int
    ends_at: int


class Imitation:
    """A server that knows `ms` and `mg` as far as the store uses them, and counts whole seconds, now and then late."""

    def __init__(self, clock: Clock) -> None:
        """Start without items."""
        self._clock = clock
        self._items: dict[bytes, Stored] = {}
        self._cas = 0
        self._process = 1
        self._counted = 0
        self._late = 1

    def be_late(self, *, late: bool) -> None:
        """Count a second late, as a timer does that runs at the end of each second; or in time, passing over one."""
        self._tick()
        self._late = int(late)

    @property
    def server(self) -> MemcachedServer:
        """What the server says of itself."""
        return MemcachedServer(str(self._process), evicts=True)

    def restart(self) -> None:
        """Forget everything, the CAS values as well."""
        self.evict()
        self._cas = 0
        self._process += 1

    def evict(self) -> None:
        """Forget all items."""
        self._items.clear()

    def carry_out(self, packed: bytes) -> list[MetaReply]:
        """Carry out commands."""
        replies: list[MetaReply] = []
        while packed:
            line, _, packed = packed.partition(b"\r\n")
            command, key, *words = line.split(b" ")
            if command == b"ms":
                size = int(words[0])
                replies.append(self._set(key, packed[:size], words[1:]))
                packed = packed[size + 2 :]
            else:
                assert command == b"mg"
                replies.append(self._get(key, words))
        return replies

    def _tick(self) -> int:
        self._counted = max(self._counted, math.floor(self._clock.now + PHASE) - self._late)
        return self._counted

    def _find(self, key: bytes) -> Stored | None:
        item = self._items.get(key)
        if item is not None and item.ends_at <= self._tick():
            del self._items[key]
            return None
        return item

    def _set(self, key: bytes, data: bytes, words: list[bytes]) -> MetaReply:
        flags = {word[:1]: word[1:] for word in words}
        item = self._find(key)
        if b"C" in flags and (item is None or item.cas != int(flags[b"C"])):
            return MetaReply(b"NF" if item is None else b"EX", b"c0")
        if flags.get(b"M") == b"E" and item is not None:
            return MetaReply(b"NS", b"c0")
        self._cas += 1
        self._items[key] = Stored(data, self._cas, self._tick() + int(flags[b"T"]))
        return MetaReply(b"HD", b"c%d" % self._cas)

    def _get(self, key: bytes, words: list[bytes]) -> MetaReply:
        item = self._find(key)
        if item is None:
            return MetaReply(b"EN")
        for word in words:
            if word[:1] == b"T":
                item.ends_at = self._tick() + int(word[1:])
        return MetaReply(b"VA", b"c%d t%d" % (item.cas, item.ends_at - self._tick()), item.data)


@dataclass
class FaultyLink:
    """A link to an imitation. The requests after `skip` others are lost, or delayed as ghosts."""

    imitation: Imitation
    swallow: int = 0
    """How many requests are still carried out without a reply."""
    delay: int = 0
    """How many requests are still delayed until `arrive`, without a reply."""
    skip: int = 0
    """How many requests pass before."""
    ghosts: list[bytes] = field(default_factory=list[bytes])
    sent: list[bytes] = field(default_factory=list[bytes])
    """All requests."""

    async def exchange(
        self, address: ServerAddress, request: MemcachedRequest, until: float, process: str = "", *, alone: bool = False
    ) -> MemcachedAnswer:
        """Carry out a request, unless a fault happens."""
        assert address == ADDRESS
        if process and process != self.imitation.server.process:
            raise OtherProcess
        self.sent.append(request.packed)
        if self.skip:
            self.skip -= 1
        elif self.delay:
            self.delay -= 1
            self.ghosts.append(request.packed)
            raise OutcomeUnknown("the request is late")
        elif self.swallow:
            self.swallow -= 1
            self.imitation.carry_out(request.packed)
            raise OutcomeUnknown("the reply is lost")
        return MemcachedAnswer(self.imitation.carry_out(request.packed), self.imitation.server)

    async def server(self, address: ServerAddress, until: float) -> MemcachedServer:
        """Return what the server says of itself."""
        return self.imitation.server

    async def close(self) -> None:
        """Do nothing."""

    def abandon(self) -> None:
        """Do nothing."""

    def heal(self) -> None:
        """End all faults."""
        self.swallow = self.delay = self.skip = 0

    def arrive(self) -> None:
        """Have the delayed requests arrive."""
        while self.ghosts:
            self.imitation.carry_out(self.ghosts.pop(0))


class VirtualRuntime(ThreadsRuntime):
    """A runtime in the time of a test; its wall clock is wrong by `wrong` seconds."""

    def __init__(self, clock: Clock, wrong: float = 0.0) -> None:
        """Read `clock`."""
        super().__init__()
        self.now = lambda: clock.now
        self.wall = lambda: round((1_700_000_000 + clock.now + wrong) * 1_000_000)


def store_at(link: FaultyLink, runtime: ThreadsRuntime) -> MemcachedStore:
    """Return a store at an imitation."""
    return MemcachedStore(runtime, MemcachedDeployment([ADDRESS]), cast("MemcachedLink", link))
