"""The lease as its holder sees it, judged by the holder's own clock.

A lease is HELD until something happens to it:

*   A renewal fails: the lease is AT_RISK, still held, until a later renewal succeeds and it is HELD again.
*   The local deadline passes, the store refuses a renewal, or somebody takes the name by force: the lease is LOST.
*   The holder lets go: the lease is RELEASED. If the store's answer to the release says that the lease had ended
    before, it was LOST after all.

LOST is final: a renewal that succeeds after the local deadline revives nothing, for the holder may have been told
already. The loss is told exactly once. `TRANSITIONS` is this as a table, and nothing else changes the state.
"""

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from enum import StrEnum
from functools import partial
from typing import Any, Protocol

from holdfast.contracts.deadlines import DRIFT, EPSILON, MICROS, NEVER, valid_until
from holdfast.contracts.messages import AcquireRequest, RenewRequest
from holdfast.contracts.runtime import Event, Runtime
from holdfast.errors import ForkedLeaseError, LeaseLost
from holdfast.escaping import quoted
from holdfast.outcome import Outcome

log = logging.getLogger("holdfast")

HAIR = 0.01
"""A lease that ends this many seconds before max_hold would end it is ended by max_hold."""

EXPIRED = "its ttl ran out by this process's own clock before a renewal succeeded"
REFUSED = "the store no longer knows it"
TAKEN = "the store has given the name to another holder"
REVOKED = "somebody took the name by force"
OVERHELD = "it was held for as long as max_hold allows"
FORKED = "it belongs to the parent of this process"
NOT_BY_ERROR = frozenset({REVOKED, OVERHELD})
"""Losses that no renewal could have prevented."""
UNTRIED = "; none was tried in time, so this process or its event loop may have stood still"
"""What is added to EXPIRED if no renewal had failed, and none was under way."""


class LeaseState(StrEnum):
    """What may be believed of a lease."""

    HELD = "held"
    AT_RISK = "at risk"
    """Still ours, but the last renewal failed; unless one succeeds it is lost at the local deadline."""
    LOST = "lost"
    RELEASED = "released"


HELD, AT_RISK, LOST, RELEASED = LeaseState  # shorter, and faster, than to look each up
OVER = (LOST, RELEASED)


class LeaseEvent(StrEnum):
    """What changes the state of a lease."""

    RENEWED = "a renewal succeeded"
    RENEWAL_FAILED = "a renewal failed"
    LOSS = "it can no longer be trusted"
    LET_GO = "its holder let go"
    NOT_KEPT = "the store's answer to the release says that it had ended before"


TRANSITIONS: dict[LeaseState, dict[LeaseEvent, LeaseState]] = {
    HELD: {
        LeaseEvent.RENEWED: HELD,
        LeaseEvent.RENEWAL_FAILED: AT_RISK,
        LeaseEvent.LOSS: LOST,
        LeaseEvent.LET_GO: RELEASED,
    },
    AT_RISK: {
        LeaseEvent.RENEWED: HELD,
        LeaseEvent.RENEWAL_FAILED: AT_RISK,
        LeaseEvent.LOSS: LOST,
        LeaseEvent.LET_GO: RELEASED,
    },
    RELEASED: {LeaseEvent.NOT_KEPT: LOST},
    LOST: {LeaseEvent.NOT_KEPT: LOST},
}
"""The next state for each event; an event that is not there changes nothing."""


class QueueInFront(Protocol):
    """The local queue in front of a name, as far as a lease concerns it."""

    def lost(self, lease: "CoreLease") -> None:
        """Let the next local waiter ask the store: the lease is lost."""
        ...

    def heard(self, lease: "CoreLease") -> None:
        """Note that another client waits for the lease."""
        ...

    def lingered(self, lease: "CoreLease") -> None:
        """Release a lease that nobody took up in time."""
        ...


