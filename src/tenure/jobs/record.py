"""The record of a job: which run has begun, which one is done. Pure functions of the state in the job's cell.

A run begins under the lock of its job, but it is the record that decides: a run that has begun counts as an attempt
whatever becomes of its node, and a run is done only if no later attempt has begun since. So a window has at most one
run that is done, and at most `attempts` runs, even if leases are lost. An operator may ask for more: after `repeat`
the window counts anew, without the run that is under way, and after `forget` with it.

The record of a key is bound to the fingerprint of the first call that gave one, and keeps the result of the run that is
done, from the change that says so. `keep` after its last change it counts as forgotten, whether or not the store has
removed it by then.

The state is a dict, as JSON keeps it. Instants and durations are microseconds of the store's clock.
"""

import json
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from tenure.contracts.deadlines import seconds
from tenure.core.cells import Change
from tenure.jobs.windows import Window

CLOCK_BOUND = 3_600_000_000
"""By how much the store's clock may step back so that windows that have begun stay begun. After a larger step the
clock was wrong before: the windows of the new time count."""

EARLY = 1_000_000
"""By how much the lease of a run may end before its `at_most`: it began before the run, and ends by another clock."""

HISTORY = 20
"""How many of the last runs a record keeps."""

HISTORY_BYTES = 24_576
"""How many bytes they have at most; the oldest go first."""

ERROR_BYTES = 1000
"""How many bytes an error has at most in a record."""

RESULT_BYTES = 16_384
"""How many bytes a result has at most in a record. The history has what is left of HISTORY_BYTES."""

LARGEST_CHARACTER = 12
"""How many bytes a character has at most there."""

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
MISMATCH = "mismatch"
SUPERSEDED = "superseded"
"""The other replies: the run has begun; it may begin at the instant `until`; the record is bound to another
fingerprint; another run has begun since."""

NEW: dict[str, Any] = {"attempts": 0, "run": None, "done": None, "error": "", "may": 0}
"""What a record says of a window in which nothing has happened."""


@dataclass(slots=True, frozen=True)
class JobRules:
    """What a caller says of its job."""

    attempts: int = 1
    at_least: int = 0
    at_most: int = 0
    """After how long a run has failed, though it goes on; 0: never."""
    keep: int = 0
    """How long the record is kept after its last change, with the result of its run; 0: for ever, without a result."""
    every: str = ""
    """The window, as text for people."""
    fingerprint: str = ""
    """What calls for the same key must have in common; "": whatever it is."""


@dataclass(slots=True, frozen=True)
class RunId:
    """One attempt: its id, and who makes it."""

    id: str
    by: str


@dataclass(slots=True, frozen=True)
class BegunRun:
    """A run that has begun, as the node that makes it knows it."""

    run: RunId
    at: int
    attempt: int
    starts: int
    """The beginning of its window."""

    def entry(self, rules: JobRules) -> dict[str, Any]:
        """Return what the record says of the run while it goes on."""
        facts = {"id": self.run.id, "by": self.run.by, "at": self.at, "attempt": self.attempt, "starts": self.starts}
        return facts | ({"at_most": rules.at_most} if rules.at_most else {})


def of_job(state: dict[str, Any] | None, now: int) -> tuple[dict[str, Any] | None, int]:
    """Return the record in a cell, and the time at which it was read."""
    if state is not None:
        _ = state["run"]  # each record has one, or None; what another hand wrote raises TypeError or LookupError here
    return state, now


def begin(state: Any, now: int, window: Window, rules: JobRules, run: RunId) -> Change:  # noqa: ANN401 - what JSON knows
    """Begin a run in a window, unless the record says no. The caller has the lock of the job, so no other run has.

    The reply is a dict; its "status" is GO, LATER, or that of a call that does not run.
    """
    record: dict[str, Any] = {**NEW, **(state if _is_kept(state, now) else {})}
    if refusal := _refusal(record, now, window, rules):
        return _no(state, record, rules, refusal)
    _rebase(record, now)
    silent = record["run"] is not None  # its node died or lost the lock, because this attempt has the lock
    if silent:
        _end(record, now, _overdue(record["run"], now, EARLY) or f"{record['run']['by']} fell silent")
        record["may"] = 0  # the lease has taken its time to run out
    if window.starts != record.get("starts", window.starts):
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
    begun_run = BegunRun(run, now, record["attempts"] + 1, window.starts)
    record |= _begun(begun_run, rules) | {"now": now}
    return Change(record, {"status": GO, "attempts": record["attempts"], "at": now}, keep=rules.keep)


