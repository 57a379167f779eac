"""The grant table: the executable specification of every lock that Holdfast offers.

A name has a capacity, a request has a weight; holders and a strict queue of waiters share the name. This module
is the one place in which it is decided who holds what. The memory store is this table; the SQL stores run it
inside one transaction; every other store is held against it by property tests.

The rules, each of which has a counterexample when it is dropped:

1.  A step is atomic and takes place at one instant of the store's clock. Clients' clocks decide nothing.
2.  Head first, and as many heads as fit. A newcomer joins the tail; it never overtakes.
3.  Whoever asks, releases or leaves also moves the queue: dead heads are dropped, live ones granted.
4.  Asked again, the same request gets the same answer; given up, it gets none.
5.  A token is larger than every token issued for the name before, and no smaller than the store's wall clock, unless
    that is centuries ahead.
6.  A grant is for the whole ttl, in a reply or by a push. A waiter counts a push from the send of its last request.
7.  After an expiry, but not after a release, the lock delay of the lease that expired keeps the name from all.
8.  In quarantine, because grants may have been forgotten, nobody is granted; who still holds may take it up again.
9.  No remaining time may exceed what was asked for: a clock that stepped back must not lock for hours.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from holdfast.contracts.deadlines import seconds
from holdfast.contracts.messages import (
    Adjust,
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
    RenewReply,
    Reply,
    WaiterView,
    Waiting,
)
from holdfast.outcome import Outcome
from holdfast.table.state import KEPT, Holder, NameState, Waiter

TOMBSTONE = 30_000_000
"""How long a given-up request is remembered, in microseconds: longer than a request is likely to be under way."""

PROPOSAL_BOUND = 3_600_000_000
"""How far ahead of the store's wall clock a client's token proposal may be; farther ahead it is cut."""

LATEST = 7_258_118_400_000_000
"""The year 2200. A wall clock that shows a later time is wrong, and no token is taken from it.

