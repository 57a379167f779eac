"""What must be true of every step on a name, whoever takes it: an independent judge of the grant table.

The judge knows none of the table's algorithms. It sees the state before and after a step, the request, the reply and
the notifications, and remembers only what was promised: tokens issued, requests given up, delays that run.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import dropwhile

from tenure.contracts.messages import (
    AcquireRequest,
    AdjustRequest,
    Busy,
    CapacityMismatch,
    Granted,
    HolderView,
    NameView,
    NotGranted,
    Notification,
    NotificationKind,
    Queued,
    ReleaseRequest,
    RenewRequest,
    Reply,
    Withdrawn,
    WithdrawRequest,
)
from tenure.outcome import Outcome
from tenure.table.state import PLACEHOLDER, REVOKED, Holder, NameState, Waiter
from tenure.table.times import MARGIN, PROPOSAL_BOUND, RETRY, TOMBSTONE

LONGEST_DELAY = 40


@dataclass
class Resize:
    """Somebody changes the capacity."""

    before: int
    after: int
    request_id: str = ""


@dataclass
class RequestRevocation:
    """Somebody asks the holders to let go."""

    request_id: str = ""


Request = (
    AcquireRequest | ReleaseRequest | RenewRequest | AdjustRequest | WithdrawRequest | Resize | RequestRevocation | None
)
"""What was asked of the table; None: a revocation."""

Answer = Reply | Outcome | NotGranted | list[HolderView] | NameView | int | None


@dataclass
class Taken:
    """One step, as seen from outside."""

    before: NameState
    after: NameState
    now: int
    wall: int
    message: Request
    answer: Answer
    notifications: list[Notification]
    listening: Callable[[str], bool]
    quarantined_until: int = 0
    quarantined_since: int = 0

    def __post_init__(self) -> None:
        self.own = self.message.request_id if self.message is not None else ""
        self.asking = self.own if isinstance(self.message, AcquireRequest) else ""
        self.live = {each.request_id: each for each in self.before.holders if each.expires_at > self.now}
        self.ended = [each for each in self.before.holders if each.expires_at <= self.now]
        self.held = {each.request_id: each for each in self.after.holders}
        self.quarantine = max(0, self.quarantined_until - self.now)
        self.kept = ""
        """The request of what a release left to keep the name."""
        if isinstance(self.message, ReleaseRequest) and self.message.keep and self.own in self.live:
            self.kept = PLACEHOLDER + self.own
        new = [each for each in self.after.holders if each.request_id not in {*self.live, self.kept}]
        renewed = self.own if isinstance(self.message, RenewRequest) and self.quarantine else ""
        self.taken_up = [each for each in new if each.request_id == renewed]
        self.granted = [each for each in new if each not in self.taken_up]
        self.sent_away = self._sent_away()
        self.stood = [each.request.request_id for each in self.before.queue]
        self.stands = [each.request.request_id for each in self.after.queue]

    def _sent_away(self) -> list[str]:
        """Return who waited for more than there is by now."""
        if not isinstance(self.message, Resize) or self.after.capacity != self.message.after:
            return []
        staying = {each.request.request_id for each in self.after.queue} | {
            each.request_id for each in self.after.holders
        }
        waited = [each.request for each in self.before.queue if each.request.request_id not in staying]
        return [each.request_id for each in waited if each.weight > self.after.capacity]

    def ask_of(self, holder: Holder) -> AcquireRequest:
        """Return what a grant came of."""
        request = next(
            (each.request for each in self.before.queue if each.request.request_id == holder.request_id), self.message
        )
        assert isinstance(request, AcquireRequest)
        return request

    def dead(self, waiter: Waiter) -> bool:
        """Tell whether a waiter may be passed over."""
        return waiter.fresh_until < self.now or not self.listening(waiter.request.channel)


@dataclass
class Judge:
    """What was promised about one name so far."""

    last_token: int = 0
    last_released: str = ""
    given_up: dict[str, int] = field(default_factory=dict[str, int])
    delays: list[int] = field(default_factory=list[int])
    shrunk: bool = False
    """Whether more is held than there is by now."""
    stepped_back: bool = False
    """Whether the store's clock stepped back during a delay: then it may end sooner, but still not stretch."""

    def forgets(self, state: NameState) -> None:
        """Note that a state is all that the store still knows."""
        self.last_token = state.counter
        self.last_released = state.last_released
        self.given_up = dict(state.tombstones)
        self.delays = [state.blocked_until] if state.blocked_until else []
        self.shrunk = sum(each.weight for each in state.holders) > state.capacity

    def judge(self, taken: Taken) -> None:
        """Raise AssertionError if the step was not right."""
        now = taken.now
        self.given_up = {each: min(until, now + TOMBSTONE) for each, until in self.given_up.items() if until > now}
        self._note_delays(taken)
        within = sum(each.weight for each in taken.after.holders) <= taken.after.capacity
        shrinks = self.shrunk or isinstance(taken.message, Resize)
        assert within or (shrinks and not taken.granted), "more is held than there is"
        self.shrunk = not within
        self._judge_holders(taken)
        self._judge_grants(taken)
        self._judge_taken_up(taken)
        self._judge_queue(taken)
        self._judge_push(taken)
        if isinstance(taken.message, AcquireRequest):
            self._judge_ask(taken, taken.message)
        elif isinstance(taken.message, ReleaseRequest):
            self._judge_release(taken, taken.message)
        elif isinstance(taken.message, RenewRequest):
            self._judge_renewal(taken, taken.message)
        elif isinstance(taken.message, Resize):
            self._judge_resize(taken, taken.message)
        elif isinstance(taken.message, RequestRevocation):
            self._judge_asked(taken)
        elif isinstance(taken.message, AdjustRequest):
            self._judge_adjustment(taken, taken.message)
        elif isinstance(taken.message, WithdrawRequest):
            self._judge_leave(taken, taken.message)
        else:
            self._judge_revoke(taken)

    # -- always --------------------------------------------------------------------------------------------

    def _note_delays(self, taken: Taken) -> None:
        self.delays += [each.expires_at + each.lock_delay for each in taken.ended if each.lock_delay]
        if taken.message is None:
            self.delays += [taken.now + each.lock_delay for each in taken.live.values() if each.lock_delay]
        if self.stepped_back:
            self.delays = [taken.after.blocked_until] if taken.after.blocked_until > taken.now else []
            assert taken.after.blocked_until <= taken.now + LONGEST_DELAY, "a delay was stretched"
        self.delays = [until for until in self.delays if until > taken.now]
        self.stepped_back = self.stepped_back and bool(self.delays)

    def _judge_holders(self, taken: Taken) -> None:
        """Nobody who lives loses the name but by its own doing or by force, and nobody keeps it too long.

        A store that forgot may restore a lease of the whole capacity from a renewal sent before it was made lighter. A
        later lease that shares the name proves that it was, and removes it until its holder renews the lighter one.
        """
        for request_id, holder in taken.live.items():
            if request_id in taken.held:
                self._judge_kept(taken, holder, taken.held[request_id])
            else:
                by_itself = isinstance(taken.message, ReleaseRequest | WithdrawRequest) and request_id == taken.own
                by_itself |= isinstance(taken.message, WithdrawRequest) and request_id == PLACEHOLDER + taken.own
                whole = taken.after.capacity
                by_a_later_one = any(
                    each.weight == whole or (holder.weight == whole and each.token > holder.token)
                    for each in taken.taken_up
                )
                assert by_itself or taken.message is None or by_a_later_one, "a live holder lost the name"
        for holder in taken.after.holders:
            assert taken.now < holder.expires_at <= taken.now + holder.ttl

    def _judge_kept(self, taken: Taken, old: Holder, new: Holder) -> None:
        assert new.token == old.token
        cut = min(old.expires_at, taken.now + old.ttl)
        if (
            isinstance(taken.message, AdjustRequest)
            and taken.own == old.request_id
            and taken.message.token == old.token
        ):
            weight, owner = min(old.weight, taken.message.weight or old.weight), taken.message.owner or old.owner
            assert (new.weight, new.owner, new.expires_at) == (weight, owner, cut)
            return
        assert (new.weight, new.owner) == (old.weight, old.owner), "a holding was changed unasked"
        if new.request_id == taken.own and isinstance(taken.message, AcquireRequest | RenewRequest):
            assert new.expires_at >= cut, "a lease was shortened"
        else:
            assert new.expires_at == cut, "a lease was changed by somebody else's request"

    def _judge_grants(self, taken: Taken) -> None:
        if taken.message is None and taken.live:
            self.last_token += 1  # which is burnt
        for holder in taken.granted:
            assert not self.delays, "granted during a lock delay"
            assert not taken.quarantine, "granted in quarantine"
            first = holder.token - taken.ask_of(holder).span + 1
            assert first > self.last_token, "a token that does not increase, or is reserved for somebody else"
            assert first >= taken.wall
            assert first <= max(self.last_token + 1, taken.wall + PROPOSAL_BOUND)
            assert self.given_up.get(holder.request_id, 0) <= taken.now, "granted to who gave up"
            self.last_token = holder.token
            self._judge_order(taken, holder)
        assert taken.after.counter >= max(self.last_token, taken.before.counter)

    def _judge_taken_up(self, taken: Taken) -> None:
        """In quarantine, and only then, the holder of a forgotten lease takes it up again: with nobody it excludes."""
        renewal = taken.message
        if not isinstance(renewal, RenewRequest) or renewal.request_id in taken.live:
            return
        request, before = renewal.request, taken.before
        over = renewal.request_id == self.last_released or PLACEHOLDER + renewal.request_id in taken.live
        if request is not None and request.weight == request.capacity:
            newest = renewal.token >= before.counter
            room = all(each.token < renewal.token for each in taken.live.values())
        else:
            newest, room = True, request is not None and _has_room(request, renewal.token, taken)
        newest = newest and not over
        buried = self.given_up.get(renewal.request_id, 0) > taken.now
        if not (request and taken.quarantine and newest and room) or buried:
            assert not taken.taken_up, "a lease was taken up that is over"
            return
        assert taken.taken_up, "a lease that was forgotten was not taken up"
        [holder] = taken.taken_up
        assert (holder.token, holder.weight, holder.ttl) == (renewal.token, request.weight, renewal.ttl)
        assert (holder.expires_at, holder.lock_delay) == (taken.now + renewal.ttl, request.lock_delay)
        assert (holder.channel, holder.owner) == (request.channel, request.owner)
        assert taken.after.capacity == request.capacity
        assert taken.after.counter == max(before.counter, renewal.token)
        self.last_token = max(self.last_token, holder.token)

    def _judge_order(self, taken: Taken, granted: Holder) -> None:
        """Nobody alive who came earlier is left behind."""
        place = taken.stood.index(granted.request_id) if granted.request_id in taken.stood else len(taken.stood)
        for waiter in list(taken.before.queue)[:place]:
            request_id = waiter.request.request_id
            if request_id in taken.stands:
                assert _may_pass(taken.ask_of(granted), waiter, taken.now), "somebody overtook the queue"
                continue
            gone = request_id == taken.own or request_id in taken.sent_away
            assert request_id in taken.held or gone or taken.dead(waiter)
        request = taken.ask_of(granted)
        renewed = (
            isinstance(taken.message, RenewRequest) and taken.own == granted.request_id
        )  # by a token of an earlier life
        assert granted.expires_at == taken.now + request.ttl or renewed, "a grant that is not for the whole ttl"
        assert granted.request_id == taken.asking or taken.listening(request.channel), "granted to nobody"

    def _judge_queue(self, taken: Taken) -> None:
        stayed = [request_id for request_id in taken.stands if request_id in taken.stood]
        assert stayed == [request_id for request_id in taken.stood if request_id in taken.stands], (
            "the queue changed its order"
        )
        assert taken.stands[: len(stayed)] == stayed, "somebody joined ahead of the tail"
        assert set(taken.stands) <= {*taken.stood, taken.own}
        for waiter in taken.before.queue:
            request_id = waiter.request.request_id
            if request_id not in taken.stands and request_id not in taken.held and request_id != taken.own:
                assert taken.dead(waiter) or request_id in taken.sent_away, "a live waiter vanished"
        assert not set(taken.stands) & set(taken.held), "somebody holds and waits"
        if taken.after.queue and not self.delays and not taken.quarantine:
            assert not _head_fits(taken) or _passable(taken.after.queue, taken.now), "the head waits although it fits"
        waiting = list(dropwhile(taken.dead, taken.before.queue))
        if taken.granted and waiting and _passable(waiting, taken.now) and not taken.sent_away:
            first = waiting[0].request.request_id
            strict_now = taken.asking in taken.stands or (taken.asking and isinstance(taken.answer, Busy))
            assert first not in taken.held or strict_now or taken.asking == first, "it need not be handed over yet"

    def _judge_push(self, taken: Taken) -> None:
        pushed = [
            (each.channel, each.request_id, each.token) for each in taken.granted if each.request_id != taken.asking
        ]
        sent = [
            (each.channel, each.request_id, each.token)
            for each in taken.notifications
            if each.kind is NotificationKind.GRANTED
        ]
        assert sent == [each for each in pushed if each[0]], "grants and pushes differ"
        self._judge_wanted(taken)
        away = [each for each in taken.notifications if each.request_id in taken.sent_away]
        assert all((each.kind, each.after) == (NotificationKind.HEAD, RETRY) for each in away), (
            "told wrongly that it is late"
        )
        alive = [each.request for each in taken.before.queue if not taken.dead(each) and each.request.channel]
        unaware = {each.request_id for each in alive if each.request_id in taken.sent_away} - {
            each.request_id for each in away
        }
        assert not unaware, "who waited for too much is not told"
        told_heads = [
            each
            for each in taken.notifications
            if each.kind is NotificationKind.HEAD and each.request_id not in taken.sent_away
        ]
        if self._judge_told_that_free(taken, told_heads):
            return
        heads = [each.request_id for each in told_heads]
        head = taken.after.queue[0] if taken.after.queue else None
        before = [] if taken.kept else taken.stood[:1]
        if head is None or head.request.request_id in (taken.asking, *before) or not head.request.channel:
            assert not heads, "somebody was told that it is first, who was before, or is not"
            return
        frees_at = max(taken.after.blocked_until, taken.quarantined_until)
        if frees_at <= taken.now:
            frees_at = min((each.expires_at for each in taken.after.holders), default=taken.now)
        if taken.taken_up and taken.own in taken.stood[:1]:
            return  # it waited only in the mind of the store; the next one asks within its interval
        retries_by = head.fresh_until - head.request.waiter_ttl + 2 * head.request.interval
        told = frees_at < retries_by + MARGIN
        assert heads == ([head.request.request_id] if told else []), "a head was not told, or for nothing"
        assert [each.after for each in told_heads] == ([max(frees_at - taken.now, RETRY)] if told else [])

    def _judge_told_that_free(self, taken: Taken, told: list[Notification]) -> bool:
        """Return whether a name is free that the first may be passed for: it is told so at once, but not ever again."""
        queue = taken.after.queue
        if not queue or self.delays or taken.quarantine or not _head_fits(taken) or not _passable(queue, taken.now):
            return False
        head = queue[0]
        waited = taken.now - min(head.joined_at, taken.now)
        quiet = next((each.quiet_until for each in taken.before.queue if each.request == head.request), 0)
        stepped_back = taken.now < taken.before.used_at
        due = (stepped_back or quiet <= taken.now) and waited < min(each.request.fair_after for each in queue) // 2
        expected = [(head.request.request_id, 0)] if due and head.request.channel else []
        assert [(each.request_id, each.after) for each in told] == expected, "a head was not told that the name is free"
        if due:
            assert head.quiet_until == taken.now + max(RETRY, waited), "a head is told again too soon, or too late"
        return True

    def _judge_wanted(self, taken: Taken) -> None:
        """Who may hand a lease on within its process is told when somebody begins to wait, or asks again."""
        told = [
            (each.channel, each.request_id) for each in taken.notifications if each.kind is NotificationKind.CONTENDED
        ]
        if isinstance(taken.answer, Queued) and (not taken.stood or taken.asking in taken.stood):
            holders = [each for each in taken.before.holders if each.request_id in taken.live]
            assert told == [
                (each.channel, each.request_id) for each in holders if each.notify_contended and each.channel
            ]
        elif not taken.asking:
            assert not told, "nobody asked for what is held"
        for notification in taken.notifications:
            if notification.kind is NotificationKind.GRANTED:
                assert notification.contended or not taken.stands, "who was granted is not told that somebody waits"

    # -- by request ----------------------------------------------------------------------------------------

    def _judge_ask(self, taken: Taken, request: AcquireRequest) -> None:
        answer = taken.answer
        if self.given_up.get(request.request_id, 0) > taken.now or request.request_id == self.last_released:
            assert isinstance(answer, Withdrawn)
        elif request.request_id in taken.live:
            assert answer == Granted(taken.live[request.request_id].token, request.ttl, contended=bool(taken.stands))
            assert taken.held[request.request_id].expires_at >= taken.now + request.ttl
        elif isinstance(answer, CapacityMismatch):
            assert request.request_id not in taken.stood, "a waiter is refused for what it asked for when it came"
            assert answer.capacity == taken.after.capacity != request.capacity
            assert taken.after.holders or taken.after.queue, "a name that nobody uses takes any capacity"
        elif isinstance(answer, Granted):
            assert answer == Granted(taken.held[request.request_id].token, request.ttl, contended=bool(taken.stands))
            assert taken.held[request.request_id].expires_at == taken.now + request.ttl
        elif isinstance(answer, Queued):
            assert request.wait
            assert request.capacity == taken.after.capacity or request.request_id in taken.stood
            assert answer.place == taken.stands.index(request.request_id)
            least = taken.quarantined_until - taken.now + taken.wall if taken.quarantined_until else 0
            assert answer.counter == max(taken.after.counter, least - 1)
            assert RETRY <= answer.retry_in <= max(RETRY, 2 * request.interval)
            assert answer.quarantine == taken.quarantine
        else:
            assert isinstance(answer, Busy)
            assert not request.wait
            assert request.request_id not in taken.stands
            assert answer.holders == tuple(each.owner for each in taken.after.holders)
            assert answer.quarantine == taken.quarantine

    def _judge_release(self, taken: Taken, release: ReleaseRequest) -> None:
        if release.request_id in taken.live:
            assert release.request_id not in taken.held
            self.last_released = release.request_id
        if taken.kept:
            assert taken.kept in taken.held, "the name is not kept"
            old, kept = taken.live[release.request_id], taken.held[taken.kept]
            assert (kept.token, kept.weight, kept.owner) == (old.token, old.weight, old.owner)
            assert (kept.expires_at, kept.ttl) == (taken.now + release.keep, release.keep), "kept for another time"
            assert (kept.channel, kept.lock_delay, kept.notify_contended) == ("", 0, False)
        forgotten = taken.quarantine and release.request_id not in taken.live and taken.after.counter <= release.token
        if forgotten or self.last_released == release.request_id or PLACEHOLDER + release.request_id in taken.live:
            assert taken.answer is Outcome.RELEASED
        else:
            assert taken.answer is self._fate(taken, release.token)
            if self.given_up.get(REVOKED + release.request_id, 0) > taken.now:
                assert not release.unrevoked_for, "who was revoked is told that nobody took the name"
        if release.unsure or (taken.quarantine and release.request_id not in taken.live):
            self._give_up(taken, release.request_id)

    def _judge_renewal(self, taken: Taken, renewal: RenewRequest) -> None:
        holder = taken.live.get(renewal.request_id) or next(iter(taken.taken_up), None)
        if holder is None or holder.token != renewal.token:
            assert taken.answer is self._fate(taken, renewal.token)
            return
        assert taken.answer is None
        assert renewal.contended == bool(taken.stands), "who renews is not told that somebody waits"
        assert taken.held[renewal.request_id].expires_at >= taken.now + renewal.ttl

    def _judge_resize(self, taken: Taken, resize: Resize) -> None:
        """Capacity changes if it was agreed on, or nobody uses the name; nobody waits for more than there is."""
        unused = not taken.live and not any(not taken.dead(each) for each in taken.before.queue)
        if resize.before == taken.before.capacity or (unused and not taken.stands and not taken.granted):
            assert taken.answer == taken.after.capacity == resize.after
            assert all(each.request.weight <= resize.after for each in taken.after.queue), "somebody waits for ever"
        else:
            assert taken.answer == taken.after.capacity
            assert taken.after.capacity in {taken.before.capacity, resize.after}
            if taken.live:
                assert taken.after.capacity == taken.before.capacity, "a capacity was changed that others rely on"

    def _judge_asked(self, taken: Taken) -> None:
        """Every holder that can hear it is told by its own token, and named."""
        asked = [each for each in taken.after.holders if each.channel]
        assert isinstance(taken.answer, list)
        assert [each.token for each in taken.answer if isinstance(each, HolderView)] == [each.token for each in asked]
        told = [
            (each.channel, each.request_id, each.token)
            for each in taken.notifications
            if each.kind is NotificationKind.REVOCATION_REQUESTED
        ]
        assert told == [(each.channel, each.request_id, each.token) for each in asked]

    def _judge_adjustment(self, taken: Taken, adjust: AdjustRequest) -> None:
        holder = taken.live.get(adjust.request_id)
        ours = holder is not None and holder.token == adjust.token
        assert taken.answer is (None if ours else self._fate(taken, adjust.token))

    def _judge_leave(self, taken: Taken, withdraw: WithdrawRequest) -> None:
        assert isinstance(taken.answer, NotGranted)
        assert taken.answer.quarantine == taken.quarantine
        assert withdraw.request_id not in taken.held, "who left holds the name"
        assert withdraw.request_id not in taken.stands, "who left waits"
        if withdraw.unsure:
            self._give_up(taken, withdraw.request_id)

    def _judge_revoke(self, taken: Taken) -> None:
        assert isinstance(taken.answer, list)
        assert not set(taken.live) & set(taken.held)
        victims = list(taken.live.values())
        assert [each.token for each in taken.answer if isinstance(each, HolderView)] == [each.token for each in victims]
        told = [(each.request_id, each.token) for each in taken.notifications if each.kind is NotificationKind.REVOKED]
        assert told == [(each.request_id, each.token) for each in victims if each.channel]
        if victims:
            assert taken.after.counter > max(each.token for each in victims), "a revoked token is not fenced off"
        self.last_token = taken.after.counter
        self.given_up |= {REVOKED + each.request_id: taken.now + TOMBSTONE for each in victims}

    def _give_up(self, taken: Taken, request_id: str) -> None:
        self.given_up[request_id] = taken.now + TOMBSTONE
        assert request_id not in taken.stands, "who gave up waits"
        assert request_id not in taken.held, "who gave up holds"

    def _fate(self, taken: Taken, token: int) -> Outcome:
        return Outcome.TAKEN_OVER if taken.after.counter > token else Outcome.EXPIRED