def _refusal(record: dict[str, Any], now: int, window: Window, rules: JobRules) -> str:
    """Return the status of a call that must not even look at the runs of a record; "" if it may."""
    if record.get("paused"):
        return JobStatus.PAUSED
    begun = record.get("starts", window.starts)
    if now >= window.ends or (window.starts < begun and now > record["now"] - CLOCK_BOUND):
        return JobStatus.OVER
    bound = record.get("fingerprint", rules.fingerprint)
    return MISMATCH if rules.fingerprint and bound != rules.fingerprint else ""


def _is_kept(state: Any, now: int) -> bool:  # noqa: ANN401
    """Tell whether there is a record whose time has not passed."""
    return state is not None and not (state.get("keep") and now > state["now"] + state["keep"])


def _begun(run: BegunRun, rules: JobRules) -> dict[str, Any]:
    """Return what changes in a record when a run begins."""
    bound = {"fingerprint": rules.fingerprint} if rules.fingerprint else {}
    return bound | {
        "attempts": run.attempt,
        "last": {"by": run.run.by, "at": run.at},
        "run": run.entry(rules),
        "starts": run.starts,
        "every": rules.every,
        "keep": rules.keep,
    }


def finish(  # noqa: PLR0917 - called in one place
    state: Any,  # noqa: ANN401 - what JSON knows
    now: int,
    run: BegunRun,
    error: str | None,
    rules: JobRules,
    held: bool,  # noqa: FBT001 - by position, like the others
    result: dict[str, str] | None = None,
) -> Change:
    """End a run: it is done with a result, or failed with an error.

    The reply's "status" is SUPERSEDED if the run was given up before. A run is given up when another call has its lock:
    it has failed then, and another run may have begun. `held` is whether the run certainly has the lock. The reply's
    "anew" is whether the record had been forgotten.
    """
    record: dict[str, Any] = {**NEW, "now": now, **(state or {})}
    anew = held and record["run"] is None and not record.get("last")
    if anew:  # an operator has forgotten the job, or its `keep` has passed: this run is the first that counts
        first = replace(run, attempt=1, at=min(run.at, now))
        record |= _begun(first, rules)
    if record["run"] is None or record["run"]["id"] != run.run.id:
        return Change(state, {"status": SUPERSEDED}, changed=False, keep=rules.keep)
    _rebase(record, now)
    error = _overdue(record["run"], now) or None if error is None else error
    line = _end(record, now, error, result)
    reply = {
        "status": JobStatus.RAN if error is None else JobStatus.FAILED,
        "took": line["took"],
        "error": line["error"],
        "numbers": {each: line[each] for each in ("at", "took", "starts", "attempt")},
        "anew": anew,
    }
    return Change(record, reply, keep=rules.keep)


def _overdue(run: dict[str, Any], now: int, early: int = 0) -> str:
    """Return the error of a run that took longer than it may, or nearly so long; "" if it did not."""
    most = run.get("at_most", 0)
    if not most or now - run["at"] <= most - early:
        return ""
    return f"{run['by']} ran it for longer than at_most={seconds(most):g} s"


def _end(record: dict[str, Any], now: int, error: str | None, result: dict[str, str] | None = None) -> dict[str, Any]:
    """End the run that a record shows, in the record and in the history; return the line of the history.

    A run that an operator has repeated counts only in the history.
    """
    run, record["run"] = record["run"], None
    took = max(0, now - run["at"])
    facts = {"by": run["by"], "at": run["at"], "took": took}
    text = shortened(error or "")
    if run.get("repeated"):
        pass
    elif error is None:
        record["done"] = facts | (result or {})
    else:
        backoff = min(LONGEST_BACKOFF, FIRST_BACKOFF << min(run["attempt"] - 1, 10))
        record |= {"error": text, "may": now + backoff}
    line = {**facts, "starts": run["starts"], "attempt": run["attempt"], "error": text}
    record["history"] = _latest([*record.get("history", []), line], HISTORY_BYTES - _size(result or {}))
    record["now"] = now
    return line


