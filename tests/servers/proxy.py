"""A proxy in front of a server that delays, holds, breaks and swallows requests and replies.

The proxy does not parse the bytes: a request is a chunk of bytes from a client. This is exact for a client that sends
each request in one chunk and awaits its reply.
"""

import asyncio
import random
import ssl
import threading
from collections.abc import Callable, Coroutine
from typing import Self

from tests.servers.link import Counts, Draw, End, Fate, Link, Weather
from tests.servers.ports import LOCALHOST, reserve
from tests.servers.waiting import TEST_TIMEOUT, ServerFailedError


class Proxy:
    """A proxy in a thread of its own. `with` starts and stops it. A setting is in effect when its call returns."""

    def __init__(
        self,
        target: tuple[str, int],
        *,
        spared: int = 0,
        seed: int = 0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Prepare a proxy in front of the server at `target`.

        The first `spared` chunks of each connection, its handshake, are never swallowed or lost. `tls` ends TLS here:
        clients speak it, the server doesn't.
        """
        self.target = target
        self._weather = Weather(random.Random(seed), spared)
        self._tls = tls
        self._links: set[Link] = set()
        self._connecting: set[asyncio.Task[None]] = set()
        self._listener: asyncio.Server | None = None
        self._runs: _Running | None = None

    @property
    def address(self) -> tuple[str, int]:
        """The address for clients."""
        return LOCALHOST, self._running.port

    @property
    def counts(self) -> Counts:
        """The counters of the proxy."""
        return self._weather.counts

    def start(self) -> None:
        """Start to listen."""
        self._runs = _Running()
        self._carry_out(self._listen)

    def stop(self) -> None:
        """Break all connections and end the thread."""
        try:
            self._carry_out(self._end)
        finally:
            self._running.end()
            self._runs = None

    def delay(self, *, up: float = 0.0, down: float = 0.0) -> None:
        """From now on, delay requests by `up` seconds, and replies by `down`."""
        self._change(lambda weather: weather.delay.update(up=up, down=down))

    def blackhole(self, *, up: bool = True, down: bool = True) -> None:
        """Hold all chunks in these directions, and keep connections open.

        As in a partition, the held chunks arrive when it is over.
        """
        self._change(lambda weather: weather.held.update(up=up, down=down))

    def swallow(
        self,
        n: int | None = 1,
        *,
        probability: float = 1.0,
        containing: bytes = b"",
        cut: bool = True,
        after: int = 0,
    ) -> None:
        """Swallow the replies to the next `n` requests, which are carried out; with `None` to all, until `heal`.

        A request is selected with `probability`, if it contains the bytes `containing`; `after` such requests pass
        before. When the reply arrives, the connection breaks; without `cut` it stays open, and dead, until `cut()`.
        """
        fate = Fate.CUT if cut else Fate.SILENCE
        self._change(lambda weather: weather.draws.update({fate: Draw(n, probability, containing, after)}))

    def lose(self, n: int | None = 1, *, probability: float = 1.0, containing: bytes = b"", after: int = 0) -> None:
        """Break the connection at the next `n` requests, which never reach the server; `after` requests pass before."""
        self._change(lambda weather: weather.draws.update({Fate.LOST: Draw(n, probability, containing, after)}))

    def cut(self) -> None:
        """Break all connections now: clients see a reset."""

        async def cut() -> None:
            for link in self._links:
                link.cut()

        self._carry_out(cut)

    def refuse(self) -> None:
        """Refuse new connections."""
        self._carry_out(self._deafen)

    def accept(self) -> None:
        """Accept new connections again."""
        self._carry_out(self._listen)

    def heal(self) -> None:
        """End all faults. Dead connections stay dead."""
        self.delay()
        self.blackhole(up=False, down=False)
        self._change(lambda weather: weather.draws.clear())
        self.accept()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self.stop()

    def _change(self, change: Callable[[Weather], None]) -> None:
        """Change the weather, and apply it to all links."""

        async def carry_out() -> None:
            change(self._weather)
            for link in self._links:
                link.flow()

        self._carry_out(carry_out)

    @property
    def _running(self) -> "_Running":
        if self._runs is None:
            raise ServerFailedError("The proxy does not run: start it.")
        return self._runs

    def _carry_out(self, work: Callable[[], Coroutine[None, None, None]]) -> None:
        """Run a coroutine in the proxy's thread, and wait for it."""
        asyncio.run_coroutine_threadsafe(work(), self._running.loop).result(TEST_TIMEOUT)

    async def _listen(self) -> None:
        if self._listener is None:
            self._listener = await self._running.loop.create_server(self._expect, *self.address, ssl=self._tls)

    async def _deafen(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    async def _end(self) -> None:
        await self._deafen()
        for connecting in self._connecting:
            connecting.cancel()
        for link in self._links:
            link.abandon()
        await asyncio.gather(*self._connecting, *(link.gone.wait() for link in self._links))

    def _expect(self) -> End:
        return Link(self._weather, self._opened, self._links.discard).client

    def _opened(self, link: Link) -> None:
        self._links.add(link)
        connecting = self._running.loop.create_task(self._connect(link))
        self._connecting.add(connecting)
        connecting.add_done_callback(self._connecting.discard)

    async def _connect(self, link: Link) -> None:
        try:
            await self._running.loop.create_connection(lambda: link.server, *self.target)
        except (OSError, asyncio.CancelledError):
            link.no_server()


class _Running:
    """The state of a running proxy: a port, and a thread with an event loop."""

    def __init__(self) -> None:
        self._reservation = reserve()
        self.port = self._reservation.port
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name=f"proxy at {self.port}", daemon=True)
        self._thread.start()

    def end(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()
        self._reservation.give_up()
