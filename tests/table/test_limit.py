"""Limits by each rule: never too many in any window, in the order of the calls, whatever the store's clock does."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tenure.contracts.cells import Cell, Change
from tenure.table import limit
from tenure.table.limit import EXACT, CalendarRule, Rule, SmoothRule, WindowRule
from tests.planting import planted
from tests.table.scenes import Store, User

START = 1_000_000_000
SECOND = 1_000_000

PERS = st.sampled_from([1_000, 333_333, SECOND])

smooth_rules = st.builds(SmoothRule, rate=st.integers(1, 7), per=PERS, burst=st.integers(1, 5))

windows = st.builds(WindowRule, rate=st.integers(1, 7) | st.integers(EXACT + 1, 500), per=PERS)

counting_rules = st.one_of(windows, smooth_rules)


def seconds_of(now: int) -> tuple[int, int]:
    """Return the second that contains an instant, as a calendar does."""
    return now - now % SECOND, now - now % SECOND + SECOND


def most_in_a_window(rule: Rule) -> int:
    """Return how many units may have their slots in one half-open window."""
    return rule.rate + rule.burst - 1 if isinstance(rule, SmoothRule) else rule.most


@dataclass(slots=True)
class Users:
    """Those who use one limit. Their slots are instants of real time, which never steps."""

    rule: Rule
    state: Any = None
    real: int = START
    offset: int = 0
    """How far the store's clock is ahead of real time."""
    slots: list[list[int]] = field(default_factory=list[list[int]])
    """The instants, how many units, and the slots in the limit's words."""
    numbers: int = 0

    def change(self, work: Callable[[Any, int], Change]) -> Any:  # noqa: ANN401
        """Change the state, unless nothing changes; return the reply."""
        made = work(self.state, self.real + self.offset)
        if made.changed:
            assert made.keep > 0
            self.state = json.loads(json.dumps(made.state))
        return made.reply

    def reserve(self, units: int, longest: int | None = None) -> tuple[bool, int]:
        """Reserve a slot."""
        self.numbers += 1
        reserved, ahead, slot = self.change(limit.reserve(self.rule, units, longest, f"r{self.numbers}"))
        if reserved:
            self.slots.append([self.real + ahead, units, slot])
        return reserved, ahead

    def settle(self, place: int, actual: int) -> None:
        """Count other units for a slot; too many stay, if the limit takes them back no more."""
        _, units, slot = self.slots[place]
        if self.change(limit.settle(self.rule, slot, actual - units)) or actual > units:
            self.slots[place][1] = actual

    def give_back(self) -> None:
        """Give the last slot back, by a caller who was not told which it is."""
        self.change(limit.settle(self.rule, None, -self.slots.pop()[1], f"r{self.numbers}"))

    def available(self) -> int:
        """Return how many may be used now."""
        return limit.available(self.rule, self.state, self.real + self.offset)

    def used(self, start: int, per: int) -> int:
        """Return how many units have their slots in a half-open window."""
        return sum(units for at, units, _ in self.slots if start <= at < start + per)

    def check(self) -> None:
        """Check each half-open window that begins with a slot, and that the slots are in the order of the calls."""
        assert [at for at, _, _ in self.slots] == sorted(at for at, _, _ in self.slots)
        assert isinstance(self.rule, (SmoothRule, WindowRule))
        for start, _, _ in self.slots:
            assert self.used(start, self.rule.per) <= most_in_a_window(self.rule)


@given(counting_rules, st.data())
def test_no_window_has_too_many(rule: WindowRule | SmoothRule, data: st.DataObject) -> None:
    """Any half-open window has at most the units of its rule, although the clock steps back and units come back."""
    use(Users(rule), data, rule.per)


def use(users: Users, data: st.DataObject, per: int) -> None:
    """Use a limit in a drawn way."""
    kinds = st.sampled_from(["reserve", "reserve", "try", "short", "wait", "step", "give back", "settle"])
    may_give_back = False
    for kind in data.draw(st.lists(kinds, max_size=30)):
        units = data.draw(st.integers(1, users.rule.most))
        if kind == "wait":
            users.real += data.draw(st.integers(0, 2 * per))
        elif kind == "step":
            users.offset -= data.draw(st.integers(0, 3 * per))
        elif kind == "give back":
            if may_give_back:
                users.give_back()
            may_give_back = False
        elif kind == "settle":
            come = [place for place, (at, _, _) in enumerate(users.slots) if at <= users.real]
            if come:
                place = data.draw(st.sampled_from(come))
                most = users.slots[place][1]
                for actual in data.draw(st.lists(st.integers(0, most), min_size=1, max_size=3)):
                    users.settle(place, actual)
        else:
            free, longest = users.available(), {"reserve": None, "try": 0, "short": per}[kind]
            reserved, ahead = users.reserve(units, longest)
            assert reserved or (longest is not None and ahead > longest)
            assert (free >= units) is (ahead == 0)
            may_give_back = (may_give_back and not reserved) or reserved
        users.check()
        assert len(str(users.state)) < 5_000


