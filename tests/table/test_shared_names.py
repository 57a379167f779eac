"""Of many who share a name each is one for itself: all take it up again after a restart, and one loses it by force."""

# ruff: noqa: D102 - a bug says in the docstring of its class what is wrong

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Unpack

import pytest

from simulation.redis import server as redis_server
from simulation.redis.lua import source_of
from tenure.contracts.messages import AcquireRequest, Granted, HolderView, NotificationKind, RenewRequest
from tenure.contracts.store import Store
from tenure.outcome import Outcome
from tenure.stores.redis import scripts
from tenure.stores.redis.deployment import NO_GUARD
from tenure.table import quarantine
from tenure.table.state import Holder, NameState
from tenure.table.step import Step
from tests.properties.redis_machine import RedisMachine
from tests.properties.store_machine import SECOND
from tests.table.tools import TTL, Name

EVERYONE = 1000


class Restarted(Name):
    """A name whose store may come back with old data, and is quarantined then."""

    since = 0

    def come_back_with(self, saved: Name) -> None:
        """Have the store know what it knew when a copy was made."""
        self.state = deepcopy(saved.state)
        self.since = self.now
        self.quarantined_until = self.now + TTL

    def step(self) -> Step:
        step = super().step()
        step.quarantined_since = self.since
        return step


def readers_in_any_order() -> None:
    """Give all of them their leases again, whoever renews first."""
    name = Restarted()
    tokens = {who: name.win(who, capacity=EVERYONE) for who in "abc"}
    name.forget(TTL)
    for who in "cab":
        assert name.take_up(who, tokens[who]) is None
    assert (name.holders(), name.state.counter) == ("cab", tokens["c"])


def permits_over_old_data() -> None:
    """Drop those of old data that are not heard of any more, and no others."""
    name = Restarted()
    tokens = {who: name.win(who, capacity=2) for who in "ab"}
    saved = deepcopy(name)
    name.now += TTL // 2
    name.release("a")
    tokens["c"] = name.win("c", capacity=2)
    name.come_back_with(saved)
    assert name.renew("b", tokens["b"]) is None
    assert name.take_up("c", tokens["c"]) is None
    assert name.holders() == "bc"
    assert name.take_up("a", tokens["a"]) is not None
    assert name.holders() == "bc", "there are no more permits than these"


def a_permit_of_old_data_with_a_lock_delay() -> None:
    """Keep the delay of one that is dropped: it may have died with its permit, at the end of the quarantine."""
    name = Restarted()
    tokens = {who: name.win(who, capacity=2, lock_delay=TTL) for who in "ab"}
    saved = deepcopy(name)
    name.now += TTL // 2
    name.release("b")
    tokens["c"] = name.win("c", capacity=2, lock_delay=TTL)
    name.come_back_with(saved)
    assert name.take_up("c", tokens["c"]) is None
    assert name.holders() == "c", "a died, or has released: only then there was room for c and b"
    name.release("c", tokens["c"])
    name.now = name.quarantined_until + TTL - 1
    assert not isinstance(name.ask("d", capacity=2), Granted)
    name.now += 1
    assert isinstance(name.ask("d", capacity=2), Granted)


def readers_after_a_writer() -> None:
    """Drop a writer of old data if a reader has a larger token."""
    name = Restarted()
    writer = name.win("w", weight=EVERYONE, capacity=EVERYONE)
    saved = deepcopy(name)
    name.release("w", writer)
    tokens = {who: name.win(who, capacity=EVERYONE) for who in "ab"}
    name.come_back_with(saved)
    for who in "ba":
        assert name.take_up(who, tokens[who]) is None
    assert name.holders() == "ba"


def a_late_reader() -> None:
    """Let no reader drive a writer out that was granted when the lease of the reader was over."""
    name = Restarted()
    reader = name.win("a", capacity=EVERYONE)
    name.release("a", reader)
    writer = name.win("w", weight=EVERYONE, capacity=EVERYONE)
    name.forget(TTL)
    assert name.take_up("w", writer) is None
    assert name.take_up("a", reader) is not None
    assert name.holders() == "w"


def one_of_three(lock_delay: int = 0) -> tuple[Restarted, dict[str, int]]:
    """Return a name of 3 permits with as many holders, and two who wait; and the tokens."""
    name = Restarted()
    tokens = {who: name.win(who, capacity=3, lock_delay=lock_delay) for who in "abc"}
    for who in "de":
        assert not isinstance(name.ask(who, capacity=3), Granted)
    return name, tokens


