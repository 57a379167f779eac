"""The lease as its holder sees it, with a deadline by the holder's own clock.

A lease begins as HELD. Its state changes by these rules:

*   A renewal fails: the lease becomes AT_RISK. It is still held; it becomes HELD again when a later renewal succeeds.
*   The local deadline passes, the store refuses a renewal, or the lease is revoked: the lease becomes LOST.
*   The holder releases the lease: it becomes RELEASED. If the store's reply to the release says that the lease had
    ended before, or another thread or task releases it by closing the client, it becomes LOST.
*   The holder detaches the lease: it becomes DETACHED. The lease goes on in the store, but not here.

LOST is final. A renewal that succeeds after the local deadline does not revive the lease, because the holder may have
been told of the loss already. The holder is told of the loss exactly once. `TRANSITIONS` is the table of these rules,
and nothing else changes the state, except `disown` in a forked child.
"""

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from tenure.contracts.deadlines import DRIFT, EPSILON, MICROS, NEVER, valid_until
from tenure.contracts.messages import AcquireRequest, RenewRequest
from tenure.contracts.runtime import Event, Runtime
from tenure.errors import ForkedLeaseError, LeaseLost
from tenure.escaping import quoted
from tenure.outcome import Outcome

if TYPE_CHECKING:
    from tenure.entering import Site

log = logging.getLogger("tenure")

MAX_HOLD_MARGIN = 0.01
"""A lease whose local deadline is at most this many seconds before the end of max_hold is lost because of max_hold."""

EXPIRED = "its ttl ran out by this process's clock before a renewal succeeded"
REFUSED = "the store no longer knows it"
TAKEN = "the store has given the name to another holder, or it was revoked by force"
REVOKED = "it was revoked by force"
OVERHELD = "it was held for as long as max_hold allows"
ENDED = "its ttl ran out, and nothing has extended it (renew=False)"
OF_GROUP = ", of the same lease group, is lost"
HANDED_ON = "its client is being drained, and hands leadership on"
CLOSED = "its client was closed while its body ran"
ADOPTED = "it was adopted once more, by its handle"
FORKED = "belongs to the parent of this process"
NOT_BY_ERROR = frozenset({REVOKED, OVERHELD, HANDED_ON, CLOSED})
"""Losses that no renewal could have prevented."""
UNTRIED = "; no renewal was tried in time, so this process or its event loop may have stood still"
"""The addition to EXPIRED if no renewal had failed and none was under way."""

PART = 1 / 4 / MICROS
"""The part of a lease that must be left for it to be handed on: a fourth, in seconds per microsecond of its ttl."""


class LeaseState(StrEnum):
    """The state of a lease."""

    HELD = "held"
    AT_RISK = "at risk"
    """Still held, but the last renewal failed: the lease is lost at the local deadline unless a renewal succeeds."""
    LOST = "lost"
    RELEASED = "released"
    DETACHED = "detached"
    """No longer held here: whoever has the handle that `detach` returned can go on with the lease."""

    __hash__ = str.__hash__  # that of Enum is written in Python, and every release looks states up


HELD, AT_RISK, LOST, RELEASED, DETACHED = LeaseState  # shorter and faster than an attribute look-up
OVER = (LOST, RELEASED, DETACHED)
GIVEN_UP = (RELEASED, DETACHED)


class LeaseEvent(StrEnum):
    """An event that changes the state of a lease."""

    RENEWED = "a renewal succeeded"
    RENEWAL_FAILED = "a renewal failed"
    LOSS = "the lease can no longer be trusted"
    RELEASE = "the holder released the lease"
    DETACH = "the holder detached the lease"
    NOT_KEPT = "the store's reply to the release says that the lease had ended before, or its client is closed"

    __hash__ = str.__hash__


RELEASE = LeaseEvent.RELEASE

