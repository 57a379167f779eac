"""The protocol of a job that runs once in a window, for threads and asyncio: look, lock, begin, and later finish."""

from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from tenure.contracts.deadlines import NEVER, seconds
from tenure.contracts.limits import RAISE, SKIP, WAIT
from tenure.contracts.messages import NotGranted
from tenure.contracts.owner_metadata import read_metadata
from tenure.core.cells import Change
from tenure.core.events import Subject, Use, why
from tenure.core.lease import CoreLease
from tenure.core.session import Session
from tenure.core.spec import LockSpec
from tenure.errors import FingerprintMismatch, LockTimeout, StoreError, TenureError
from tenure.escaping import shown
from tenure.jobs.index import add_title
from tenure.jobs.record import (
    GO,
    LATER,
    MISMATCH,
    NEW,
    SUPERSEDED,
    BegunRun,
    JobRules,
    JobStatus,
    RunId,
    begin,
    finish,
    note,
    of_job,
    rebase,
)
from tenure.jobs.windows import Schedule, Window

JOB = "job"
"""The kind of primitive, for events."""

LOST = "lost"
"""The reply if the lease ended before the run has begun."""

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
    prefix: str
    """That of the namespace, whose jobs are listed."""
    schedule: Schedule | None
    rules: JobRules
    busy: str
    ttl: int
    timeout: float | None
    max_waiters: int | None
    template: str = ""
    """The name as it stands in a decorator, or the template that the program gave, for events."""
    key: str | None = None

    def lock(self) -> LockSpec:
        """Return what a run holds."""
        most = seconds(self.rules.at_most) or NEVER
        advice = "Call it after this run has ended."
        return LockSpec(
            self.lock_name, self.ttl, max_hold=most, title=self.title, advice=advice, kind=JOB, template=self.template
        )

    def reported(self) -> Subject:
        """Return what events say of the job."""
        return Subject(self.title, self.template, JOB)


@dataclass(slots=True)
class Begun:
    """A run that has begun."""

    lease: CoreLease
    run: BegunRun


Verdict = dict[str, Any]
"""What became of a call that does not run: a reply of `begin`."""


