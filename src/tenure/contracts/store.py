"""The contract of a store: what the protocol needs from Redis, a file, an ensemble or a table in memory.

A store is made for one runtime and used by one client. Each operation is atomic in the store. Its `until` is the local
instant after which a reply is useless. It is safe to repeat: the same request id gets the same reply.

An operation raises `StoreUnavailable` if a retry may succeed (`OutcomeUnknown` if the request may have been carried
out), and another `StoreError` if a retry is useless. It raises nothing else, except a cancellation of its runtime.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from tenure.contracts.findings import Finding, Report
from tenure.contracts.messages import (
    AcquireRequest,
    AdjustRequest,
    HolderView,
    NameView,
    NotGranted,
    Notification,
    Page,
    ReleaseRequest,
    RenewReplies,
    RenewReply,
    RenewRequest,
    Reply,
    WithdrawRequest,
)
from tenure.contracts.runtime import Event, Runtime
from tenure.errors import StoreError
from tenure.outcome import Outcome


@dataclass(slots=True, frozen=True)
class Capabilities:
    """What a store can do. A primitive that needs more is refused when it is made."""

    min_ttl: float
    """The shortest ttl that the store grants, in seconds."""
    queue: bool
    """Whether the store keeps a FIFO queue, and a release hands the name over in the same step."""
    weights: bool
    """Whether the store knows capacities and weights other than 1."""
    runs_in_caller: bool
    """Whether the caller's own process carries out a request, so that no request is under way without its caller."""
    pushes_count: bool = True
    """Whether a pushed grant counts like a granted reply. If not, the client confirms it by a request first."""
    max_ttl: float = float("inf")
    """The longest ttl that the store grants, in seconds."""
    span: int = 1024
    """The largest number of tokens that one grant can reserve."""
    notifies_contention: bool = False
    """Whether the store notifies a holder when somebody waits, though it keeps no queue or has no channel."""
    multi_acquire: bool = False
    """Whether the store has `acquire_many`, which grants several names in one step."""
    shows_waiters: bool = True
    """Whether `inspect` shows who waits, so that deadlocks can be found."""
    tokens: bool = True
    """Whether the tokens of a name grow from grant to grant. If not, the protocol numbers leases by them, and users get
    none. A store may set this in its own capabilities when it is opened."""
    records: bool = True
    """Whether the store keeps a record of each name. If not, it lists no names, keeps none from others after its lease
    (no lock_delay, no min_hold), passes on no revocation requests, and shows no metadata of an owner (no elections)."""
    barging: bool = False
    """Whether a request may be passed by others for a time (`AcquireRequest.fair_after`), or nobody keeps an order."""
    cells: bool = False
    """Whether the store keeps cells (contracts/cells.py): for counters, limits, stocks and jobs that run once."""
    shows_renewals: bool = True
    """Whether `inspect` shows what is left of a lease since its last renewal: so a silent holder is seen."""
    hands_over: bool = False
    """Whether a lease depends on no connection or session of its client, so that another client can go on with it
    (`AdjustRequest.successor`)."""
    shows_leases: bool = True
    """Whether others see the owner, the token and the ttl of a lease. If not, they see that the name is held, and in
    place of the owner by which session."""


@dataclass(slots=True, frozen=True)
class StoreSource:
    """What a URL describes: a store that can be made for any runtime."""

    title: str
    """The store in a few words, without secrets: for errors and `repr`."""
    capabilities: Capabilities
    make: Callable[[Runtime], "Store"]
    ttl: float | None = None
    """The ttl of locks that say none, if the URL has one, in seconds."""


@runtime_checkable
class Waitable(Protocol):
    """A store that knows a better way to wait for its notifications than to wait for an event."""

    async def wait(self, event: Event, until: float | None) -> bool:
        """Wait for an event of the runtime until a local instant, and take notifications; return whether it is set."""
        ...


@runtime_checkable
class SendsReleases(Protocol):
    """A store that can send a release and take its reply later."""

    def send_release(
        self, request: AcquireRequest, release: ReleaseRequest, until: float, told: Callable[[Outcome | None], None]
    ) -> bool:
        """Send a release, of which `told` gets the outcome; return False if it cannot be sent now, and was not.

        `request` is the one that was granted. Raises StoreError if the release may have been sent.
        `told` gets None if no outcome is known: then the release may be carried out late. It is called once or more,
        from any thread of the runtime, or never, if the store does not answer by `until`.
        """
        ...

    def collect_replies(self) -> None:
        """Take the replies that have come by now and that no other request will take soon."""


