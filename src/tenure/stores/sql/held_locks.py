"""The session locks that one client holds, and the requests that are over.

A renewal, a release and the watch of one lock may come from different threads, and only one of them may use its session
at a time: whoever uses it claims it first. A claim names its operation, so an operation that is interrupted gives up
exactly what it had claimed, wherever the interrupt came.
"""

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tenure.contracts.runtime import Event, Runtime
from tenure.errors import StoreUnavailable
from tenure.stores.sql.sessions import LockKey, LockSession

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
    session: LockSession
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
