"""The record of a job: which run has begun, which one is done. Pure functions of the state in the job's cell.

A run begins under the lock of its job, but it is the record that decides: a run that has begun counts as an attempt
whatever becomes of its node, and a run is done only if no later attempt has begun since. So a window has at most one
run that is done, and at most `attempts` runs, even if leases are lost.

The state is a dict, as JSON keeps it. Instants and durations are microseconds of the store's clock.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from tenure.core.cells import Change
from tenure.jobs.windows import Window

CLOCK_BOUND = 3_600_000_000
"""By how much the store's clock may step back so that windows that have begun stay begun. After a larger step the
clock was wrong before: the windows of the new time count."""

HISTORY = 20
"""How many of the last runs a record keeps."""

ERROR_LENGTH = 500
"""The most characters of an error that a record keeps."""

FIRST_BACKOFF, LONGEST_BACKOFF = 1_000_000, 60_000_000
"""How long after the first failure, and at most after any, the next attempt begins. It doubles between them."""


class JobStatus(StrEnum):
    """What became of a call of `run`."""

    RAN = "ran"
    """This call ran the function to its end."""
    DONE = "done"
    """It was done before."""
    RUNNING = "running"
    """Another node runs it, or `at_least` has not passed since the last run began."""
    FAILED = "failed"
    """All attempts have failed, or one has and the next has to wait for its back-off."""
    OVER = "over"
    """The next window has begun; this one is not started any more."""
    PAUSED = "paused"
    """An operator has paused the job."""


GO = "go"
LATER = "later"
SUPERSEDED = "superseded"
"""The other replies: the run has begun; it may begin at the instant `until`; another run has begun since."""

NEW: dict[str, Any] = {"attempts": 0, "run": None, "done": None, "error": "", "may": 0}
"""What a record says of a window in which nothing has happened."""


@dataclass(slots=True, frozen=True)
class JobRules:
    """What a caller says of its job."""

    attempts: int = 1
    at_least: int = 0
    keep: int = 0
    """How long the record is kept after its last change; 0: for ever."""
    every: str = ""
    """The window, as text for people."""


@dataclass(slots=True, frozen=True)
class RunId:
    """One attempt: its id, and who makes it."""

    id: str
    by: str


def begin(state: Any, now: int, window: Window, rules: JobRules, run: RunId) -> Change:  # noqa: ANN401 - what JSON knows
    """Begin a run in a window, unless the record says no. The caller has the lock of the job, so no other run has.

    The reply is a dict; its "status" is GO, LATER, or that of a call that does not run.
    """
    record: dict[str, Any] = {**NEW, **(state or {})}
    begun = record.get("starts", window.starts)
    if record.get("paused"):
        return _no(state, record, rules, JobStatus.PAUSED)
    if now >= window.ends or (window.starts < begun and now > record["now"] - CLOCK_BOUND):
        return _no(state, record, rules, JobStatus.OVER)
    _rebase(record, now)
    silent = record["run"] is not None  # its node died or lost the lock, because this attempt has the lock
    if silent:
        _end(record, now, f"{record['run']['by']} fell silent")
        record["may"] = 0  # the lease has taken its time to run out
    if window.starts != begun:
        record |= NEW
    if record["done"] is not None:
        return _no(state, record, rules, JobStatus.DONE, **record["done"])
    last: dict[str, Any] = record.get("last") or {}
    if record["attempts"] >= rules.attempts:
        return Change(
            record, _no(state, record, rules, JobStatus.FAILED, **last).reply, changed=silent, keep=rules.keep
        )
    spaced, may = last["at"] + rules.at_least if last else 0, record["may"]
    if max(spaced, may) > now:
        because = JobStatus.RUNNING if spaced > may else JobStatus.FAILED
        return _no(state, record, rules, LATER, because=because, until=max(spaced, may), **last)
    record["attempts"] += 1
    record["last"] = {"by": run.by, "at": now}
    record["run"] = {"id": run.id, **record["last"]}
    record |= {"starts": window.starts, "now": now, "every": rules.every}
    return Change(record, {"status": GO, "attempts": record["attempts"], "at": now}, keep=rules.keep)


def finish(state: Any, now: int, run: RunId, error: str | None, keep: int = 0) -> Change:  # noqa: ANN401
    """End a run: it is done, or failed with an error. The reply's "status" is SUPERSEDED if another run has begun."""
    if not state or state["run"] is None or state["run"]["id"] != run.id:
        return Change(state, {"status": SUPERSEDED}, changed=False, keep=keep)
    record = {**state}
    _rebase(record, now)
    line = _end(record, now, error)
    status = JobStatus.RAN if error is None else JobStatus.FAILED
    return Change(record, {"status": status, "took": line["took"], "line": line}, keep=keep)


