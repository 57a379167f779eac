"""One acquisition, from its first ask to a lease, or to nothing left behind.

The rules, each of which has a model-checked counterexample when it is dropped:

*   The inbox is open before the first ask, so that a grant cannot come before we can hear it.
*   A pushed token counts only if it is larger than the counter in the last "waiting" reply; else it belongs to a
    grant of an earlier life, which may have ended.
*   A pushed lease is valid from the *send* of the ask that this reply answered: the grant came after that ask was
    carried out, so the store keeps it at least that long. A push that was heard before that send counts no more: a
    store that knows of the grant answers with it, and one that does not has forgotten it.
*   Whoever leaves without a lease (timeout, cancellation, error) tells the store, which passes on a grant that
    crossed the message. If an ask went unanswered, it leaves a tombstone against its late arrival.
"""

import logging
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from holdfast.contracts.deadlines import DRIFT, micros, seconds, valid_until
from holdfast.contracts.limits import EVERYBODY
from holdfast.contracts.messages import Ask, Busy, Granted, Leave, Left, Mismatch, Notice, NoticeKind, Reply, Waiting
from holdfast.core.deadlocks import LOOK_EVERY, refuse_deadlock
from holdfast.core.lease import NEVER, HeldLease
from holdfast.errors import OutcomeUnknown, StoreError, StoreUnavailable, UsageError
from holdfast.escaping import told

if TYPE_CHECKING:
    from holdfast.contracts.runtime import Event
    from holdfast.core.deadlocks import Actor
    from holdfast.core.session import Session
    from holdfast.core.stop import Stop

log = logging.getLogger("holdfast")

INTERVAL = 1_000_000
"""How often a waiter asks again, at the longest, in microseconds."""

POLLING = 20_000
"""The same where no push can reach us, and asking is the only way to learn of a grant."""

BRIEF = 0.05
"""How long a try may take at least, in seconds."""

PATIENCE = 4_000_000
"""How long a silent waiter counts as alive, in microseconds: several intervals."""


@dataclass(slots=True)
class Want:
    """What a caller wants to hold. `ttl` and `lock_delay` in microseconds, `max_hold` in seconds."""

    name: str
    ttl: int
    lock_delay: int = 0
    max_hold: float = NEVER
    weight: int = 1
    capacity: int = 1
    min_hold: int = 0
    """For how long nobody else gets the name after the grant, even if it is released; microseconds."""
    label: str = ""
    """What the owner says of itself, if that is more than its name."""
    actor: "Actor | None" = None
    """Who it is for, if that one is looked at for deadlocks."""
    linger: float = 0.0
    """For how many seconds it is kept when it is released, in case this process wants it again."""

    advice: str = "Release it first, or give a timeout."
    """What to do instead, for who would wait for itself."""

    stop: "Stop | None" = None
    """What tells the thread that waits to stop."""

    resizable: bool = False
    """Whether its capacity may change while it is held: then others of this process are the store's to let in."""

    key: tuple[str, int, int] | None = field(init=False)
    """What all wants have in common that may hand a lease on to each other; None if this one may not."""

    def __post_init__(self) -> None:
        """Make the key."""
        alone = self.weight == self.capacity == 1 and not (self.resizable or self.min_hold or self.label)
        self.key = (self.name, self.ttl, self.lock_delay) if alone else None


