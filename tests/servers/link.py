"""One connection through a proxy, and the faults of its bytes.

A `Link` has two ends, towards the client and towards the server, and a `Pipe` for each direction. A pipe carries any
number of chunks at once. Each arrives a delay after it was sent, and none overtakes another. The `Weather`, which all
links of a proxy share, contains the settings of a test.
"""

import asyncio
import contextlib
import socket
import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from random import Random


class Fate(Enum):
    """The fate of a request."""

    ANSWERED = "answered"
    CUT = "carried out, but instead of its reply the connection breaks"
    SILENCE = "carried out, but nothing comes back any more"
    LOST = "never carried out: the connection breaks before"


@dataclass(slots=True)
class Draw:
    """The selection of the requests that meet a fate."""

    left: int | None
    """How many requests; None for all."""
    probability: float
    containing: bytes
    """The bytes that a request must contain."""
    after: int = 0
    """How many such requests pass unharmed before."""

    def hits(self, request: bytes, chance: Random) -> bool:
        """Tell whether this request is selected, and count it."""
        if self.left == 0 or self.containing not in request or chance.random() >= self.probability:
            return False
        if self.after > 0:
            self.after -= 1
            return False
        if self.left is not None:
            self.left -= 1
        return True


@dataclass(slots=True)
class Counts:
    """The counters of a proxy since its start."""

    connections: int = 0
    requests: int = 0
    """Chunks of bytes from clients. They are requests if the client sends each by itself and awaits its reply."""
    replies: int = 0
    """Chunks of bytes from the server."""
    swallowed: int = 0
    """Requests that were carried out without a reply."""
    lost: int = 0
    """Requests that never arrived."""
    cut: int = 0
    """Connections broken by the proxy."""


@dataclass(slots=True)
class Weather:
    """The faults that a test causes on the links of a proxy, and their counts."""

    chance: Random
    spared: int
    """How many chunks at the start of each connection are spared."""
    delay: dict[str, float] = field(default_factory=lambda: {"up": 0.0, "down": 0.0})
    held: dict[str, bool] = field(default_factory=lambda: {"up": False, "down": False})
    draws: dict[Fate, Draw] = field(default_factory=dict[Fate, Draw])
    counts: Counts = field(default_factory=Counts)

    def fate(self, request: bytes, number: int) -> Fate:
        """Decide the fate of a request by its number in its connection."""
        if number > self.spared:
            for fate, draw in self.draws.items():
                if draw.hits(request, self.chance):
                    return fate
        return Fate.ANSWERED


END = b""
"""The end of a pipe, after its sender has closed."""


