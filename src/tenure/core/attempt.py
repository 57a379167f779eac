"""One acquisition of one name, from its first request to a lease, or to a withdrawal that leaves nothing behind.

It obeys these rules. The model checker finds a counterexample if any of them is dropped.

*   The notification channel is open before the first request is sent, so that no grant is pushed before the client can
    hear it.
*   A pushed token counts only if it is larger than the counter in the last `Queued` reply. A smaller one belongs to a
    grant of an earlier life of the name, and that grant may have ended; or the store has forgotten it, as a promoted
    standby may, and the push was under way for long.
*   A pushed lease is valid from the *send* of the request that the `Queued` reply answered. The store granted it after
    it had carried out that request, so it keeps the lease at least that long. A push that was heard before that send
    no longer counts: a store that knows of the grant answers the request with it, and a store that does not know of it
    has forgotten it.
*   An acquisition that ends without a lease (by timeout, cancellation or error) sends a withdraw request. If the store
    has granted the name meanwhile, it hands that grant to the next waiter. If a request was not answered, the
    withdrawal leaves a tombstone, so that a late copy of the request is refused.
"""

import logging
from collections.abc import Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any

from tenure.contracts.deadlines import DRIFT, NEVER, seconds, valid_until
from tenure.contracts.limits import EVERYBODY
from tenure.contracts.messages import (
    AcquireRequest,
    Busy,
    CapacityMismatch,
    Granted,
    NotGranted,
    Notification,
    NotificationKind,
    Queued,
    Reply,
    WithdrawRequest,
)
from tenure.core.access import AttemptPlan, StoreAccess
from tenure.core.deadlocks import LOOK_EVERY, refuse_deadlock
from tenure.core.lease import CoreLease, Grant
from tenure.core.requests import MIN_REQUEST_TIME
from tenure.core.self_deadlock import (
    WARN_AFTER,
    held_by_caller,
    refuse_to_wait_for_oneself,
    warn_of_waiting_for_oneself,
)
from tenure.core.spec import LockSpec
from tenure.errors import OutcomeUnknown, StoreError, StoreUnavailable, UsageError
from tenure.escaping import quoted

if TYPE_CHECKING:
    from tenure.contracts.runtime import Event
    from tenure.core.actor import Actor
    from tenure.core.stop import Stop

log = logging.getLogger("tenure")

WAITER_TTL = 4_000_000
"""For how long the store takes a silent waiter for alive, in microseconds: several intervals. See `silence_factor`."""


class InUse(UsageError):
    """The name is in use with another capacity."""

    def __init__(self, message: str, capacity: int) -> None:
        """Say so; `capacity` is the one that the name is in use with."""
        super().__init__(message)
        self.capacity = capacity