def _passable(queue: Iterable[Waiter], now: int) -> bool:
    """Tell whether all waiters may be passed: none has waited for its own bound, counted from when the first came."""
    waiters = list(queue)
    waited = now - min(waiters[0].joined_at, now)
    return all(waited < each.request.fair_after for each in waiters)


def _may_pass(request: AcquireRequest, waiter: Waiter, now: int) -> bool:
    """Tell whether a request may be granted before a waiter."""
    return request.fair_after > 0 and now - min(waiter.joined_at, now) < waiter.request.fair_after


def _head_fits(taken: Taken) -> bool:
    used = sum(each.weight for each in taken.after.holders)
    return used + taken.after.queue[0].request.weight <= taken.after.capacity


def _has_room(request: AcquireRequest, token: int, taken: Taken) -> bool:
    """Tell whether a lease that is taken up fits beside those who may still hold."""
    capacity = taken.before.capacity
    there = [each for each in taken.live.values() if each.weight < capacity or each.token > token]
    heard = [each for each in there if each.expires_at - each.ttl >= taken.quarantined_since]
    room = request.capacity - request.weight
    if sum(each.weight for each in there) > room:
        if any(each.weight == capacity for each in there):
            return False
        there = heard
    agreed = capacity == request.capacity or not (there or taken.before.queue)
    return agreed and sum(each.weight for each in there) <= room