class Once:
    """One call of a job."""

    def __init__(self, session: Session, spec: JobSpec) -> None:
        self._session = session
        self._spec = spec
        self._run = RunId(session.runtime.new_id(), session.owner)
        self.window = KEYED
        self._end = None if spec.timeout is None else session.runtime.now() + spec.timeout
        self._unlisted = False
        """Whether the list of all jobs may not have the job yet."""
        self._told: Use | None = None
        """The run, for events; None before it, and if nobody listens."""

    async def begin(self, owned: list[CoreLease]) -> Begun | Verdict:
        """Begin a run, or say why there is none. The lease is in `owned` before it is returned.

        Raises LockTimeout if another node runs the job and the call shall not wait (any longer), FingerprintMismatch if
        the key came before with another fingerprint, StoreError if the store did not answer; then the run has not
        begun, or counts as a failed attempt.
        """
        events = self._session.events
        if events is None:
            return await self._begin(owned)
        of = self._spec.reported()
        try:
            found = await self._begin(owned)
        except BaseException as error:
            cause = "busy" if isinstance(error, LockTimeout) else why(error)
            events.run_refused(of, cause, error if isinstance(error, Exception) else None)
            raise
        if isinstance(found, Begun):
            self._told = events.run_begun(of)
        else:
            events.run_refused(of, str(found["status"]))
        return found

    def leave(self) -> None:
        """Note that the caller leaves: a run whose end was not noted has ended all the same."""
        self._tell_end("unknown")

    def _tell_end(self, cause: str, detail: str = "") -> None:
        if self._told is not None:
            self._told.events.run_ended(self._told, cause, detail)

    async def _begin(self, owned: list[CoreLease]) -> Begun | Verdict:
        cells, spec = self._session.cells, self._spec
        state, now = await cells.read(spec.name, of_job, self._remaining())
        if spec.schedule is not None:
            self.window = spec.schedule(now)
        job = state if spec.record == spec.name else (await cells.read(spec.record, of_job, self._remaining()))[0]
        if job is not None and job.get("paused"):
            return {"status": JobStatus.PAUSED, "attempts": 0, "error": ""}
        if job is None or not job.get("history"):  # no run of it has ended, so no process may have listed it
            self._unlisted = True
            self._session.late_releases.add(self._list, spec.title)
        while True:
            verdict: Verdict = begin(state, now, self.window, spec.rules, self._run).reply
            known = state is not None and state["run"] is not None and verdict["status"] != MISMATCH
            if verdict["status"] == GO or known:
                verdict = await self._begin_under_lock(state, owned)
                if verdict["status"] == GO and owned[-1].trusted():
                    run = BegunRun(self._run, verdict["at"], verdict["attempts"], self.window.starts)
                    return Begun(owned[-1], run)
                if verdict["status"] in {GO, LOST}:
                    # The store answered so late that the lease has ended: another attempt may have begun.
                    await self._session.release(owned.pop())
                    self._run = RunId(self._session.runtime.new_id(), self._session.owner)
                    state, now = await cells.read(spec.name, of_job, self._remaining())
                    continue
            if verdict["status"] != LATER:
                return self._for_its_work(verdict)
            if spec.busy != WAIT:
                return {**verdict, "status": verdict["because"]}
            await cells.change(spec.name, rebase)
            await self._wait_for_attempt(seconds(verdict["until"] - now), verdict)
            state, now = await cells.read(spec.name, of_job, self._remaining())

    def _for_its_work(self, verdict: Verdict) -> Verdict:
        """Return a verdict. Raises FingerprintMismatch if it is about other work than that of this call."""
        if verdict["status"] == MISMATCH:
            raise FingerprintMismatch(
                f"the job {self._spec.title!r} was not run: its key came before with another fingerprint. Give other "
                "work another key; a web handler answers 422."
            )
        return verdict

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

        def change(state: Any, now: int) -> Change:  # noqa: ANN401 - what JSON knows
            if not owned[-1].trusted():  # the run in the state may have begun since, under the lock of another
                return Change(state, {"status": LOST}, changed=False)
            return begin(state, now, self.window, spec.rules, self._run)

        verdict: Verdict = await session.cells.change(spec.name, change)
        if verdict["status"] not in {GO, LOST}:
            await session.release(owned.pop())
        return verdict

    async def finish(self, begun: Begun, error: str | None, result: dict[str, str] | None = None) -> Verdict:
        """Note that the function has returned, with a `result` of `stored`, or failed with `error`; release the lock.

        Raises StoreError if the store did not answer; then the run counts as an attempt that fell silent.
        """
        try:
            verdict = await self._finish(begun, error, result)
        except BaseException:
            self.leave()
            raise
        failed = error is not None or verdict["status"] == JobStatus.FAILED
        ended = SUPERSEDED if verdict["status"] == SUPERSEDED else "failed" if failed else "done"
        self._tell_end(ended, shown(error or verdict.get("error", "")))
        return verdict

    async def _finish(self, begun: Begun, error: str | None, result: dict[str, str] | None) -> Verdict:
        session, spec = self._session, self._spec
        verdict: Verdict = await session.cells.change(
            spec.name,
            lambda state, now: finish(state, now, begun.run, error, spec.rules, begun.lease.trusted(), result),
        )
        if verdict["status"] != SUPERSEDED:
            with suppress(StoreError):  # the history and the list are for people; the run itself is noted
                await self._show(begun, verdict)
        await session.release(begun.lease)
        if self._unlisted:
            await self._list()
        return verdict

    async def _show(self, begun: Begun, verdict: Verdict) -> None:
        """Add a run to the history of its key's job; note whether it must be listed again."""
        spec, anew = self._spec, verdict["anew"]
        if spec.record != spec.name:
            line = {"by": begun.run.run.by, "error": verdict["error"], **verdict["numbers"]}
            anew = await self._session.cells.change(spec.record, partial(note, line=line, every=spec.rules.every))
        self._unlisted |= anew

    async def _list(self) -> None:
        """Add the job to the list of all jobs, which is for people: no run fails if this does."""
        spec = self._spec
        with suppress(TenureError):
            await add_title(self._session.cells, spec.prefix, spec.title, timeout=0.0)
            self._unlisted = False

    def _remaining(self) -> float | None:
        return None if self._end is None else max(0.0, self._end - self._session.runtime.now())

    async def _wait_for_attempt(self, pause: float, verdict: Verdict) -> None:
        """Sleep until the next attempt may begin, or for a part of that. Raises LockTimeout if time runs out first."""
        session, remaining = self._session, self._remaining()
        session.refuse_to_acquire()
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
