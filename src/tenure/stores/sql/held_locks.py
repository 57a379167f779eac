"""The session locks that one client holds, and the requests that are over.

A renewal, a release and the watch of one lock may come from different threads, and only one of them may use its session
at a time: whoever uses it claims it first. A claim names its operation, so an operation that is interrupted gives up
exactly what it had claimed, wherever the interrupt came.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tenure.contracts.messages import Notification, NotificationKind
from tenure.contracts.runtime import Event, Runtime, SpawnedTask
from tenure.errors import StoreUnavailable
from tenure.stores.sql.sessions import AnyLocks, AnySession, LockKey

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

LOOK_AGAIN = 0.02
"""How often a caller looks for a session that another thread uses, in seconds."""

MOST_OVER = 4096
"""How many requests that are over are remembered."""


@dataclass(slots=True, eq=False)
class HeldLock:
    """A lock that was granted to a request."""

    key: LockKey
    session: AnySession
    token: int
    ttl: int
    ended: str = ""
    """Why the session has ended; empty while it may live."""
    ended_at: float = 0.0
    claimed_by: object = None
    """The operation that uses the session; None: nobody does."""


class HeldLocks:
    """The locks of one client, by request id."""

    def __init__(self, runtime: Runtime) -> None:
        """Start without a lock."""
        self.runtime = runtime
        self.by_id: dict[str, HeldLock] = {}
        self.over: OrderedDict[str, bool] = OrderedDict()
        """The ids of requests that were withdrawn or released, and whether they were released."""
        self.mutex: AbstractContextManager[Any] = runtime.mutex()
        self.freed: Event = runtime.event()
        """Set when a claim was given up."""

    def try_to_claim(self, held: HeldLock, operation: object) -> bool:
        """Claim the session of a lock for an operation, unless another one uses it.

        The operation gives it up in a `finally` that was entered before, for an interrupt may come right after the
        claim. It calls nothing before it has reset `claimed_by`, for an interrupt may come with any call.
        """
        with self.mutex:
            if held.claimed_by is None:
                held.claimed_by = operation
            return held.claimed_by is operation

    async def claim(self, held: HeldLock, operation: object, until: float) -> None:
        """Claim the session of a lock as `try_to_claim` does; wait for whoever uses it. Raises StoreUnavailable."""
        while not self.try_to_claim(held, operation):
            now = self.runtime.now()
            if now >= until:
                raise StoreUnavailable(
                    f"the request for {held.key.name!r} timed out before it was sent, because another request of its "
                    "session was not answered: check the server, or raise `operation_timeout`"
                )
            self.freed.clear()
            await self.freed.wait(min(until, now + LOOK_AGAIN))

    def note_over(self, request_id: str, *, released: bool) -> None:
        """Remember that a request is over, so that a late copy of it is refused."""
        self.over[request_id] = released or self.over.get(request_id, False)
        while len(self.over) > MOST_OVER:
            self.over.popitem(last=False)

    def abandon(self) -> None:
        """In a forked child: forget the parent's locks."""
        self.by_id, self.over = {}, OrderedDict()
        self.mutex, self.freed = self.runtime.mutex(), self.runtime.event()


LOOK_EVERY = 0.25
"""How often the watch looks at the sockets, in seconds."""

IDLE_LOOKS = 40
"""After how many looks without a lock the watch ends, until there is a lock again."""

KEPT_FOR = 120.0
"""For how long a lock whose session has ended is remembered, in seconds: until its holder was told."""


class SessionWatch:
    """The watch of one client: it notices without a request that the server has closed a session.

    Then a lock may have another holder already. So the watch has all leases renewed at once, and the renewal finds out
    which of them are lost.
    """

    def __init__(self, runtime: Runtime, held: HeldLocks, locks: AnyLocks) -> None:
        """Prepare; the first lock starts it."""
        self.runs = True
        """Whether it runs or must not be started."""
        self._runtime = runtime
        self._held = held
        self._locks = locks
        self._deliver: Callable[[Notification], None] = _ignore
        self._closing = runtime.event()
        self._task: SpawnedTask | None = None

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
        """End the watch, and wait for a few of its looks until its task has ended."""
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
