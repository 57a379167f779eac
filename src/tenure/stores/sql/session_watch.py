"""The watch over the sessions that hold locks: it notices without a request that the server has closed one.

Then a lock may have another holder already. So the watch has all leases renewed at once, and the renewal finds out
which of them are lost.
"""

from collections.abc import Callable

from tenure.contracts.messages import Notification, NotificationKind
from tenure.contracts.runtime import Runtime, Task
from tenure.stores.sql.held_locks import HeldLock, HeldLocks
from tenure.stores.sql.sessions import SessionLocks

LOOK_EVERY = 0.25
"""How often the watch looks at the sockets, in seconds."""

IDLE_LOOKS = 40
"""After how many looks without a lock the watch ends, until there is a lock again."""

KEPT_FOR = 120.0
"""For how long a lock whose session has ended is remembered, in seconds: until its holder was told."""


class SessionWatch:
    """The watch of one client."""

    def __init__(self, runtime: Runtime, held: HeldLocks, locks: SessionLocks) -> None:
        """Prepare; the first lock starts it."""
        self.runs = True
        """Whether it runs or must not be started."""
        self._runtime = runtime
        self._held = held
        self._locks = locks
        self._deliver: Callable[[Notification], None] = _ignore
        self._closing = runtime.event()
        self._task: Task | None = None

    def begin(self, deliver: Callable[[Notification], None]) -> None:
        """Let locks start it."""
        self._deliver = deliver
        self.runs = False

    def start(self) -> None:
        """Start it, unless another thread has."""
        with self._held.mutex:
            if self.runs:
                return
            self.runs = True
        try:
            self._task = self._runtime.spawn(self._run, "watch")
        except RuntimeError:  # the interpreter shuts down: it starts no more threads or tasks
            self.runs = False

    async def end(self) -> None:
        """End it."""
        self.runs = True
        self._deliver = _ignore
        self._closing.set()
        if self._task is not None:
            await self._task.join(self._runtime.now() + 4 * LOOK_EVERY)

    def abandon(self) -> None:
        """In a forked child: the parent's task is not there."""
        self._closing, self._task, self.runs = self._runtime.event(), None, False

    async def _run(self) -> None:
        idle = 0
        try:
            while idle < IDLE_LOOKS and not self._closing.is_set():
                await self._closing.wait(self._runtime.now() + LOOK_EVERY)
                idle = 0 if self._held.by_id else idle + 1
                self._look()
        finally:
            self.runs = self._closing.is_set()

    def _look(self) -> None:
        now = self._runtime.now()
        found = False
        for request_id, held in list(self._held.by_id.items()):
            if held.ended:
                if now - held.ended_at > KEPT_FOR:
                    self._held.by_id.pop(request_id, None)
            elif self._has_ended(held):
                held.ended, held.ended_at, found = "the server closed its connection", now, True
        if found:
            gap = Notification("", NotificationKind.GAP, "")
            self._runtime.post(lambda: self._deliver(gap))

    def _has_ended(self, held: HeldLock) -> bool:
        """Look at the socket of a session, unless somebody uses it, who will see for himself."""
        operation = object()
        try:
            if not self._held.try_to_claim(held, operation):
                return False
            if held.session.has_ended():
                self._locks.close_session(held.session)
                return True
            return False
        finally:
            if held.claimed_by is operation:
                held.claimed_by = None
            self._held.freed.set()


def _ignore(notification: Notification) -> None: ...
