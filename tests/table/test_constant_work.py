"""Requests, withdrawals and releases take as many steps in a long queue as in a short one: at the table, and in Lua."""

import gc
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest

from simulation.redis.direct import DirectDeployment
from simulation.redis.keyspace import Reply
from simulation.redis.server import Server
from tenure.contracts.messages import AcquireRequest, ReleaseRequest, WithdrawRequest
from tenure.runtimes.threads import ThreadsRuntime, drive
from tenure.stores.redis.deployment import OBSERVED, Rules
from tenure.stores.redis.store import RedisStore
from tenure.table.step import Step
from tests.table.tools import Name

SHORT, LONG = 20, 200
"""How many wait. Both are of the same kind modulo the number of weights."""
TTL = 60_000_000
READERS = 1000
"""The capacity of a reader/writer name."""


def make_ask(who: str, weight: int, capacity: int, *, vote: bool) -> AcquireRequest:
    """Make a request of a client of its own; one for a vote is called by its round."""
    request_id = f"{who}/1" if vote else who
    return AcquireRequest(
        "name", request_id, who, who, TTL, 1_000_000, TTL, weight, capacity, proposal=10**6, votes=vote
    )


class AtTable:
    """The grant table: its steps are the bytecodes that are executed."""

    def __init__(self) -> None:
        self.steps = 0
        self._name = Name()

    def ask(self, who: str, weight: int, capacity: int, *, vote: bool) -> None:
        """Ask, or ask again."""
        made = make_ask(who, weight, capacity, vote=vote)
        self._take(lambda step: step.acquire(made))

    def withdraw(self, who: str) -> None:
        """Leave."""
        self._take(lambda step: step.withdraw(WithdrawRequest("name", who, unsure=True)))

    def release(self, who: str) -> None:
        """Release."""
        self._take(lambda step: step.release(ReleaseRequest("name", who, 0, unsure=True)))

    def goes_deaf(self, who: str) -> None:
        """Stop to listen."""
        self._name.deaf.add(who)

    def _take(self, operation: Callable[[Step], object]) -> None:
        self._name.now += 1
        step = self._name.step()
        with self._counting():
            operation(step)

    @contextmanager
    def _counting(self) -> Generator[None]:
        def count(frame: FrameType, event: str, _: Any) -> Any:  # noqa: ANN401 - as sys.settrace wants it
            frame.f_trace_opcodes = True
            self.steps += event == "opcode"
            return count

        before, collects = sys.gettrace(), gc.isenabled()
        gc.disable()  # a collection would run what libraries have it call, such as Hypothesis's clock
        sys.settrace(count)
        try:
            yield
        finally:
            sys.settrace(before)
            if collects:
                gc.enable()


class CountingServer(Server):
    """A simulated Redis that counts the commands of scripts, and what their replies hold."""

    steps = 0

    def _carry_out(self, name: bytes, words: list[bytes]) -> Reply:
        reply = super()._carry_out(name, words)
        self.steps += 1 + (len(reply) if isinstance(reply, list | tuple) else 0)
        return reply


class AtRedis:
    """The shipped Lua: its steps are the commands that it gives, and what it gets for them."""

    def __init__(self) -> None:
        self._now = 10**15
        self._server = CountingServer("process", lambda: self._now)
        self._store = RedisStore(DirectDeployment(Rules(OBSERVED, 0, 30.0), lambda: self._server), ThreadsRuntime())
        drive(self._store.open(lambda notification: None, 0.0))

    @property
    def steps(self) -> int:
        """The commands so far."""
        return self._server.steps

    def ask(self, who: str, weight: int, capacity: int, *, vote: bool) -> None:
        """Ask, or ask again."""
        self._listen(who)
        self._now += 1
        drive(self._store.acquire(make_ask(who, weight, capacity, vote=vote), 0.0))

    def withdraw(self, who: str) -> None:
        """Leave."""
        drive(self._store.withdraw(WithdrawRequest("name", who, unsure=True), 0.0))

    def release(self, who: str) -> None:
        """Release."""
        drive(self._store.release(ReleaseRequest("name", who, 0, unsure=True), 0.0))

    def goes_deaf(self, who: str) -> None:
        """Stop to listen."""
        self._server.unsubscribe(who)

    def _listen(self, who: str) -> None:
        self._server.subscribe(f"tenure:channel:{who}", who, lambda message: None)


Place = AtTable | AtRedis
"""A name at some store, and how many steps that took so far."""

PLACES: dict[str, Callable[[], Place]] = {"table": AtTable, "redis": AtRedis}

KINDS: dict[str, tuple[int, list[int], bool]] = {
    "locks": (1, [1], False),
    "permits": (3, [3, 2, 3], False),
    "writers behind a reader": (READERS, [READERS], False),
    "readers and writers": (READERS, [READERS, READERS, 1], False),
    "votes": (1, [1], True),
}
"""The capacity, the weights of those who wait one after another, and whether they wait for a vote."""


def steps_of(make: Callable[[], Place], kind: str, length: int, act: Callable[[Place, "Crowd"], None]) -> int:
    """Return how many steps something takes behind a queue."""
    place = make()
    crowd = Crowd(place, kind, length)
    before = place.steps
    act(place, crowd)
    return place.steps - before


class Crowd:
    """A holder, and a queue of a kind."""

    def __init__(self, place: Place, kind: str, length: int) -> None:
        self._place = place
        self._capacity, self._weights, self._vote = KINDS[kind]
        self.length = length
        self.holder = "holder/1" if self._vote else "holder"
        place.ask("holder", 1, self._capacity, vote=self._vote)
        for number in range(length):
            self.ask(number)

    def ask(self, number: int) -> None:
        """Ask, or ask again."""
        weight = self._weights[number % len(self._weights)]
        self._place.ask(f"w{number}", weight, self._capacity, vote=self._vote)


def one_comes(place: Place, crowd: Crowd) -> None:
    """Let a newcomer ask."""
    crowd.ask(crowd.length)


def one_asks_again(place: Place, crowd: Crowd) -> None:
    """Let somebody who stands far behind ask again."""
    crowd.ask(crowd.length - 2)


def the_head_asks_again(place: Place, crowd: Crowd) -> None:
    """Let the first one ask again."""
    crowd.ask(0)


def one_leaves(place: Place, crowd: Crowd) -> None:
    """Let somebody who stands in the midst leave."""
    place.withdraw(f"w{crowd.length // 2}")


def the_head_is_deaf(place: Place, crowd: Crowd) -> None:
    """Let another one request while the first cannot be reached: it is passed over if a lighter one fits."""
    place.goes_deaf("w0")
    crowd.ask(crowd.length - 2)


def the_holder_releases(place: Place, crowd: Crowd) -> None:
    """Let the name be handed on."""
    place.release(crowd.holder)


ACTS = [one_comes, one_asks_again, the_head_asks_again, one_leaves, the_head_is_deaf, the_holder_releases]


@pytest.mark.parametrize("act", ACTS, ids=lambda act: act.__name__)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("make", PLACES.values(), ids=PLACES)
def test_a_long_queue_costs_no_more_than_a_short_one(
    make: Callable[[], Place], kind: str, act: Callable[[Place, Crowd], None]
) -> None:
    """Whatever is done to a name takes exactly as many steps, however many wait for it."""
    assert steps_of(make, kind, LONG, act) == steps_of(make, kind, SHORT, act) > 0
