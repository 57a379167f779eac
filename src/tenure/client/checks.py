"""The checks of what a client is to make: what its store keeps, and which options each call takes."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from tenure.contracts.store import Capabilities
from tenure.core.session import NO_LINGER, NO_TOKENS
from tenure.errors import UsageError
from tenure.primitives.base import Sessions
from tenure.primitives.options import (
    ElectionOptions,
    LockOptions,
    MultiLockOptions,
    OnceOptions,
    Options,
    PlainLockOptions,
    PlainOptions,
    refuse_unknown,
)

if TYPE_CHECKING:
    from tenure.jobs.once import JobSpec

Made = TypeVar("Made", bound=LockOptions)

COMMON = ("name", "ttl", "timeout")
"""The arguments that every primitive takes."""
OPTIONS = {
    "lock": PlainOptions.__optional_keys__,
    "semaphore": Options.__optional_keys__,
    "rwlock": Options.__optional_keys__,
    "multilock": MultiLockOptions.__optional_keys__,
    "election": ElectionOptions.__optional_keys__,
    "once": OnceOptions.__optional_keys__,
}
"""The options of each call."""

JOBS = "jobs that run once"
HISTORIES = "history of names"
NO_CELLS = (
    "it keeps nothing but locks. Use another store, such as sqlite:///path, redis://host or postgresql://host/database."
)
NO_WEIGHTS = "a name has one holder there. Use lock(), or another store, such as sqlite:///path or redis://host."
NO_RECORDS = (
    "nothing there shows a value or a term. Use another store, such as sqlite:///path or redis://host, or the one with "
    "a table in this database."
)


class Checks:
    """The checks of one client. Each raises UsageError if an option is wrong, or the store keeps no such thing."""

    def __init__(self, title: str, able: Capabilities, ttl: float, prefix: str) -> None:
        """`title` is the store's, `ttl` that of locks which say none, `prefix` that of all names."""
        self._title = title
        self._able = able
        self.ttl = ttl
        self._prefix = prefix

    def lock(self, ttl: float | None, timeout: float | None, options: Mapping[str, Any]) -> PlainLockOptions:
        """Return the options of a lock."""
        made, able = self._options(PlainLockOptions, "lock", ttl, timeout, options), self._able
        if made.linger and (able.span == 1 or not (able.queue or able.notifies_contention)):
            raise UsageError(f"{self._title}: {NO_LINGER if able.span > 1 else NO_TOKENS}")
        return made

    def semaphore(
        self, permits: int | None, ttl: float | None, timeout: float | None, options: Mapping[str, Any]
    ) -> LockOptions:
        """Return the options of a semaphore."""
        self._require(self._able.weights, "semaphores", NO_WEIGHTS)
        if permits is None:
            self.cells("number of permits for permits=None")
        return self._options(LockOptions, "semaphore", ttl, timeout, options)

    def rwlock(self, ttl: float | None, timeout: float | None, options: Mapping[str, Any]) -> LockOptions:
        """Return the options of a reader/writer lock."""
        self._require(self._able.weights, "reader/writer locks", NO_WEIGHTS)
        return self._options(LockOptions, "rwlock", ttl, timeout, options)

    def multilock(self, ttl: float | None, timeout: float | None, options: Mapping[str, Any]) -> LockOptions:
        """Return the options of a multilock."""
        return self._options(LockOptions, "multilock", ttl, timeout, options)

    def election(self, ttl: float | None, timeout: float | None, options: Mapping[str, Any]) -> LockOptions:
        """Return the options of an election."""
        self._require(self._able.records, "elections", NO_RECORDS)
        return self._options(LockOptions, "election", ttl, timeout, options)

    def cells(self, kind: str) -> str:
        """Return the prefix of the names of the cells in which the store keeps a kind of things."""
        self._require(self._able.cells, kind, NO_CELLS)
        return self._prefix

    def once(self, client: Sessions, job: str, options: OnceOptions) -> "JobSpec":
        """Return what a job that runs once is."""
        from tenure.primitives.once import job_spec

        self.cells(JOBS)
        if not options.keys() <= OPTIONS["once"]:
            refuse_unknown("once", options, OPTIONS["once"])
        return job_spec(client, self._able, self.ttl, job, **options)

    def _options(
        self, kind: type[Made], call: str, ttl: float | None, timeout: float | None, options: Mapping[str, Any]
    ) -> Made:
        if not options.keys() <= OPTIONS[call]:
            refuse_unknown(call, options, (*COMMON, *OPTIONS[call]))
        return kind(ttl=self.ttl if ttl is None else ttl, timeout=timeout, **options).check(self._able)

    def _require(self, able: bool, kind: str, why: str) -> None:  # noqa: FBT001 - what the store must be able to
        if not able:
            raise UsageError(f"{self._title} keeps no {kind}: {why}")