TRANSITIONS: dict[LeaseState, dict[LeaseEvent, LeaseState]] = {
    HELD: {
        LeaseEvent.RENEWED: HELD,
        LeaseEvent.RENEWAL_FAILED: AT_RISK,
        LeaseEvent.LOSS: LOST,
        LeaseEvent.RELEASE: RELEASED,
        LeaseEvent.DETACH: DETACHED,
    },
    AT_RISK: {
        LeaseEvent.RENEWED: HELD,
        LeaseEvent.RENEWAL_FAILED: AT_RISK,
        LeaseEvent.LOSS: LOST,
        LeaseEvent.RELEASE: RELEASED,
        LeaseEvent.DETACH: DETACHED,
    },
    RELEASED: {LeaseEvent.NOT_KEPT: LOST},
    LOST: {LeaseEvent.NOT_KEPT: LOST},
    DETACHED: {},
}
"""The next state for each event; an event that is not in the table changes nothing."""


class Grant:
    """What the store has granted and knows as one lease: the request and its tokens.

    A hand-off within the client passes the grant on: each of its holders has a `CoreLease` of its own.
    """

    ttl = 0
    """For how long the store has granted the lease, in microseconds, if that is less than the request said; else 0."""
    longest_ttl = 0
    """The longest ttl of a renewal, in microseconds."""
    free_at = 0.0
    """The local instant, by the fastest clock allowed, until which min_hold keeps the name from others; 0.0: none."""
    contended = False
    """Whether a notification said that another client waits for the name."""
    guarded = False
    """Whether a guard was taken, which is true for as long as the store knows the lease: it is not handed on then."""
    leads = False
    """Whether it is the term of an elected leader, which is handed on when the client is drained."""
    detaching = False
    """Whether the store may have detached it, or raised its token: its notification of that is no revocation."""

    def __init__(self, request: AcquireRequest, title: str, last: int, unsure: bool) -> None:  # noqa: FBT001 - faster
        """Note what was granted to `request`."""
        self.request = request
        """The acquire request; after an adjustment, with the smaller weight or the other owner."""
        self.title = title
        """The name as the caller wrote it."""
        self.last = last
        """The last of the tokens that are reserved for this client. The store knows the lease by this token."""
        self.unsure = unsure
        """Whether a copy of the acquire request was not answered, and may still arrive."""

    @property
    def name(self) -> str:
        """The name in the store."""
        return self.request.name

    @property
    def request_id(self) -> str:
        """The id of the acquire request, by which the store knows the lease."""
        return self.request.request_id

    def is_outdated(self, token: int) -> bool:
        """Return whether the store may know the lease by another token than this one of a request that it refused."""
        return self.detaching or token != self.last

    def enough(self) -> float:
        """Return how many seconds must be left of the lease for another holder in this process: a fourth."""
        return (self.ttl or self.request.ttl) * PART


class EndReporter(Protocol):
    """What is told of the lease to listeners of events: the part of it that a lease calls."""

    def lost(self, lease: "CoreLease") -> None:
        """Report that the lease is lost."""
        ...


class QueueInFront(Protocol):
    """The local queue in front of a name: the part of it that leases and their releases use."""

    linger: float

    def lost(self, lease: "CoreLease") -> None:
        """Make the first local waiter send a request to the store, because the lease is lost."""
        ...

    def on_contended(self, lease: "CoreLease") -> None:
        """Note that another client waits for the lease."""
        ...

    def on_linger_end(self, lease: "CoreLease") -> None:
        """Release a lease whose linger time is over."""
        ...