def revoked_by_token() -> None:
    """Take the lease from its holder, tell that one, and let in one who waits; nobody else notices."""
    name, tokens = one_of_three()
    step = name.step()
    assert [each.token for each in step.revoke(tokens["b"])] == [tokens["b"]]
    assert name.heard(NotificationKind.REVOKED) == [("b", tokens["b"])]
    assert (name.holders(), name.queue()) == ("acd", "e")
    assert name.token("d") > tokens["c"] + 1, "a token was burnt"
    assert name.renew("b", tokens["b"]) is Outcome.TAKEN_OVER
    assert name.renew("a", tokens["a"]) is None
    assert name.renew("c", tokens["c"]) is None


def revoked_by_a_token_that_nobody_has() -> None:
    """Change nothing."""
    name, tokens = one_of_three()
    assert name.step().revoke(tokens["c"] + 1) == []
    assert (name.holders(), name.queue(), name.state.counter) == ("abc", "de", tokens["c"])


def revoked_with_a_lock_delay() -> None:
    """Keep the delay after it: who loses a lease by force may be at work still."""
    name, tokens = one_of_three(lock_delay=TTL)
    name.step().revoke(tokens["a"])
    assert (name.holders(), name.queue()) == ("bc", "de")


TAKEN_UP = [
    readers_in_any_order,
    permits_over_old_data,
    a_permit_of_old_data_with_a_lock_delay,
    readers_after_a_writer,
    a_late_reader,
]
REVOKED = [revoked_by_token, revoked_by_a_token_that_nobody_has, revoked_with_a_lock_delay]


@pytest.mark.parametrize("check", [*TAKEN_UP, *REVOKED], ids=lambda check: check.__name__)
def test_a_shared_name(check: Callable[[], None]) -> None:
    """Each holder of a shared name is one for itself."""
    check()


class SmallerTokensAreOver(Step):
    """Only who has a larger token than all others takes a lease up again."""

    def _restore(self, renewal: RenewRequest) -> Holder | None:
        return None if renewal.token < self.state.counter else super()._restore(renewal)


class OldHoldersStay(Step):
    """Who is in old data keeps its permits in the quarantine."""

    def _restore(self, renewal: RenewRequest) -> Holder | None:
        self.quarantined_since = 0
        return super()._restore(renewal)


class AllAreRevoked(Step):
    """A token is taken for a word that somebody is meant, whoever."""

    def revoke(self, token: int = 0) -> list[HolderView]:
        return super().revoke(0 if any(each.token == token for each in self.state.holders) else token)


class AllBeforeAreRevoked(Step):
    """A token is taken for the last that is meant."""

    def revoke(self, token: int = 0) -> list[HolderView]:
        victims: list[HolderView] = []
        for each in list(self.state.holders):
            victims += super().revoke(each.token) if each.token <= token else []
        return victims


class AnyTokenIsRevoked(Step):
    """A token that nobody has is taken for all of them."""

    def revoke(self, token: int = 0) -> list[HolderView]:
        return super().revoke(token if any(each.token == token for each in self.state.holders) else 0)


class NothingIsBurnt(Step):
    """The next grant has the token after the last, as if nobody had been fenced off."""

    def revoke(self, token: int = 0) -> list[HolderView]:
        counter = self.state.counter
        queue, self.state.queue = self.state.queue, type(self.state.queue)()
        victims = super().revoke(token)
        self.state.queue, self.state.counter = queue, counter
        self._serve_queue()
        return victims


class RevokedInSilence(Step):
    """Nobody is told that it lost its lease."""

    def revoke(self, token: int = 0) -> list[HolderView]:
        victims = super().revoke(token)
        self.notifications[:] = [each for each in self.notifications if each.kind is not NotificationKind.REVOKED]
        return victims


class NobodyFollows(Step):
    """What a revocation makes room for is left to the waiters to find out."""

    def revoke(self, token: int = 0) -> list[HolderView]:
        queue, self.state.queue = self.state.queue, type(self.state.queue)()
        victims = super().revoke(token)
        self.state.queue = queue
        return victims


class NoDelayFollows(Step):
    """A revocation is taken for a release."""

    def revoke(self, token: int = 0) -> list[HolderView]:
        self.state.holders = [replace(each, lock_delay=0) for each in self.state.holders]
        return super().revoke(token)


WRONG = [
    *((each, TAKEN_UP) for each in (SmallerTokensAreOver, OldHoldersStay)),
    *((each, REVOKED) for each in (AllAreRevoked, AllBeforeAreRevoked, AnyTokenIsRevoked, NothingIsBurnt)),
    *((each, REVOKED) for each in (RevokedInSilence, NobodyFollows, NoDelayFollows)),
]


def carry_out(checks: list[Callable[[], None]]) -> None:
    """Carry out some checks."""
    for check in checks:
        check()


