"""The protocol of a job that runs once in a window, for threads and asyncio: look, lock, begin, and later finish."""

from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from tenure.contracts.deadlines import seconds
from tenure.contracts.limits import RAISE, SKIP, WAIT
from tenure.contracts.messages import NotGranted
from tenure.contracts.owner_metadata import read_metadata
from tenure.core.lease import CoreLease
from tenure.core.session import Session
from tenure.core.spec import LockSpec
from tenure.errors import LockTimeout, StoreError
from tenure.escaping import shown
from tenure.jobs.record import (
    GO,
    LATER,
    NEW,
    SUPERSEDED,
    JobRules,
    JobStatus,
    RunId,
    begin,
    finish,
    listed,
    note,
    rebase,
)
from tenure.jobs.windows import Schedule, Window

MOST_JOBS = 1000
"""How many jobs of a namespace are listed."""

PAUSE = 1.0
"""The longest time between two looks while a back-off passes, in seconds."""

KEYED = Window(0, 2**62)
"""The window of a run by key: it never ends."""


@dataclass(slots=True, frozen=True)
class JobSpec:
    """A job as its caller describes it, checked."""

    title: str
    """Its name, as the caller wrote it."""
    name: str
    """The name of its cell."""
    lock_name: str
    record: str
    """The cell of the job's history; the same as `name`, unless the run has a key."""
    index: str
    """The cell that lists all jobs of the namespace."""
    schedule: Schedule | None
    rules: JobRules
    busy: str
    ttl: int
    timeout: float | None
    max_waiters: int | None

    def lock(self) -> LockSpec:
        """Return what a run holds."""
        return LockSpec(self.lock_name, self.ttl, title=self.title, advice="Call it after this run has ended.")


@dataclass(slots=True)
class Begun:
    """A run that has begun."""

    lease: CoreLease
    run: RunId
    window: Window
    attempts: int
    at: int


Verdict = dict[str, Any]
"""What became of a call that does not run: a reply of `begin`."""


class Once:
    """One call of a job."""

    def __init__(self, session: Session, spec: JobSpec) -> None:
        """Prepare a call; nothing has happened yet."""
        self._session = session
        self._spec = spec
        self._run = RunId(session.runtime.new_id(), session.owner)
        self.window = KEYED
        self._end = None if spec.timeout is None else session.runtime.now() + spec.timeout

    async def begin(self, owned: list[CoreLease]) -> Begun | Verdict:
        """Begin a run, or say why there is none. The lease is in `owned` before it is returned.

        Raises LockTimeout if another node runs the job and the call shall not wait (any longer), StoreError if the
        store did not answer; then the run has not begun, or counts as a failed attempt.
        """
        cells, spec = self._session.cells, self._spec
        state, now = await cells.look(spec.name)
        if spec.schedule is not None:
            self.window = spec.schedule(now)
        job = state if spec.record == spec.name else (await cells.look(spec.record))[0]
        if job is None:
            await cells.change(spec.index, partial(listed, title=spec.title, most=MOST_JOBS))
        elif job.get("paused"):
            return {"status": JobStatus.PAUSED, "attempts": 0, "error": ""}
        while True:
            verdict: Verdict = begin(state, now, self.window, spec.rules, self._run).reply
            if verdict["status"] == GO or (state and state["run"] is not None):
                verdict = await self._begin_under_lock(state, owned)
                if verdict["status"] == GO:
                    if owned[-1].trusted():
                        return Begun(owned[-1], self._run, self.window, verdict["attempts"], verdict["at"])
                    # The store answered so late that the lease has ended: another attempt may have begun.
                    await self._session.release(owned.pop())
                    self._run = RunId(self._session.runtime.new_id(), self._session.owner)
                    state, now = await cells.look(spec.name)
                    continue
            if verdict["status"] != LATER:
                return verdict
            if spec.busy != WAIT:
                return {**verdict, "status": verdict["because"]}
            await cells.change(spec.name, rebase)
            await self._wait_for_attempt(seconds(verdict["until"] - now), verdict)
            state, now = await cells.look(spec.name)

    async def _begin_under_lock(self, state: Any, owned: list[CoreLease]) -> Verdict:  # noqa: ANN401 - what JSON knows
        """Acquire the lock of the job and begin a run, unless the record or another node's lease says no."""
        session, spec = self._session, self._spec
        timeout = 0.0 if spec.busy != WAIT else self._remaining()
        if spec.max_waiters is not None and timeout != 0:
            await self._refuse_if_crowded(spec.max_waiters, state)
        found = await session.acquire(spec.lock(), timeout, owned)
        if isinstance(found, NotGranted):
            by = next((read_metadata(each).owner for each in found.holders), "")
            record: dict[str, Any] = state or NEW
            run: dict[str, Any] = record["run"] or {"by": by, "at": None}
            if spec.busy == SKIP:
                return {"status": JobStatus.RUNNING, "attempts": record["attempts"], "error": "", **run}
            raise LockTimeout(self._is_busy(f"is run by {shown(by or str(run['by']))}"))
        verdict: Verdict = await session.cells.change(
            spec.name, lambda state, now: begin(state, now, self.window, spec.rules, self._run)
        )
        if verdict["status"] != GO:
            await session.release(owned.pop())
        return verdict

    async def finish(self, begun: Begun, error: str | None) -> Verdict:
        """Note that the function has returned, or failed with `error`, and release the lock.

        Raises StoreError if the store did not answer; then the run counts as an attempt that fell silent.
        """
        session, spec = self._session, self._spec
        verdict: Verdict = await session.cells.change(
            spec.name, lambda state, now: finish(state, now, begun.run, error, spec.rules.keep)
        )
        if spec.record != spec.name and verdict["status"] != SUPERSEDED:
            with suppress(StoreError):  # the history is for people; the run itself is noted
                await session.cells.change(spec.record, partial(note, line=verdict["line"], every=spec.rules.every))
        await session.release(begun.lease)
        return verdict

    def _remaining(self) -> float | None:
        return None if self._end is None else max(0.0, self._end - self._session.runtime.now())

    async def _wait_for_attempt(self, pause: float, verdict: Verdict) -> None:
        """Sleep until the next attempt may begin, or for a part of that. Raises LockTimeout if time runs out first."""
        session, remaining = self._session, self._remaining()
        session.refuse_if_closed()
        if remaining is not None and pause >= remaining:
            failed = verdict["because"] == JobStatus.FAILED
            last = f"failed ({shown(verdict['error'])})" if failed else "has just run"
            raise LockTimeout(self._is_busy(f"{last}, and may run again in {pause:.1f} s"))
        await session.runtime.sleep(min(max(pause, 0.001), PAUSE))

    async def _refuse_if_crowded(self, most: int, state: Any) -> None:  # noqa: ANN401 - what JSON knows
        waiting = len((await self._session.inspect(self._spec.lock_name)).waiters)
        if waiting >= most:
            record: dict[str, Any] = state or NEW
            took: list[int] = [line["took"] for line in record.get("history", []) if not line["error"]]
            hint = f"; its last run took {seconds(took[-1]):.1f} s" if took else ""
            raise LockTimeout(self._is_busy(f"already has {waiting} waiters, max_waiters={most}{hint}"))

    def _is_busy(self, what: str) -> str:
        spec = self._spec
        within = "" if spec.busy == RAISE or not spec.timeout else f" within {spec.timeout:g} s"
        return f"the job {spec.title!r} was not run{within}: it {what}. Call again later, or see `tenure jobs`."