class Attempt:
    """One acquisition of one name. Used once. Rare attributes have their defaults in the class, as those of a lease."""

    contended = False
    """Whether another client waits for the name that was granted."""
    contended_before_grant = False
    """Whether the notification of that waiter came before the grant itself."""
    unanswered_since = NEVER
    """Since when the store has not answered. The local queue sets it before `run` if it knows an earlier time."""
    _answer: Reply | None = None
    """The reply to the first request, if that went along with another before `run`."""
    _signal: "Event | None" = None
    """Wakes the waiter. Made when the waiter first has to wait."""
    _retry_at = NEVER
    """When to send the request again, as the last reply says."""
    _notified_at = NEVER
    """The same, as the notifications since the last request say. Other threads set it, and the waiter only at a send:
    if both wrote one instant, the waiter could replace an earlier one by a later."""
    _granted = 0
    """The highest token that the store has pushed since the last request."""
    _engaged = False
    """Whether the store may know this request."""
    _unsure = False
    """Whether a copy of the request was not answered, and may still arrive."""
    _sent = 0.0
    """When the request was sent last."""
    _look_at = 0.0
    """When to look for deadlocks again."""
    _warn_at = NEVER
    """When to say in the log that the caller may wait for itself."""

    def __init__(  # noqa: PLR0917 - by position, which is faster
        self,
        access: StoreAccess,
        spec: LockSpec,
        plan: AttemptPlan,
        until: float | None,
        owned: list[CoreLease],
        wait: bool,  # noqa: FBT001 - the same
        span: int = 1,
    ) -> None:
        """Prepare to acquire by the local instant `until` (None: wait for ever), or with one request without `wait`.

        The lease is put into `owned` before anything else is done with it. From then on it belongs to the caller that
        gave the list: if that caller is interrupted, it releases the lease.

        A `span` of more than one reserves as many tokens, for local hand-offs of the lease.
        """
        self._access = access
        self._runtime = runtime = access.runtime
        self.spec = spec
        self._until = until
        self._owned = owned
        proposal = access.highest_token
        if not access.runs_in_caller and (wall := runtime.wall()) > proposal:  # else the store reads this clock
            proposal = wall
        self._request = AcquireRequest(
            spec.name,
            runtime.new_id(),
            access.channel,
            plan.owner,
            plan.ttl,
            plan.interval,
            WAITER_TTL,
            spec.weight,
            spec.capacity,
            spec.lock_delay,
            proposal,
            wait,
            span,
            False,  # noqa: FBT003 - by position, which is faster
            spec.fair_after,
            plan.shared if span == 1 else plan.shared_range,
        )
        self._request_timeout = plan.request_timeout
        """How many seconds one request may take."""

    async def run(self) -> CoreLease | NotGranted:
        """Acquire the name. Returns the lease, or NotGranted, which names the holders, when the time is up.

        Most acquisitions are one request, which this function sends and whose grant it enters. Anything else goes the
        general way, with the same request.
        """
        attempts, request_id, reply = self._access.attempts, self._request.request_id, self._answer
        try:
            attempts[request_id] = self
            if not self._access.acquires:  # a `close` or `drain` that begins after this line finds this in `attempts`
                self._access.refuse_to_acquire()
            if self.unanswered_since != NEVER:  # earlier leaders got no answer
                reply = await self._send_until_answered()
            elif reply is None:  # as `_send_again`, which has more to undo
                self._engaged = True
                sent = self._sent = self._runtime.now()
                try:
                    reply = await self._send_once(sent + self._request_timeout)
                except StoreUnavailable as error:
                    reply = await self._send_until_answered(error)
            if isinstance(reply, Granted) and (lease := self._enter_granted(reply)) is not None:
                return lease
            return await self._go_on(reply)
        except GeneratorExit:
            raise
        except BaseException as error:
            if self._engaged:
                late = self._until is not None and isinstance(error, StoreUnavailable)
                await self._runtime.finish(self._withdraw_in_time(MIN_REQUEST_TIME) if late else self._withdraw(error))
            raise
        finally:
            attempts.pop(request_id, None)  # the renewer has a granted lease: a notification finds one of the two

    def hear(self, notification: Notification) -> None:
        """Take a notification from the channel: a grant, or an earlier retry time."""
        if notification.kind is NotificationKind.GRANTED:
            if notification.token > self._granted:
                self._granted, self.contended = notification.token, notification.contended
        else:
            self._notified_at = min(self._notified_at, self._runtime.now() + seconds(notification.after))
        if self._signal is not None:  # a waiter that makes it after this line looks once more before it waits
            self._signal.set()

    def waits_with(self, stop: "Stop") -> bool:
        """Return whether setting `stop` ends the wait of this acquisition."""
        return self.spec.stop is stop

    def dismiss(self) -> None:
        """Wake the waiter, so that it sees that the client is closed or the wait is stopped."""
        self._notified_at = 0.0
        if self._signal is not None:
            self._signal.set()

    async def _wait(self, reply: Reply) -> CoreLease | NotGranted | None:
        """Wait as a reply other than a grant says. Return None when the request is to be repeated."""
        if isinstance(reply, Queued):
            if self.spec.actor is not None:
                await self._look_for_deadlocks(self.spec.actor)
            return await self._wait_for_push(reply)
        if isinstance(reply, Busy):
            return await self._wait_to_repeat(reply)
        raise self._refusal(reply)

    async def _go_on(self, reply: Reply) -> CoreLease | NotGranted:
        """Go on after a reply that made no lease: wait as it says, and repeat the request, until the end."""
        while True:
            result = self._enter_granted(reply) if isinstance(reply, Granted) else await self._wait(reply)
            if result is None and not isinstance(reply, Busy) and (self._is_late() or not self._request.wait):
                result = await self._runtime.finish(self._withdraw_in_time(self._request_timeout))
            if result is not None:
                return result
            reply = await self._send_until_answered()

    async def _send_again(self) -> Reply:
        """Send the request, which may have been sent before."""
        self._engaged = True
        self._retry_at = self._notified_at = NEVER
        self._granted = 0  # an earlier push no longer counts: the store repeats that grant, or has forgotten it
        self._sent = self._runtime.now()
        return await self._send_once(self._sent + self._request_timeout)

    async def _send_until_answered(self, unanswered: StoreUnavailable | None = None) -> Reply:
        """Send the request; repeat it while the store does not answer, for as long as the client's `retry_for`.

        `unanswered` is the error of a request that was sent before.
        """
        delay = 0.02
        while True:
            if unanswered is None:
                try:
                    reply = await self._send_again()
                except StoreUnavailable as error:
                    unanswered = error
                else:
                    if self.unanswered_since != NEVER:
                        self._access.requests.note_answer(self.unanswered_since)
                        self.unanswered_since = NEVER
                    return reply
            self._unsure = self._unsure or isinstance(unanswered, OutcomeUnknown)
            self.unanswered_since = min(self.unanswered_since, self._sent)
            give_up_at = self.unanswered_since + (self._access.requests.retry_for if self._request.wait else 0.0)
            if self._until is not None:
                give_up_at = min(self._until, give_up_at)
            pause = delay * (0.5 + self._runtime.random())
            if self._runtime.now() + pause >= give_up_at:
                raise unanswered
            self._access.refuse_to_wait(self.spec)
            self._access.requests.note_unanswered(self.spec.title, unanswered, self.unanswered_since, give_up_at)
            unanswered = None
            await self._runtime.sleep(pause)
            delay = min(delay * 2, 0.5)

    async def _wait_to_repeat(self, reply: Busy) -> NotGranted | None:
        """Wait for the retry time of a busy store and return None; return NotGranted if there is no time to wait."""
        self._engaged = self._unsure or reply.stands
        self._access.requests.note_quarantine(seconds(reply.quarantine))
        if not self._request.wait or self._is_late():
            not_granted = (
                await self._runtime.finish(self._withdraw_in_time(self._request_timeout))
                if self._engaged
                else NotGranted()
            )
            votes = not_granted.votes or reply.votes
            return NotGranted(reply.holders, quarantine=reply.quarantine, votes=votes, blocked=reply.blocked)
        if self.spec.actor is not None:
            await self._look_for_deadlocks(self.spec.actor)
        await self._wait_at_random(seconds(reply.retry_in))
        return None

    async def _look_for_deadlocks(self, actor: "Actor") -> None:
        if self._runtime.now() >= self._look_at:
            await refuse_deadlock(self._access, actor, self.spec.name)
            self._look_at = self._runtime.now() + LOOK_EVERY

    def _send_once(self, until: float) -> Coroutine[Any, Any, Reply]:
        """Send the request to the store once, with the deadline `until`."""
        return self._access.store.acquire(self._request, until)

    async def _wait_for_push(self, reply: Queued) -> CoreLease | None:
        """Wait in the store's queue: return the lease when its grant is pushed, None at the retry time or deadline."""
        self._access.requests.note_quarantine(seconds(reply.quarantine))
        retry_in = reply.retry_in
        if self.spec.actor is not None and self.spec.actor.holds():  # it looks for deadlocks when it has asked
            retry_in = min(retry_in, 2 * self._request.interval)
        self._retry_at = self._runtime.now() + seconds(retry_in)
        signal = await self._make_signal()
        while True:
            await self._warn_if_due()
            signal.clear()  # before all looks, so that whatever comes after one of them ends the wait
            self._access.refuse_to_wait(self.spec)
            if self._granted > reply.counter:
                counts = self._access.store.capabilities.pushes_count and self.spec.renew
                return self._enter_pushed(self._granted) if counts else None  # None: a request confirms the whole ttl
            if self._is_late() or self._runtime.now() >= min(self._retry_at, self._notified_at):
                return None
            await self._access.wait(signal, self._wake_at())

    async def _make_signal(self) -> "Event":
        if self._signal is None:
            if self._until is None and held_by_caller(self._access, self.spec):
                await refuse_to_wait_for_oneself(self._access, self.spec, self._sent)
                self._warn_at = self._runtime.now() + WARN_AFTER
            self._signal = self._runtime.event()
            if self._access.events is not None:
                self._access.events.contended()
        return self._signal

    async def _wait_at_random(self, retry_in: float) -> None:
        """Wait for the retry time of a store without a queue. The time is random, so that no waiter is always first."""
        self._retry_at = self._runtime.now() + retry_in * (0.5 + self._runtime.random())
        signal = await self._make_signal()
        while True:
            await self._warn_if_due()
            signal.clear()  # before all looks, as above
            self._access.refuse_to_wait(self.spec)
            if self._is_late() or self._runtime.now() >= min(self._retry_at, self._notified_at):
                return
            await signal.wait(self._wake_at())

    async def _warn_if_due(self) -> None:
        """Log, once and in time, that the caller may wait for itself."""
        if self._runtime.now() >= self._warn_at:
            self._warn_at = NEVER
            await warn_of_waiting_for_oneself(self._access, self.spec, self._sent)

    def _wake_at(self) -> float:
        """Return the local instant at which a waiter that nobody wakes looks again."""
        at = min(self._retry_at, self._notified_at, self._warn_at)
        return at if self._until is None else min(at, self._until)

    def _enter_pushed(self, token: int) -> CoreLease | None:
        """Enter on a push if at least a quarter of the ttl is left; else return None: the next request renews it."""
        until = valid_until(self._sent, self._request.ttl)
        enough = seconds(self._request.ttl) / 4
        return self._enter(token, until) if until - self._runtime.now() > enough else None

    def _enter_granted(self, reply: Granted) -> CoreLease | None:
        """Enter on a grant; None if its lease is over by now."""
        self.contended = reply.contended
        lease = self._enter(reply.token, valid_until(self._sent, reply.ttl))
        if lease is not None and reply.ttl < self._request.ttl:
            lease.grant.ttl = reply.ttl
        return lease

    def _enter(self, token: int, until: float) -> CoreLease | None:
        """Become the holder and return the lease; None if the lease ended before its grant was heard."""
        access, spec = self._access, self.spec
        now = self._runtime.now()
        if until <= now:
            return None
        lease = CoreLease(
            self._runtime,
            access.mutex,
            Grant(self._request, spec.title, token, self._unsure),
            token - self._request.span + 1,
            spec.ttl,
            until,
            now + spec.max_hold,
        )
        self._owned.append(lease)
        self._engaged = False
        if not spec.renew:
            lease.renews = False
        if spec.min_hold:
            lease.grant.free_at = now + seconds(spec.min_hold) / (1.0 - DRIFT)
        access.renewer.add(lease)
        if spec.actor is not None:
            spec.actor.leases.append(lease)
        if token > access.highest_token:  # noqa: PLR1730 - max() costs more
            access.highest_token = token
        return lease

    async def _withdraw_in_time(self, request_timeout: float) -> NotGranted:
        """Send one withdraw request. If it fails, repeat it in the background: the caller's time is up."""
        try:
            not_granted = await self._access.store.withdraw(self._to_withdraw(), self._runtime.now() + request_timeout)
        except StoreError:
            self._access.background_releases.add(self._withdraw, self.spec.name)
            not_granted = NotGranted()
        self._engaged = False
        return not_granted

    def _to_withdraw(self) -> WithdrawRequest:
        unsure = self._unsure or not self._access.store.capabilities.runs_in_caller
        return WithdrawRequest(self.spec.name, self._request.request_id, unsure)

    async def _withdraw(self, ended_by: BaseException | None = None) -> NotGranted:
        """Send the withdraw request, up to three times. A store that does not answer forgets the waiter in time."""
        access, withdraw, timeout = self._access, self._to_withdraw(), self._request_timeout
        try:
            not_granted = await access.requests.send_up_to_three_times(
                partial(access.store.withdraw, withdraw), timeout
            )
        except StoreError as error:
            not_granted = NotGranted()
            lapse = seconds(max(self._request.waiter_ttl, self._request.ttl))
            if isinstance(error, StoreUnavailable):
                access.late_releases.repeat(
                    lambda: access.store.withdraw(withdraw, self._runtime.now() + timeout),
                    self.spec.name,
                    self._runtime.now() + lapse,
                )
            log.log(
                logging.DEBUG if _lasts(error) and ended_by is not None and _lasts(ended_by) else logging.WARNING,
                "could not withdraw the request for %r (%s); the store drops the request within %.1f s",
                self.spec.title,
                quoted(error),
                lapse,
            )
        self._engaged = False
        return not_granted

    def _refusal(self, reply: Reply) -> Exception:
        self._engaged = False
        if isinstance(reply, CapacityMismatch):
            return InUse(
                f"{self.spec.title!r} is in use as {_kind_of(reply.capacity)}, and was requested as "
                f"{_kind_of(self.spec.capacity)}. All users of a name must use the same primitive and the same number "
                "of permits: change this one, or use another name.",
                reply.capacity,
            )
        return StoreError(
            f"the store refuses the request for {self.spec.title!r}, because the request was withdrawn before: "
            "acquire again."
        )

    def _is_late(self) -> bool:
        return self._until is not None and self._runtime.now() >= self._until


def _lasts(error: BaseException) -> bool:
    """Return whether repeating the request cannot help: the store has answered with an error."""
    return isinstance(error, StoreError) and not isinstance(error, StoreUnavailable)


def _kind_of(capacity: int) -> str:
    """Name the primitive that a capacity belongs to, for errors."""
    if capacity == 1:
        return "a lock"
    return "a reader/writer lock" if capacity == EVERYBODY else f"a semaphore of {capacity} permits"
