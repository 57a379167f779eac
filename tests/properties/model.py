"""What must be true of every step on a name, whoever takes it: an independent judge of the grant table.

The judge knows none of the table's algorithms. It sees the state before and after a step, the request, the reply and
the notices, and remembers only what was promised: tokens issued, requests given up, delays that run.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from holdfast.core.messages import (
    Ask,
    Busy,
    Gone,
    Granted,
    HolderView,
    Leave,
    Left,
    Mismatch,
    NameView,
    Notice,
    NoticeKind,
    Release,
    Renewal,
    Reply,
    Waiting,
)
from holdfast.core.state import Holder, NameState, Waiter
from holdfast.core.table import PROPOSAL_BOUND, RETRY, TOMBSTONE
from holdfast.outcome import Outcome

LONGEST_DELAY = 40

Request = Ask | Release | Renewal | Leave | None
"""What was asked of the table; None: a revocation."""

Answer = Reply | Outcome | Left | list[HolderView] | NameView | None


@dataclass
class Taken:
    """One step, as seen from outside."""

    before: NameState
    after: NameState
    now: int
    wall: int
    request: Request
    answer: Answer
    notices: list[Notice]
    listening: Callable[[str], bool]

    def __post_init__(self) -> None:
        self.own = self.request.request if self.request is not None else ""
        self.asking = self.own if isinstance(self.request, Ask) else ""
        self.live = {each.request: each for each in self.before.holders if each.expires_at > self.now}
        self.ended = [each for each in self.before.holders if each.expires_at <= self.now]
        self.held = {each.request: each for each in self.after.holders}
        self.granted = [each for each in self.after.holders if each.request not in self.live]
        self.stood = [each.ask.request for each in self.before.queue]
        self.stands = [each.ask.request for each in self.after.queue]

    def dead(self, waiter: Waiter) -> bool:
        """Tell whether a waiter may be passed over."""
        return waiter.fresh_until < self.now or not self.listening(waiter.ask.inbox)


@dataclass
class Judge:
    """What was promised about one name so far."""

    last_token: int = 0
    last_released: str = ""
    given_up: dict[str, int] = field(default_factory=dict[str, int])
    delays: list[int] = field(default_factory=list[int])
    stepped_back: bool = False
    """Whether the store's clock stepped back during a delay: then it may end sooner, but still not stretch."""

    def judge(self, taken: Taken) -> None:
        """Raise AssertionError if the step was not right."""
        now = taken.now
        self.given_up = {each: min(until, now + TOMBSTONE) for each, until in self.given_up.items() if until > now}
        self._note_delays(taken)
        assert sum(each.weight for each in taken.after.holders) <= taken.after.capacity
        self._judge_holders(taken)
        self._judge_grants(taken)
        self._judge_queue(taken)
        self._judge_push(taken)
        if isinstance(taken.request, Ask):
            self._judge_ask(taken, taken.request)
        elif isinstance(taken.request, Release):
            self._judge_release(taken, taken.request)
        elif isinstance(taken.request, Renewal):
            self._judge_renewal(taken, taken.request)
        elif isinstance(taken.request, Leave):
            self._judge_leave(taken, taken.request)
        else:
            self._judge_revoke(taken)

    # -- always --------------------------------------------------------------------------------------------

    def _note_delays(self, taken: Taken) -> None:
        self.delays += [each.expires_at + each.lock_delay for each in taken.ended if each.lock_delay]
        if taken.request is None:
            self.delays += [taken.now + each.lock_delay for each in taken.live.values() if each.lock_delay]
        if self.stepped_back:
            self.delays = [taken.after.blocked_until] if taken.after.blocked_until > taken.now else []
            assert taken.after.blocked_until <= taken.now + LONGEST_DELAY, "a delay was stretched"
        self.delays = [until for until in self.delays if until > taken.now]
        self.stepped_back = self.stepped_back and bool(self.delays)

    def _judge_holders(self, taken: Taken) -> None:
        """Nobody who lives loses the name but by its own doing or by force, and nobody keeps it too long."""
        for request, holder in taken.live.items():
            if request in taken.held:
                self._judge_kept(taken, holder, taken.held[request])
            else:
                by_itself = isinstance(taken.request, Release | Leave) and request == taken.own
                assert by_itself or taken.request is None, "a live holder lost the name"
        for holder in taken.after.holders:
            assert taken.now < holder.expires_at <= taken.now + holder.ttl

    def _judge_kept(self, taken: Taken, old: Holder, new: Holder) -> None:
        assert new.token == old.token
        cut = min(old.expires_at, taken.now + old.ttl)
        if new.request == taken.own and isinstance(taken.request, Ask | Renewal):
            assert new.expires_at >= cut, "a lease was shortened"
        else:
            assert new.expires_at == cut, "a lease was changed by somebody else's request"
            assert new.confirmed == old.confirmed

    def _judge_grants(self, taken: Taken) -> None:
        if taken.request is None and taken.live:
            self.last_token += 1  # which is burnt
        for holder in taken.granted:
            assert not self.delays, "granted during a lock delay"
            assert holder.token > self.last_token, "a token that does not increase"
            assert holder.token >= taken.wall
            assert holder.token <= max(self.last_token + 1, taken.wall + PROPOSAL_BOUND)
            assert self.given_up.get(holder.request, 0) <= taken.now, "granted to who gave up"
            self.last_token = holder.token
            self._judge_order(taken, holder)
        assert taken.after.counter >= max(self.last_token, taken.before.counter)

    def _judge_order(self, taken: Taken, granted: Holder) -> None:
        """Nobody alive who came earlier is left behind."""
        place = taken.stood.index(granted.request) if granted.request in taken.stood else len(taken.stood)
        for waiter in taken.before.queue[:place]:
            request = waiter.ask.request
            assert request not in taken.stands, "somebody overtook the queue"
            assert request in taken.held or request == taken.own or taken.dead(waiter)
        pushed = granted.request != taken.asking
        ask = next((each.ask for each in taken.before.queue if each.ask.request == granted.request), taken.request)
        assert isinstance(ask, Ask)
        assert granted.confirmed is not pushed
        if pushed:
            assert granted.expires_at <= taken.now + ask.pushed_ttl, "a push that nobody may have heard is too long"
            assert taken.listening(ask.inbox), "granted to nobody"

    def _judge_queue(self, taken: Taken) -> None:
        stayed = [request for request in taken.stands if request in taken.stood]
        assert stayed == [request for request in taken.stood if request in taken.stands], "the queue changed its order"
        assert taken.stands[: len(stayed)] == stayed, "somebody joined ahead of the tail"
        assert set(taken.stands) <= {*taken.stood, taken.own}
        for waiter in taken.before.queue:
            request = waiter.ask.request
            if request not in taken.stands and request not in taken.held and request != taken.own:
                assert taken.dead(waiter), "a live waiter vanished"
        assert not set(taken.stands) & set(taken.held), "somebody holds and waits"
        if taken.after.queue and not self.delays:
            used = sum(each.weight for each in taken.after.holders)
            assert used + taken.after.queue[0].ask.weight > taken.after.capacity, "the head waits although it fits"

    def _judge_push(self, taken: Taken) -> None:
        pushed = [(each.inbox, each.request, each.token) for each in taken.granted if each.request != taken.asking]
        sent = [(each.inbox, each.request, each.token) for each in taken.notices if each.kind is NoticeKind.GRANTED]
        assert sent == [each for each in pushed if each[0]], "grants and pushes differ"
        heads = [each.request for each in taken.notices if each.kind is NoticeKind.HEAD]
        head = taken.after.queue[0].ask if taken.after.queue else None
        is_new = head is not None and head.request not in (taken.asking, *taken.stood[:1])
        assert heads == ([head.request] if head is not None and is_new and head.inbox else []), "a head was not told"

    # -- by request ----------------------------------------------------------------------------------------

    def _judge_ask(self, taken: Taken, ask: Ask) -> None:
        answer = taken.answer
        if self.given_up.get(ask.request, 0) > taken.now or ask.request == self.last_released:
            assert isinstance(answer, Gone)
        elif ask.request in taken.live:
            assert answer == Granted(taken.live[ask.request].token, ask.first_ttl)
            assert taken.held[ask.request].expires_at >= taken.now + ask.first_ttl
        elif isinstance(answer, Mismatch):
            assert answer.capacity == taken.after.capacity != ask.capacity
            assert taken.after.holders or taken.after.queue, "a name that nobody uses takes any capacity"
        elif isinstance(answer, Granted):
            assert answer == Granted(taken.held[ask.request].token, ask.first_ttl)
            assert taken.held[ask.request].expires_at == taken.now + ask.first_ttl
        elif isinstance(answer, Waiting):
            assert ask.wait
            assert answer.place == taken.stands.index(ask.request)
            assert answer.counter == taken.after.counter
            assert RETRY <= answer.poke_in <= max(RETRY, 2 * ask.interval)
        else:
            assert isinstance(answer, Busy)
            assert not ask.wait
            assert ask.request not in taken.stands
            assert answer.holders == tuple(each.owner for each in taken.after.holders)

    def _judge_release(self, taken: Taken, release: Release) -> None:
        if release.request in taken.live:
            assert release.request not in taken.held
            self.last_released = release.request
        if self.last_released == release.request:
            assert taken.answer is Outcome.RELEASED
        else:
            assert taken.answer is self._fate(taken, release.token)
        if release.unsure:
            self._give_up(taken, release.request)

    def _judge_renewal(self, taken: Taken, renewal: Renewal) -> None:
        holder = taken.live.get(renewal.request)
        if holder is None or holder.token != renewal.token:
            assert taken.answer is self._fate(taken, renewal.token)
            return
        assert taken.answer is None
        assert taken.held[renewal.request].expires_at >= taken.now + renewal.ttl
        assert taken.held[renewal.request].confirmed

    def _judge_leave(self, taken: Taken, leave: Leave) -> None:
        assert leave.request not in taken.held, "who left holds the name"
        assert leave.request not in taken.stands, "who left waits"
        if leave.unsure:
            self._give_up(taken, leave.request)

    def _judge_revoke(self, taken: Taken) -> None:
        assert isinstance(taken.answer, list)
        assert not set(taken.live) & set(taken.held)
        victims = list(taken.live.values())
        assert [each.token for each in taken.answer if isinstance(each, HolderView)] == [each.token for each in victims]
        told = [(each.request, each.token) for each in taken.notices if each.kind is NoticeKind.REVOKED]
        assert told == [(each.request, each.token) for each in victims if each.inbox]
        if victims:
            assert taken.after.counter > max(each.token for each in victims), "a revoked token is not fenced off"
        self.last_token = taken.after.counter

    def _give_up(self, taken: Taken, request: str) -> None:
        self.given_up[request] = taken.now + TOMBSTONE
        assert request not in taken.stands, "who gave up waits"
        assert request not in taken.held, "who gave up holds"

    def _fate(self, taken: Taken, token: int) -> Outcome:
        return Outcome.TAKEN_OVER if taken.after.counter > token else Outcome.EXPIRED
