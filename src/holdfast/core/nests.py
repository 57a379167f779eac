"""Reentrancy: one lease that its thread or task has acquired several times.

The store knows one lease. Its owner has a share of it for each acquisition, and it is released with the last of them,
in whatever order they are. Who owns it is told by the thread or task object: it is shared by all locks of a client that
are made for the same name and for this, and by nobody else; when the thread or task ends, so does the nest.
"""

from collections import deque
from contextlib import AbstractContextManager
from typing import Any
from weakref import WeakKeyDictionary

from holdfast.core.held import HeldLease
from holdfast.runtimes.runtime import Runtime


class Nest:
    """One lease, and how many shares there are of it."""

    __slots__ = ("dropped", "held", "mutex", "shares")

    def __init__(self, held: HeldLease, mutex: AbstractContextManager[Any]) -> None:
        """Begin with one."""
        self.held = held
        self.mutex = mutex
        self.shares = 1
        self.dropped: deque[None] = deque()
        """One for each share whose lease was dropped, and is still counted. Appended by the garbage collector, in the
        middle of anything: so it takes no mutex."""

    def enter(self) -> bool:
        """Take another share; False if the last was given back, or the lease is lost."""
        if not self.held.trusted():
            return False
        with self.mutex:
            if not self.shares:
                return False
            self.shares += 1
            return True

    def leave(self) -> bool:
        """Give a share back; return whether it was the last."""
        with self.mutex:
            self._count_out()
            self.shares -= 1
            return not self.shares

    def leave_dropped(self) -> bool:
        """Give back the shares that were dropped; return whether the last was among them."""
        with self.mutex:
            return self._count_out() and not self.shares

    def _count_out(self) -> bool:
        some = bool(self.dropped)
        while self.dropped:
            self.dropped.popleft()
            self.shares -= 1
        return some


class Nests:
    """Those of one client."""

    def __init__(self, runtime: Runtime, mutex: AbstractContextManager[Any]) -> None:
        """Start without any."""
        self._runtime = runtime
        self._mutex = mutex
        self._nests: WeakKeyDictionary[object, dict[str, Nest]] = WeakKeyDictionary()

    def enter(self, name: str) -> Nest | None:
        """Take another share of what the caller holds of a name, if it does."""
        owner, _ = self._runtime.caller()
        nests = self._nests.get(owner)
        nest = nests.get(name) if nests else None
        return nest if nest is not None and nest.enter() else None

    def begin(self, held: HeldLease) -> Nest:
        """Note what the caller has just acquired."""
        owner, _ = self._runtime.caller()
        nest = Nest(held, self._mutex)
        nests = self._nests.setdefault(owner, {})
        for name in [name for name, each in nests.items() if not each.shares]:
            nests.pop(name, None)
        nests[held.name] = nest
        return nest