class Pipe:
    """One direction of a link."""

    def __init__(self, weather: Weather, way: str, deliver: Callable[[bytes, Fate], None]) -> None:
        """Deliver chunks after the delay of this direction, unless it is held."""
        self._weather = weather
        self._way = way
        self._deliver = deliver
        self._loop = asyncio.get_running_loop()
        self._on_the_way: deque[tuple[float, bytes, Fate]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self.open = False
        """Whether the receiver is connected."""

    def put(self, chunk: bytes, fate: Fate = Fate.ANSWERED) -> None:
        """Send a chunk."""
        due = self._loop.time() + self._weather.delay[self._way]
        if self._on_the_way:
            due = max(due, self._on_the_way[-1][0])  # none overtakes another when the delay was changed
        self._on_the_way.append((due, chunk, fate))
        self.flow()

    def flow(self) -> None:
        """Deliver the chunks that are due, and schedule the rest."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._on_the_way and self.open and not self._weather.held[self._way]:
            due, chunk, fate = self._on_the_way[0]
            if due > self._loop.time():
                self._timer = self._loop.call_at(due, self.flow)
                return
            self._on_the_way.popleft()
            self._deliver(chunk, fate)

    def empty(self) -> None:
        """Drop the chunks that are under way."""
        self._on_the_way.clear()
        self.flow()


class End(asyncio.Protocol):
    """One end of a link, which receives and sends chunks."""

    def __init__(self, heard: Callable[[bytes], None], opened: Callable[[], None], lost: Callable[[], None]) -> None:
        """Call `heard` with each chunk and with `END`; call `opened` and `lost` once."""
        self._heard = heard
        self._opened = opened
        self._lost = lost
        self._transport: asyncio.Transport | None = None
        self.is_lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Record the transport."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._opened()

    def data_received(self, data: bytes) -> None:
        """Forward a chunk."""
        self._heard(data)

    def eof_received(self) -> bool:
        """Forward the end, and keep the other direction open if the transport can."""
        self._heard(END)
        return self._transport is not None and self._transport.can_write_eof()

    def connection_lost(self, exc: Exception | None) -> None:
        """Report the loss of the connection."""
        self.is_lost = True
        self._lost()

    def write(self, chunk: bytes) -> None:
        """Send a chunk, or close this direction at its `END`."""
        if self._transport is None or self._transport.is_closing():
            return
        if chunk is not END:
            self._transport.write(chunk)
        elif self._transport.can_write_eof():
            with contextlib.suppress(OSError):  # the peer has reset it, and `connection_lost` follows
                self._transport.write_eof()
        else:
            self._transport.close()

    def close(self) -> None:
        """Close both directions, after the written chunks."""
        if self._transport is not None:
            self._transport.close()

    def reset(self) -> None:
        """Break the connection, so that the peer sees a reset instead of an orderly end."""
        if self._transport is None or self.is_lost:
            return
        raw: socket.socket | None = self._transport.get_extra_info("socket")
        if raw is not None:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abort()


class Link:
    """One connection of a client, with its connection to the server."""

    def __init__(self, weather: Weather, opened: Callable[["Link"], None], ended: Callable[["Link"], None]) -> None:
        """Call `opened` when the client has connected, and `ended` when both connections have ended."""
        self._weather = weather
        self._opened = opened
        self._ended = ended
        self._requests = 0
        self._doomed = False
        self._fate = Fate.ANSWERED
        """The fates of the requests that have arrived at the server."""
        self._up = Pipe(weather, "up", self._arrive)
        self._down = Pipe(weather, "down", self._return)
        self.client = End(self._ask, self._client_opened, self._client_lost)
        self.server = End(self._answer, self._server_opened, self._server_lost)
        self.broken = False
        """Whether the proxy broke the connection."""
        self.gone = asyncio.Event()
        """Set when both ends are closed."""
        self._ways_closed: set[str] = set()

    def flow(self) -> None:
        """Deliver chunks by the changed weather."""
        self._up.flow()
        self._down.flow()

    def cut(self) -> None:
        """Break the client's connection. Its chunks under way to the server still arrive."""
        if self.client.is_lost or self.broken:
            return
        self.broken = True
        self._weather.counts.cut += 1
        self._down.empty()
        self.client.reset()

    def abandon(self) -> None:
        """Break both connections."""
        self.client.reset()
        self.server.reset()

    def no_server(self) -> None:
        """Break the client's connection, for the server can't be reached."""
        self.server.is_lost = True
        self.client.reset()
        self._look_for_the_end()

    def _ask(self, chunk: bytes) -> None:
        """Receive a chunk from the client."""
        if chunk is END:
            self._up.put(END)
            return
        self._requests += 1
        self._weather.counts.requests += 1
        fate = Fate.ANSWERED if self._doomed else self._weather.fate(chunk, self._requests)
        self._doomed = self._doomed or fate is not Fate.ANSWERED
        if fate is Fate.LOST:
            self._weather.counts.lost += 1
            self.cut()
        else:
            self._up.put(chunk, fate)

    def _arrive(self, chunk: bytes, fate: Fate) -> None:
        """Deliver a chunk to the server. From now on the reply of a request with a fate is awaited."""
        if fate is not Fate.ANSWERED:
            self._fate = fate
            self._weather.counts.swallowed += 1
        self.server.write(chunk)
        if chunk is END:
            self._close("up")

    def _answer(self, chunk: bytes) -> None:
        """Receive a chunk from the server."""
        if chunk is not END:
            self._weather.counts.replies += 1
        if self._fate is Fate.ANSWERED:
            self._down.put(chunk)
        elif self._fate is Fate.CUT:
            self.cut()

    def _return(self, chunk: bytes, _fate: Fate) -> None:
        """Deliver a chunk to the client."""
        self.client.write(chunk)
        if chunk is END:
            self._close("down")

    def _close(self, way: str) -> None:
        """Close both ends as soon as both directions are closed."""
        self._ways_closed.add(way)
        if len(self._ways_closed) == 2 or self.client.is_lost or self.server.is_lost:
            self.client.close()
            self.server.close()

    def _client_opened(self) -> None:
        self._weather.counts.connections += 1
        self._down.open = True
        self._opened(self)

    def _server_opened(self) -> None:
        self._up.open = True
        self._up.flow()

    def _client_lost(self) -> None:
        self._up.put(END)
        self._down.empty()
        self._look_for_the_end()

    def _server_lost(self) -> None:
        self._up.open = False
        if self._fate is not Fate.SILENCE:
            self._down.put(END)
        self._look_for_the_end()

    def _look_for_the_end(self) -> None:
        if self.client.is_lost and self.server.is_lost:
            self.gone.set()
            self._ended(self)
