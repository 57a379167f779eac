"""The self-test of a channel, at a server of any speed: what it takes for a proxy is one, and it ends in its time."""

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest

from tenure.errors import StoreError, StoreUnavailable
from tenure.runtimes.aio import AsyncioRuntime
from tenure.stores.mysql import channel as channels
from tenure.stores.mysql.connection import MySqlConnection
from tenure.stores.mysql.errors import INTERRUPTED, MySqlResult, MySqlServerError
from tenure.stores.mysql.statements import MySqlStatements
from tenure.stores.sql.errors import SqlBroken
from tests import virtual
from tests.planting import module_with


class Server:
    """A server to which a request takes half of a round trip, and its reply the other half."""

    facts = None

    def __init__(self, round_trip: float, *, kills: bool = True, shows: bool = True, denies: bool = False) -> None:
        """Answer so fast. It may end no sleep, show none, or deny to show any."""
        self._half = round_trip / 2
        self._kills, self._shows, self._denies = kills, shows, denies
        self._connects = 3
        """How many round trips it takes before the next request of another session."""
        self._asleep: asyncio.Event | None = None
        self.sleeps = list[float]()
        """How long each sleep was to last."""

    async def dial(self, until: float) -> MySqlConnection:
        """Make the session that sleeps."""
        await self._travel(until)
        return cast("MySqlConnection", Session(self))

    async def run(self, statements: Sequence[str], until: float) -> list[MySqlResult]:
        """Answer another session of the client."""
        try:
            for _ in range(2 * self._connects):
                await self._travel(until)
            self._connects = 0
            await self._travel(until)
            if statements[0].startswith("KILL"):
                if self._asleep is not None and self._kills:
                    self._asleep.set()
                found = 0
            else:
                found = int(self._asleep is not None and self._shows)
            await self._travel(until)
        except SqlBroken as error:
            raise StoreUnavailable(str(error)) from error
        if self._denies and statements[0].startswith("SELECT"):
            raise MySqlServerError(1227, "denied")
        return [MySqlResult([(found,)], 0, 0)]

    async def sleep(self, seconds: float, until: float) -> list[MySqlResult]:
        """Sleep, unless that is ended."""
        self.sleeps.append(seconds)
        await self._travel(until)
        self._asleep = ended = asyncio.Event()
        try:
            async with asyncio.timeout_at(min(until, asyncio.get_running_loop().time() + seconds)):
                await ended.wait()
        except TimeoutError:
            pass
        finally:
            self._asleep = None
        await self._travel(until)
        if ended.is_set():
            raise MySqlServerError(INTERRUPTED, "Query execution was interrupted")
        return [MySqlResult([(0,)], 0, 0)]

    async def lock(self, until: float) -> list[MySqlResult]:
        """Grant the lock of the channel."""
        await self._travel(until)
        await self._travel(until)
        return [MySqlResult([(1,)], 0, 0)]

    def meaning(self, _place: str, error: Exception) -> StoreError:
        """Say that it broke."""
        return StoreUnavailable(str(error))

    async def _travel(self, until: float) -> None:
        left = until - asyncio.get_running_loop().time()
        await asyncio.sleep(min(max(left, 0.0), self._half))
        if left < self._half:
            raise SqlBroken("timed out")


class Session:
    """The session that sleeps."""

    session, place = 7, "here"

    def __init__(self, server: Server) -> None:
        """Sleep at a server."""
        self._server = server

    def thread_id(self) -> int:
        """Return that the driver does not say."""
        return 0

    async def run(self, statements: Sequence[str], until: float) -> list[MySqlResult]:
        """Take the lock, or sleep."""
        head, _, rest = statements[0].partition("SLEEP(")
        return await (self._server.sleep(float(rest.rstrip(")")), until) if rest and head else self._server.lock(until))

    def close(self) -> None:
        """Do nothing."""


def tried(server: Server, within: float, source: Any = channels) -> tuple[str, float]:  # noqa: ANN401
    """Return what a self-test says that may take so long, and how long it took."""

    async def scene() -> tuple[str, float]:
        runtime = AsyncioRuntime()
        began = runtime.now()
        channel = source.MySqlChannel(runtime, server, MySqlStatements("locks_"))
        why = await channel.try_out(began + within)
        return why, runtime.now() - began

    return virtual.run(scene)


SLOW = [(1.0, 0.01), (1.0, 0.1), (3.0, 0.3), (5.0, 0.45)]
"""How long a self-test may take, and how long a round trip takes."""


@pytest.mark.parametrize(("within", "round_trip"), SLOW)
def test_a_slow_server_is_not_taken_for_a_proxy(within: float, round_trip: float) -> None:
    """A sleep that was over before the KILL QUERY came says nothing."""
    assert tried(Server(round_trip), within)[0] == ""


@pytest.mark.parametrize("how", ["kills", "shows"])
def test_a_proxy_is_found_by_one_sleep(how: str) -> None:
    """No client that opens waits for longer than that."""
    server = Server(0.01, **{how: False})
    why, took = tried(server, 3.0)
    assert "did not end its sleep" in why
    assert server.sleeps == [channels.TEST_SLEEP]
    assert took < 1.5 * channels.TEST_SLEEP


def test_a_server_that_shows_nothing_is_found_by_one_sleep() -> None:
    """An error is a reply, too."""
    server = Server(0.01, denies=True)
    assert "did not end its sleep" in tried(server, 3.0)[0]
    assert server.sleeps == [channels.TEST_SLEEP]


@pytest.mark.parametrize("within", [0.25, 0.6, 1.0, 3.0])
def test_a_self_test_ends_in_its_time(within: float) -> None:
    """The opening of a client waits for no longer. The reason says that a server is too slow."""
    server = Server(0.11, kills=False)
    why, took = tried(server, within)
    assert "did not end its sleep" in why or "slow" in why
    assert took < within + 0.001


PLANTED = {
    "one sleep": ("if until - self._runtime.now() < LEAST_LEFT:", "if True:"),
    "one look is enough": ("looks.count(True) > 1", "looks.count(True) > 0"),
    "no look is enough": ("or len(looks) >= LOOKS", "or not any(looks)"),
}


@pytest.mark.parametrize("bug", PLANTED)
def test_a_self_test_with_a_bug_takes_a_slow_server_for_a_proxy(bug: str) -> None:
    """Each is one that a maintainer could bring in."""
    wrong = module_with(channels, PLANTED[bug])
    assert any(tried(Server(round_trip), within, wrong)[0] for within, round_trip in SLOW)