class Attempt:
    """One acquisition of one name. Used once."""

    __slots__ = (
        "_ask",
        "_called",
        "_engaged",
        "_granted",
        "_look_at",
        "_owned",
        "_poke_at",
        "_runtime",
        "_sent",
        "_session",
        "_signal",
        "_unsure",
        "_until",
        "_want",
        "outrun",
        "troubled_since",
        "wanted",
    )

    def __init__(
        self,
        session: "Session",
        want: Want,
        until: float | None,
        owned: list[HeldLease],
        *,
        wait: bool,
        span: int = 1,
    ) -> None:
        """Prepare to acquire by the local instant `until` (None: however long it takes), or in a single ask.

        The lease is put into `owned` before anything else is done with it: from then on it belongs to whoever gave the
        list, and is released by it if an interrupt comes.

        With a `span` of more than one, as many tokens are reserved, to hand the lease on within this process.
        """
        self.wanted = False
        """Whether somebody outside waits for what was granted."""
        self.outrun = False
        """Whether that was heard before the grant itself."""
        self.troubled_since = NEVER
        """Since when the store has not answered; set before `run` by who knows of it."""
        self._session = session
        self._runtime = session.runtime
        self._want = want
        self._until = until
        self._owned = owned
        self._ask = _make_ask(session, want, wait, span)
        self._signal: Event | None = None
        """Made only when there is something to wait for."""
        self._poke_at = NEVER
        """When to ask again: as the store has pushed since we asked last, and as it says in its reply."""
        self._granted = 0
        """The highest token that was pushed."""
        self._engaged = False
        """Whether the store may know this request."""
        self._unsure = False
        """Whether an ask went unanswered, and may still arrive."""
        self._sent = 0.0
        self._look_at = 0.0
        """When to look for deadlocks again."""

    async def run(self) -> HeldLease | Left:
        """Acquire. Returns the lease, or, when the time is up, who holds the name."""
        attempts, request = self._session.attempts, self._ask.request
        try:
            attempts[request] = self
            self._session.refuse_if_closed()  # whoever closes it from now on finds us in `attempts`
            return await self._until_held()
        except GeneratorExit:
            raise
        except BaseException as error:
            if self._engaged:
                late = self._until is not None and isinstance(error, StoreUnavailable)
                await self._runtime.finish(self._leave_in_time(BRIEF) if late else self._leave(error))
            raise
        finally:
            attempts.pop(request, None)

    def hear(self, notice: Notice) -> None:
        """Take a notice from the inbox: a grant, or that the name may become free before we meant to ask."""
        if notice.kind is NoticeKind.GRANTED:
            if notice.token > self._granted:
                self._granted, self.wanted = notice.token, notice.wanted
        else:
            self._poke_at = min(self._poke_at, self._runtime.now() + seconds(notice.after))
        if self._signal is not None:
            self._signal.set()

    def waits_with(self, stop: "Stop") -> bool:
        """Tell whether it is to look when `stop` is set."""
        return self._want.stop is stop

    def dismiss(self) -> None:
        """Wake up and see that the client is closed, or the wait stopped."""
        self._poke_at = 0.0
        if self._signal is not None:
            self._signal.set()

    async def _until_held(self) -> HeldLease | Left:
        while True:
            reply = await self._send()
            if isinstance(reply, Granted):
                self.wanted = reply.wanted
                held = self._enter(reply.token, valid_until(self._sent, reply.ttl))
            elif isinstance(reply, Waiting):
                if self._want.actor is not None:
                    await self._look_for_deadlocks(self._want.actor)
                held = await self._stand(reply)
            elif isinstance(reply, Busy):
                if (left := await self._stay(reply)) is not None:
                    return left
                continue
            else:
                raise self._refusal(reply)
            if held is not None:
                return held
            if self._is_over() or not self._ask.wait:
                return await self._runtime.finish(self._leave_in_time(self._patience()))

    async def _send(self) -> Reply:
        """Ask, riding out a store that does not answer for as long as the client's `retry_for` allows."""
        give_up_at = None
        delay = 0.02
        while True:
            self._engaged = True
            self._poke_at = NEVER
            sent = self._sent = self._runtime.now()
            self._granted = 0  # what was heard before counts no more: the store tells it again, or has forgotten it
            try:
                reply = await self._put(sent + self._patience())
            except StoreUnavailable as error:
                self._unsure = self._unsure or isinstance(error, OutcomeUnknown)
                self.troubled_since = min(self.troubled_since, sent)
                give_up_at = give_up_at or self._give_up_at(self.troubled_since)
                pause = delay * (0.5 + self._runtime.random())
                if self._runtime.now() + pause >= give_up_at:
                    raise
                self._session.refuse_to_wait(self._want)
                self._session.note_trouble(self._want.name, error, self.troubled_since, give_up_at)
            else:
                if self.troubled_since != NEVER:
                    self._session.note_answer(self.troubled_since)
                    self.troubled_since = NEVER
                return reply
            await self._runtime.sleep(pause)
            delay = min(delay * 2, 0.5)

    async def _stay(self, reply: Busy) -> Left | None:
        """Wait until it is time to ask again (None); or go, if it is not worth it."""
        self._engaged = self._unsure or reply.stands
        self._note_quarantine(reply.quarantine)
        if not self._ask.wait or self._is_over():
            left = await self._runtime.finish(self._leave_in_time(self._patience())) if self._engaged else Left()
            return Left(reply.holders, quarantine=reply.quarantine, votes=left.votes or reply.votes)
        if self._want.actor is not None:
            await self._look_for_deadlocks(self._want.actor)
        await self._pause(seconds(reply.retry_in))
        return None

    async def _look_for_deadlocks(self, actor: "Actor") -> None:
        if self._runtime.now() >= self._look_at:
            await refuse_deadlock(self._session, actor, self._want.name)
            self._look_at = self._runtime.now() + LOOK_EVERY

    def _put(self, until: float) -> Coroutine[Any, Any, Reply]:
        """Put the request to the store, once."""
        return self._session.store.acquire(self._ask, until)

    def _give_up_at(self, since: float) -> float:
        retry_until = since + self._session.retry_for
        if not self._ask.wait:
            return since
        return retry_until if self._until is None else min(self._until, retry_until)

    async def _stand(self, reply: Waiting) -> HeldLease | None:
        """Wait for a push, or until it is time to ask again (None)."""
        now = self._runtime.now
        self._note_quarantine(reply.quarantine)
        self._poke_at = min(self._poke_at, now() + seconds(reply.poke_in))  # a push may have overtaken the reply
        signal = await self._make_signal()
        while True:
            signal.clear()
            self._session.refuse_to_wait(self._want)
            if self._granted > reply.counter:
                return self._enter_pushed(self._granted) if self._session.store.capabilities.pushes_count else None
            if self._is_over() or now() >= self._poke_at:
                return None
            await signal.wait(self._poke_at if self._until is None else min(self._poke_at, self._until))

    def _note_quarantine(self, quarantine: int) -> None:
        if quarantine:
            self._session.note_quarantine(seconds(quarantine))

    async def _make_signal(self) -> "Event":
        if self._signal is None:
            if self._until is None:
                self._session.refuse_to_wait_for_oneself(self._want)
                await self._session.refuse_to_wait_behind_oneself(self._want, self._sent)
            self._signal = self._runtime.event()
            if self._session.events is not None and self._ask.span == 1:  # else it was told before, in the local queue
                self._session.events.contended(self._want.name)
        return self._signal

    async def _pause(self, retry_in: float) -> None:
        """Sleep before asking a store that has no queue, at a random moment so that nobody is always first."""
        now = self._runtime.now
        self._poke_at = min(self._poke_at, now() + retry_in * (0.5 + self._runtime.random()))
        signal = await self._make_signal()
        while True:
            signal.clear()
            self._session.refuse_to_wait(self._want)
            if self._is_over() or now() >= self._poke_at:
                return
            await signal.wait(self._poke_at if self._until is None else min(self._poke_at, self._until))

    def _enter_pushed(self, token: int) -> HeldLease | None:
        """Enter on a push if at least a quarter of the lease is left; else ask, which renews it (None)."""
        until = valid_until(self._sent, self._ask.ttl)
        enough = seconds(self._ask.ttl) / 4
        return self._enter(token, until) if until - self._runtime.now() > enough else None

    def _enter(self, token: int, until: float) -> HeldLease | None:
        """Become the holder, unless the lease is over before it was heard of."""
        session, want = self._session, self._want
        now = self._runtime.now()
        if until <= now:
            return None
        ends_at = now + want.max_hold
        held = HeldLease(
            self._runtime,
            session.mutex,
            self._ask,
            want.name,
            self._ask.request,
            token - self._ask.span + 1,
            token,
            want.ttl,
            until,
            until if until < ends_at else ends_at,  # noqa: FURB136 - min() costs more
            self._unsure,
            ends_at,
        )
        self._owned.append(held)
        self._engaged = False
        if want.min_hold:
            held.free_at = now + seconds(want.min_hold) / (1.0 - DRIFT)
        session.keeper.add(held)
        if want.actor is not None:
            want.actor.leases.append(held)
        session.note_token(token)
        return held

    async def _leave_in_time(self, patience: float) -> Left:
        """Tell the store that we are gone, in one try: its caller's time is up, so what it takes more goes on alone."""
        try:
            left = await self._session.store.leave(self._to_leave(), self._runtime.now() + patience)
        except StoreError:
            self._session.departures.add(self._leave, self._want.name)
            left = Left()
        self._engaged = False
        return left

    def _to_leave(self) -> Leave:
        unsure = self._unsure or not self._session.store.capabilities.local
        return Leave(self._want.name, self._ask.request, unsure)

    async def _leave(self, ended_by: BaseException | None = None) -> Left:
        """Tell the store that we are gone, in up to three tries; one that does not answer forgets us by itself."""
        leave = self._to_leave()
        try:
            left = await self._session.persist(lambda until: self._session.store.leave(leave, until), self._patience())
        except StoreError as error:
            left = Left()
            lapse = seconds(max(self._ask.patience, self._ask.ttl))
            log.log(
                logging.DEBUG if _lasts(error) and ended_by is not None and _lasts(ended_by) else logging.WARNING,
                "could not leave the queue of %r (%s); what is left there lapses within %.1f s",
                self._want.name,
                told(error),
                lapse,
            )
        self._engaged = False
        return left

    def _refusal(self, reply: Reply) -> Exception:
        self._engaged = False
        if isinstance(reply, Mismatch):
            return UsageError(
                f"{self._want.name!r} is in use as {_kind_of(reply.capacity)}, and was asked for as "
                f"{_kind_of(self._want.capacity)}. All who use a name must mean the same by it, and the same number "
                "of permits: do so, or take another name."
            )
        return StoreError(f"the store refuses this request for {self._want.name!r}: it was given up before.")

    def _is_over(self) -> bool:
        return self._until is not None and self._runtime.now() >= self._until

    def _patience(self) -> float:
        return self._session.patience(self._want.ttl)


def _lasts(error: BaseException) -> bool:
    """Tell whether asking again cannot mend it."""
    return isinstance(error, StoreError) and not isinstance(error, StoreUnavailable)


def _kind_of(capacity: int) -> str:
    """Return what a name of this capacity is to its users."""
    if capacity == 1:
        return "a lock"
    return "a reader/writer lock" if capacity == EVERYBODY else f"a semaphore of {capacity} permits"


def _make_ask(session: "Session", want: Want, wait: bool, span: int) -> Ask:  # noqa: FBT001 - on the hot path
    ttl = want.ttl if want.max_hold == NEVER else min(want.ttl, micros(want.max_hold))
    longest = INTERVAL if session.inbox else POLLING
    return Ask(
        want.name,
        session.runtime.new_id(),
        session.inbox,
        want.label or session.owner,
        ttl,
        longest if ttl >= 4 * longest else ttl // 4,
        PATIENCE,
        want.weight,
        want.capacity,
        want.lock_delay,
        session.proposal(),
        wait,
        span,
    )
