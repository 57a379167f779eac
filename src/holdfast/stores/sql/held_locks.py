"""The session locks that one client holds, and the requests that are over.

A renewal, a release and the watch of one lock may come from different threads, and only one of them may use its session
at a time: whoever uses it claims it first.
"""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdfast.contracts.runtime import Event, Runtime
from holdfast.errors import StoreUnavailable
from holdfast.stores.sql.sessions import LockKey, LockSession

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
    claimed: bool = False


class HeldLocks:
    """The locks of one client, by request id."""

    def __init__(self, runtime: Runtime) -> None:
        """Start without a lock."""
        self.runtime = runtime
        self.by_id: dict[str, HeldLock] = {}
        self.over: OrderedDict[str, bool] = OrderedDict()
        """The ids of requests that were withdrawn or released, and whether they were released."""
        self.mutex: AbstractContextManager[Any] = runtime.mutex()
        self._freed: Event = runtime.event()

    def try_to_claim(self, held: HeldLock) -> bool:
        """Claim the session of a lock, unless somebody uses it."""
        with self.mutex:
            if held.claimed:
                return False
            held.claimed = True
            return True

    async def claim(self, held: HeldLock, until: float) -> None:
        """Claim the session of a lock; wait for whoever uses it. Raises StoreUnavailable."""
        while not self.try_to_claim(held):
            now = self.runtime.now()
            if now >= until:
                raise StoreUnavailable(
                    f"the request for {held.key.name!r} timed out before it was sent, because another request of its "
                    "session was not answered: check the server, or raise `operation_timeout`"
                )
            self._freed.clear()
            await self._freed.wait(min(until, now + LOOK_AGAIN))

    def unclaim(self, helds: Iterable[HeldLock]) -> None:
        """Let others use the sessions."""
        for held in helds:
            held.claimed = False
        self._freed.set()

    def note_over(self, request_id: str, *, released: bool) -> None:
        """Remember that a request is over, so that a late copy of it is refused."""
        self.over[request_id] = released or self.over.get(request_id, False)
        while len(self.over) > MOST_OVER:
            self.over.popitem(last=False)

    def abandon(self) -> None:
        """In a forked child: forget the parent's locks."""
        self.by_id, self.over = {}, OrderedDict()
        self.mutex, self._freed = self.runtime.mutex(), self.runtime.event()
