"""The fork guard: it closes all connections to lock files before a fork.

SQLite counts the file locks of all connections of a process. A child that inherits the count believes that it has
these file locks, but it does not: its new connection would use a WAL that the parent removes, and a name would have two
holders. A mutex inside SQLite that another thread had locked at the fork would never be unlocked in the child.
"""

import threading
import weakref
from typing import Protocol

from tenure import fork

QUIESCE_WITHIN = 1.0
"""How long a fork waits for the transaction of another thread to end, in seconds."""


class QuiescableDatabase(Protocol):
    """A database that can be quiesced."""

    def quiesce(self, within: float) -> bool:
        """Disconnect and block all threads until `go_on`. Return False if another thread's transaction does not end."""
        ...

    def go_on(self) -> None:
        """Unblock the threads; the next transaction connects again."""

    def forget(self) -> None:
        """In a forked child: drop the connection without closing it."""


class ForkGuard:
    """Quiesces all databases of the process before a fork.

    `lock` is locked while a lock file is created and opened. Closing any descriptor of a file drops all file locks that
    the process has on it, those of SQLite too. Tenure therefore opens the file outside SQLite only while no
    connection of this process can have it open.
    """

    def __init__(self) -> None:
        """Create the fork guard and register it, so that every later fork quiesces its databases."""
        self.lock = threading.Lock()
        self._databases: weakref.WeakSet[QuiescableDatabase] = weakref.WeakSet()
        self._resting: list[QuiescableDatabase] = []
        self._held = False
        fork.watch_quiescable(self)

    def watch(self, database: QuiescableDatabase) -> None:
        """Quiesce `database` before each fork."""
        self._databases.add(database)

    def before_fork(self) -> None:
        """Quiesce every database, then keep `lock` locked so that no new one is opened."""
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
        """Unblock all databases and the lock."""
        if self._held:
            self._held = False
            self.lock.release()
        resting, self._resting = self._resting, []
        for database in resting:
            database.go_on()

    def after_fork_in_child(self) -> None:
        """Replace the lock, which a thread of the parent may have locked, and drop all connections."""
        self.lock = threading.Lock()
        self._held = False
        self._resting.clear()
        for database in list(self._databases):
            database.forget()


fork_guard = ForkGuard()
"""The fork guard of this process."""
