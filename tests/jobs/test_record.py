"""The record of a job in any history: at most one run a window is done, and never more runs than attempts."""

# ruff: noqa: D102 - a rule's name says what happens

import types
from collections import Counter
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from tenure.core.cells import Change
from tenure.jobs import record as true_record
from tenure.jobs.record import CLOCK_BOUND, GO, LATER, SUPERSEDED, JobRules, JobStatus, RunId
from tenure.jobs.windows import Window
from tests.jobs.planted import planted
from tests.properties import hunt, thorough

LENGTH = 100_000_000
"""A window, in microseconds."""
ATTEMPTS = 3


class Jobs(RuleBasedStateMachine):
    """Nodes that call one job. They die, lose their lock and go on, and the store's clock steps."""

    record: types.ModuleType = true_record
    keyed = False

    def __init__(self) -> None:
        super().__init__()
        self.now = 10**15
        self.state: Any = None
        self.locked: RunId | None = None
        """The run that has the lock."""
        self.running: dict[str, tuple[RunId, Window]] = {}
        """All runs that go on, with or without the lock."""
        self.begun: Counter[int] = Counter()
        self.done: Counter[int] = Counter()
        self.latest = 0
        self.at_least = 0
        self.number = 0

    def window(self) -> Window:
        starts = self.now - self.now % LENGTH
        return Window(0, 2**62) if self.keyed else Window(starts, starts + LENGTH)

    def apply(self, change: Change) -> dict[str, Any]:
        if change.changed:
            self.state = change.state
        reply: dict[str, Any] = change.reply
        return reply

    @rule(late=st.sampled_from([0, 0, 0, 1, LENGTH]))
    @precondition(lambda self: self.locked is None)
    def a_node_calls(self, late: int) -> None:
        window = self.window()
        self.now += late  # between its look and its run
        self.number += 1
        run = RunId(f"r{self.number}", f"node {self.number}")
        rules = JobRules(ATTEMPTS, self.at_least)
        reply = self.apply(self.record.begin(self.state, self.now, window, rules, run))
        if reply["status"] == GO:
            assert window.starts <= self.now < window.ends
            self.begun[window.starts] += 1
            assert reply["attempts"] == self.begun[window.starts]
            self.latest = max(self.latest, window.starts)
            self.running[run.id] = run, window
            self.locked = run
        elif reply["status"] == LATER:
            assert self.now < reply["until"] <= self.now + max(self.record.LONGEST_BACKOFF, self.at_least)
        elif reply["status"] == JobStatus.DONE:
            assert self.done[window.starts] == 1
        elif reply["status"] == JobStatus.FAILED:
            assert self.begun[window.starts] == ATTEMPTS
            assert reply["error"]
        else:
            assert reply["status"] == JobStatus.OVER
            assert window.starts < self.latest or self.now >= window.ends

    @rule(pick=st.integers(0, 5), fails=st.booleans())
    def a_run_ends(self, pick: int, fails: bool) -> None:
        if not self.running:
            return
        run, window = self.running.pop(list(self.running)[pick % len(self.running)])
        reply = self.apply(self.record.finish(self.state, self.now, run, "bad" if fails else None))
        if reply["status"] != SUPERSEDED and not fails:
            self.done[window.starts] += 1
        if self.locked is run:
            assert reply["status"] != SUPERSEDED
            self.locked = None

    @rule()
    def the_lock_is_lost(self) -> None:
        self.locked = None

    @rule()
    def a_node_dies(self) -> None:
        if self.locked is not None:
            self.running.pop(self.locked.id, None)
            self.locked = None

    @rule(by=st.sampled_from([1, 1_000_000, 60_000_000, LENGTH]))
    def time_goes_by(self, by: int) -> None:
        self.now += by

    @rule(by=st.sampled_from([1, 1_000_000, LENGTH, CLOCK_BOUND // 8]))
    def the_clock_steps_back(self, by: int) -> None:
        if self.latest - (self.now - by) < CLOCK_BOUND // 2:
            self.now -= by

    @rule(at_least=st.sampled_from([0, 0, 5_000_000, 2 * LENGTH]))
    def a_release_has_another_at_least(self, at_least: int) -> None:
        self.at_least = at_least

    @invariant()
    def a_window_is_done_at_most_once(self) -> None:
        assert all(count <= 1 for count in self.done.values())

    @invariant()
    def attempts_are_never_exceeded(self) -> None:
        assert all(count <= ATTEMPTS for count in self.begun.values())

    @invariant()
    def the_history_is_bounded(self) -> None:
        lines: list[Any] = self.state["history"] if self.state and "history" in self.state else []
        assert len(lines) <= self.record.HISTORY


class KeyedJobs(Jobs):
    """The same for a key, whose one window never ends."""

    keyed = True


@pytest.mark.parametrize("machine", [Jobs, KeyedJobs])
def test_in_any_history_a_window_is_done_once(machine: type[Jobs]) -> None:
    """And has no more runs than attempts."""
    run_state_machine_as_test(machine, settings=thorough(300, 40))


WRONG = {
    "a silent run is no attempt": ('record["attempts"] += 1', 'record["attempts"] += not silent'),
    "any run may end": (' or state["run"]["id"] != run.id', ""),
    "done is forgotten": ('record["done"] = facts', 'record["done"] = None'),
    "a window begins again": ("window.starts < begun and now > record", "False and now > record"),
    "a window that is over begins": ("now >= window.ends or", ""),
    "attempts are not counted": ('if record["attempts"] >= rules.attempts', "if False"),
    "one attempt too many": ('record["attempts"] >= rules.attempts', 'record["attempts"] > rules.attempts'),
    "a back-off that a clock prolongs": ('"may": record["may"] - step', '"may": record["may"]'),
    "a new window keeps its attempts": ("        record |= NEW\n", '        record["done"] = None\n'),
    "a new window is done already": ("        record |= NEW\n", '        record["attempts"] = 0\n'),
    "a clock that stepped back begins anew": ('record["now"] - CLOCK_BOUND', 'record["now"] - 1'),
    "at_least counts from a clock that stepped back": ('for event in ("last", "run")', "for event in ()"),
}
"""What record.py says, and what it says then."""


@pytest.mark.parametrize("bug", sorted(WRONG))
def test_a_wrong_record_is_noticed(bug: str) -> None:
    """By some history."""
    machine = type("WrongJobs", (Jobs,), {"record": planted(*WRONG[bug])})
    with pytest.raises(AssertionError):
        hunt(machine, 2000, 50, bug)


def test_failures_back_off() -> None:
    """The next attempt waits for 1 s, then 2 s, then 4 s, and at most for a minute."""
    state: Any = None
    now, waits = 10**15, list[int]()
    for number in range(9):
        run = RunId(f"r{number}", "node")
        reply = true_record.begin(state, now, Window(0, 2**62), JobRules(20), run).reply
        if reply["status"] == LATER:
            waits.append(reply["until"] - now)
            now = reply["until"]
        made = true_record.begin(state, now, Window(0, 2**62), JobRules(20), run)
        assert made.reply["status"] == GO
        state = true_record.finish(made.state, now, run, "bad").state
    assert waits == [1_000_000 << exponent for exponent in range(6)] + [60_000_000] * 2


def test_the_history_is_bounded() -> None:
    """A record keeps the last 20 runs, the latest last."""
    state: Any = None
    for number in range(30):
        run, now = RunId(f"r{number}", f"node {number}"), 10**15 + number * LENGTH
        made = true_record.begin(state, now, Window(now, now + LENGTH), JobRules(), run)
        state = true_record.finish(made.state, now, run, None).state
    assert [line["by"] for line in state["history"]] == [f"node {number}" for number in range(10, 30)]
