"""Limits: never too many in any window, in the order of the calls, whatever the store's clock does."""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.contracts.cells import Cell, Change
from tenure.table import limit
from tenure.table.limit import LimitRule
from tests.table.scenes import Store, User

START = 1_000_000_000
SECOND = 1_000_000

rules = st.builds(
    LimitRule, rate=st.integers(1, 7), per=st.sampled_from([1_000, 333_333, SECOND]), burst=st.integers(1, 5)
)


@dataclass(slots=True)
class Users:
    """Those who use one limit. Their slots are instants of real time, which never steps."""

    rule: LimitRule
    state: Any = None
    real: int = START
    offset: int = 0
    """How far the store's clock is ahead of real time."""
    slots: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """The instants, and how many units."""
    numbers: int = 0

    def change(self, work: Callable[[Any, int], Change]) -> Any:  # noqa: ANN401
        """Change the state, unless nothing changes; return the reply."""
        made = work(self.state, self.real + self.offset)
        if made.changed:
            assert made.keep > 0
            self.state = made.state
        return made.reply

    def reserve(self, units: int, longest: int | None = None) -> tuple[bool, int]:
        """Reserve a slot."""
        self.numbers += 1
        reserved, ahead = self.change(limit.reserve(self.rule, units, longest, f"r{self.numbers}"))
        if reserved:
            self.slots.append((self.real + ahead, units))
        return reserved, ahead

    def give_back(self) -> bool:
        """Give the last slot back."""
        given: bool = self.change(limit.give_back(self.rule, self.slots[-1][1], f"r{self.numbers}"))
        if given:
            self.slots.pop()
        return given

    def check(self) -> None:
        """Check each half-open window that begins with a slot, and that the slots are in the order of the calls."""
        assert [at for at, _ in self.slots] == sorted(at for at, _ in self.slots)
        for start, _ in self.slots:
            inside = sum(units for at, units in self.slots if start <= at < start + self.rule.per)
            assert inside <= self.rule.rate + self.rule.burst - 1


@given(rules, st.data())
def test_no_window_has_too_many(rule: LimitRule, data: st.DataObject) -> None:
    """Any half-open window has at most rate + burst - 1 units, although the clock steps back."""
    use(Users(rule), data)


def use(users: Users, data: st.DataObject) -> None:
    """Use a limit in a drawn way."""
    kinds = st.sampled_from(["reserve", "reserve", "try", "short", "wait", "step", "give back"])
    may_give_back = False
    for kind in data.draw(st.lists(kinds, max_size=30)):
        units = data.draw(st.integers(1, users.rule.burst))
        if kind == "wait":
            users.real += data.draw(st.integers(0, 2 * users.rule.per))
        elif kind == "step":
            users.offset -= data.draw(st.integers(0, 3 * users.rule.per))
        elif kind == "give back":
            if may_give_back:
                users.give_back()
            may_give_back = False
        else:
            longest = {"reserve": None, "try": 0, "short": users.rule.per}[kind]
            reserved, ahead = users.reserve(units, longest)
            assert reserved or (longest is not None and ahead > longest)
            may_give_back = (may_give_back and not reserved) or reserved
        users.check()


@given(rules, st.integers(1, 30), st.integers(0, 3600 * SECOND), st.integers(0, SECOND))
def test_a_step_back_prolongs_no_wait(rule: LimitRule, queue: int, step: int, between: int) -> None:
    """After a step back, a call waits no longer than it would have right after the last call before the step."""
    users = Users(rule)
    for _ in range(queue):
        users.reserve(1)
    before = limit.reserve(rule, 1, None, "x")(users.state, users.real).reply[1]
    users.real += between
    users.offset -= step
    assert users.reserve(1)[1] <= before


def granted_after_a_step() -> bool:
    """Return whether calls that do not wait are granted within two durations of a step of the clock by an hour."""
    users = Users(LimitRule(1, SECOND, 1))
    users.reserve(1)
    users.offset -= 3600 * SECOND
    for _ in range(20):
        if users.reserve(1, 0)[0]:
            return True
        users.real += SECOND // 10
    return False


def test_a_step_back_stops_the_limit_for_no_longer() -> None:
    """Refused calls notice the step, too."""
    assert granted_after_a_step()


def test_the_whole_rate_is_used() -> None:
    """Nothing is rounded: 3 units a second are 3000 in 1000 s."""
    users = Users(LimitRule(3, SECOND, 1))
    last = max(users.reserve(1)[1] for _ in range(3001))
    assert last == 1000 * SECOND


