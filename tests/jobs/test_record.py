"""The record of a job in any history: at most one run a window is done, and never more runs than attempts."""

# ruff: noqa: D102 - a rule's name says what happens

import json
import types
from collections import Counter
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from tenure.contracts.cells import LARGEST_CELL
from tenure.core import cells
from tenure.core.cells import Change
from tenure.jobs import record as true_record
from tenure.jobs.record import CLOCK_BOUND, GO, LATER, MISMATCH, SUPERSEDED, BegunRun, JobRules, JobStatus, RunId
from tenure.jobs.windows import Window
from tests.planting import module_with
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
        self.locked: str | None = None
        """The run that has the lock."""
        self.running: dict[str, tuple[BegunRun, Window, str]] = {}
        """All runs that go on, with or without the lock, and the fingerprint of each."""
        self.fingerprint = self.bound = ""
        """That of the next call, and the fingerprint that the record is bound to."""
        self.results: dict[int, str] = {}
        """The result of the run that is done, by window."""
        self.begun: Counter[int] = Counter()
        self.done: Counter[int] = Counter()
        self.latest = 0
        self.at_least, self.at_most = 0, 0
        self.paused = False
        self.most: dict[str, int] = {}
        """How long each run may take."""
        self.stepped = False
        """Whether the clock has stepped back, so that no difference of its instants is a duration."""
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
        fingerprint = self.fingerprint
        rules = JobRules(ATTEMPTS, self.at_least, self.at_most, fingerprint=fingerprint)
        reply = self.apply(self.record.begin(self.state, self.now, window, rules, run))
        other = bool(fingerprint and self.bound) and fingerprint != self.bound
        if reply["status"] == GO:
            assert not other
            self.bound = self.bound or fingerprint
            assert window.starts <= self.now < window.ends
            self.begun[window.starts] += 1
            assert reply["attempts"] == self.begun[window.starts]
            self.latest = max(self.latest, window.starts)
            assert not self.paused
            begun = self.record.BegunRun(run, self.now, reply["attempts"], window.starts)
            self.running[run.id] = begun, window, fingerprint
            self.most[run.id] = rules.at_most
            self.locked = run.id
        elif reply["status"] == LATER:
            assert self.now < reply["until"] <= self.now + max(self.record.LONGEST_BACKOFF, self.at_least)
        elif self.paused:
            assert reply["status"] == JobStatus.PAUSED
        elif reply["status"] == MISMATCH:
            assert other
        elif reply["status"] == JobStatus.DONE:
            assert not other
            assert self.done[window.starts] == 1
            assert reply["value"] == self.results[window.starts]
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
        run, window, fingerprint = self.running.pop(list(self.running)[pick % len(self.running)])
        going: dict[str, Any] = (self.state and self.state["run"]) or {}
        forgotten, repeated = self.state is None, bool(going.get("repeated"))
        rules = JobRules(ATTEMPTS, self.at_least, self.at_most, fingerprint=fingerprint)
        held, error, result = self.locked == run.run.id, "bad" if fails else None, {"value": run.run.id}
        reply = self.apply(self.record.finish(self.state, self.now, run, error, rules, held, result))
        if held:
            assert reply["status"] != SUPERSEDED
            self.locked = None
        if held and forgotten:
            self.begun[window.starts], self.latest, self.bound = 1, window.starts, fingerprint
        if reply["status"] == JobStatus.RAN:
            assert not fails
            assert self.stepped or not self.most[run.run.id] or self.now - run.at <= self.most[run.run.id]
            self.done[window.starts] += not repeated
            if not repeated:
                self.results[window.starts] = run.run.id

    @rule()
    def the_lock_is_lost(self) -> None:
        self.locked = None

    @rule()
    def a_node_dies(self) -> None:
        if self.locked is not None:
            self.running.pop(self.locked, None)
            self.locked = None

    @rule(by=st.sampled_from([1, 1_000_000, 60_000_000, LENGTH]))
    def time_goes_by(self, by: int) -> None:
        self.now += by

    @rule(by=st.sampled_from([1, 1_000_000, LENGTH, CLOCK_BOUND // 8]))
    def the_clock_steps_back(self, by: int) -> None:
        if self.latest - (self.now - by) < CLOCK_BOUND // 2:
            self.now -= by
            self.stepped = True

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


class OperatedJobs(Jobs):
    """The same with an operator, and runs that may take too long."""

    @rule(at_most=st.sampled_from([0, 0, 60_000_000]))
    def a_release_has_another_at_most(self, at_most: int) -> None:
        self.at_most = at_most

    @rule(what=st.sampled_from(["repeat", "pause", "resume", "forget"]))
    def an_operator_acts(self, what: str) -> None:
        if what == "repeat":
            self.repeat()
        elif what == "forget":
            self.forget()
        else:
            self.pause(what == "pause")

    def repeat(self) -> None:
        made = self.record.repeat(self.state, self.now)
        assert made.reply is (self.state is not None)
        if self.state is not None:
            self.state = made.state
            self.begun[self.state["starts"]] = self.done[self.state["starts"]] = 0

    def pause(self, paused: bool) -> None:
        made = self.record.pause(self.state, self.now, paused=paused)
        if made.reply:
            self.state, self.paused = made.state, paused

    def forget(self) -> None:
        self.state = self.record.forget(self.state, self.now).state
        self.begun.clear()
        self.done.clear()
        self.latest, self.paused, self.bound = 0, False, ""


class BoundJobs(OperatedJobs):
    """The same for a key whose calls have fingerprints."""

    keyed = True

    @rule(fingerprint=st.sampled_from(["", "a", "a", "b"]))
    def the_next_calls_are_for(self, fingerprint: str) -> None:
        self.fingerprint = fingerprint


@pytest.mark.parametrize("machine", [Jobs, KeyedJobs, OperatedJobs, BoundJobs])
def test_in_any_history_a_window_is_done_once(machine: type[Jobs]) -> None:
    """And has no more runs than attempts."""
    run_state_machine_as_test(machine, settings=thorough(300, 40))


WRONG = {
    "a silent run is no attempt": ('record["attempts"] + 1, ', 'record["attempts"] + (not silent), '),
    "any run may end": (' or record["run"]["id"] != run.run.id', ""),
    "done is forgotten": ('record["done"] = facts', 'record["done"] = None and facts'),
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

WRONG_WITH_AN_OPERATOR = {
    "a run that took too long is done": ('if not most or now - run["at"]', 'if True or now - run["at"]'),
    "a run that was repeated counts": ('if run.get("repeated")', "if False"),
    "a job that is repeated gives up its run": (
        'run = state["run"] and {**state["run"], "repeated": True}',
        "run = None",
    ),
    "a job that is repeated keeps its attempts": ('{**state, **NEW, "run"', '{**state, "done": None, "run"'),
    "a job that was forgotten gives up its run": ("anew = held and", "anew = False and"),
    "a paused job begins": ('if record.get("paused")', "if False"),
    "the end of a run resumes the job": (
        '"now": now, **(state or {})}',
        '"now": now, **(state or {}), "paused": False}',
    ),
}
"""The same, where only an operator's history shows it."""

WRONG_FOR_ITS_WORK = {
    "a job that is repeated keeps its first result": (
        "facts | (result or {})",
        'facts | record.setdefault("result", result)',
    ),
    "any fingerprint is done": ("MISMATCH if rules.fingerprint and", "MISMATCH if False and"),
    "a fingerprint binds only when its run ends": (
        'record |= _begun(begun_run, rules) | {"now": now}',
        'record |= _begun(begun_run, replace(rules, fingerprint="")) | {"now": now}',
    ),
    "the last fingerprint binds": (
        "bound != rules.fingerprint else",
        'bound != rules.fingerprint and record["done"] else',
    ),
    "a job that was forgotten gives up its fingerprint": (
        "record |= _begun(first, rules)",
        'record |= _begun(first, replace(rules, fingerprint=""))',
    ),
    "a job that is repeated gives up its fingerprint": (
        '"last": None}, True',
        '"last": None, "fingerprint": ""}, True',
    ),
}
"""The same, of results and fingerprints."""


@pytest.mark.parametrize(
    ("jobs", "bug", "change"),
    [
        pytest.param(jobs, bug, wrong[bug], id=bug)
        for jobs, wrong in ((Jobs, WRONG), (OperatedJobs, WRONG_WITH_AN_OPERATOR), (BoundJobs, WRONG_FOR_ITS_WORK))
        for bug in sorted(wrong)
    ],
)
def test_a_wrong_record_is_noticed(jobs: type[Jobs], bug: str, change: tuple[str, str]) -> None:
    """By some history."""
    machine: Any = type("WrongJobs", (jobs,), {"record": module_with(true_record, change, everywhere=True)})
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
        begun = BegunRun(run, now, made.reply["attempts"], 0)
        state = true_record.finish(made.state, now, begun, "bad", JobRules(20), True).state
    assert waits == [1_000_000 << exponent for exponent in range(6)] + [60_000_000] * 2


def test_the_history_is_bounded() -> None:
    """A record keeps the last 20 runs, the latest last."""
    state: Any = None
    for number in range(30):
        run, now = RunId(f"r{number}", f"node {number}"), 10**15 + number * LENGTH
        made = true_record.begin(state, now, Window(now, now + LENGTH), JobRules(), run)
        state = true_record.finish(made.state, now, BegunRun(run, now, 1, now), None, JobRules(), True).state
    assert [line["by"] for line in state["history"]] == [f"node {number}" for number in range(10, 30)]


WORST = ("x", "\u9501", "\U0001f512", "\x00", "\udcff", "\\")
"""Characters of an error that take from one byte to twelve in a cell."""


def the_record_has_bounds(record: types.ModuleType, character: str) -> None:
    """Fail many runs with long errors, by clients with long names; check what the record keeps of them."""
    state: Any = None
    error = ""
    rules, window, by = JobRules(1000), Window(0, 2**62), "\x01" * 512
    for number in range(30):
        run = RunId(f"{number:032x}", by)
        change = record.begin(state, 10**15 + 10**9 * number, window, rules, run)
        assert change.reply["status"] == GO
        error = f"{number} {character * 5000}"
        begun = record.BegunRun(run, change.reply["at"], change.reply["attempts"], window.starts)
        change = record.finish(change.state, 10**15 + 10**9 * number + 1, begun, error, rules, True)
        assert change.reply["status"] == JobStatus.FAILED
        state = change.state
        assert len(json.dumps(state)) + cells.REPLIES < LARGEST_CELL - 8_000
        assert len(json.dumps(change.reply)) < 8_000
    last = state["history"][-1]
    assert last["by"] == by
    assert last["error"] == state["error"]
    assert error.startswith(last["error"])
    assert 900 < len(json.dumps(last["error"])) <= record.ERROR_BYTES
    assert [line["error"].split()[0] for line in state["history"]] == [
        str(number) for number in range(30 - len(state["history"]), 30)
    ]


@pytest.mark.parametrize("character", WORST)
def test_a_record_stays_small_whatever_errors_it_has(character: str) -> None:
    """Errors are cut by what they take in a cell, and the oldest runs of the history go first."""
    the_record_has_bounds(true_record, character)


def test_a_record_of_usual_errors_has_twenty_runs() -> None:
    """Even if each error has the largest size."""
    state: Any = None
    for number in range(25):
        run = RunId(f"{number:032x}", "host-0123456789.example.com/12345-some-service")
        begun = true_record.BegunRun(run, 10**15 + 10**9 * number, number + 1, 0)
        state = true_record.begin(state, begun.at, Window(0, 2**62), JobRules(1000), run).state
        state = true_record.finish(state, begun.at + 1, begun, "x" * 5000, JobRules(1000), True).state
    assert len(state["history"]) == true_record.HISTORY


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("error = error[: -excess // LARGEST_CHARACTER]", "break"),
        ("and (room := room - _size(history[first - 1])) >= 0", ""),
        ("return history[first:]", "return history[: HISTORY]"),
    ],
)
def test_a_planted_bound_is_missed(before: str, after: str) -> None:
    """A record that is cut by characters, keeps all runs, or drops the latest, is noticed."""
    with pytest.raises(AssertionError):
        the_record_has_bounds(module_with(true_record, (before, after), everywhere=True), "\u9501")
