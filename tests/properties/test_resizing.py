"""The capacity of a name is changed while nobody holds it, and some wait: a lock delay keeps it from them."""

# ruff: noqa: D102 - a bug says in the docstring of its class what is wrong

from collections.abc import Callable

import pytest

from simulation.redis import server as redis_server
from simulation.redis.lua import source_of
from tenure.contracts.messages import NotificationKind
from tenure.stores.redis import scripts
from tenure.stores.redis.deployment import OBSERVED
from tenure.table.step import Step
from tenure.table.times import RETRY
from tests.properties.redis_machine import RedisMachine
from tests.properties.store_machine import SECOND
from tests.table.tools import TTL, Name

DELAY = 5 * TTL


def a_name_with_waiters_only() -> Name:
    """Return one of 3 permits, whose holder has died, and for which a heavy and two light ones wait."""
    name = Name()
    name.win("a", capacity=3, weight=3, lock_delay=DELAY)
    name.ask("b", capacity=3)
    name.ask("heavy", capacity=3, weight=3)
    name.ask("c", capacity=3)
    name.now += TTL
    name.ask("b", capacity=3)
    assert (name.holders(), name.queue()) == ("", "bheavyc")
    return name


def fewer_permits() -> None:
    """Whoever waits for too much is sent away, and told; the others are granted when the delay is over."""
    name = a_name_with_waiters_only()
    assert name.resize(3, 2) == 2
    assert name.heard(NotificationKind.HEAD) == [("heavy", RETRY)]
    assert (name.holders(), name.queue()) == ("", "bc")
    name.now += DELAY
    name.release("nobody")
    assert (name.holders(), name.queue()) == ("bc", "")


def more_permits_late() -> None:
    """If the delay is over by now, whoever fits is granted in the same step."""
    name = a_name_with_waiters_only()
    name.now += DELAY
    assert name.resize(3, 4) == 4
    assert (name.holders(), name.queue()) == ("bheavy", "c")


def another_number() -> None:
    """Who names another number changes nothing: those who wait rely on it."""
    name = a_name_with_waiters_only()
    assert name.resize(1, 2) == 3
    assert (name.holders(), name.queue()) == ("", "bheavyc")
    assert name.state.capacity == 3


CHECKS = [fewer_permits, more_permits_late, another_number]


def all_checks() -> None:
    """Check all of it."""
    for check in CHECKS:
        check()


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_a_resize_while_some_wait_and_nobody_holds(check: Callable[[], None]) -> None:
    """They count as users of the name, as holders do."""
    check()


class WaitersDoNotCount(Step):
    """Whoever resizes is heard unless somebody holds."""

    def resize(self, before: int, after: int) -> int:
        return super().resize(before if self.state.holders else self.state.capacity, after)


class NobodyIsSentAway(Step):
    """Who waits for too much waits on, if nobody holds."""

    def resize(self, before: int, after: int) -> int:
        if not [each for each in self.state.holders if each.expires_at > self.now] and self.state.capacity == before:
            self._begin()
            self.state.capacity = after
            self._serve_queue()
            return after
        return super().resize(before, after)


class SentAwayInSilence(Step):
    """Who waits for too much is not told, if nobody holds."""

    def resize(self, before: int, after: int) -> int:
        capacity = super().resize(before, after)
        self.notifications[:] = [
            each for each in self.notifications if each.kind is NotificationKind.GRANTED or self.state.holders
        ]
        return capacity


class NobodyIsGranted(Step):
    """What a resize makes room for is left to the waiters to find out, if nobody holds."""

    def _serve_queue(self) -> None:
        if self.state.holders:
            super()._serve_queue()


class AllAreSentAway(Step):
    """A resize begins with an empty queue, if nobody holds."""

    def resize(self, before: int, after: int) -> int:
        self._begin()
        if not self.state.holders:
            for waiter in list(self.state.queue):
                self.state.queue.drop(waiter.request.request_id)
        return super().resize(before, after)


@pytest.mark.parametrize(
    "wrong", [WaitersDoNotCount, NobodyIsSentAway, SentAwayInSilence, NobodyIsGranted, AllAreSentAway]
)
def test_a_wrong_table_is_noticed(wrong: type[Step], monkeypatch: pytest.MonkeyPatch) -> None:
    """By one of the checks."""
    monkeypatch.setattr("tests.table.tools.Step", wrong)
    with pytest.raises(AssertionError):
        all_checks()


def play() -> None:
    """Do the same at a simulated Redis, and hold it against the table."""
    for late, before, after in [(False, 3, 2), (True, 3, 4), (False, 1, 2)]:
        machine = RedisMachine()
        machine.choose_the_guard(OBSERVED)
        for client, weight, delay in [(0, 3, 5 * SECOND), (0, 1, 0), (1, 3, 0), (2, 1, 0)]:
            machine.ask(client, "name", SECOND, 60 * SECOND, weight, 3, delay, 0, True, 1, True)
        machine.clocks.now += SECOND + 5 * SECOND * late
        machine.resize(0, "name", before, after)
        machine.look(0)
        machine.clocks.now += 5 * SECOND
        machine.ask_again(2, 0)
        machine.look(0)
        machine.teardown()


WRONG_SCRIPTS = {
    "waiters do not count": ("not (holders[1] or head)", "not holders[1]"),
    "nobody is sent away": (
        "if it and it[W_WEIGHT] > after then",
        "if it and holders[1] and it[W_WEIGHT] > after then",
    ),
    "sent away in silence": (
        "push(it[W_CHANNEL], string.format('H %.0f %s', RETRY, request))",
        "push(holders[1] and it[W_CHANNEL] or '', string.format('H %.0f %s', RETRY, request))",
    ),
    "nobody is granted": ("serve_queue()\nsave()\nreturn capacity", "save()\nreturn capacity"),
}


def test_redis_resizes_as_the_table_does() -> None:
    """While some wait and nobody holds."""
    play()


@pytest.mark.parametrize("wrong", WRONG_SCRIPTS)
def test_a_wrong_script_is_noticed(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store whose Lua is wrong in one place does not answer as the table does."""
    before, after = WRONG_SCRIPTS[wrong]
    assert before in scripts.RESIZE.text

    def source(text: str) -> str:
        return source_of(text).replace(before, after)

    monkeypatch.setattr(redis_server, "source_of", source)
    with pytest.raises(AssertionError):
        play()