@runtime_checkable
class Forgetful(Protocol):
    """A store that may forget grants, and then is in quarantine: it grants nothing until they have run out."""

    async def end_quarantine(self, until: float) -> float:
        """End the quarantine at once; return how many seconds it would still have lasted (0.0: there was none)."""
        ...


@runtime_checkable
class Examinable(Protocol):
    """A store that tells how it is set, and whether that is wrong for locks."""

    on_findings: Callable[[Sequence[Finding]], None]
    """Called with what a server shows of itself when it is connected, without a further request. The client sets it."""

    async def examine(self, ttl: float, timeout: float) -> Report:
        """Look at the settings of the store, whether or not it is open. Each request may take `timeout` seconds.

        `ttl` is the longest ttl that the program uses, in seconds. Raises StoreError if no server answers. What a
        server does not tell is in `Report.unseen`. Nothing is written, but to a row that no name uses, where nothing
        else shows whether writes are refused.
        """
        ...


class Store(Protocol):
    """One client's access to where its locks live."""

    capabilities: Capabilities

    def identity(self) -> str:
        """Return a text that two `Store` objects share only if they are one store; "" while it is not known."""
        ...

    async def open(self, deliver: Callable[[Notification], None], until: float) -> str:
        """Connect, start to deliver notifications, and return this client's channel ("" if there is none).

        A store that opens a channel later delivers a GAP notification that names it.

        Raise StoreError if the store has a later form than this client reads (contracts/forms.py), here or later on.
        Call `deliver` only where the runtime runs its code, with `Runtime.post`.
        """
        ...

    async def acquire(self, request: AcquireRequest, until: float) -> Reply:
        """Grant the name, queue the request, or refuse it."""
        ...

    async def acquire_many(self, requests: Sequence[AcquireRequest], until: float) -> list[Reply]:
        """Grant requests for different names, in their order and in one atomic step, up to the first not granted.

        The first request that is not granted gets the reply of `acquire`; the requests after it are ignored. All
        requests come from one client, and differ only in name and request id. The protocol calls this only if the store
        has the capability `multi_acquire`.
        """
        ...

    async def release(self, release: ReleaseRequest, until: float) -> Outcome:
        """End a lease, and hand the name over in the same step."""
        ...

    async def renew(self, renewals: Sequence[RenewRequest], until: float) -> RenewReplies:
        """Renew a batch of leases; return the replies in the order of the batch.

        What keeps one lease from being renewed must not keep the others: its error stands in its place. The leases
        whose last renewal failed come last. A store that prolongs a lease by less than its `ttl` lowers the `ttl` of
        that renewal. A store with a `span` larger than 1 sets `contended` of a renewal if somebody waits for the name.
        """
        ...

    async def adjust(self, adjust: AdjustRequest, until: float) -> RenewReply:
        """Change a lease that goes on, and grant the waiters that this makes room for in the same step."""
        ...

    async def withdraw(self, withdraw: WithdrawRequest, until: float) -> NotGranted:
        """Give up a place in the queue; hand the name over if it was granted meanwhile."""
        ...

    async def inspect(self, name: str, until: float) -> NameView:
        """Return who holds a name and who waits for it."""
        ...

    async def names(self, prefix: str, until: float, rest: object = None) -> Page:
        """Return a page of the names in use that start with `prefix`: the first page, or the page of the cursor `rest`.

        A page takes a bounded number of requests, however many names there are, and may be empty though others follow.
        The caller repeats a page that failed with the same `rest`, and never repeats a page that it got. A name that is
        in use during the whole listing is in exactly one page.
        """
        ...

    async def request_revocation(self, name: str, until: float) -> list[HolderView]:
        """Ask the holders of a name to let go; return the holders that were asked."""
        ...

    async def resize(self, name: str, before: int, after: int, until: float) -> int:
        """Change the capacity of a name if it is `before`, or if nobody uses the name; return the capacity."""
        ...

    async def revoke(self, name: str, until: float, token: int = 0) -> list[HolderView]:
        """Take a name from its holders, or only from the holder that `inspect` shows with `token`; notify them.

        Return these holders.
        """
        ...

    async def close(self) -> None:
        """Stop delivering notifications and disconnect, also if the store was never opened. Leases end at their ttl."""

    def abandon(self) -> None:
        """In a forked child: drop what the child inherited, without sending anything."""


async def renew_together(store: Store, renewals: Sequence[RenewRequest], until: float) -> list[RenewReply]:
    """Renew leases, and return the replies. Raises StoreError if one of them could not be renewed: repeat all then."""
    replies: list[RenewReply] = []
    for reply in await store.renew(renewals, until):
        if isinstance(reply, StoreError):
            raise reply
        replies.append(reply)
    return replies
