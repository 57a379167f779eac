"""Stores that run the grant table itself: all that differs between them is how a step becomes atomic.

A subclass loads and saves the states of names; every decision is the table's.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TypeVar

from holdfast.contracts.messages import (
    AcquireRequest,
    AdjustRequest,
    Granted,
    HolderView,
    NameView,
    NotGranted,
    ReleaseRequest,
    RenewReply,
    RenewRequest,
    Reply,
    WithdrawRequest,
)
from holdfast.outcome import Outcome
from holdfast.table.state import NameState
from holdfast.table.step import Step

T = TypeVar("T")

RETENTION = 120_000_000
"""How long a name that nobody uses is remembered, in microseconds: longer than a request may be repeated, or come late.
Then only its counter lives on, in the floor."""


class Steps:
    """The steps of one atomic turn at the table, one a name, all at the same instant."""

    __slots__ = ("_listening", "_load", "_now", "_quarantined_until", "_stamp", "taken")

    def __init__(
        self,
        load: Callable[[str], NameState],
        now: int,
        stamp: int,
        listening: Callable[[str], bool],
        quarantined_until: int = 0,
    ) -> None:
        """Take steps at `now` on states that `load` fetches."""
        self._quarantined_until = quarantined_until
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
                self._load(name), self._now, self._stamp, self._listening, self._quarantined_until
            )
        return step


class TabledStore(ABC):
    """The operations of a store, each as one turn at the grant table."""

    def identity(self) -> str:
        """Return nothing: it is not known whether another store is the same one."""
        return ""

    @abstractmethod
    async def step(self, name: str, work: Callable[[Step], T], until: float) -> T:
        """Carry out `work` on one name atomically, store its state, then send its notifications."""

    @abstractmethod
    async def steps(self, work: Callable[[Steps], T], until: float) -> T:
        """Carry out `work` on any number of names at once, atomically."""

    async def acquire(self, request: AcquireRequest, until: float) -> Reply:
        """Grant, queue or refuse."""
        return await self.step(request.name, lambda step: step.acquire(request), until)

    async def acquire_many(self, requests: Sequence[AcquireRequest], until: float) -> list[Reply]:
        """Grant one after another in one turn, up to the first that is not granted."""
        return await self.steps(lambda steps: _in_order(steps, requests), until)

    async def release(self, release: ReleaseRequest, until: float) -> Outcome:
        """Let go, and hand over in the same step."""
        return await self.step(release.name, lambda step: step.release(release), until)

    async def renew(self, renewals: Sequence[RenewRequest], until: float) -> list[RenewReply]:
        """Renew a batch in one turn."""
        return await self.steps(lambda steps: [steps.on(each.name).renew(each) for each in renewals], until)

    async def adjust(self, adjust: AdjustRequest, until: float) -> RenewReply:
        """Change a holding without a gap."""
        return await self.step(adjust.name, lambda step: step.adjust(adjust), until)

    async def withdraw(self, withdraw: WithdrawRequest, until: float) -> NotGranted:
        """Give up waiting."""
        return await self.step(withdraw.name, lambda step: step.withdraw(withdraw), until)

    async def inspect(self, name: str, until: float) -> NameView:
        """Show one name."""
        return await self.step(name, lambda step: step.view(name), until)

    async def request_revocation(self, name: str, until: float) -> list[HolderView]:
        """Ask the holders of a name to let go."""
        return await self.step(name, lambda step: step.request_revocation(), until)

    async def resize(self, name: str, before: int, after: int, until: float) -> int:
        """Change the capacity of a name."""
        return await self.step(name, lambda step: step.resize(before, after), until)

    async def revoke(self, name: str, until: float, token: int = 0) -> list[HolderView]:
        """Take a name from its holders, or from that of a token."""
        return await self.step(name, lambda step: step.revoke(token), until)


def _in_order(steps: Steps, requests: Sequence[AcquireRequest]) -> list[Reply]:
    replies: list[Reply] = []
    for request in requests:
        reply = steps.on(request.name).acquire(request)
        replies.append(reply)
        if not isinstance(reply, Granted):
            break
    return replies
