"""A job that runs once in a window, or once for a key, over all nodes."""

import functools
import json
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from datetime import datetime  # noqa: TID251 - a type; no clock is read
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from tenure.callables import JOB, awaitable, finished, refuse_async, refuse_sync
from tenure.contracts.cells import cell_name
from tenure.contracts.deadlines import micros, seconds
from tenure.contracts.limits import (
    BUSY,
    SKIP,
    WAIT,
    check_count,
    check_duration,
    check_name,
    check_number,
    check_template,
    check_timeout,
    check_ttl,
)
from tenure.core.lease import OVERHELD, CoreLease
from tenure.errors import JobNotDone, LeaseLost, ResultNotKept, StoreError, UsageError
from tenure.escaping import shown
from tenure.jobs.once import Begun, JobSpec, Once, Verdict
from tenure.jobs.record import SUPERSEDED, JobRules, JobStatus, stored
from tenure.jobs.windows import instant, schedule
from tenure.primitives.base import Sessions
from tenure.primitives.decorating import names_from_call
from tenure.runtimes.tasks import BodyGuard
from tenure.runtimes.threads import drive

if TYPE_CHECKING:
    from tenure.contracts.store import Capabilities

P = ParamSpec("P")
R = TypeVar("R")

MOST_ATTEMPTS = 1000

WHEN = 'window="hourly" (or "daily", seconds, a cron expression) or key="..."'
"""The two options of which a job needs one, in the words of Python. The command line replaces them by its own."""


@dataclass(slots=True, frozen=True)
class OnceResult(Generic[R]):
    """What became of one call of a job."""

    status: JobStatus
    """RAN: this call ran it. DONE: it was done before. RUNNING: another node runs it. FAILED: an attempt has failed,
    and there is none left or the next has to wait. OVER: the next window has begun. PAUSED: an operator paused it."""
    by: str = ""
    """The owner of the run that this is about, as in `Client(owner=...)`."""
    at: datetime | None = None
    """When that run began, by the store's clock, in UTC."""
    took: float | None = None
    """How long it took, in seconds, if it has ended."""
    attempts: int = 0
    """How many runs have begun in this window, this one included."""
    error: str = ""
    """The last error, as text."""
    window: str = ""
    """The beginning of the window, as text; "" for a run by key."""
    value: R | None = None
    """What the function returned, if this call ran it. With `keep`, whichever call ran it: what the run that is done
    returned, as JSON gives it back (a tuple is a list), the same for all; None if that run was made without `keep`."""

    @property
    def ran(self) -> bool:
        """Whether this call ran the function."""
        return self.status is JobStatus.RAN

    def check(self) -> None:
        """Raise JobNotDone unless the job is done, by this call or before."""
        if self.status not in (JobStatus.RAN, JobStatus.DONE):
            what = f": {shown(self.error)}" if self.error else f", by {shown(self.by)}" if self.by else ""
            raise JobNotDone(f"the job is not done: {self.status} after {self.attempts} attempts{what}")


def job_spec(
    client: Sessions,
    able: "Capabilities",
    usual_ttl: float,
    job: str,
    *,
    window: object = None,
    key: str | None = None,
    attempts: int = 1,
    at_least: float = 0.0,
    at_most: float | None = None,
    busy: str | None = None,
    ttl: float | None = None,
    timeout: float | None = None,
    max_waiters: int | None = None,
    keep: float | None = None,
    fingerprint: object = None,
    template: str = "",
) -> JobSpec:
    """Check the options of a job. Raises UsageError if one is wrong."""
    if (window is None) == (key is None):
        raise UsageError(f"a job runs once in each window or once for a key: give either {WHEN}")
    if busy is None:
        busy = SKIP if key is None else WAIT
    if busy not in BUSY:
        raise UsageError(f"busy must be one of {', '.join(map(repr, BUSY))}, not {busy!r}")
    if keep is not None and key is None:
        raise UsageError("keep is for a run by key: the record of a window is kept until the job is forgotten")
    if fingerprint is not None and key is None:
        raise UsageError("fingerprint is for a run by key: it says whether a key comes again for the same work")
    every, found = ("by key", None) if window is None else schedule(window)
    prefix = f"{client.namespace}:" if client.namespace else ""
    rules = JobRules(
        check_number(attempts, "attempts", MOST_ATTEMPTS),
        micros(check_duration(at_least, "at_least")),
        0 if at_most is None else micros(check_duration(at_most, "at_most (or None, for no limit)", able.min_ttl)),
        0 if keep is None else micros(check_duration(keep, "keep", 1.0)),
        every,
        "" if fingerprint is None else _hash(fingerprint),
    )
    return JobSpec(
        *_cells(prefix, job, key),
        prefix,
        found,
        rules,
        busy,
        micros(check_ttl(usual_ttl if ttl is None else ttl, able)),
        check_timeout(timeout),
        None if max_waiters is None else check_count(max_waiters, "max_waiters"),
        check_template(template),
        key,
    )