def stored(value: object) -> dict[str, str]:
    """Return what a record says of the result of its run: "value", its JSON, or "unkept", why it has none.

    This raises nothing, because the run has ended, and has to be noted. The JSON is text, so that no depth of a result
    matters to those who read the record.
    """
    try:
        text = _json(value)
        same = _json(json.loads(text)) == text
    except Exception as error:  # noqa: BLE001 - a value may have methods of its own, which JSON calls
        return {"unkept": shortened(f"JSON cannot express it ({type(error).__name__}: {error})")}
    if not same:
        return {"unkept": "JSON cannot express it: keys of a dict become the same str"}
    if (size := _size(text)) > RESULT_BYTES:
        return {"unkept": f"it takes {size} bytes, and a record has room for {RESULT_BYTES}"}
    return {"value": text}


def _json(value: object) -> str:
    return json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))


def shortened(error: str) -> str:
    """Return the beginning of an error that has at most ERROR_BYTES in a record, where a character may have 12."""
    error = error[:ERROR_BYTES]
    while (excess := _size(error) - ERROR_BYTES) > 0:
        error = error[: -excess // LARGEST_CHARACTER]
    return error


def _latest(history: list[dict[str, Any]], room: int = HISTORY_BYTES) -> list[dict[str, Any]]:
    """Return the last runs of a history, as many as a record keeps, and has room for, in bytes."""
    first = len(history)
    while first and len(history) - first < HISTORY and (room := room - _size(history[first - 1])) >= 0:
        first -= 1
    return history[first:]


def _size(value: Any) -> int:  # noqa: ANN401
    """Return how many bytes a value has in a cell."""
    return len(json.dumps(value, separators=(",", ":")))


def rebase(state: Any, now: int) -> Change:  # noqa: ANN401
    """Note that the store's clock has stepped back, so that what waits for an instant does not wait for that as well.

    No time has passed in the step: what was to come in a second comes in a second.
    """
    if state is None or now >= state["now"]:
        return Change(state, None, changed=False)
    record = {**state}
    _rebase(record, now)
    return Change(record, None, keep=record.get("keep", 0))


def _rebase(record: dict[str, Any], now: int) -> None:
    step = record.get("now", now) - now
    if step <= 0:
        return
    record |= {"now": now, "may": record["may"] - step}
    for event in ("last", "run"):
        if record.get(event):
            record[event] = {**record[event], "at": record[event]["at"] - step}


def note(state: Any, _now: int, *, line: dict[str, Any], every: str) -> Change:  # noqa: ANN401
    """Add a run by key to the history of its job. The reply is whether the history begins with it."""
    record: dict[str, Any] = {**NEW, "starts": 0, "now": 0, **(state or {}), "every": every}
    record["history"] = _latest([*record.get("history", []), line])
    return Change(record, state is None)


def _no(state: Any, record: dict[str, Any], rules: JobRules, status: str, **more: Any) -> Change:  # noqa: ANN401
    reply = {"status": status, "attempts": record["attempts"], "error": record["error"], **more}
    return Change(state, reply, changed=False, keep=rules.keep)


def pause(state: Any, _now: int, *, paused: bool) -> Change:  # noqa: ANN401
    """Pause or resume a job. The reply is whether the job is known."""
    return Change(state and {**state, "paused": paused}, state is not None, changed=state is not None)


def repeat(state: Any, _now: int) -> Change:  # noqa: ANN401
    """Let the job run again in its present window, with all its attempts. The reply is whether the job is known.

    A run that is under way goes on, and counts no longer: the next call after its end runs the job again. The record
    stays bound to its fingerprint, and is kept no longer than before.
    """
    if state is None:
        return Change(None, False, changed=False)  # noqa: FBT003 - the reply
    run = state["run"] and {**state["run"], "repeated": True}
    return Change({**state, **NEW, "run": run, "last": None}, True, keep=state.get("keep", 0))  # noqa: FBT003


def forget(state: Any, _now: int) -> Change:  # noqa: ANN401
    """Remove the record. The reply is whether the job was known.

    A run that is under way keeps its lock, and makes the record anew when it ends.
    """
    return Change(None, state is not None, changed=state is not None)