@given(windows, st.data())
def test_a_window_is_as_full_as_it_may_be(rule: WindowRule, data: st.DataObject) -> None:
    """A slot is no later than it must be, for its order and for all of the rate; by slices, a hundredth later."""
    users = Users(rule)
    slack = rule.per // EXACT if rule.rate > EXACT else 0
    for _ in range(data.draw(st.integers(1, 12))):
        users.real += data.draw(st.integers(0, rule.per))
        units = data.draw(st.integers(1, rule.rate))
        before = [*users.slots]
        ahead = users.reserve(units)[1]
        slot = users.slots[-1][0]
        last = before[-1][0] if before else 0
        if slot > max(users.real, last) and slack <= ahead:
            users.slots = before
            sooner = slot - 1 - slack
            assert sooner < last or users.used(sooner - rule.per + 1, rule.per) + units > rule.rate
            users.slots.append([slot, units, 0])


@given(st.integers(1, 7), st.data())
def test_no_window_of_a_calendar_has_too_many(rate: int, data: st.DataObject) -> None:
    """Each second by the store's clock has at most its units, also while the clock steps to and fro over its end."""
    users = Users(CalendarRule(rate, seconds_of))
    used: dict[int, int] = {}
    for _ in range(data.draw(st.integers(1, 20))):
        users.real += data.draw(st.integers(0, SECOND))
        users.offset = -data.draw(st.sampled_from([0, 0, SECOND // 10, SECOND // 2]))
        units = data.draw(st.integers(1, rate))
        free, longest = users.available(), data.draw(st.sampled_from([None, 0, SECOND]))
        reserved, ahead = users.reserve(units, longest)
        assert (free >= units) is (ahead == 0)
        if reserved:
            second = (users.real + users.offset + ahead) // SECOND
            used[second] = used.get(second, 0) + units
    assert max([*used.values(), 0]) <= rate


def test_a_calendar_that_was_ahead_for_long_is_not_waited_for() -> None:
    """A clock that was a day ahead, and is right again, costs at most the present window and the next."""
    users = Users(CalendarRule(2, seconds_of), offset=86_400 * SECOND)
    for _ in range(20):
        users.reserve(1)
    users.offset = 0
    assert users.reserve(1)[1] == 0


@pytest.mark.parametrize("rule", [WindowRule(5, SECOND), CalendarRule(5, seconds_of), SmoothRule(5, SECOND, 5)])
def test_units_that_are_settled_may_be_used(rule: Rule) -> None:
    """What was too much may be used by others; what was too little makes them wait; a reset forgets both."""
    users = Users(rule)
    users.reserve(5)
    assert users.available() == 0
    users.settle(0, 2)
    assert users.available() == 3
    assert users.reserve(3, 0)[0]
    users.settle(1, 6)  # more than there was
    users.real += SECOND // 5  # a smooth limit has one more by now
    assert users.reserve(1, 0) == (False, users.reserve(1)[1])
    assert users.change(limit.reset) > 0
    assert users.available() == 5


@pytest.mark.parametrize("rule", [WindowRule(1, SECOND), CalendarRule(1, seconds_of), SmoothRule(1, SECOND, 1)])
def test_a_larger_rate_counts_at_once(rule: Rule) -> None:
    """Nobody waits as long as the smaller rate would have had it; who came before counts."""
    users = Users(rule)
    users.reserve(1)
    assert not users.reserve(1, 0)[0]
    users.rule = replace(rule, rate=4, **({"burst": 4} if isinstance(rule, SmoothRule) else {}))  # type: ignore[type-var]
    assert users.available() == 3
    assert users.reserve(3, 0)[0]
    assert users.available() == 0


def test_a_window_takes_what_comes_back() -> None:
    """A waiter's units are free again at once; those of a slot that has left the window change nothing any more."""
    users = Users(WindowRule(2, SECOND))
    users.reserve(1)
    assert users.reserve(2)[1] == SECOND
    users.give_back()
    assert users.reserve(1, 0)[0]
    users.real += 2 * SECOND
    users.reserve(2)
    users.settle(0, 0)
    assert users.available() == 0
    users = Users(WindowRule(1, SECOND))
    assert [users.reserve(1)[1] for _ in range(3)] == [0, SECOND, 2 * SECOND]
    users.real += SECOND
    users.give_back()
    assert users.reserve(1)[1] == SECOND  # after the second, who has just passed


def test_a_window_counts_units_that_had_all_come_back() -> None:
    """Of any of its slots: a cost that was said to be nothing, and is something, makes the next callers wait."""
    users = Users(WindowRule(5, SECOND))
    for _ in range(3):
        users.reserve(1)
        users.real += SECOND // 10
    for place in (1, 2, 0):
        users.settle(place, 0)
        users.settle(place, 2)
    assert (users.available(), users.reserve(1)[1]) == (0, 7 * SECOND // 10)


def test_a_long_queue_makes_no_long_state() -> None:
    """The cell keeps about as much as one window needs, however many wait; each still gets its slot in turn."""
    users = Users(WindowRule(3, SECOND))
    assert [users.reserve(1)[1] for _ in range(600)] == [place // 3 * SECOND for place in range(600)]
    assert len(str(users.state)) < 300
    users = Users(WindowRule(1000, SECOND))
    for place in range(3000):
        users.real += 100
        assert (users.reserve(1)[1] == 0) is (place < 1000)
    assert users.reserve(1)[1] < 3 * SECOND
    assert len(str(users.state)) < 4000


def test_a_calendar_counts_on_in_the_window_before() -> None:
    """When the clock steps back over the end of a window, that is as full as it was; and so is the next."""
    users = Users(CalendarRule(1, seconds_of), real=START + SECOND - 10)
    users.reserve(1)
    users.real += 20
    users.reserve(1)
    users.offset = -15
    assert users.reserve(1, SECOND) == (False, 5 + SECOND)


def test_rules_of_two_kinds_do_not_count_for_each_other() -> None:
    """What one has used is still known after the other was used, until it is idle."""
    users = Users(WindowRule(2, SECOND))
    users.reserve(2)
    users.rule = SmoothRule(1, SECOND, 1)
    assert users.reserve(1, 0)[0]
    users.rule = WindowRule(2, SECOND)
    assert not users.reserve(1, 0)[0]
    assert limit.idle_in(users.state, users.real) == SECOND


@given(counting_rules, st.integers(1, 30), st.integers(0, 3600 * SECOND), st.integers(0, SECOND))
def test_a_step_back_prolongs_no_wait(rule: Rule, queue: int, step: int, between: int) -> None:
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
    users = Users(SmoothRule(1, SECOND, 1))
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
    users = Users(SmoothRule(3, SECOND, 1))
    last = max(users.reserve(1)[1] for _ in range(3001))
    assert last == 1000 * SECOND


@given(counting_rules, st.integers(0, 20), st.integers(0, 3600 * SECOND))
def test_a_limit_that_was_reset_is_like_a_new_one(rule: Rule, queue: int, step: int) -> None:
    """Also after a step back: as many pass at once and no more, and no slot from before is given back into it."""
    users = Users(rule)
    for _ in range(queue):
        users.reserve(1)
    users.offset -= step
    busy = limit.idle_in(users.state, users.real + users.offset)
    made = limit.reset(users.state, users.real + users.offset)
    assert (made.reply, made.changed) == (busy, queue > 0)
    users.change(limit.reset)
    if queue:
        users.give_back()
    fresh = Users(rule)
    assert [users.reserve(1) for _ in range(6)] == [fresh.reserve(1) for _ in range(6)]


def test_a_burst_follows_a_pause_and_no_more() -> None:
    """After a pause of any length `burst` units pass at once, and the next waits."""
    users = Users(SmoothRule(10, SECOND, 4))
    users.reserve(1)
    users.real += 3600 * SECOND
    assert [users.reserve(1)[1] for _ in range(5)] == [0, 0, 0, 0, 100_000]


def test_a_refused_call_reserves_nothing() -> None:
    """It says for how long it would have waited."""
    users = Users(SmoothRule(1, SECOND, 1))
    users.reserve(1)
    assert users.reserve(1, 999_999) == (False, SECOND)
    assert users.reserve(1, SECOND) == (True, SECOND)


def test_a_smooth_slot_is_given_back_unless_others_have_reserved() -> None:
    """The next call then gets the slot, else the slots stay as they are."""
    users = Users(SmoothRule(1, SECOND, 1))
    users.reserve(1)
    users.reserve(1)
    users.give_back()
    assert users.reserve(1)[1] == SECOND
    users.settle(0, 0)
    assert users.reserve(1)[1] == 2 * SECOND


def test_a_rate_that_changes_while_slots_lie_ahead_keeps_the_arrival_time() -> None:
    """A new rate takes over where the old one was, so that no slot comes before one that was given."""
    users = Users(SmoothRule(1, SECOND, 1))
    users.reserve(1)
    users.reserve(1)
    users.rule = SmoothRule(1000, SECOND, 1)
    assert users.reserve(1)[1] == 2 * SECOND
    assert users.reserve(1)[1] == 2 * SECOND + 1000


def slots_of_users(chance: Random) -> Users:
    """Let several users reserve at the same time, with lost and late requests; return the slots that they heard of."""
    smooth = SmoothRule(chance.randint(1, 5), SECOND, chance.randint(1, 3))
    rule = chance.choice((smooth, WindowRule(chance.randint(1, 5), SECOND)))
    found = Users(rule)
    store = Store(chance, 0.1, now=START)
    users = [User(store, f"user{number}") for number in range(3)]

    async def work(user: User) -> None:
        for number in range(4):
            units = chance.randint(1, rule.most)
            reservation = f"{user.name}-{number}"

            def change(state: Any, now: int) -> Change:  # noqa: ANN401
                made = limit.reserve(rule, units, None, reservation)(state, now)  # noqa: B023 - called within the turn
                made.reply = now + made.reply[1]
                return made

            found.slots.append([await user.cells.change("limit", change), units, 0])

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


def searched(test: Callable[..., None]) -> Callable[[], None]:
    """Return a test of drawn cases that says only whether it fails."""
    return settings(max_examples=500, derandomize=True, phases=[Phase.generate])(test)


KEPT = searched(test_no_window_has_too_many)
FULL = searched(test_a_window_is_as_full_as_it_may_be)
COUNTED = searched(test_no_window_of_a_calendar_has_too_many)
QUEUED = test_a_long_queue_makes_no_long_state
RETURNED = test_a_window_takes_what_comes_back
SETTLED = test_a_window_counts_units_that_had_all_come_back
AHEAD = test_a_calendar_that_was_ahead_for_long_is_not_waited_for
STEADY = test_a_rate_that_changes_while_slots_lie_ahead_keeps_the_arrival_time


@pytest.mark.parametrize(
    ("place", "right", "wrong", "check"),
    [
        ((WindowRule, "slot"), "slot = max(slot, each.last + self.per)", "slot = each.last + self.per", KEPT),
        ((WindowRule, "slot"), "each.last + self.per", "each.first + self.per", KEPT),
        ((WindowRule, "slot"), "used + units <= self.rate", "used <= self.rate", KEPT),
        ((WindowRule, "slot"), "max(present, log[-1].last)", "present", KEPT),
        (
            (WindowRule, "add"),
            "_Slice(log[0].first, log[1].last, log[0]",
            "_Slice(log[0].first, log[0].last, log[0]",
            RETURNED,
        ),
        ((WindowRule, "add"), "later >= self.rate", "False", QUEUED),
        ((WindowRule, "settle"), "each is log[-1] if slot is None", "each is log[0] if slot is None", RETURNED),
        ((WindowRule, "settle"), "each.first <= slot <= each.last", "slot <= each.last", RETURNED),
        ((WindowRule, "settle"), "more > 0", "False", KEPT),
        ((WindowRule, "settle"), "more > 0", "False", SETTLED),
        ((WindowRule, "settle"), "key=lambda each: each.last", "key=bool", SETTLED),
        ((WindowRule, "free"), "log[-1].last > present", "False", KEPT),
        ((WindowRule, "add"), "log[-1].first // width == slot // width", "log[-1].last <= slot + self.per", FULL),
        ((SmoothRule, "settle"), "kept[2] != slot", "False", KEPT),
        ((SmoothRule, "_arrival_after"), "units * self.per", "self.per", KEPT),
        ((SmoothRule, "_arrival"), "last > present", "False", STEADY),
        ((CalendarRule, "stepped_back"), "step < ends - starts", "False", COUNTED),
        ((CalendarRule, "stepped_back"), "step < ends - starts", "True", AHEAD),
        ((CalendarRule, "slot"), "max(slot, starts)", "starts", COUNTED),
        ((CalendarRule, "slot"), "begins == starts) + units", "begins == starts)", COUNTED),
    ],
)
def test_a_planted_bug_is_found(
    monkeypatch: pytest.MonkeyPatch, place: tuple[type, str], right: str, wrong: str, check: Callable[[], None]
) -> None:
    """As a maintainer may get a rule wrong."""
    monkeypatch.setattr(*place, planted(*place, right, wrong))
    with pytest.raises((AssertionError, TypeError)):
        check()


def test_a_clock_that_is_not_kept_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bugs: a refused call does not note that the clock has stepped back, or nobody does."""
    read = limit._read

    def unkept(state: Any, now: int, rule: Rule | None = None) -> limit._Limit:  # noqa: ANN401
        found = read(state, now, rule)
        found.stepped = False
        return found

    monkeypatch.setattr(limit, "_read", unkept)
    assert not granted_after_a_step()
