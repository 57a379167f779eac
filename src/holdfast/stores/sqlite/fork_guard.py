"""Lock files at the moment of a fork: at rest, all of them.

SQLite counts the locks of all connections of a process to a file. A child that inherits the count believes that it
has locks that it has not: a new connection of its own would go on in a WAL that its parent removes, and two holders
would follow. A mutex inside SQLite that another thread held at the fork would never be released.
"""

import threading
import weakref
from typing import Protocol

from holdfast import fork

QUIESCE_WITHIN = 1.0
"""How long a fork waits for the turn of another thread to end, in seconds."""


class Quiescable(Protocol):
    """A database that can be brought to rest."""

    def quiesce(self, within: float) -> bool:
        """Disconnect and let nobody in until `go_on`; return False if another thread's turn does not end."""
        ...

    def go_on(self) -> None:
        """Let the next turn connect again."""

    def forget(self) -> None:
        """In a child: drop what is still connected, without closing it."""


class ForkGuard:
    """Held while a file is made and opened.

    Closing any descriptor of a file drops all locks that the process has on it, SQLite's included: so a file is only
    ever opened beside SQLite when nobody in this process can have it open.
    """

    def __init__(self) -> None:
        """Bring everything to rest before each fork from now on."""
        self.lock = threading.Lock()
        self._databases: weakref.WeakSet[Quiescable] = weakref.WeakSet()
        self._resting: list[Quiescable] = []
        self._held = False
        fork.watch_quiescable(self)

    def watch(self, database: Quiescable) -> None:
        """Bring `database` to rest before each fork."""
        self._databases.add(database)

    def before_fork(self) -> None:
        """Bring every database to rest. Once none is left, the lock keeps new ones out."""
        seen: set[int] = set()
        while True:
            for database in [each for each in list(self._databases) if id(each) not in seen]:
                seen.add(id(database))
                if database.quiesce(QUIESCE_WITHIN):
                    self._resting.append(database)
            self._held = self.lock.acquire(timeout=QUIESCE_WITHIN)
            if not self._held or all(id(each) in seen for each in list(self._databases)):
                return
            self.lock.release()

    def after_fork_in_parent(self) -> None:
        """Let everything go on."""
        if self._held:
            self._held = False
            self.lock.release()
        resting, self._resting = self._resting, []
        for database in resting:
            database.go_on()

    def after_fork_in_child(self) -> None:
        """Start anew: whoever held a lock may be a thread that is not here."""
        self.lock = threading.Lock()
        self._held = False
        self._resting.clear()
        for database in list(self._databases):
            database.forget()


fork_guard = ForkGuard()
"""The gate of this process."""