class CoreLease:
    """One lease. `valid_until`, `due_at` and `ends_at` are local instants; `ttl` is in microseconds.

    Rare attributes have their defaults in the class, and are set in the lease only when they are needed.
    """

    current = HELD
    """The state after the last event. Only `trusted` finds out whether the local deadline has passed since."""
    lost_because = ""
    """Why the lease is lost; empty if it is not."""
    release_begun = False
    """Whether the holder has begun to release the lease."""
    void = False
    """Whether the loss was found only after the holder had begun the release: then the lease cannot be handed on."""
    deferred = False
    """Whether a release was called that runs in the background, because it was called within another operation."""
    dropped = False
    """Whether the holder is gone without a release: the lease ends at its ttl."""
    outcome: Outcome | None = None
    """The outcome of the release; None before it."""
    last_error: Exception | None = None
    """Why the last renewal failed; None if a renewal has succeeded since."""
    failures = 0
    """How many renewals have failed in a row."""
    renewing = False
    """Whether a renewal is under way."""
    wait_for_release = True
    """Whether the end of its `with` waits for the reply to the release."""
    awaited = True
    """Whether the release that has begun waits for the reply of the store."""
    renews = True
    """Whether it is renewed in the background. If not, it lasts for its ttl from the grant or the last extension."""
    ends_early = False
    """Whether an extension has shortened it, so that it ends here before it ends in the store."""
    due_at = NEVER
    """When to renew the lease next."""
    local_queue: QueueInFront | None = None
    """The local queue in which other contenders of this client may wait for the lease."""
    lingers_until = NEVER
    """Until when the client keeps the lease while nobody holds it; NEVER while a holder has it."""
    by: object = None
    """The mark of the thread or task that acquired the lease, or entered it last by `with lease`."""
    teller: object = None
    """The mark of the thread that calls the callbacks of a loss within the release; None while none does."""
    body: "tuple[Site, Callable[[], object]] | None" = None
    """The site of the `with` that entered the lease last, and a weak reference to the lease object; or None."""
    revocation_requested = False
    """Whether a revocation request has come for the lease."""
    told: EndReporter | None = None
    """Reports the end of the lease; None if nobody listens, or nobody has held the lease."""
    _signal: Event | None = None
    _when_lost: tuple[Callable[[str], None], ...] = ()
    _when_revocation_requested: tuple[Callable[[], object], ...] = ()

    def __init__(  # noqa: PLR0917 - called in few places, by position, which is faster
        self,
        runtime: Runtime,
        mutex: AbstractContextManager[Any],
        grant: Grant,
        token: int,
        ttl: int,
        kept_until: float,
        ends_at: float,
    ) -> None:
        """Begin a lease of `grant`, which the store keeps until `kept_until`."""
        self.runtime = runtime
        self.mutex = mutex
        self.grant = grant
        self.token = token
        self.ttl = ttl
        """The ttl of each renewal."""
        self.kept_until = kept_until
        """Until when the store certainly keeps the lease."""
        self.ends_at = ends_at
        """When max_hold ends the lease."""
        self.valid_until = kept_until if kept_until < ends_at else ends_at  # noqa: FURB136 - min() costs more
        """The local deadline: `kept_until` or `ends_at`, whichever is earlier."""

    def change(self, event: LeaseEvent) -> bool:
        """Go to the next state of the table; return whether there is one. Call it with the mutex held."""
        following = TRANSITIONS[self.current].get(event)
        if following is None:
            return False
        self.current = following
        return True

    def trusted(self) -> bool:
        """Return whether the lease is certainly still held; declare it lost if its local deadline has passed."""
        current = self.current
        if current is not HELD and current is not AT_RISK:
            return False
        if self.runtime.now() < self.valid_until:
            return True
        return not self._expire()

    def is_lost(self) -> bool:
        """Return whether the lease is lost, rather than released. True from the very moment of the local deadline."""
        return not self.trusted() and bool(self.lost_because)

    def remaining(self) -> float:
        """Return for how many seconds the lease is certainly still held."""
        return max(0.0, self.valid_until - self.runtime.now()) if self.trusted() else 0.0

    def check(self) -> None:
        """Raise LeaseLost unless the lease is certainly still held."""
        if not self.trusted():
            raise self.loss()

    def begin_guard(self) -> None:
        """Note that a guard was taken: the lease is not handed on, and its release ends it in the store.

        Raises LeaseLost unless the lease is held.
        """
        with self.mutex:  # so that a release finds this, or this finds the lease released
            self.grant.guarded = True
        self.check()

    def loss(self) -> LeaseLost | ForkedLeaseError:
        """Make the error that says why the lease is not held."""
        if self.lost_because == FORKED:
            return ForkedLeaseError(
                f"the lease of {self.grant.title!r} (token {self.token}) {FORKED}: a forked child cannot use or "
                "release it. Acquire another lease in the child."
            )
        if self.lost_because:
            lost = LeaseLost(
                f"the lease of {self.grant.title!r} (token {self.token}) is lost: {self.why_lost()}. "
                "Another holder may be at work: stop, and write nothing more."
            )
            lost.__cause__ = self.last_error
            return lost
        if self.current is DETACHED:
            return LeaseLost(
                f"the lease of {self.grant.title!r} (token {self.token}) was detached, and is no longer held here: "
                "`client.adopt(handle)` goes on with it."
            )
        return LeaseLost(f"the lease of {self.grant.title!r} (token {self.token}) was released: acquire a new one.")

    def why_lost(self) -> str:
        """Return why the lease is lost, with the error of the last renewal; "" while it is not lost."""
        if self.last_error is None:
            return self.lost_because
        return f"{self.lost_because}; the last renewal failed: {quoted(self.last_error)}"

    def state(self) -> LeaseState:
        """Return the state by now: a lease whose local deadline has passed is LOST."""
        self.trusted()
        return self.current

    def over(self) -> bool:
        """Return whether the lease was lost or released before, without a look at the clock."""
        return self.current in OVER

    def lose(self, because: str, event: LeaseEvent = LeaseEvent.LOSS) -> bool:
        """Declare the lease lost, once; return whether this call did that.

        With NOT_KEPT as the `event` this is done to a lease whose release has begun, too.
        """
        with self.mutex:
            if self.lost_because or not self.change(event):
                self.void = True
                return False
            self.lost_because = because
            if because in NOT_BY_ERROR:
                self.last_error = None
        self.runtime.post(self._tell)  # posted, because this may run in a thread beside the loop, or in the body itself
        return True

    def renewed(self, sent: float, ttl: int, *, exact: bool = False) -> bool:
        """Note a renewal for `ttl` that was sent at `sent`; return whether the lease is still held.

        `exact`: the lease ends with this ttl, be it earlier than before.
        """
        with self.mutex:
            alive = self.runtime.now() < self.valid_until
            if alive:
                if not self.change(LeaseEvent.RENEWED):
                    return False
                until = valid_until(sent, ttl)
                self.ends_early = self.ends_early or (exact and until < self.kept_until)
                self.kept_until = until if exact else max(self.kept_until, until)
                self.grant.longest_ttl = max(self.grant.longest_ttl, ttl)
                self.valid_until = min(self.kept_until, self.ends_at)
                self.failures = 0
                self.last_error = None
        return alive or self.trusted()

    def failed(self, error: Exception) -> None:
        """Note a renewal that failed. If the lease is lost by now, the reason of its loss does not change."""
        with self.mutex:
            self.failures += 1
            self.change(LeaseEvent.RENEWAL_FAILED)
            if not self.lost_because:
                self.last_error = error

    def note_contention(self, renewal: RenewRequest) -> None:
        """Notify the local queue if the reply to a renewal says that another client waits."""
        if renewal.contended and self.local_queue is not None:
            self.local_queue.on_contended(self)

    def begin_release(self) -> bool:
        """Note that the holder releases the lease; return whether this is the first release.

        A lease that is not lost by now will not be lost while its holder releases it, unless the store says so.
        """
        if self.runtime.now() < self.valid_until or self.trusted():
            with self.mutex:
                if self.mark_released():
                    return True
        return not self.release_begun

    def mark_released(self) -> bool:
        """Become RELEASED; return False if the lease is lost or released already. Call it with the mutex held."""
        following = TRANSITIONS[self.current].get(RELEASE)  # as `change`, without the cost of a call
        if following is None:
            return False
        self.current = following
        self.release_begun = True
        return True

    def detach(self) -> bool:
        """Become DETACHED; return False if the lease is lost or released."""
        with self.mutex:
            if not self.change(LeaseEvent.DETACH):
                return False
        self.settle(Outcome.DETACHED)
        if self.local_queue is not None:
            self.local_queue.lost(self)  # the next local waiter sends a request of its own
        return True

    def when_lost(self, tell: Callable[[str], None]) -> None:
        """Call `tell(reason)` when the lease is lost, at once if it is lost already. Errors of `tell` are logged."""
        with self.mutex:
            if not self.lost_because:
                self._when_lost += (tell,)
                return
        self.runtime.post(partial(_call, tell, self.why_lost(), self.grant.title))

    def request_revocation(self) -> None:
        """Tell the holder of a revocation request, once. Errors of its callbacks are logged."""
        with self.mutex:
            if self.revocation_requested or self.over():
                return
            self.revocation_requested = True
            callbacks, self._when_revocation_requested = self._when_revocation_requested, ()
        for tell in callbacks:
            _call_revocation_requested(tell, self.grant.title)

    def when_revocation_requested(self, tell: Callable[[], object]) -> None:
        """Call `tell()` when a revocation request comes for the lease, at once if one has come already."""
        with self.mutex:
            if not self.revocation_requested:
                self._when_revocation_requested += (tell,)
                return
        self.runtime.post(partial(_call_revocation_requested, tell, self.grant.title))

    def to_keep(self) -> int:
        """Return for how many microseconds min_hold still keeps the name from others if the lease is released now."""
        left = self.grant.free_at - self.runtime.now() if self.grant.free_at else 0.0
        return int(left * (1.0 - DRIFT) * MICROS) + 1 if left > 0.0 else 0

    async def wait_lost(self, until: float | None) -> bool:
        """Wait until the lease is lost, or until a local instant; return whether it is lost."""
        with self.mutex:
            if self._signal is None:
                self._signal = self.runtime.event()
                if self.over():
                    self._signal.set()
        while self.trusted():
            wake_at = self.valid_until if until is None else min(until, self.valid_until)
            await self._signal.wait(wake_at)
            if until is not None and self.runtime.now() >= until:
                break
        return self.is_lost()

    def settle(self, outcome: Outcome) -> None:
        """Note the outcome of the release, and wake the threads and tasks that wait for a loss."""
        self.outcome = outcome
        if outcome is not Outcome.RELEASED and not outcome.kept:
            with self.mutex:
                self.change(LeaseEvent.NOT_KEPT)
                self.lost_because = self.lost_because or (TAKEN if outcome is Outcome.TAKEN_OVER else REFUSED)
        if self._signal is not None:  # a `wait_lost` that begins after this line finds the state, and does not wait
            self._signal.set()

    def disown(self) -> None:
        """Become inert, in a forked child. The mutex is replaced: a thread of the parent may have held it."""
        self.mutex = self.runtime.mutex()
        self.current, self.lost_because = LOST, FORKED
        self._when_lost = ()
        self._when_revocation_requested = ()

    def _ttl_to_request(self, ttl: int) -> int:
        """Return the ttl to request: `ttl`, or less if max_hold ends the lease before."""
        left = (self.ends_at - self.runtime.now() + EPSILON) / (1.0 - DRIFT) + 0.001
        return ttl if left * MICROS >= ttl else max(1, int(left * MICROS))

    def background_renewal(self) -> RenewRequest:
        """Make the renew request of the renewer, which prolongs no lease with `renew=False`: it confirms that one."""
        if self.renews:
            return self.renewal(self.ttl)
        return self.renewal(max(1, int((self.valid_until - self.runtime.now()) * MICROS)))

    def renewal(self, ttl: int) -> RenewRequest:
        """Make the renew request for `ttl` microseconds, or for the time that max_hold leaves."""
        return RenewRequest(
            self.grant.name, self.grant.request_id, self.grant.last, self._ttl_to_request(ttl), self.grant.request
        )

    def successor(self, ttl: int, ends_at: float) -> "CoreLease":
        """Make the lease of the next holder in this process, with the next token. To the store it is the same lease."""
        lease = CoreLease(self.runtime, self.mutex, self.grant, self.token + 1, ttl, self.kept_until, ends_at)
        lease.due_at = self.due_at
        lease.local_queue = self.local_queue
        if self.failures:
            lease.current, lease.failures = AT_RISK, self.failures
        return lease

    def schedule(self, spread: float) -> float:
        """Plan the next renewal after about a third of the remaining time; return that wait in seconds.

        A `spread` in [0, 1) shifts the renewal a little, so that leases with the same ttl do not fall due together.
        """
        now = self.runtime.now()
        wait = (self.valid_until - now) * (0.3 + 0.06 * spread)
        self.due_at = now + wait if self.renews and self.valid_until < self.ends_at else NEVER
        return wait

    def _expire(self) -> bool:
        with self.mutex:
            if self.runtime.now() < self.valid_until:  # a renewal was noted since the caller looked
                return False
        # From here on `renewed` finds the deadline passed, and changes nothing.
        if self.valid_until >= self.ends_at - MAX_HOLD_MARGIN:
            self.lose(OVERHELD)
        elif not self.renews:
            self.lose(ENDED)
        else:
            self.lose(EXPIRED if self.failures or self.renewing else EXPIRED + UNTRIED)
        return True

    def _tell(self) -> None:
        with self.mutex:
            signal, callbacks = self._signal, self._when_lost
        if signal is not None:
            signal.set()
        if self.local_queue is not None:
            self.local_queue.lost(self)
        if self.told is not None:
            self.told.lost(self)
        for tell in callbacks:
            _call(tell, self.why_lost(), self.grant.title)