@pytest.mark.parametrize(("wrong", "checks"), WRONG, ids=lambda each: getattr(each, "__name__", ""))
def test_a_wrong_table_is_noticed(
    wrong: type[Step], checks: list[Callable[[], None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: each is found by one of the checks."""
    monkeypatch.setattr("tests.table.tools.Step", wrong)
    with pytest.raises(AssertionError):
        carry_out(checks)


Where = tuple[int, int, range]
MakeRoom = Callable[[NameState, AcquireRequest, Unpack[Where]], bool]


def the_first_is_alone(right: MakeRoom, state: NameState, request: AcquireRequest, *where: *Where) -> bool:
    """Have whoever takes a lease up again hold the name alone."""
    state.holders = []
    return right(state, request, *where)


def room_for_all(right: MakeRoom, state: NameState, request: AcquireRequest, *where: *Where) -> bool:
    """Have whoever comes take a lease up again."""
    right(state, request, *where)
    return True


def writers_stay(right: MakeRoom, state: NameState, request: AcquireRequest, *where: *Where) -> bool:
    """Have a writer of old data keep all readers out."""
    writes = any(each.weight == request.capacity for each in state.holders)
    return not writes and right(state, request, *where)


def writers_give_way(right: MakeRoom, state: NameState, request: AcquireRequest, *where: *Where) -> bool:
    """Have a writer driven out by a reader from before."""
    state.holders = [each for each in state.holders if each.weight < state.capacity]
    return right(state, request, *where)


def no_delay_follows(right: MakeRoom, state: NameState, request: AcquireRequest, *where: *Where) -> bool:
    """Have whoever is not heard of taken for one that has released."""
    state.holders = [replace(each, lock_delay=0) for each in state.holders]
    return right(state, request, *where)


def the_delay_begins_now(right: MakeRoom, state: NameState, request: AcquireRequest, *where: *Where) -> bool:
    """Have the delay of whoever is not heard of begin when the other is."""
    token, now, quarantine = where
    state.holders = [replace(each, expires_at=min(each.expires_at, now)) for each in state.holders]
    return right(state, request, token, now, range(quarantine.start, now))


ROOMS = [
    the_first_is_alone,
    room_for_all,
    writers_stay,
    writers_give_way,
    no_delay_follows,
    the_delay_begins_now,
]


@pytest.mark.parametrize("wrong", ROOMS)
def test_wrong_room_is_noticed(wrong: Callable[..., bool], monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: leases that are taken up again beside others get too much room, or too little."""
    monkeypatch.setattr(quarantine, "make_room", partial(wrong, quarantine.make_room))
    with pytest.raises(AssertionError):
        carry_out(TAKEN_UP)


def revoke_at_redis() -> None:
    """Revoke permits by their tokens at a simulated Redis, and hold it against the table."""
    for delay in (0, 5 * SECOND):
        machine = RedisMachine()
        machine.choose_the_guard(NO_GUARD)
        for client in (0, 1, 2, 0, 1):
            machine.ask(client, "name", 60 * SECOND, 60 * SECOND, 1, 3, delay, 0, True, 1, True)
        _, second, third = [holder.token for holder in machine.states["name"].holders]
        for token in (third + 1, second):
            machine.check(
                2,
                ["name"],
                partial(_revoke, token=token),
                partial(_expect, token=token),
            )
            machine.look(0)
        machine.teardown()


async def _revoke(store: Store, until: float, token: int) -> list[HolderView]:
    return await store.revoke("name", until, token)


def _expect(steps: dict[str, Step], token: int) -> list[HolderView]:
    return steps["name"].revoke(token)


WRONG_SCRIPTS = {
    "all are revoked": ("(token == 0 or holder[TOKEN] == token)", "true"),
    "all before are revoked": ("holder[TOKEN] == token)", "holder[TOKEN] <= token)"),
    "nothing is burnt": ("counter = new_token(0)", ""),
    "a wrong token burns one": ("if victims[1] then", "if true then"),
    "in silence": ("push(holder[CHANNEL], string.format('R", "push('', string.format('R"),
    "nobody follows": ("end\nserve_queue()", "end"),
    "no delay follows": ("block_since(now, holder[DELAY])", ""),
}


def test_redis_revokes_as_the_table_does() -> None:
    """By a token that somebody has, and by one that nobody has."""
    revoke_at_redis()


@pytest.mark.parametrize("wrong", WRONG_SCRIPTS)
def test_a_wrong_script_is_noticed(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: a script that is wrong in one place does not answer as the table does."""
    before, after = WRONG_SCRIPTS[wrong]
    assert before in scripts.REVOKE.text

    def source(text: str) -> str:
        return source_of(text).replace(before, after)

    monkeypatch.setattr(redis_server, "source_of", source)
    with pytest.raises(AssertionError):
        revoke_at_redis()