def _cells(prefix: str, job: str, key: str | None) -> tuple[str, str, str, str]:
    """Return the title of a job, its cell, its lock and the cell of its history."""
    record, of_key = escaped(job), "" if key is None else f":{check_name(key, 'a key')}"
    lock = check_name(f"{prefix}job:{record}{of_key}", "a job with its namespace and key")
    return job, cell_name("job", prefix, record + of_key), lock, cell_name("job", prefix, record)


def _hash(fingerprint: object) -> str:
    """Return the hash of a JSON value, whatever the order of its keys. Raises UsageError if it is none."""
    try:
        text = json.dumps(fingerprint, allow_nan=False, sort_keys=True)
    except (TypeError, ValueError, RecursionError):
        raise UsageError(
            f"fingerprint must be a str or another value that JSON knows, not {type(fingerprint).__name__} or what it "
            "contains: of a body in bytes give body.hex()"
        ) from None
    return sha256(text.encode()).hexdigest()


def escaped(job: str) -> str:
    """Return the name of a job as it stands in a cell's name: its colons are escaped, as a key may follow one."""
    return check_name(job, "the name of a job").replace("%", "%25").replace(":", "%3A")


class _OnceBase:
    def __init__(self, client: Sessions, spec: JobSpec) -> None:
        self._client = client
        self.spec = spec
        """The job as its caller described it, checked."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.spec.title!r} {self.spec.rules.every}>"

    def _of_calls(self, function: Callable[P, object]) -> Callable[P, JobSpec]:
        """Return a function that describes the job of a call of `function`, which fills its name and key.

        Its template, in events, is the name that stands in the decorator.
        """
        spec = self.spec
        filled = names_from_call(function, [spec.title] if spec.key is None else [spec.title, spec.key])

        def of_call(*args: P.args, **kwargs: P.kwargs) -> JobSpec:
            job, *keys = filled(*args, **kwargs)
            title, name, lock, record = _cells(spec.prefix, job, keys[0] if keys else None)
            template = spec.template or spec.title
            return replace(spec, title=title, name=name, lock_name=lock, record=record, template=template)

        return of_call

    def _result(self, once: Once, verdict: Verdict) -> OnceResult[Any]:
        if "unkept" in verdict:
            raise ResultNotKept(
                f"the job {self.spec.title!r} is done, and does not run again, but what it returned was not kept: "
                f"{shown(verdict['unkept'])}. Return what JSON knows, and of large or other results an id or a URL; or "
                "give no keep."
            )
        at, took = verdict.get("at"), verdict.get("took")
        return OnceResult(
            JobStatus(verdict["status"]),
            verdict.get("by", ""),
            None if at is None else instant(at),
            None if took is None else seconds(took),
            verdict["attempts"],
            verdict["error"],
            "" if self.spec.schedule is None else once.window.name,
            json.loads(verdict["value"]) if "value" in verdict else None,
        )

    def _stored(self, value: object) -> dict[str, str]:
        """Return what the record says of a result: nothing unless it has a time for which it is kept."""
        return stored(value) if self.spec.rules.keep else {}

    def _ran(self, once: Once, begun: Begun, verdict: Verdict, value: R, result: dict[str, str]) -> OnceResult[R]:
        if verdict["status"] == SUPERSEDED:
            raise LeaseLost(
                f"the job {self.spec.title!r} has run here, but its lease was lost meanwhile and the run was given up: "
                "it is not the one that is done. Give it a longer ttl."
            )
        if verdict["status"] == JobStatus.FAILED:
            raise LeaseLost(
                f"the job {self.spec.title!r} has run here, but has failed: {verdict['error']}. Let it end earlier, or "
                "raise at_most."
            )
        facts = {"by": begun.run.run.by, "at": begun.run.at, "attempts": begun.run.attempt}
        try:
            made = self._result(once, facts | verdict | result)
        except ResultNotKept as error:
            error.value = value
            raise
        return made if result else replace(made, value=value)


async def _note_failure(once: Once, begun: Begun, error: BaseException) -> None:
    """Note that a function has failed; if the store does not answer, the error says so."""
    try:
        await once.finish(begun, f"{type(error).__name__}: {error}")
    except StoreError as failure:
        error.add_note(f"the store did not note this failure of the job: {failure}")


async def _note_success(once: Once, begun: Begun, result: dict[str, str]) -> Verdict:
    """Note that a function has returned, and its result."""
    try:
        return await once.finish(begun, None, result)
    except StoreError as failure:
        failure.add_note("the job has run to its end, but the store did not note that: it may run again")
        raise


class OnceJob(_OnceBase):
    """A job of a `Client`: call `run`, or use it as a decorator. Made by `Client.once`."""

    def run(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> OnceResult[R]:
        """Run `function(*args, **kwargs)`, unless it was done in this window (or for this key) or is running.

        An error of the function is noted, and raised again. Raises LockTimeout if the job is busy and was made with
        busy="raise", or busy="wait" and a timeout; StoreError if the store did not answer; LeaseLost if the function
        has returned, but another attempt had begun because this one's lease was lost; FingerprintMismatch if the key
        came before with another fingerprint; ResultNotKept if the job is done, but its result could not be kept.
        """
        refuse_async(function, JOB)
        session = self._client.session()
        once, owned = Once(session, self.spec), list[CoreLease]()
        try:
            begun = drive(once.begin(owned))
            if not isinstance(begun, Begun):
                return self._result(once, begun)
            try:
                value = finished(function, function(*args, **kwargs))
            except BaseException as error:
                drive(_note_failure(once, begun, error))
                raise
            result = self._stored(value)
            return self._ran(once, begun, drive(_note_success(once, begun, result)), value, result)
        except BaseException:
            once.leave()
            if owned:
                drive(session.give_back(owned))
            raise

    def __call__(self, function: Callable[P, R]) -> Callable[P, OnceResult[R]]:
        """Have every call of `function` run once in a window, or for a key; it returns a OnceResult.

        The name of the job and the key are formatted from the call's arguments.
        """
        refuse_async(function, JOB)
        spec_of = self._of_calls(function)

        @functools.wraps(function)
        def once(*args: P.args, **kwargs: P.kwargs) -> OnceResult[R]:
            return type(self)(self._client, spec_of(*args, **kwargs)).run(function, *args, **kwargs)

        return once


class AsyncOnceJob(_OnceBase):
    """A job of an `AsyncClient`: await `run`, or use it as a decorator. Made by `AsyncClient.once`."""

    async def run(
        self, function: Callable[P, Coroutine[Any, Any, R]], *args: P.args, **kwargs: P.kwargs
    ) -> OnceResult[R]:
        """Await `function(*args, **kwargs)`, unless it was done in this window or is running. As `OnceJob.run`."""
        refuse_sync(function, JOB)
        session = self._client.session()
        once, owned = Once(session, self.spec), list[CoreLease]()
        finish = session.runtime.finish
        try:
            begun = await once.begin(owned)
            if not isinstance(begun, Begun):
                return self._result(once, begun)
            try:
                value = await self._within_at_most(begun, function, *args, **kwargs)
            except GeneratorExit:
                raise
            except BaseException as error:
                await finish(_note_failure(once, begun, error))
                raise
            result = self._stored(value)
            return self._ran(once, begun, await finish(_note_success(once, begun, result)), value, result)
        except GeneratorExit:
            session.drop(owned)
            once.leave()
            raise
        except BaseException:
            once.leave()
            await finish(session.give_back(owned))
            raise

    async def _within_at_most(
        self, begun: Begun, function: Callable[P, Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Await a function, and cancel it when its run has taken `at_most`. Raises LeaseLost then."""
        if not self.spec.rules.at_most:
            return finished(function, await awaitable(function, function(*args, **kwargs)))
        guard, error = BodyGuard(), None
        begun.lease.when_lost(lambda reason: guard.fire() if reason == OVERHELD else None)
        try:
            return finished(function, await awaitable(function, function(*args, **kwargs)))
        except BaseException as raised:
            error = raised
            raise
        finally:
            guard.disarm()
            if guard.was_mine(error):
                most = seconds(self.spec.rules.at_most)
                raise LeaseLost(
                    f"the job {self.spec.title!r} was cancelled after at_most={most:g} s: let it end earlier, or raise "
                    "at_most"
                ) from None

    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, R]]
    ) -> Callable[P, Coroutine[Any, Any, OnceResult[R]]]:
        """Have every call of the async `function` run once, as `OnceJob` does; it returns a OnceResult."""
        refuse_sync(function, JOB)
        spec_of = self._of_calls(function)

        @functools.wraps(function)
        async def once(*args: P.args, **kwargs: P.kwargs) -> OnceResult[R]:
            return await type(self)(self._client, spec_of(*args, **kwargs)).run(function, *args, **kwargs)

        return once