def why_refused(reply: Outcome, renewal: RenewRequest) -> str:
    """Return the reason for a renewal that the store has refused."""
    why = renewal.refused_because
    if reply is Outcome.TAKEN_OVER:
        return f"{why}, and {TAKEN}" if why else TAKEN
    return why or REFUSED


SHORT_CAUSES = {
    ENDED: "expired",
    OVERHELD: "max_hold",
    REVOKED: "revoked",
    HANDED_ON: "drained",
    ADOPTED: "adopted",
    CLOSED: "closed",
}


def short_cause(lost_because: str) -> str:
    """Return the reason of a loss as one of a few words, for events and metrics."""
    if short := SHORT_CAUSES.get(lost_because):
        return short
    if lost_because.startswith(EXPIRED):
        return "expired"
    if lost_because.endswith(TAKEN):
        return "taken over"
    return "group" if lost_because.endswith(OF_GROUP) else "refused"


def report_loss(lease: CoreLease) -> None:
    """Log that a lease is lost: as a warning, or for debugging if it lingered, or had `renew=False` and just ended."""
    expected = lease.lingers_until != NEVER or lease.lost_because == ENDED
    log.log(logging.DEBUG if expected else logging.WARNING, "%s", lease.loss())


def _call_revocation_requested(tell: Callable[[], object], name: str) -> None:
    try:
        tell()
    except (Exception, SystemExit):
        log.exception("the on_revoke callback for %r raised an error; the lease is still held", name)


def _call(tell: Callable[[str], None], reason: str, name: str) -> None:
    try:
        tell(reason)
    except (Exception, SystemExit):  # SystemExit would end only the renewer's thread, and with it all renewals
        log.exception("the on_lost callback for %r raised an error; the lease is lost in any case", name)
