"""The contract of a store: what the protocol asks of Redis, a file, an ensemble or a table in memory.

A store is made for one runtime and used by one client. Each operation is atomic in the store, takes a local
instant after which its answer is of no use, and is safe to repeat: the same request id gets the same answer.

An operation raises `StoreUnavailable` if asking again later may help (`OutcomeUnknown` if it may have been carried
out), and another `StoreError` if it will not. It raises nothing else but a cancellation of its runtime.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from holdfast.contracts.messages import (
    AcquireRequest,
    AdjustRequest,
    HolderView,
    NameView,
    NotGranted,
    Notification,
    Page,
    ReleaseRequest,
    RenewReply,
    RenewRequest,
    Reply,
    WithdrawRequest,
)
from holdfast.contracts.runtime import Runtime
from holdfast.outcome import Outcome


@dataclass(slots=True, frozen=True)
class Capabilities:
    """What a store can do, so that what it can't is refused when a primitive is made."""

    min_ttl: float
    """The shortest ttl that it keeps, in seconds."""
    queue: bool
    """Whether it keeps a FIFO queue and hands a name over inside the release."""
    weights: bool
    """Whether it knows capacities and weights other than 1."""
    local: bool
    """Whether a request is carried out by its caller's own process, so that none is ever under way alone."""
    pushes_count: bool = True
    """Whether a pushed grant is as good as an answered one. If not, it is confirmed by asking before it is entered."""
    max_ttl: float = float("inf")
    """The longest ttl that it keeps, in seconds."""
    span: int = 1024
    """How many tokens can be reserved in one grant."""
    tells: bool = False
    """Whether a holder is told when somebody waits, though there is no queue."""
    multi_acquire: bool = False
    """Whether it has `acquire_many`, and so can grant several names in one step."""


@dataclass(slots=True, frozen=True)
class StoreSource:
    """What a URL stands for: a store that can be made for any runtime."""

    title: str
    """The store in a few words, without secrets: for errors and `repr`."""
    capabilities: Capabilities
    make: Callable[[Runtime], "Store"]


@runtime_checkable
class Forgetful(Protocol):
    """A store that may forget grants, and then is quarantined: it grants nothing until they have run out."""

    async def end_quarantine(self, until: float) -> float:
        """Have it grant again at once; return for how many seconds it would have granted nothing (0.0: none)."""
        ...


class Store(Protocol):
    """One client's access to where its locks live."""

    capabilities: Capabilities

    def identity(self) -> str:
        """Return what two stores have in common only if they are one and the same; "" while that is not known."""
        ...

    async def open(self, deliver: Callable[[Notification], None], until: float) -> str:
        """Connect, start to deliver notifications, and return the channel they are to be sent to (or "").

        `deliver` must be called where the runtime runs its code (`Runtime.post` sees to it).
        """
        ...

    async def acquire(self, request: AcquireRequest, until: float) -> Reply:
        """Grant, queue or refuse."""
        ...

    async def acquire_many(self, requests: Sequence[AcquireRequest], until: float) -> list[Reply]:
        """Go through asks for different names, in their order and in one atomic step, up to the first not granted.

        That one is answered as by `acquire`, the ones after it are not looked at. The requests are of one client and
        differ in their names and requests only. Called if the store is capable of it (`multi_acquire`).
        """
        ...

    async def release(self, release: ReleaseRequest, until: float) -> Outcome:
        """Let go, and hand over in the same step."""
        ...

    async def renew(self, renewals: Sequence[RenewRequest], until: float) -> list[RenewReply]:
        """Renew a batch of leases; the answers are in the order of the batch.

        A store that keeps a lease for less than it was asked to lowers the `ttl` of that renewal. One that hands leases
        on within a process (`span`) sets its `contended` if somebody waits for the name.
        """
        ...

    async def adjust(self, adjust: AdjustRequest, until: float) -> RenewReply:
        """Change a holding without a gap, and hand on what it no longer takes in the same step."""
        ...

    async def withdraw(self, withdraw: WithdrawRequest, until: float) -> NotGranted:
        """Give up waiting; pass on a grant that crossed this."""
        ...

    async def inspect(self, name: str, until: float) -> NameView:
        """Show one name."""
        ...

    async def names(self, prefix: str, until: float, rest: object = None) -> Page:
        """Return a page of the names in use that start with `prefix`: the first, or the one that `rest` asks for.

        A page takes a bounded number of requests, however many names there are, and may be empty though others follow.
        A page that was not answered is asked for again with the same `rest`; one that was, not. A name that is in use
        during the whole listing is in exactly one page.
        """
        ...

    async def request_revocation(self, name: str, until: float) -> list[HolderView]:
        """Ask the holders of a name to let go; return who was asked."""
        ...

    async def resize(self, name: str, before: int, after: int, until: float) -> int:
        """Change the capacity of a name if it is `before`, or if nobody uses it; return what it is now."""
        ...

    async def revoke(self, name: str, until: float, token: int = 0) -> list[HolderView]:
        """Take a name from its holders, or only from the one that `inspect` shows with `token`, and tell them.

        Returns who they were.
        """
        ...

    async def close(self) -> None:
        """Stop delivering and disconnect, also if it never opened. Leases that are still held end at their ttl."""

    def abandon(self) -> None:
        """In a forked child: drop what was inherited, without a word to anyone outside this process."""