def _end(record: dict[str, Any], now: int, error: str | None) -> dict[str, Any]:
    """End the run that a record shows, in the record and in the history; return the line of the history."""
    run, record["run"] = record["run"], None
    took = max(0, now - run["at"])
    facts = {"by": run["by"], "at": run["at"], "took": took}
    if error is None:
        record["done"] = facts
    else:
        backoff = min(LONGEST_BACKOFF, FIRST_BACKOFF << min(record["attempts"] - 1, 10))
        record |= {"error": error[:ERROR_LENGTH], "may": now + backoff}
    line = {**facts, "starts": record["starts"], "attempt": record["attempts"], "error": (error or "")[:ERROR_LENGTH]}
    record["history"] = [*record.get("history", []), line][-HISTORY:]
    record["now"] = now
    return line


def rebase(state: Any, now: int) -> Change:  # noqa: ANN401
    """Note that the store's clock has stepped back, so that what waits for an instant does not wait for that as well.

    No time has passed in the step: what was to come in a second comes in a second.
    """
    if state is None or now >= state["now"]:
        return Change(state, None, changed=False)
    record = {**state}
    _rebase(record, now)
    return Change(record, None)


def _rebase(record: dict[str, Any], now: int) -> None:
    step = record.get("now", now) - now
    if step <= 0:
        return
    record |= {"now": now, "may": record["may"] - step}
    for event in ("last", "run"):
        if record.get(event):
            record[event] = {**record[event], "at": record[event]["at"] - step}


def note(state: Any, _now: int, *, line: dict[str, Any], every: str) -> Change:  # noqa: ANN401
    """Add a run by key to the history of its job."""
    record: dict[str, Any] = {**NEW, "starts": 0, "now": 0, **(state or {}), "every": every}
    record["history"] = [*record.get("history", []), line][-HISTORY:]
    return Change(record, None)


def listed(state: Any, _now: int, *, title: str, most: int) -> Change:  # noqa: ANN401
    """Add a job to the list of all jobs, which keeps the last `most` of them."""
    before: list[str] = state or []
    return Change([*before, title][-most:], None, changed=title not in before)


def unlisted(state: Any, _now: int, *, title: str) -> Change:  # noqa: ANN401
    """Remove a job from the list of all jobs."""
    before: list[str] = state or []
    return Change([each for each in before if each != title] or None, None, changed=title in before)


def _no(state: Any, record: dict[str, Any], rules: JobRules, status: str, **more: Any) -> Change:  # noqa: ANN401
    reply = {"status": status, "attempts": record["attempts"], "error": record["error"], **more}
    return Change(state, reply, changed=False, keep=rules.keep)


def pause(state: Any, _now: int, *, paused: bool) -> Change:  # noqa: ANN401
    """Pause or resume a job. The reply is whether the job is known."""
    return Change(state and {**state, "paused": paused}, state is not None, changed=state is not None)


def repeat(state: Any, _now: int) -> Change:  # noqa: ANN401
    """Let the job run again in its present window, with all its attempts. The reply is whether the job is known."""
    if state is None:
        return Change(None, False, changed=False)  # noqa: FBT003 - the reply
    return Change({**state, **NEW, "run": state["run"], "last": None}, True)  # noqa: FBT003


def forget(state: Any, _now: int) -> Change:  # noqa: ANN401
    """Remove the record. The reply is whether the job was known."""
    return Change(None, state is not None, changed=state is not None)
