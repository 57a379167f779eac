"""One lease as its holder sees it, judged by the holder's own clock.

HELD --- a renewal failed ---> AT_RISK --- a later one succeeded ---> HELD
HELD, AT_RISK --- the local deadline passed, the store refused, somebody took it ---> LOST
HELD, AT_RISK --- the holder let go ---> RELEASED

LOST and RELEASED are final. In particular a renewal that succeeds after the local deadline revives nothing: the
holder may have been told already. Loss is told exactly once.
"""

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any

from holdfast.contracts.deadlines import DRIFT, EPSILON, MICROS, valid_until
from holdfast.contracts.messages import AcquireRequest, RenewRequest
from holdfast.contracts.runtime import Event, Runtime
from holdfast.errors import ForkedLeaseError, LeaseLost
from holdfast.escaping import told
from holdfast.outcome import Outcome

if TYPE_CHECKING:
    from holdfast.core.local_queue import LocalQueue

log = logging.getLogger("holdfast")

NEVER = float("inf")

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


class LeaseState(Enum):
    """What may be believed of a lease."""

    HELD = "held"
    AT_RISK = "at risk"
    """Still ours, but the last renewal failed; unless one succeeds it is lost at the local deadline."""
    LOST = "lost"
    RELEASED = "released"


@dataclass(slots=True, eq=False, weakref_slot=True)
class CoreLease:
    """One holding of a name. `valid_until`, `due_at` and `ends_at` are local instants; `ttl` is in microseconds."""

    runtime: Runtime
    mutex: AbstractContextManager[Any]
    request: AcquireRequest
    """What it came of."""
    name: str
    request_id: str
    token: int
    last: int
    """The last of the tokens that are reserved for its process: the one that the store knows it by."""
    ttl: int
    kept_until: float
    """Until when the store certainly keeps it."""
    valid_until: float
    """The same, but for max_hold."""
    unsure: bool = False
    """Whether another copy of this request went unanswered, and may still arrive."""
    ends_at: float = NEVER
    """When max_hold ends it."""
    due_at: float = NEVER
    """When to renew it next."""
    failures: int = 0
    local_queue: "LocalQueue | None" = None
    """Where others of this process may wait for it."""
    renewing: bool = False
    lost_because: str = ""
    let_go: bool = False
    void: bool = False
    """Whether it was found lost after its holder had let go: it is nothing to hand on."""
    dropped: bool = False
    """Whether its holder is gone without letting go: it ends at its ttl."""
    outcome: Outcome | None = None
    linger: float = 0.0
    """For how many seconds it is kept when it is released, in case this process wants the name again."""
    lingers_until: float = NEVER
    """Until when it is kept though nobody has it; NEVER if somebody has."""
    contended: bool = False
    """Whether somebody outside was heard to wait for it."""
    by: object = None
    """The mark of the thread or task that acquired it."""
    _signal: Event | None = None
    _callbacks: tuple[Callable[[str], None], ...] = ()
    free_at: float = 0.0
    """Before which local instant nobody else is to get the name, were our clock as fast as it may be."""
    asked: bool = False
    """Whether its holder was asked to let go."""
    last_error: Exception | None = None
    """Why the last renewal failed; None if one has succeeded since."""
    _when_revocation_requested: tuple[Callable[[], object], ...] = ()

    def trusted(self) -> bool:
        """Tell whether the lease is certainly still ours."""
        if self.lost_because or self.let_go:
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
                f"the lease of {self.name!r} (token {self.token}) {FORKED}: a forked child can neither use nor "
                "release it. Acquire one in the child."
            )
        if self.lost_because:
            lost = LeaseLost(
                f"the lease of {self.name!r} (token {self.token}) is lost: {self.why_lost()}. "
                "Another holder may be at work: stop, and do not write."
            )
            lost.__cause__ = self.last_error
            return lost
        return LeaseLost(f"the lease of {self.name!r} (token {self.token}) was released; acquire a new one.")

    def why_lost(self) -> str:
        """Tell why it is lost, and why it could not be renewed; "" while it is not."""
        if self.last_error is None:
            return self.lost_because
        return f"{self.lost_because}; the last renewal failed: {told(self.last_error)}"

    def state(self) -> LeaseState:
        """Tell HELD, AT_RISK, LOST and RELEASED apart."""
        if self.trusted():
            return LeaseState.AT_RISK if self.failures else LeaseState.HELD
        return LeaseState.LOST if self.lost_because else LeaseState.RELEASED

    def lose(self, because: str) -> bool:
        """Declare the lease lost, once; return whether this call did it."""
        with self.mutex:
            if self.lost_because or self.let_go:
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
            if self.lost_because or self.let_go:
                return False
            alive = self.runtime.now() < self.valid_until
            if alive:
                self.kept_until = max(self.kept_until, valid_until(sent, ttl))
                self.valid_until = min(self.kept_until, self.ends_at)
                self.failures = 0
                self.last_error = None
        return alive or not self._expire()

    def failed(self, error: Exception) -> None:
        """Note a renewal that failed; if the lease is lost by now, why it is lost stays as it was told."""
        with self.mutex:
            self.failures += 1
            if not self.lost_because:
                self.last_error = error

    def note_contention(self, renewal: RenewRequest) -> None:
        """Tell the local queue if somebody outside waits, as the reply to a renewal says."""
        if renewal.contended and self.local_queue is not None:
            self.local_queue.heard(self)

    def let_it_go(self) -> bool:
        """Note that the holder lets go: if it is not lost by now, it never will be. False if it did so before."""
        if self.trusted():
            with self.mutex:
                first, self.let_go = not self.let_go, True
                return first
        return not self.let_go

    def when_lost(self, tell: Callable[[str], None]) -> None:
        """Have `tell(reason)` called on loss, at once if it is lost already. Its errors are logged."""
        with self.mutex:
            if not self.lost_because:
                self._callbacks += (tell,)
                return
        self.runtime.post(partial(_call, tell, self.why_lost(), self.name))

    def request_revocation(self) -> None:
        """Tell the holder, once, that somebody asks it to let go. Errors of whoever it tells are logged."""
        with self.mutex:
            if self.asked or self.lost_because or self.let_go:
                return
            self.asked = True
            callbacks, self._when_revocation_requested = self._when_revocation_requested, ()
        for tell in callbacks:
            _call_revocation_requested(tell, self.name)

    def when_revocation_requested(self, tell: Callable[[], object]) -> None:
        """Have `tell()` called when the holder is asked to let go, at once if it was already."""
        with self.mutex:
            if not self.asked:
                self._when_revocation_requested += (tell,)
                return
        self.runtime.post(partial(_call_revocation_requested, tell, self.name))

    def to_keep(self) -> int:
        """Return for how many microseconds more the name must be kept if it is released now."""
        left = self.free_at - self.runtime.now() if self.free_at else 0.0
        return int(left * (1.0 - DRIFT) * MICROS) + 1 if left > 0.0 else 0

    async def wait_lost(self, until: float | None) -> bool:
        """Wait until the lease is lost, or until a local instant; return whether it is lost."""
        with self.mutex:
            if self._signal is None:
                self._signal = self.runtime.event()
                if self.lost_because or self.let_go:
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
                self.lost_because = self.lost_because or (TAKEN if outcome is Outcome.TAKEN_OVER else REFUSED)
        if self._signal is not None:  # whoever makes it from now on finds `let_go` set, and does not wait
            self._signal.set()

    def disown(self) -> None:
        """In a forked child: become inert. The mutex may have been held by a thread that is not here."""
        self.mutex = self.runtime.mutex()
        self.lost_because = FORKED
        self._callbacks = ()
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
        kept_until = self.kept_until
        return CoreLease(  # all by position, which is faster
            self.runtime,
            self.mutex,
            self.request,
            self.name,
            self.request_id,
            self.token + 1,
            self.last,
            ttl,
            kept_until,
            kept_until if kept_until < ends_at else ends_at,  # noqa: FURB136 - min() costs more
            self.unsure,
            ends_at,
            self.due_at,
            self.failures,
            self.local_queue,
        )

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
            signal, callbacks = self._signal, self._callbacks
        if signal is not None:
            signal.set()
        if self.local_queue is not None:
            self.local_queue.lost(self)
        for tell in callbacks:
            _call(tell, self.why_lost(), self.name)


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