def test_a_burst_follows_a_pause_and_no_more() -> None:
    """After a pause of any length `burst` units pass at once, and the next waits."""
    users = Users(LimitRule(10, SECOND, 4))
    users.reserve(1)
    users.real += 3600 * SECOND
    assert [users.reserve(1)[1] for _ in range(5)] == [0, 0, 0, 0, 100_000]


def test_a_refused_call_reserves_nothing() -> None:
    """It says for how long it would have waited."""
    users = Users(LimitRule(1, SECOND, 1))
    users.reserve(1)
    assert users.reserve(1, 999_999) == (False, SECOND)
    assert users.reserve(1, SECOND) == (True, SECOND)


def test_a_slot_is_given_back_unless_others_have_reserved() -> None:
    """The next call then gets the slot, else the slots stay as they are."""
    users = Users(LimitRule(1, SECOND, 1))
    users.reserve(1)
    users.reserve(1)
    assert users.give_back()
    assert users.reserve(1)[1] == SECOND
    assert not users.change(limit.give_back(users.rule, 1, "r2"))
    assert users.reserve(1)[1] == 2 * SECOND


def test_another_rate_keeps_the_arrival_time() -> None:
    """A new rate takes over where the old one was."""
    users = Users(LimitRule(1, SECOND, 1))
    users.reserve(1)
    users.rule = LimitRule(1000, SECOND, 1)
    assert users.reserve(1)[1] == SECOND
    assert users.reserve(1)[1] == SECOND + 1000


def slots_of_users(chance: Random) -> Users:
    """Let several users reserve at the same time, with lost and late requests; return the slots that they heard of."""
    rule = LimitRule(chance.randint(1, 5), SECOND, chance.randint(1, 3))
    found = Users(rule)
    store = Store(chance, 0.1, now=START)
    users = [User(store, f"user{number}") for number in range(3)]

    async def work(user: User) -> None:
        for number in range(4):
            units = chance.randint(1, rule.burst)
            reservation = f"{user.name}-{number}"

            def change(state: Any, now: int) -> Change:  # noqa: ANN401
                made = limit.reserve(rule, units, None, reservation)(state, now)  # noqa: B023 - called within the turn
                made.reply = now + made.reply[1]
                return made

            found.slots.append((await user.cells.change("limit", change), units))

    works = [work(user) for user in users]
    try:
        while works:
            running = chance.choice(works)
            store.now += chance.randrange(SECOND // 10)
            if store.late and chance.random() < 0.1:
                store.late.pop()()
            try:
                running.send(None)
            except StopIteration:
                works.remove(running)
    finally:
        for each in works:
            each.close()
    found.slots.sort()
    return found


def check_users() -> None:
    """Check many scenes."""
    for seed in range(200):
        slots_of_users(Random(seed)).check()


def test_users_at_the_same_time_stay_within_the_limit() -> None:
    """Each hears of a slot of its own, whatever is lost or late."""
    check_users()


def test_a_store_that_does_not_compare_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug: a cell is written although another user has written it meanwhile."""
    write = Store._write

    def always(self: Store, name: str, value: bytes, _version: int) -> Cell:
        return write(self, name, value, self.cells.get(name, (b"", 0))[1])

    monkeypatch.setattr(Store, "_write", always)
    with pytest.raises(AssertionError):
        check_users()


def test_the_planted_bugs_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bugs: a slot is given back after others have reserved; no burst; a step back that is ignored or not kept."""
    true_read = limit._read

    def any_reservation(rule: LimitRule, units: int, _reservation: str) -> Callable[[Any, int], Change]:
        def change(state: Any, now: int) -> Change:  # noqa: ANN401
            found = true_read(state, now, rule)
            found.arrival -= units * rule.per
            return limit._change(found, True, now, rule)

        return change

    users = Users(LimitRule(1, SECOND, 1))
    for _ in range(3):
        users.reserve(1)
    users.slots.pop(1)  # the second waiter is cancelled
    assert not users.change(limit.give_back(users.rule, 1, "r2"))
    users.change(any_reservation(users.rule, 1, "r2"))
    users.reserve(1)
    with pytest.raises(AssertionError):
        users.check()

    def unkept(state: Any, now: int, rule: LimitRule) -> limit._Limit:  # noqa: ANN401
        found = true_read(state, now, rule)
        found.stepped = False
        return found

    def ignored(state: Any, now: int, rule: LimitRule) -> limit._Limit:  # noqa: ANN401
        found = unkept(state, now, rule)
        if state is not None and now < state[2]:
            found.arrival = state[0]
        return found

    for bug in (unkept, ignored):
        monkeypatch.setattr(limit, "_read", bug)
        assert not granted_after_a_step()
