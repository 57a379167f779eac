"""The base of the stores that run the grant table in the client: memory, SQLite and the SQL databases.

The table makes every decision. A subclass only loads and saves the states of names, and makes a step atomic.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from operator import methodcaller
from typing import TypeVar

from tenure.contracts.messages import (
    AcquireRequest,
    AdjustRequest,
    Granted,
    HolderView,
    NameView,
    NotGranted,
    ReleaseRequest,
    RenewReplies,
    RenewReply,
    RenewRequest,
    Reply,
    WithdrawRequest,
)
from tenure.errors import OutcomeUnknown, StoreError
from tenure.outcome import Outcome
from tenure.table.state import NameState
from tenure.table.step import Step

T = TypeVar("T")

RETENTION = 120_000_000
"""How long the state of an unused name is kept, in microseconds.

It is longer than a request may be repeated or delayed. Afterwards only the counter of the name survives, in the floor.
"""


class Tried(AbstractContextManager["Tried"]):
    """A write that may have been done, and of which nobody can tell if what follows fails.

    A refused write is such a one: it may have been the second copy of a write that was done, because a proxy or a
    driver has sent it again. Whoever reads the row then sees which. If nobody can, the outcome is unknown.
    """

    __slots__ = ("unsure",)

    def __init__(self, *, unsure: bool = False) -> None:
        self.unsure = unsure

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if self.unsure and isinstance(error, StoreError) and not isinstance(error, OutcomeUnknown):
            raise OutcomeUnknown(str(error)) from error


class Steps:
    """The steps of one atomic operation on the grant table: one step per name, all at the same instant."""

    __slots__ = ("_listening", "_load", "_long_silence", "_now", "_quarantine", "_stamp", "taken")

    def __init__(
        self,
        load: Callable[[str], NameState],
        now: int,
        stamp: int,
        listening: Callable[[str], bool],
        quarantine: tuple[int, int] = (0, 0),
        *,
        long_silence: bool = False,
    ) -> None:
        """Prepare steps at the instant `now` on states that `load` returns; a quarantine has an end and a beginning.

        With `long_silence`, a waiter far back in a queue may be silent for longer than one at its head.
        """
        self._long_silence = long_silence
        self._quarantine = quarantine
        self._load = load
        self._now = now
        self._stamp = stamp
        self._listening = listening
        self.taken: dict[str, Step] = {}

    def on(self, name: str) -> Step:
        """Return the step on `name`."""
        step = self.taken.get(name)
        if step is None:
            step = self.taken[name] = Step(
                self._load(name),
                self._now,
                self._stamp,
                self._listening,
                *self._quarantine,
                long_silence=self._long_silence,
            )
        return step


class TabledStore(ABC):
    """The operations of a store, each as one atomic operation on the grant table."""

    def identity(self) -> str:
        """Return "": nothing tells whether another store is the same one."""
        return ""

    @abstractmethod
    async def step(self, name: str, work: Callable[[Step], T], until: float) -> T:
        """Run `work` on one name atomically, save the state of the name, then send the notifications of the step."""

    @abstractmethod
    async def steps(self, names: Sequence[str], work: Callable[[Steps], T], until: float) -> T:
        """Run `work` on some of `names` in one atomic step, save their states, then send the notifications.

        A store may run `work` several times, and saves what the last run leaves.
        """

    async def acquire(self, request: AcquireRequest, until: float) -> Reply:
        """Grant, queue or refuse the request."""
        return await self.step(request.name, methodcaller("acquire", request), until)

    async def acquire_many(self, requests: Sequence[AcquireRequest], until: float) -> list[Reply]:
        """Grant the requests in their order in one atomic step, up to the first that cannot be granted."""
        return await self.steps([each.name for each in requests], lambda steps: _in_order(steps, requests), until)

    async def release(self, release: ReleaseRequest, until: float) -> Outcome:
        """Release the lease, and grant the name to the next waiter in the same step."""
        return await self.step(release.name, methodcaller("release", release), until)

    async def renew(self, renewals: Sequence[RenewRequest], until: float) -> RenewReplies:
        """Renew a batch of leases in one atomic step."""
        names = [each.name for each in renewals]
        return await self.steps(names, lambda steps: [steps.on(each.name).renew(each) for each in renewals], until)

    async def adjust(self, adjust: AdjustRequest, until: float) -> RenewReply:
        """Change a lease without a gap."""
        return await self.step(adjust.name, lambda step: step.adjust(adjust), until)

    async def withdraw(self, withdraw: WithdrawRequest, until: float) -> NotGranted:
        """Remove a waiter from the queue."""
        return await self.step(withdraw.name, lambda step: step.withdraw(withdraw), until)

    async def inspect(self, name: str, until: float) -> NameView:
        """Return the state of one name."""
        return await self.step(name, lambda step: step.view(name), until)

    async def request_revocation(self, name: str, until: float) -> list[HolderView]:
        """Send a revocation request to the holders of a name."""
        return await self.step(name, lambda step: step.request_revocation(), until)

    async def resize(self, name: str, before: int, after: int, until: float) -> int:
        """Change the capacity of a name."""
        return await self.step(name, lambda step: step.resize(before, after), until)

    async def revoke(self, name: str, until: float, token: int = 0) -> list[HolderView]:
        """Revoke the leases of a name, or only the lease with the fencing token `token`."""
        return await self.step(name, lambda step: step.revoke(token), until)


def _in_order(steps: Steps, requests: Sequence[AcquireRequest]) -> list[Reply]:
    replies: list[Reply] = []
    for request in requests:
        reply = steps.on(request.name).acquire(request)
        replies.append(reply)
        if not isinstance(reply, Granted):
            break
    return replies