Above 2**53, in the year 2255, the numbers of Lua are not exact, and tokens would repeat.
"""

RETRY = 1_000
"""The least time, in microseconds, after which asking again is worth it."""

MARGIN = 1_000_000
"""How much later than it should a waiter may ask again, before it matters that a new head is not told."""

RESERVED = 20_000
"""For how long a name is kept for whoever was told that there is a vote, in microseconds."""

EARLIER = 50_000
"""By how much a place in a queue for votes may lie before its asker was first heard, in microseconds."""

STAGGER = 10_000
"""By how much each place in the queue asks later than the one before it once the name may be free."""


@dataclass(slots=True)
class Step:
    """One atomic step on one name. Make one, call one operation, store `state`, then send `notices`."""

    state: NameState
    now: int
    """The store's clock, which never steps back while it keeps its state."""
    stamp: int
    """The store's wall clock, for tokens only."""
    listening: Callable[[str], bool]
    """Whether somebody listens at an inbox. An honest "not known" is True."""
    quarantined_until: int = 0
    """When grants that this store may have forgotten have run out."""
    quarantined_since: int = 0
    """When this store began to be quarantined: a holder that renewed later is there for certain."""
    notices: list[Notice] = field(default_factory=list[Notice])
    _head_before: str = ""

    # -- operations ----------------------------------------------------------------------------------------

    def acquire(self, ask: Ask) -> Reply:  # noqa: PLR0911 - each ends it at once
        """Grant the name, or keep a place in the queue, or refuse. Also moves the queue."""
        self._begin()
        state = self.state
        if state.tombstones.get(ask.request, 0) > self.now or ask.request == state.last_released:
            self._pass_on()
            return Gone()
        if holder := self._holder(ask.request):
            self._pass_on()
            return self._granted_before(holder, ask)
        if not self._agree_on_capacity(ask.capacity) and not self._waits(ask.place):
            self._pass_on()  # which drops the dead, if it is they who keep the name in use
            if not self._agree_on_capacity(ask.capacity):
                return Mismatch(state.capacity)
        if ask.votes:
            return self._vote(ask)
        if not state.queue and self._fits(ask.weight):
            return self._grant(ask)
        if self._join(ask):
            self._tell_holders()
        granted = self._advance(asking=ask.request)
        if granted is None and not ask.wait:
            self._drop(ask.request)
        self._tell_new_head(asking=ask.request)
        if granted is not None:
            granted.wanted = bool(state.queue)
            return granted
        return self._waiting(ask) if ask.wait else self._busy()

    def _vote(self, ask: Ask) -> Granted | Busy:
        """Grant the name if it is free, or kept for this one: it was told so, and asks all stores again."""
        self._remove_holder(KEPT + ask.place)
        if self._fits(ask.weight):
            self._drop(ask.place)
            granted = self._grant(ask)
            granted.wanted = bool(self.state.queue)
            return granted
        if not ask.wait:
            self._drop(ask.place)
        elif self._sit_down(ask):
            self._tell_holders()
        return self._busy()

    def release(self, release: Release) -> Outcome:
        """Let go, and pass the name on in the same step. A release that is asked again is no error.

        One that is to `keep` the name leaves a holding behind that is nobody's, and ends by itself.
        """
        self._begin()
        state = self.state
        if release.unsure:
            self._bury(release.request)
            self._drop(release.request)  # an ask that came late, after the lease had run out
            self._drop(release.request.rpartition("/")[0])  # or was refused a vote, and stands there still
        request, keep = release.request, release.keep
        if self._keep(request, keep) if keep else self._remove_holder(request):
            state.last_released = request
            self._pass_on()
            return Outcome.RELEASED
        kept = self._holder(KEPT + release.request)
        if self._quarantine():
            self._bury(release.request)  # a late renewal must not take it up again
            self._drop(release.request)  # the store may have forgotten that it was granted
        self._pass_on()
        return Outcome.RELEASED if kept or state.last_released == release.request else self._fate(release.token)

    def renew(self, renewal: Renewal) -> RenewReply:
        """Keep a lease that is still held. It is never shortened."""
        self._begin()
        self._pass_on()
        holder = self._holder(renewal.request) or self._restore(renewal)
        if holder is None or holder.token != renewal.token:
            return self._fate(renewal.token)
        holder.ttl = max(holder.ttl, renewal.ttl)
        holder.expires_at = max(holder.expires_at, self.now + renewal.ttl)
        renewal.wanted = bool(self.state.queue)
        return None

    def adjust(self, adjust: Adjust) -> RenewReply:
        """Change a holding, which goes on, and grant whom that makes room for. It never becomes heavier."""
        self._begin()
        holder = self._holder(adjust.request)
        if holder is None or holder.token not in (adjust.token, adjust.raise_to) or not self._raise(holder, adjust):
            self._pass_on()
            return self._fate(adjust.token)
        if adjust.weight:
            holder.weight = min(holder.weight, adjust.weight)
        holder.owner = adjust.owner or holder.owner
        self._pass_on()
        return None

    def _raise(self, holder: Holder, adjust: Adjust) -> bool:
        """Issue a larger token to a holder, as a quorum asks for it: unless one as large was issued, to anybody."""
        if not adjust.raise_to or holder.token == adjust.raise_to:
            return True
        if self.state.counter >= adjust.raise_to:
            return False
        holder.token = self.state.counter = adjust.raise_to
        return True

    def leave(self, leave: Leave) -> Left:
        """Give up a place in the queue, or pass on a grant that crossed this on its way."""
        self._begin()
        if leave.unsure:
            self._bury(leave.request)
        left = Left(self._owners(), self._place(leave.request), self._quarantine())
        self._remove_holder(leave.request)
        self._remove_holder(KEPT + leave.request)
        self._drop(leave.request)
        self._pass_on()
        return left

    def revoke(self, token: int = 0) -> list[HolderView]:
        """Take the name from all its holders, or from that of a token, tell them, and pass it on.

        Burns a token, to fence them off.
        """
        self._begin()
        victims = [holder for holder in self.state.holders if token in (0, holder.token)]
        self.state.holders = [holder for holder in self.state.holders if token not in (0, holder.token)]
        for holder in victims:
            self._block(self.now, holder.lock_delay)
            self._notify(holder.inbox, NoticeKind.REVOKED, holder.request, holder.token)
        if victims:
            self.state.counter = self._next_token(0)
        self._pass_on()
        return [self._view_holder(holder) for holder in victims]

    def ask_back(self) -> list[HolderView]:
        """Ask those who hold the name to let go; return who can hear it."""
        self._begin()
        self._pass_on()
        asked = [holder for holder in self.state.holders if holder.inbox]
        for holder in asked:
            self._notify(holder.inbox, NoticeKind.ASKED, holder.request, holder.token)
        return [self._view_holder(holder) for holder in asked]

    def resize(self, before: int, after: int) -> int:
        """Change the capacity of the name if it is `before`, or if nobody uses it; return what it is now.

        Holders keep what they hold, and waiters their places, but those that are too heavy now: they are sent away,
        told to ask again, and refused as they do.
        """
        self._begin()
        state = self.state
        if state.capacity != before:
            self._advance()  # which drops the dead, if it is they who keep the name in use
        if state.capacity == before or not (state.holders or state.queue):
            state.capacity = after
            for waiter in [each for each in state.queue if each.ask.weight > after]:
                self._drop(waiter.ask.request)
                self._notify(waiter.ask.inbox, NoticeKind.HEAD, waiter.ask.request, after=RETRY)
        self._pass_on()
        return state.capacity

    def view(self, name: str) -> NameView:
        """Show who holds and who waits, without moving the queue."""
        self._begin()
        state = self.state
        return NameView(
            name,
            state.capacity,
            state.counter,
            [self._view_holder(holder) for holder in state.holders],
            [self._view_waiter(waiter) for waiter in state.queue],
            seconds(max(0, state.blocked_until - self.now)),
            seconds(self._quarantine()),
        )

    # -- grants --------------------------------------------------------------------------------------------

    def _pass_on(self) -> None:
        """Grant whom the step made room for, and tell who is first in the queue now."""
        if self.state.queue:
            self._advance()
            self._tell_new_head()

    def _advance(self, asking: str = "") -> Granted | None:
        """Grant the heads of the queue while they fit; return the grant of `asking`, the others are pushed.

        While nothing fits, the queue is not even looked at: its dead are dropped when that matters.
        """
        if not self._fits(1):
            return None
        answer = None
        while (ask := self._live_head(asking)) and self._fits(ask.weight):
            if ask.votes and self.listening(ask.inbox):
                break
            self._drop(ask.request)
            if ask.request == asking:
                answer = self._grant(ask)
            elif self.listening(ask.inbox):
                pushed = self._grant(ask)
                self._notify(ask.inbox, NoticeKind.GRANTED, ask.request, pushed.token, wanted=bool(self.state.queue))
        return answer

    def _live_head(self, asking: str) -> Ask | None:
        queue = self.state.queue
        while queue and queue[0].ask.request != asking and self._is_dead_weight(queue[0]):
            queue.drop(queue[0].ask.request)
        return queue[0].ask if queue else None

    def _is_dead_weight(self, head: Waiter) -> bool:
        """Tell whether a head fell silent; or cannot be told and is too heavy for now, while a lighter one fits."""
        if head.fresh_until < self.now:
            return True
        if head.ask.weight == 1 or self._fits(head.ask.weight):
            return False
        return self._fits(self.state.queue.lightest) and not self.listening(head.ask.inbox)

    def _grant(self, ask: Ask) -> Granted:
        token = self.state.counter = self._next_token(ask.proposal, votes=ask.votes) + ask.span - 1
        self.state.holders.append(
            Holder(
                ask.request,
                ask.inbox,
                ask.owner,
                token,
                ask.weight,
                ask.ttl,
                ask.lock_delay,
                self.now,
                self.now + ask.ttl,
                ask.span > 1,
            )
        )
        return Granted(token, ask.ttl)

    def _granted_before(self, holder: Holder, ask: Ask) -> Granted:
        """Answer an ask of a request that holds already: its reply or its push was lost, or is on its way."""
        holder.ttl = max(holder.ttl, ask.ttl)
        holder.expires_at = max(holder.expires_at, self.now + ask.ttl)
        return Granted(holder.token, ask.ttl, wanted=bool(self.state.queue))

    def _restore(self, renewal: Renewal) -> Holder | None:
        """Take up a lease that was granted by a store whose end this one did not see, unless it is known to be over.

        Its holder renews it, so it had not run out; and until the quarantine ends nobody else can be granted. A lease
        of everything is over if a later token was given out. Those that share a name renew in any order.
        """
        ask, state, token = renewal.ask, self.state, renewal.token
        if ask is None or self.now >= self.quarantined_until or renewal.request in state.tombstones:
            return None
        if renewal.request == state.last_released or self._holder(KEPT + renewal.request):
            return None
        if ask.weight == ask.capacity:
            if token < state.counter or any(holder.token >= token for holder in state.holders):
                return None
            state.holders = []  # of an earlier time: they had ended when this lease was granted
        elif not self._make_room(ask, token):
            return None
        state.capacity = ask.capacity
        state.counter = max(state.counter, token)
        self._drop(ask.request)
        expires_at = self.now + renewal.ttl
        holder = Holder(
            ask.request,
            ask.inbox,
            ask.owner,
            token,
            ask.weight,
            renewal.ttl,
            ask.lock_delay,
            self.now,
            expires_at,
            ask.span > 1,
        )
        state.holders.append(holder)
        return holder

    def _make_room(self, ask: Ask, token: int) -> bool:
        """Have room for a lease that is taken up beside others; tell if there is none.

        A holder of everything with a smaller token had ended, or made room, when the lease was granted. If room is
        still short, those who were not heard since the quarantine began come again when they renew, or are over.
        """
        state = self.state
        there = [each for each in state.holders if each.weight < state.capacity or each.token > token]
        if ask.weight + sum(each.weight for each in there) > ask.capacity:
            if any(each.weight == state.capacity for each in there):
                return False
            there = [each for each in there if each.expires_at - each.ttl >= self.quarantined_since]
        others = there or state.queue
        if others and state.capacity != ask.capacity:
            return False
        if ask.weight + sum(each.weight for each in there) > ask.capacity:
            return False
        state.holders = there
        return True

    def _next_token(self, proposal: int, *, votes: bool = False) -> int:
        """Return the next token; one that other stores vote on must not depend on whose clock is ahead."""
        stamp = 0 if votes or self.stamp > LATEST else self.stamp
        return max(self.state.counter + 1, stamp, min(proposal, min(self.stamp, LATEST) + PROPOSAL_BOUND))

    def _fits(self, weight: int) -> bool:
        return self._closed_until() <= self.now and self._has_room(weight)

    def _has_room(self, weight: int) -> bool:
        holders = self.state.holders
        return not holders or weight + sum(holder.weight for holder in holders) <= self.state.capacity

    def _closed_until(self) -> int:
        """Return until when nobody is granted, whoever holds: a lock delay or a quarantine."""
        return max(self.state.blocked_until, self.quarantined_until)

    def _quarantine(self) -> int:
        return max(0, self.quarantined_until - self.now)

    def _agree_on_capacity(self, capacity: int) -> bool:
        state = self.state
        if not state.holders and not state.queue:
            state.capacity = capacity
        return state.capacity == capacity

    def _keep(self, request: str, length: int) -> bool:
        """Let a holding be nobody's from now on. Who waits is told anew when it ends: it was told another time."""
        holder = self._holder(request)
        if holder is None:
            return False
        holder.request, holder.inbox = KEPT + holder.request, ""
        holder.ttl, holder.expires_at, holder.lock_delay = length, self.now + length, 0
        holder.told = False
        self._head_before = ""
        return True

    # -- the queue -----------------------------------------------------------------------------------------

    def _join(self, ask: Ask) -> bool:
        """Stand at the tail, or, having a place already, stay in it. Return whether this is news to the holders.

        It is if nobody waited before; and when a waiter asks again, as the holder may not have heard.
        """
        queue, fresh_until = self.state.queue, self.now + ask.patience
        if waiter := queue.find(ask.request):
            queue.replace(waiter, ask)
            waiter.fresh_until = fresh_until
            return True
        queue.join(Waiter(ask, self.now, fresh_until))
        return len(queue) == 1

    def _sit_down(self, ask: Ask) -> bool:
        """Take a place among those who wait for a vote, or keep it. Return whether this is news to the holders.

        They are in the order in which they first asked by their own clocks, so that all stores have the same order;
        but nobody's clock gets it far ahead.
        """
        before = self.state.queue.find(ask.place)
        first = before.ask.proposal if before else min(max(ask.proposal, self.stamp - EARLIER), self.stamp)
        return self._join(replace(ask, request=ask.place, proposal=first))

    def _tell_holders(self) -> None:
        """Tell who asked for it that somebody waits."""
        for holder in self.state.holders:
            if holder.told:
                self._notify(holder.inbox, NoticeKind.WANTED, holder.request)

    def _waiting(self, ask: Ask) -> Waiting:
        """Say when to ask again: the head when the name may become free, each next one a little later."""
        place = self._place(ask.request)
        slow = ask.interval + ask.interval * min(place, 10) // 10
        poke_in = min(slow, self._frees_in() + place * STAGGER)
        return Waiting(self.state.counter, max(poke_in, RETRY), place, self._quarantine())

    def _busy(self) -> Busy:
        return Busy(max(self._frees_in(), RETRY), self._owners(), self._quarantine())

    def _frees_in(self) -> int:
        """Return how long until there may be room without anybody's doing: a delay ends, or else a lease does."""
        closed_until = self._closed_until()
        if closed_until > self.now:
            return closed_until - self.now
        return max(0, min((holder.expires_at for holder in self.state.holders), default=0) - self.now)

    def _place(self, request: str) -> int:
        return self.state.queue.place(request)

    def _waits(self, request: str) -> bool:
        return self.state.queue.find(request) is not None

    def _drop(self, request: str) -> None:
        self.state.queue.drop(request)

    def _head(self) -> str:
        return self.state.queue[0].ask.request if self.state.queue else ""

    def _tell_new_head(self, asking: str = "") -> None:
        """Tell a waiter that became first when to ask, if it may not ask by itself before the name may be free.

        One that is asking learns it from its reply. All others ask again within two intervals of their last time. One
        that waits for a vote is told that there is one, which is kept for it for a while.
        """
        head = self._head()
        if head and self.state.queue[0].ask.votes:
            if self._fits(1):
                self._reserve(self.state.queue[0].ask)
        elif head and head not in (self._head_before, asking):
            waiter, frees_in = self.state.queue[0], self._frees_in()
            asks_by = waiter.fresh_until - waiter.ask.patience + 2 * waiter.ask.interval
            if self.now + frees_in < asks_by + MARGIN:
                self._notify(waiter.ask.inbox, NoticeKind.HEAD, head, after=max(frees_in, RETRY))

    def _reserve(self, ask: Ask) -> None:
        """Tell who waits for a vote that there is one, and let nobody else have it for a while."""
        self._notify(ask.inbox, NoticeKind.HEAD, ask.request, after=RETRY)
        until = self.now + RESERVED
        self.state.holders.append(
            Holder(KEPT + ask.request, "", ask.owner, self.state.counter, 1, RESERVED, 0, self.now, until)
        )

    # -- time ----------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Let end what has ended by now, and cut down what a clock that stepped back has stretched."""
        state, now = self.state, self.now
        stepped_back = now < state.used_at
        state.used_at = now
        for holder in state.holders:
            if holder.expires_at <= now:
                self._expire()
                break
            holder.expires_at = min(holder.expires_at, now + holder.ttl)
        if state.queue:
            self._head_before = self._head()
            if stepped_back:
                for waiter in state.queue:
                    waiter.fresh_until = min(waiter.fresh_until, now + waiter.ask.patience)
        if state.blocked_until:
            state.blocked_until = min(state.blocked_until, now + state.block)
            if state.blocked_until <= now:
                state.blocked_until = state.block = 0
        if state.tombstones:
            self._forget_tombstones(stepped_back=stepped_back)

    def _expire(self) -> None:
        state = self.state
        kept: list[Holder] = []
        for holder in state.holders:
            if holder.expires_at <= self.now:
                self._block(holder.expires_at, holder.lock_delay)
                if holder.request.startswith(KEPT):  # for whoever was told, and did not come
                    self._drop(holder.request.removeprefix(KEPT))
            else:
                holder.expires_at = min(holder.expires_at, self.now + holder.ttl)
                kept.append(holder)
        state.holders = kept

    def _forget_tombstones(self, *, stepped_back: bool) -> None:
        """Forget the oldest ones, whose time is over."""
        tombstones, latest = self.state.tombstones, self.now + TOMBSTONE
        if stepped_back:
            tombstones.update((request, min(latest, until)) for request, until in tombstones.items())
        while tombstones and tombstones[oldest := next(iter(tombstones))] <= self.now:
            del tombstones[oldest]

    def _block(self, since: int, lock_delay: int) -> None:
        if lock_delay and since + lock_delay > self.state.blocked_until:
            self.state.blocked_until = since + lock_delay
            self.state.block = lock_delay

    # -- small things --------------------------------------------------------------------------------------

    def _holder(self, request: str) -> Holder | None:
        for holder in self.state.holders:
            if holder.request == request:
                return holder
        return None

    def _remove_holder(self, request: str) -> bool:
        before = len(self.state.holders)
        self.state.holders = [holder for holder in self.state.holders if holder.request != request]
        return len(self.state.holders) < before

    def _fate(self, token: int) -> Outcome:
        """Tell what became of a lease that is no longer held: whether a newer token was given out since."""
        return Outcome.TAKEN_OVER if self.state.counter > token else Outcome.EXPIRED

    def _bury(self, request: str) -> None:
        self.state.tombstones.pop(request, None)  # the newest stands last
        self.state.tombstones[request] = self.now + TOMBSTONE

    def _notify(
        self, inbox: str, kind: NoticeKind, request: str, token: int = 0, after: int = 0, *, wanted: bool = False
    ) -> None:
        if inbox:
            self.notices.append(Notice(inbox, kind, request, token, after, wanted))

    def _owners(self) -> tuple[str, ...]:
        return tuple(holder.owner for holder in self.state.holders)

    def _view_holder(self, holder: Holder) -> HolderView:
        return HolderView(
            holder.owner,
            holder.token,
            holder.weight,
            seconds(self.now - holder.granted_at),
            seconds(holder.expires_at - self.now),
            seconds(holder.ttl),
        )

    def _view_waiter(self, waiter: Waiter) -> WaiterView:
        return WaiterView(
            waiter.ask.owner,
            waiter.ask.weight,
            seconds(self.now - waiter.joined_at),
            waiter.fresh_until >= self.now and self.listening(waiter.ask.inbox),
        )
