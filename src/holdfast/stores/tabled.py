"""Stores that run the grant table itself: all that differs between them is how a step becomes atomic.

A subclass loads and saves the states of names; every decision is the table's.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TypeVar

from holdfast.core.messages import (
    Ask,
    HolderView,
    Leave,
    Left,
    NameView,
    Notice,
    Release,
    Renewal,
    RenewReply,
    Reply,
)
from holdfast.core.state import NameState
from holdfast.core.table import Step
from holdfast.outcome import Outcome

T = TypeVar("T")

RETENTION = 3_600_000_000
"""How long a name that nobody uses is remembered, in microseconds; then only its counter lives on, in the floor."""


class Steps:
    """The steps of one atomic turn at the table, one a name, all at the same instant."""

    __slots__ = ("_listening", "_load", "_now", "_stamp", "taken")

    def __init__(
        self, load: Callable[[str], NameState], now: int, stamp: int, listening: Callable[[str], bool]
    ) -> None:
        """Take steps at `now` on states that `load` fetches."""
        self._load = load
        self._now = now
        self._stamp = stamp
        self._listening = listening
        self.taken: dict[str, Step] = {}

    def on(self, name: str) -> Step:
        """Return the step on `name`."""
        step = self.taken.get(name)
        if step is None:
            step = self.taken[name] = Step(self._load(name), self._now, self._stamp, self._listening)
        return step

    def notices(self) -> list[Notice]:
        """Return what is to be pushed once this turn is stored."""
        return [notice for step in self.taken.values() for notice in step.notices]


class TabledStore(ABC):
    """The operations of a store, each as one turn at the grant table."""

    @abstractmethod
    async def turn(self, work: Callable[[Steps], T], until: float) -> T:
        """Carry out `work` atomically, store every state that it touched, then send its notices."""

    async def acquire(self, ask: Ask, until: float) -> Reply:
        """Grant, queue or refuse."""
        return await self.turn(lambda steps: steps.on(ask.name).acquire(ask), until)

    async def release(self, release: Release, until: float) -> Outcome:
        """Let go, and hand over in the same step."""
        return await self.turn(lambda steps: steps.on(release.name).release(release), until)

    async def renew(self, renewals: Sequence[Renewal], until: float) -> list[RenewReply]:
        """Renew a batch in one turn."""
        return await self.turn(lambda steps: [steps.on(each.name).renew(each) for each in renewals], until)

    async def leave(self, leave: Leave, until: float) -> Left:
        """Give up waiting."""
        return await self.turn(lambda steps: steps.on(leave.name).leave(leave), until)

    async def inspect(self, name: str, until: float) -> NameView:
        """Show one name."""
        return await self.turn(lambda steps: steps.on(name).view(name), until)

    async def revoke(self, name: str, until: float) -> list[HolderView]:
        """Take a name from its holders."""
        return await self.turn(lambda steps: steps.on(name).revoke(), until)
