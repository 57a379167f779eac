"""Reentrancy: one lease that its thread or task has acquired several times.

The store knows one lease. Its owner has a share of it for each acquisition, and it is released with the last of them,
in whatever order they are. Who owns it is told by the thread or task object: it is shared by all locks of a client that
are made for the same name and for this, and by nobody else; when the thread or task ends, so does the nest.
"""

from contextlib import AbstractContextManager
from typing import Any
from weakref import WeakKeyDictionary

from holdfast.contracts.runtime import Runtime
from holdfast.core.lease import HeldLease


class Nest:
    """One lease, and how many shares there are of it."""

    __slots__ = ("held", "mutex", "shares")

    def __init__(self, held: HeldLease, mutex: AbstractContextManager[Any]) -> None:
        """Begin without any: whoever makes it adds the first."""
        self.held = held
        self.mutex = mutex
        self.shares: set[object] = set()
        """A share is taken out without the mutex, too: by the garbage collector, in the middle of anything."""

    def enter(self, share: object) -> bool:
        """Take another share; False if the last was given back, or the lease is lost."""
        if not self.held.trusted():
            return False
        with self.mutex:
            if not self.shares:
                return False
            self.shares.add(share)
            return True

    def leave(self, share: object) -> bool:
        """Give a share back; return whether none is left. Repeated, it answers the same."""
        with self.mutex:
            self.shares.discard(share)
            return not self.shares


class Nests:
    """Those of one client."""

    def __init__(self, runtime: Runtime, mutex: AbstractContextManager[Any]) -> None:
        """Start without any."""
        self._runtime = runtime
        self._mutex = mutex
        self._nests: WeakKeyDictionary[object, dict[str, Nest]] = WeakKeyDictionary()

    def find(self, name: str) -> Nest | None:
        """Return what the caller holds of a name, if it does."""
        owner, _ = self._runtime.caller()
        nests = self._nests.get(owner)
        return nests.get(name) if nests else None

    def begin(self, held: HeldLease) -> Nest:
        """Note what the caller has just acquired."""
        owner, _ = self._runtime.caller()
        nest = Nest(held, self._mutex)
        nests = self._nests.setdefault(owner, {})
        for name in [name for name, each in nests.items() if not each.shares]:
            nests.pop(name, None)
        nests[held.name] = nest
        return nest
