"""The leases of one test: the thread or task that acquired each, and whether it may still write."""

import asyncio
import threading
import weakref
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from tenure.core.lease import CoreLease
from tenure.core.session import Session
from tenure.errors import UsageError
from tenure.runtimes import aio, threads


def mark() -> object:
    """Return an object that identifies the calling task, or outside of tasks the calling thread."""
    return threads.mark() if current_task() is None else aio.mark()


def current_task() -> "asyncio.Task[object] | None":
    """Return the calling task; None outside of tasks."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


@dataclass(slots=True, eq=False)
class Acquired:
    """One acquisition of the code under test."""

    session: Session
    held: tuple[CoreLease, ...]
    """The leases; a multilock has several."""
    by: object
    """The mark of the thread or task that acquired them."""
    face: Callable[[], object]
    """Returns the lease object of the user; None once the user dropped it."""

    @property
    def names(self) -> tuple[str, ...]:
        """The acquired names."""
        return tuple(held.grant.name for held in self.held)

    def is_open(self) -> bool:
        """Tell whether the user has neither released nor dropped the lease, be it lost or not."""
        return self.face() is not None and not any(held.release_begun or held.outcome for held in self.held)

    def is_valid(self) -> bool:
        """Tell whether the lease is open and not lost."""
        return self.is_open() and all(held.trusted() for held in self.held)


class Leases:
    """The leases that the code under test has acquired from the store of its test."""

    def __init__(self) -> None:
        """Start without leases."""
        self._mutex = threading.Lock()
        self._acquired: list[Acquired] = []
        self._looked_at: dict[object, Acquired] = {}
        """By mark of a thread or task: the acquisition whose lease it checked last."""

    def note(self, session: Session, held: tuple[CoreLease, ...], face: object) -> Acquired:
        """Record an acquisition of the calling thread or task, and return it."""
        acquired = Acquired(session, held, mark(), weakref.ref(face))
        with self._mutex:
            self._acquired.append(acquired)
        return acquired

    def all(self) -> list[Acquired]:
        """Return all acquisitions, the oldest first."""
        with self._mutex:
            return list(self._acquired)

    def sessions(self) -> set[Session]:
        """Return the sessions that acquired a lease."""
        return {each.session for each in self.all()}

    def find(self, lease: object) -> Acquired:
        """Return the acquisition of a lease. Raises UsageError if the lease is not of this test's store."""
        for each in self.all():
            if each.face() is lease:
                return each
        raise UsageError(
            f"{lease!r} is not a lease of this test's store. Acquire it with `tenure_client` or "
            "`tenure_async_client`, or with a client of the URL `tenure_url`, after the fixtures are set up."
        )

    def look(self, held: Sequence[object]) -> Acquired | None:
        """Record that the calling thread or task checks a lease, its own or another's; return the acquisition."""
        found = next((each for each in self.all() if each.is_open() and any(one in held for one in each.held)), None)
        if found is not None:
            with self._mutex:
                self._looked_at[mark()] = found
        return found

    def of_caller(self) -> list[Acquired]:
        """Return the open acquisitions of the calling thread or task, and the open one that it checked last."""
        by = mark()
        looked_at = self._looked_at.get(by)
        return [each for each in self.all() if each.is_open() and (each.by is by or each is looked_at)]

    def valid(self) -> list[Acquired]:
        """Return the acquisitions whose leases are held."""
        return [each for each in self.all() if each.is_valid()]

    def objection(self, excused: Collection[Acquired] = ()) -> str:
        """Return why the calling thread or task must not write; "" if it may.

        A caller with leases of its own may write if, for each name, its newest lease is held or excused. A caller
        without leases may write while any lease is held.
        """
        own = self.of_caller()
        if not own and self.valid():
            return ""
        newest = {each.names: each for each in own or self.all() if each.is_open()}
        lost = [each for each in newest.values() if not each.is_valid() and each not in excused]
        return "" if own and not lost else " and ".join(map(_lost, lost)) or "no lease was held"

    def is_stale(self, token: int) -> bool:
        """Tell whether a fence that the next holder has passed would refuse a token."""
        held = [held for each in self.all() for held in each.held if held.token == token]
        return not any(each.trusted() for each in held)


def _lost(acquired: Acquired) -> str:
    held = next((each for each in acquired.held if not each.trusted()), acquired.held[0])
    return f"the lease of {held.grant.name!r} (token {held.token}) was lost"