class CoreLease:
    """One holding of a name. `valid_until`, `due_at` and `ends_at` are local instants; `ttl` is in microseconds.

    What is rare stands in the class and is set when it comes.
    """

    current = HELD
    """The state, as of the last event. Whether the local deadline has passed since, `trusted` finds out."""
    lost_because = ""
    """Why it is lost."""
    let_go = False
    """Whether the holder has begun to release it."""
    void = False
    """Whether it was found lost after its holder had let go: then there is nothing to hand on."""
    dropped = False
    """Whether its holder is gone without letting go: it ends at its ttl."""
    outcome: Outcome | None = None
    """What became of the release."""
    last_error: Exception | None = None
    """Why the last renewal failed; None if one has succeeded since."""
    failures = 0
    """How many renewals have failed in a row."""
    renewing = False
    """Whether a renewal is under way."""
    due_at = NEVER
    """When to renew it next."""
    contended = False
    """Whether another client was heard to wait for it."""
    local_queue: QueueInFront | None = None
    """Where others of this client may wait for it."""
    linger = 0.0
    """For how many seconds the client keeps it when it is released, in case it acquires the name again."""
    lingers_until = NEVER
    """Until when the client keeps it though nobody holds it; NEVER if somebody does."""
    by: object = None
    """The mark of the thread or task that acquired it."""
    free_at = 0.0
    """Before which local instant nobody else is to get the name, were our clock as fast as it may be."""
    revocation_requested = False
    """Whether its holder was asked to let go."""
    _signal: Event | None = None
    _when_lost: tuple[Callable[[str], None], ...] = ()
    _when_revocation_requested: tuple[Callable[[], object], ...] = ()

    def __init__(  # noqa: PLR0917 - made in two places, by position, which is faster
        self,
        runtime: Runtime,
        mutex: AbstractContextManager[Any],
        request: AcquireRequest,
        title: str,
        token: int,
        last: int,
        ttl: int,
        kept_until: float,
        ends_at: float,
        unsure: bool,  # noqa: FBT001 - as all others
    ) -> None:
        """Begin a holding that was granted to `request`, and that the store keeps until `kept_until`."""
        self.runtime = runtime
        self.mutex = mutex
        self.request = request
        """What it came of; lighter or of another owner after an adjustment."""
        self.title = title
        """The name as the caller wrote it."""
        self.token = token
        self.last = last
        """The last of the tokens that are reserved for this client: the one by which the store knows the lease."""
        self.ttl = ttl
        """For how long each renewal asks."""
        self.kept_until = kept_until
        """Until when the store certainly keeps it."""
        self.ends_at = ends_at
        """When max_hold ends it."""
        self.valid_until = kept_until if kept_until < ends_at else ends_at  # noqa: FURB136 - min() costs more
        """The local deadline: `kept_until`, or `ends_at` if that is sooner."""
        self.unsure = unsure
        """Whether a copy of the request went unanswered, and may still arrive."""

    @property
    def name(self) -> str:
        """The name in the store."""
        return self.request.name

    @property
    def request_id(self) -> str:
        """The id by which the store knows it."""
        return self.request.request_id

    def change(self, event: LeaseEvent) -> bool:
        """Go to the next state; return whether there is one. With the mutex held."""
        following = TRANSITIONS[self.current].get(event)
        if following is None:
            return False
        self.current = following
        return True

    def trusted(self) -> bool:
        """Tell whether the lease is certainly still ours."""
        current = self.current
        if current is not HELD and current is not AT_RISK:
            return False
        if self.runtime.now() < self.valid_until:
            return True
        return not self._expire()

    def is_lost(self) -> bool:
        """Tell whether the lease is lost, rather than released. True from the very moment of the local deadline."""
        return not self.trusted() and bool(self.lost_because)

    def remaining(self) -> float:
        """Return for how many seconds the lease is certainly still ours."""
        return max(0.0, self.valid_until - self.runtime.now()) if self.trusted() else 0.0

    def check(self) -> None:
        """Raise LeaseLost unless the lease is certainly still ours."""
        if not self.trusted():
            raise self.loss()

    def loss(self) -> LeaseLost | ForkedLeaseError:
        """Make the error that tells why the lease is not ours."""
        if self.lost_because == FORKED:
            return ForkedLeaseError(
                f"the lease of {self.title!r} (token {self.token}) {FORKED}: a forked child can neither use nor "
                "release it. Acquire one in the child."
            )
        if self.lost_because:
            lost = LeaseLost(
                f"the lease of {self.title!r} (token {self.token}) is lost: {self.why_lost()}. "
                "Another holder may be at work: stop, and do not write."
            )
            lost.__cause__ = self.last_error
            return lost
        return LeaseLost(f"the lease of {self.title!r} (token {self.token}) was released; acquire a new one.")

    def why_lost(self) -> str:
        """Tell why it is lost, and why it could not be renewed; "" while it is not."""
        if self.last_error is None:
            return self.lost_because
        return f"{self.lost_because}; the last renewal failed: {quoted(self.last_error)}"

    def state(self) -> LeaseState:
        """Return the state; a lease whose local deadline has passed is LOST."""
        self.trusted()
        return self.current

    def over(self) -> bool:
        """Tell whether it is lost or released, whatever the clock says."""
        return self.current is LOST or self.current is RELEASED

    def lose(self, because: str) -> bool:
        """Declare the lease lost, once; return whether this call did it."""
        with self.mutex:
            if not self.change(LeaseEvent.LOSS):
                self.void = True
                return False
            self.lost_because = because
            if because in NOT_BY_ERROR:
                self.last_error = None
        self.runtime.post(self._tell)  # whoever noticed may be a thread beside the loop, or the body itself
        return True

    def renewed(self, sent: float, ttl: int) -> bool:
        """Note a renewal for `ttl` that was sent at `sent`; return whether the lease lives on."""
        with self.mutex:
            alive = self.runtime.now() < self.valid_until
            if alive:
                if not self.change(LeaseEvent.RENEWED):
                    return False
                self.kept_until = max(self.kept_until, valid_until(sent, ttl))
                self.valid_until = min(self.kept_until, self.ends_at)
                self.failures = 0
                self.last_error = None
        return alive or self.trusted()

    def failed(self, error: Exception) -> None:
        """Note a renewal that failed; if the lease is lost by now, why it is lost stays as it was told."""
        with self.mutex:
            self.failures += 1
            self.change(LeaseEvent.RENEWAL_FAILED)
            if not self.lost_because:
                self.last_error = error

    def note_contention(self, renewal: RenewRequest) -> None:
        """Tell the local queue if somebody outside waits, as the reply to a renewal says."""
        if renewal.contended and self.local_queue is not None:
            self.local_queue.heard(self)

    def let_it_go(self) -> bool:
        """Note that the holder lets go: if it is not lost by now, it never will be. False if it did so before."""
        if self.runtime.now() < self.valid_until or self.trusted():
            with self.mutex:
                if self.begin_release():
                    return True
        return not self.let_go

    def begin_release(self) -> bool:
        """Become RELEASED; False if it is lost or released already. With the mutex held."""
        following = TRANSITIONS[self.current].get(LeaseEvent.LET_GO)  # `change`, without a call
        if following is None:
            return False
        self.current = following
        self.let_go = True
        return True

    def when_lost(self, tell: Callable[[str], None]) -> None:
        """Have `tell(reason)` called on loss, at once if it is lost already. Its errors are logged."""
        with self.mutex:
            if not self.lost_because:
                self._when_lost += (tell,)
                return
        self.runtime.post(partial(_call, tell, self.why_lost(), self.title))

    def request_revocation(self) -> None:
        """Tell the holder, once, that somebody asks it to let go. Errors of whoever it tells are logged."""
        with self.mutex:
            if self.revocation_requested or self.over():
                return
            self.revocation_requested = True
            callbacks, self._when_revocation_requested = self._when_revocation_requested, ()
        for tell in callbacks:
            _call_revocation_requested(tell, self.title)

    def when_revocation_requested(self, tell: Callable[[], object]) -> None:
        """Have `tell()` called when the holder is asked to let go, at once if it was already."""
        with self.mutex:
            if not self.revocation_requested:
                self._when_revocation_requested += (tell,)
                return
        self.runtime.post(partial(_call_revocation_requested, tell, self.title))

    def to_keep(self) -> int:
        """Return for how many microseconds more the name must be kept if it is released now."""
        left = self.free_at - self.runtime.now() if self.free_at else 0.0
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
        """Note the end of the release, and wake whoever waits for a loss that will not come any more."""
        self.outcome = outcome
        if outcome is not Outcome.RELEASED and not outcome.kept:
            with self.mutex:
                self.change(LeaseEvent.NOT_KEPT)
                self.lost_because = self.lost_because or (TAKEN if outcome is Outcome.TAKEN_OVER else REFUSED)
        if self._signal is not None:  # whoever makes it from now on finds `let_go` set, and does not wait
            self._signal.set()

    def disown(self) -> None:
        """In a forked child: become inert. The mutex may have been held by a thread that is not here."""
        self.mutex = self.runtime.mutex()
        self.current, self.lost_because = LOST, FORKED
        self._when_lost = ()
        self._when_revocation_requested = ()

    def _ttl_to_request(self, ttl: int) -> int:
        """Return the ttl to renew with: no longer than it takes to be valid until max_hold ends it."""
        left = (self.ends_at - self.runtime.now() + EPSILON) / (1.0 - DRIFT) + 0.001
        return ttl if left * MICROS >= ttl else max(1, int(left * MICROS))

    def renewal(self, ttl: int) -> RenewRequest:
        """Make the request to keep it for `ttl` microseconds more, or for what max_hold leaves of them."""
        return RenewRequest(self.name, self.request_id, self.last, self._ttl_to_request(ttl), self.request)

    def successor(self, ttl: int, ends_at: float) -> "CoreLease":
        """Make the lease of the next in this process, who takes the next token: the same holding, to the store."""
        lease = CoreLease(
            self.runtime,
            self.mutex,
            self.request,
            self.title,
            self.token + 1,
            self.last,
            ttl,
            self.kept_until,
            ends_at,
            self.unsure,
        )
        lease.due_at = self.due_at
        lease.local_queue = self.local_queue
        if self.failures:
            lease.current, lease.failures = AT_RISK, self.failures
        return lease

    def schedule(self, spread: float) -> float:
        """Set the next renewal after about a third of what is left, and return how long that is.

        `spread` in [0, 1) moves it a little, so that leases of one ttl do not all fall due together.
        """
        now = self.runtime.now()
        wait = (self.valid_until - now) * (0.3 + 0.06 * spread)
        self.due_at = NEVER if self.valid_until >= self.ends_at else now + wait
        return wait

    def _expire(self) -> bool:
        with self.mutex:
            if self.runtime.now() < self.valid_until:
                return False
        if self.valid_until >= self.ends_at - HAIR:
            self.lose(OVERHELD)
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
        for tell in callbacks:
            _call(tell, self.why_lost(), self.title)


def why_refused(reply: Outcome, renewal: RenewRequest) -> str:
    """Tell why a store has refused a renewal."""
    why = renewal.refused_because
    if reply is Outcome.TAKEN_OVER:
        return f"{why}, and {TAKEN}" if why else TAKEN
    return why or REFUSED


def report_loss(lease: CoreLease) -> None:
    """Log that a lease is lost: a warning, unless it lingered and so was nobody's."""
    log.log(logging.WARNING if lease.lingers_until == NEVER else logging.DEBUG, "%s", lease.loss())


def _call_revocation_requested(tell: Callable[[], object], name: str) -> None:
    try:
        tell()
    except (Exception, SystemExit):
        log.exception("the on_revoke callback for %r raised; the lease is held all the same", name)


def _call(tell: Callable[[str], None], reason: str, name: str) -> None:
    try:
        tell(reason)
    except (Exception, SystemExit):  # SystemExit ends nothing but the renewer's thread, and with it all renewals
        log.exception("the on_lost callback for %r raised; the lease is lost all the same", name)
