"""One acquisition, from its first ask to a lease, or to nothing left behind.

The rules, each of which has a model-checked counterexample when it is dropped:

*   The channel is open before the first request, so that a grant cannot come before we can hear it.
*   A pushed token counts only if it is larger than the counter in the last "waiting" reply; else it belongs to a
    grant of an earlier life, which may have ended.
*   A pushed lease is valid from the *send* of the request that this reply answered: the grant came after that request
    was carried out, so the store keeps it at least that long. A push that was heard before that send counts no more: a
    store that knows of the grant answers with it, and one that does not has forgotten it.
*   Whoever leaves without a lease (timeout, cancellation, error) tells the store, which passes on a grant that
    crossed the message. If a request went unanswered, it leaves a tombstone against its late arrival.
"""

import logging
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from holdfast.contracts.deadlines import DRIFT, NEVER, micros, seconds, valid_until
from holdfast.contracts.limits import EVERYBODY
from holdfast.contracts.messages import (
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
from holdfast.core.access import BRIEF, StoreAccess
from holdfast.core.deadlocks import LOOK_EVERY, refuse_deadlock
from holdfast.core.lease import CoreLease
from holdfast.core.self_deadlock import refuse_to_wait_behind_oneself, refuse_to_wait_for_oneself
from holdfast.core.spec import LockSpec
from holdfast.errors import OutcomeUnknown, StoreError, StoreUnavailable, UsageError
from holdfast.escaping import quoted

if TYPE_CHECKING:
    from holdfast.contracts.runtime import Event
    from holdfast.core.actor import Actor
    from holdfast.core.stop import Stop

log = logging.getLogger("holdfast")

INTERVAL = 1_000_000
"""How often a waiter asks again, at the longest, in microseconds."""

POLLING = 20_000
"""The same where no push can reach us, and asking is the only way to learn of a grant."""

WAITER_TTL = 4_000_000
"""How long a silent waiter counts as alive, in microseconds: several intervals."""


class Attempt:
    """One acquisition of one name. Used once."""

    __slots__ = (
        "_access",
        "_called",
        "_engaged",
        "_granted",
        "_look_at",
        "_owned",
        "_request",
        "_retry_at",
        "_runtime",
        "_sent",
        "_signal",
        "_spec",
        "_unsure",
        "_until",
        "contended",
        "outrun",
        "unanswered_since",
    )

    def __init__(
        self,
        access: StoreAccess,
        spec: LockSpec,
        until: float | None,
        owned: list[CoreLease],
        *,
        wait: bool,
        span: int = 1,
    ) -> None:
        """Prepare to acquire by the local instant `until` (None: however long it takes), or in a single ask.

        The lease is put into `owned` before anything else is done with it: from then on it belongs to whoever gave the
        list, and is released by it if an interrupt comes.

        With a `span` of more than one, as many tokens are reserved, to hand the lease on within this process.
        """
        self.contended = False
        """Whether somebody outside waits for what was granted."""
        self.outrun = False
        """Whether that was heard before the grant itself."""
        self.unanswered_since = NEVER
        """Since when the store has not answered; set before `run` by who knows of it."""
        self._access = access
        self._runtime = access.runtime
        self._spec = spec
        self._until = until
        self._owned = owned
        self._request = _make_request(access, spec, wait, span)
        self._signal: Event | None = None
        """Made only when there is something to wait for."""
        self._retry_at = NEVER
        """When to ask again: as the store has pushed since we asked last, and as it says in its reply."""
        self._granted = 0
        """The highest token that was pushed."""
        self._engaged = False
        """Whether the store may know this request."""
        self._unsure = False
        """Whether a request went unanswered, and may still arrive."""
        self._sent = 0.0
        self._look_at = 0.0
        """When to look for deadlocks again."""

    async def run(self) -> CoreLease | NotGranted:
        """Acquire. Returns the lease, or, when the time is up, who holds the name."""
        attempts, request_id = self._access.attempts, self._request.request_id
        try:
            attempts[request_id] = self
            if self._access.closed:  # whoever closes it from now on finds this attempt in `attempts`
                self._access.refuse_if_closed()
            return await self._until_held()
        except GeneratorExit:
            raise
        except BaseException as error:
            if self._engaged:
                late = self._until is not None and isinstance(error, StoreUnavailable)
                await self._runtime.finish(self._withdraw_in_time(BRIEF) if late else self._withdraw(error))
            raise
        finally:
            attempts.pop(request_id, None)

    def hear(self, notification: Notification) -> None:
        """Take a notification from the channel: a grant, or that the name may become free before we meant to ask."""
        if notification.kind is NotificationKind.GRANTED:
            if notification.token > self._granted:
                self._granted, self.contended = notification.token, notification.contended
        else:
            self._retry_at = min(self._retry_at, self._runtime.now() + seconds(notification.after))
        if self._signal is not None:
            self._signal.set()

    def waits_with(self, stop: "Stop") -> bool:
        """Tell whether it is to look when `stop` is set."""
        return self._spec.stop is stop

    def dismiss(self) -> None:
        """Wake up and see that the client is closed, or the wait stopped."""
        self._retry_at = 0.0
        if self._signal is not None:
            self._signal.set()

    async def _until_held(self) -> CoreLease | NotGranted:
        while True:
            reply = await self._send()
            if isinstance(reply, Granted):
                self.contended = reply.contended
                lease = self._enter(reply.token, valid_until(self._sent, reply.ttl))
            elif isinstance(reply, Queued):
                if self._spec.actor is not None:
                    await self._look_for_deadlocks(self._spec.actor)
                lease = await self._stand(reply)
            elif isinstance(reply, Busy):
                if (left := await self._stay(reply)) is not None:
                    return left
                continue
            else:
                raise self._refusal(reply)
            if lease is not None:
                return lease
            if self._is_over() or not self._request.wait:
                return await self._runtime.finish(self._withdraw_in_time(self._request_timeout()))

    async def _send(self) -> Reply:
        """Ask, riding out a store that does not answer for as long as the client's `retry_for` allows."""
        give_up_at = None
        delay = 0.02
        while True:
            self._engaged = True
            self._retry_at = NEVER
            sent = self._sent = self._runtime.now()
            self._granted = 0  # what was heard before counts no more: the store tells it again, or has forgotten it
            try:
                reply = await self._put(sent + self._request_timeout())
            except StoreUnavailable as error:
                self._unsure = self._unsure or isinstance(error, OutcomeUnknown)
                self.unanswered_since = min(self.unanswered_since, sent)
                give_up_at = give_up_at or self._give_up_at(self.unanswered_since)
                pause = delay * (0.5 + self._runtime.random())
                if self._runtime.now() + pause >= give_up_at:
                    raise
                self._access.refuse_to_wait(self._spec)
                self._access.note_unanswered(self._spec.name, error, self.unanswered_since, give_up_at)
            else:
                if self.unanswered_since != NEVER:
                    self._access.note_answer(self.unanswered_since)
                    self.unanswered_since = NEVER
                return reply
            await self._runtime.sleep(pause)
            delay = min(delay * 2, 0.5)

    async def _stay(self, reply: Busy) -> NotGranted | None:
        """Wait until it is time to ask again (None); or go, if it is not worth it."""
        self._engaged = self._unsure or reply.stands
        self._note_quarantine(reply.quarantine)
        if not self._request.wait or self._is_over():
            left = (
                await self._runtime.finish(self._withdraw_in_time(self._request_timeout()))
                if self._engaged
                else NotGranted()
            )
            return NotGranted(reply.holders, quarantine=reply.quarantine, votes=left.votes or reply.votes)
        if self._spec.actor is not None:
            await self._look_for_deadlocks(self._spec.actor)
        await self._pause(seconds(reply.retry_in))
        return None

    async def _look_for_deadlocks(self, actor: "Actor") -> None:
        if self._runtime.now() >= self._look_at:
            await refuse_deadlock(self._access, actor, self._spec.name)
            self._look_at = self._runtime.now() + LOOK_EVERY

    def _put(self, until: float) -> Coroutine[Any, Any, Reply]:
        """Put the request to the store, once."""
        return self._access.store.acquire(self._request, until)

    def _give_up_at(self, since: float) -> float:
        retry_until = since + self._access.retry_for
        if not self._request.wait:
            return since
        return retry_until if self._until is None else min(self._until, retry_until)

    async def _stand(self, reply: Queued) -> CoreLease | None:
        """Wait for a push, or until it is time to ask again (None)."""
        now = self._runtime.now
        self._note_quarantine(reply.quarantine)
        self._retry_at = min(self._retry_at, now() + seconds(reply.retry_in))  # a push may have overtaken the reply
        signal = await self._make_signal()
        while True:
            signal.clear()
            self._access.refuse_to_wait(self._spec)
            if self._granted > reply.counter:
                return self._enter_pushed(self._granted) if self._access.store.capabilities.pushes_count else None
            if self._is_over() or now() >= self._retry_at:
                return None
            await signal.wait(self._retry_at if self._until is None else min(self._retry_at, self._until))

    def _note_quarantine(self, quarantine: int) -> None:
        if quarantine:
            self._access.note_quarantine(seconds(quarantine))

    async def _make_signal(self) -> "Event":
        if self._signal is None:
            if self._until is None:
                refuse_to_wait_for_oneself(self._access, self._spec)
                await refuse_to_wait_behind_oneself(self._access, self._spec, self._sent)
            self._signal = self._runtime.event()
            if (
                self._access.events is not None and self._request.span == 1
            ):  # else it was told before, in the local queue
                self._access.events.contended(self._spec.name)
        return self._signal

    async def _pause(self, retry_in: float) -> None:
        """Sleep before asking a store that has no queue, at a random moment so that nobody is always first."""
        now = self._runtime.now
        self._retry_at = min(self._retry_at, now() + retry_in * (0.5 + self._runtime.random()))
        signal = await self._make_signal()
        while True:
            signal.clear()
            self._access.refuse_to_wait(self._spec)
            if self._is_over() or now() >= self._retry_at:
                return
            await signal.wait(self._retry_at if self._until is None else min(self._retry_at, self._until))

    def _enter_pushed(self, token: int) -> CoreLease | None:
        """Enter on a push if at least a quarter of the lease is left; else ask, which renews it (None)."""
        until = valid_until(self._sent, self._request.ttl)
        enough = seconds(self._request.ttl) / 4
        return self._enter(token, until) if until - self._runtime.now() > enough else None

    def _enter(self, token: int, until: float) -> CoreLease | None:
        """Become the holder, unless the lease is over before it was heard of."""
        access, spec = self._access, self._spec
        now = self._runtime.now()
        if until <= now:
            return None
        lease = CoreLease(
            self._runtime,
            access.mutex,
            self._request,
            spec.title,
            token - self._request.span + 1,
            token,
            spec.ttl,
            until,
            now + spec.max_hold,
            self._unsure,
        )
        self._owned.append(lease)
        self._engaged = False
        if spec.min_hold:
            lease.free_at = now + seconds(spec.min_hold) / (1.0 - DRIFT)
        access.renewer.add(lease)
        if spec.actor is not None:
            spec.actor.leases.append(lease)
        if token > access.highest:  # noqa: PLR1730 - max() costs more
            access.highest = token
        return lease

    async def _withdraw_in_time(self, request_timeout: float) -> NotGranted:
        """Tell the store that we are gone, in one try: its caller's time is up, so what it takes more goes on alone."""
        try:
            left = await self._access.store.withdraw(self._to_withdraw(), self._runtime.now() + request_timeout)
        except StoreError:
            self._access.background_releases.add(self._withdraw, self._spec.name)
            left = NotGranted()
        self._engaged = False
        return left

    def _to_withdraw(self) -> WithdrawRequest:
        unsure = self._unsure or not self._access.store.capabilities.local
        return WithdrawRequest(self._spec.name, self._request.request_id, unsure)

    async def _withdraw(self, ended_by: BaseException | None = None) -> NotGranted:
        """Tell the store that we are gone, in up to three tries; one that does not answer forgets us by itself."""
        withdraw = self._to_withdraw()
        try:
            left = await self._access.persist(
                lambda until: self._access.store.withdraw(withdraw, until), self._request_timeout()
            )
        except StoreError as error:
            left = NotGranted()
            lapse = seconds(max(self._request.waiter_ttl, self._request.ttl))
            log.log(
                logging.DEBUG if _lasts(error) and ended_by is not None and _lasts(ended_by) else logging.WARNING,
                "could not leave the queue of %r (%s); what is left there lapses within %.1f s",
                self._spec.name,
                quoted(error),
                lapse,
            )
        self._engaged = False
        return left

    def _refusal(self, reply: Reply) -> Exception:
        self._engaged = False
        if isinstance(reply, CapacityMismatch):
            return UsageError(
                f"{self._spec.name!r} is in use as {_kind_of(reply.capacity)}, and was asked for as "
                f"{_kind_of(self._spec.capacity)}. All who use a name must mean the same by it, and the same number "
                "of permits: do so, or take another name."
            )
        return StoreError(f"the store refuses this request for {self._spec.name!r}: it was given up before.")

    def _is_over(self) -> bool:
        return self._until is not None and self._runtime.now() >= self._until

    def _request_timeout(self) -> float:
        ttl, access = self._spec.ttl, self._access
        return access.operation_timeout if ttl >= access.ample_ttl else access.request_timeout(ttl)


def _lasts(error: BaseException) -> bool:
    """Tell whether asking again cannot mend it."""
    return isinstance(error, StoreError) and not isinstance(error, StoreUnavailable)


def _kind_of(capacity: int) -> str:
    """Return what a name of this capacity is to its users."""
    if capacity == 1:
        return "a lock"
    return "a reader/writer lock" if capacity == EVERYBODY else f"a semaphore of {capacity} permits"


def _make_request(access: StoreAccess, spec: LockSpec, wait: bool, span: int) -> AcquireRequest:  # noqa: FBT001 - on the hot path
    ttl = spec.ttl if spec.max_hold == NEVER else min(spec.ttl, micros(spec.max_hold))
    longest = INTERVAL if access.channel else POLLING
    return AcquireRequest(
        spec.name,
        access.runtime.new_id(),
        access.channel,
        spec.metadata or access.owner,
        ttl,
        longest if ttl >= 4 * longest else ttl // 4,
        WAITER_TTL,
        spec.weight,
        spec.capacity,
        spec.lock_delay,
        access.highest if access.local else access.proposal(),
        wait,
        span,
    )
