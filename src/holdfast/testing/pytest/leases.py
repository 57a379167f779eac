"""The leases of one test: which thread or task acquired them, and whether it may still write."""

import asyncio
import threading
import weakref
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from holdfast.core.lease import CoreLease
from holdfast.core.session import Session
from holdfast.errors import UsageError
from holdfast.runtimes import aio, threads


def mark() -> object:
    """Return what is the same object for the calling task, or outside of tasks for the calling thread, only."""
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
    """More than one of a multilock."""
    by: object
    """The mark of the thread or task that acquired it."""
    face: Callable[[], object]
    """The lease that the user has; None once it was dropped."""

    @property
    def names(self) -> tuple[str, ...]:
        """What was acquired."""
        return tuple(held.name for held in self.held)

    def is_open(self) -> bool:
        """Tell whether it was not let go, be it lost or not."""
        return self.face() is not None and not any(held.let_go or held.outcome for held in self.held)

    def is_valid(self) -> bool:
        """Tell whether it is held."""
        return self.is_open() and all(held.trusted() for held in self.held)


class Leases:
    """What the code under test has acquired from the store of its test."""

    def __init__(self) -> None:
        """Start with none."""
        self._mutex = threading.Lock()
        self._acquired: list[Acquired] = []
        self._looked_at: dict[object, Acquired] = {}
        """By mark of a thread or task: the acquisition whose lease it looked at last."""

    def note(self, session: Session, held: tuple[CoreLease, ...], face: object) -> Acquired:
        """Note an acquisition of the calling thread or task, and return it."""
        acquired = Acquired(session, held, mark(), weakref.ref(face))
        with self._mutex:
            self._acquired.append(acquired)
        return acquired

    def all(self) -> list[Acquired]:
        """Return all acquisitions, the oldest first."""
        with self._mutex:
            return list(self._acquired)

    def sessions(self) -> set[Session]:
        """Return the sessions that acquired something."""
        return {each.session for each in self.all()}

    def find(self, lease: object) -> Acquired:
        """Return the acquisition that a lease came of. Raises UsageError if it is not of this test's store."""
        for each in self.all():
            if each.face() is lease:
                return each
        raise UsageError(
            f"{lease!r} is not a lease of this test's store. Acquire it with `holdfast_client` or "
            "`holdfast_async_client`, or with a client of the URL `holdfast_url`, after the fixtures are set up."
        )

    def look(self, held: Sequence[object]) -> Acquired | None:
        """Note that the calling thread or task looks at what it or another one acquired, and return that."""
        found = next((each for each in self.all() if each.is_open() and any(one in held for one in each.held)), None)
        if found is not None:
            with self._mutex:
                self._looked_at[mark()] = found
        return found

    def of_caller(self) -> list[Acquired]:
        """Return what the calling thread or task acquired and what it looked at last, unless that was let go."""
        by = mark()
        looked_at = self._looked_at.get(by)
        return [each for each in self.all() if each.is_open() and (each.by is by or each is looked_at)]

    def valid(self) -> list[Acquired]:
        """Return what is held."""
        return [each for each in self.all() if each.is_valid()]

    def objection(self, excused: Collection[Acquired] = ()) -> str:
        """Return why the calling thread or task must not write; "" if it may.

        It may if of every name of its own leases the newest is held, or excused. If it has none, it may if any lease
        is held.
        """
        own = self.of_caller()
        if not own and self.valid():
            return ""
        newest = {each.names: each for each in own or self.all() if each.is_open()}
        lost = [each for each in newest.values() if not each.is_valid() and each not in excused]
        return "" if own and not lost else " and ".join(map(_lost, lost)) or "no lease was held"

    def is_stale(self, token: int) -> bool:
        """Tell whether a fence that the next holder has touched refuses a token."""
        held = [held for each in self.all() for held in each.held if held.token == token]
        return not any(each.trusted() for each in held)


def _lost(acquired: Acquired) -> str:
    held = next((each for each in acquired.held if not each.trusted()), acquired.held[0])
    return f"the lease of {held.name!r} (token {held.token}) was lost"
