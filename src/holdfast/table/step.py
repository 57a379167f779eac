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
    RenewReply,
    RenewRequest,
    Reply,
    WaiterView,
    Withdrawn,
    WithdrawRequest,
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
    """One atomic step on one name. Make one, call one operation, store `state`, then send `notifications`."""

    state: NameState
    now: int
    """The store's clock, which never steps back while it keeps its state."""
    stamp: int
    """The store's wall clock, for tokens only."""
    listening: Callable[[str], bool]
    """Whether somebody listens at a channel. An honest "not known" is True."""
    quarantined_until: int = 0
    """When grants that this store may have forgotten have run out."""
    quarantined_since: int = 0
    """When this store began to be quarantined: a holder that renewed later is there for certain."""
    notifications: list[Notification] = field(default_factory=list[Notification])
    _head_before: str = ""

    # -- operations ----------------------------------------------------------------------------------------

    def acquire(self, request: AcquireRequest) -> Reply:  # noqa: PLR0911 - each ends it at once
        """Grant the name, or keep a place in the queue, or refuse. Also moves the queue."""
        self._begin()
        state = self.state
        if state.tombstones.get(request.request_id, 0) > self.now or request.request_id == state.last_released:
            self._serve_queue()
            return Withdrawn()
        if holder := self._holder(request.request_id):
            self._serve_queue()
            return self._granted_before(holder, request)
        if not self._agree_on_capacity(request.capacity) and not self._waits(request.place):
            self._serve_queue()  # which drops the dead, if it is they who keep the name in use
            if not self._agree_on_capacity(request.capacity):
                return CapacityMismatch(state.capacity)
        if request.votes:
            return self._vote(request)
        if not state.queue and self._fits(request.weight):
            return self._grant(request)
        if self._join(request):
            self._tell_holders()
        granted = self._advance(asking=request.request_id)
        if granted is None and not request.wait:
            self._drop(request.request_id)
        self._tell_new_head(asking=request.request_id)
        if granted is not None:
            granted.contended = bool(state.queue)
            return granted
        return self._waiting(request) if request.wait else self._busy()

    def _vote(self, request: AcquireRequest) -> Granted | Busy:
        """Grant the name if it is free, or kept for this one: it was told so, and asks all stores again."""
        self._remove_holder(KEPT + request.place)
        if self._fits(request.weight):
            self._drop(request.place)
            granted = self._grant(request)
            granted.contended = bool(self.state.queue)
            return granted
        if not request.wait:
            self._drop(request.place)
        elif self._sit_down(request):
            self._tell_holders()
        return self._busy()

    def release(self, release: ReleaseRequest) -> Outcome:
        """Let go, and pass the name on in the same step. A release that is asked again is no error.

        One that is to `keep` the name leaves a holding behind that is nobody's, and ends by itself.
        """
        self._begin()
        state = self.state
        if release.unsure:
            self._bury(release.request_id)
            self._drop(release.request_id)  # a request that came late, after the lease had run out
            self._drop(release.request_id.rpartition("/")[0])  # or was refused a vote, and stands there still
        request_id, keep = release.request_id, release.keep
        if self._keep(request_id, keep) if keep else self._remove_holder(request_id):
            state.last_released = request_id
            self._serve_queue()
            return Outcome.RELEASED
        kept = self._holder(KEPT + release.request_id)
        if self._quarantine():
            self._bury(release.request_id)  # a late renewal must not take it up again
            self._drop(release.request_id)  # the store may have forgotten that it was granted
        self._serve_queue()
        return Outcome.RELEASED if kept or state.last_released == release.request_id else self._fate(release.token)

    def renew(self, renewal: RenewRequest) -> RenewReply:
        """Keep a lease that is still held. It is never shortened."""
        self._begin()
        self._serve_queue()
        holder = self._holder(renewal.request_id) or self._restore(renewal)
        if holder is None or holder.token != renewal.token:
            return self._fate(renewal.token)
        holder.ttl = max(holder.ttl, renewal.ttl)
        holder.expires_at = max(holder.expires_at, self.now + renewal.ttl)
        renewal.contended = bool(self.state.queue)
        return None

    def adjust(self, adjust: AdjustRequest) -> RenewReply:
        """Change a holding, which goes on, and grant whom that makes room for. It never becomes heavier."""
        self._begin()
        holder = self._holder(adjust.request_id)
        if holder is None or holder.token not in (adjust.token, adjust.raise_to) or not self._raise(holder, adjust):
            self._serve_queue()
            return self._fate(adjust.token)
        if adjust.weight:
            holder.weight = min(holder.weight, adjust.weight)
        holder.owner = adjust.owner or holder.owner
        self._serve_queue()
        return None

    def _raise(self, holder: Holder, adjust: AdjustRequest) -> bool:
        """Issue a larger token to a holder, as a quorum asks for it: unless one as large was issued, to anybody."""
        if not adjust.raise_to or holder.token == adjust.raise_to:
            return True
        if self.state.counter >= adjust.raise_to:
            return False
        holder.token = self.state.counter = adjust.raise_to
        return True

    def withdraw(self, withdraw: WithdrawRequest) -> NotGranted:
        """Give up a place in the queue, or pass on a grant that crossed this on its way."""
        self._begin()
        if withdraw.unsure:
            self._bury(withdraw.request_id)
        left = NotGranted(self._owners(), self._place(withdraw.request_id), self._quarantine())
        self._remove_holder(withdraw.request_id)
        self._remove_holder(KEPT + withdraw.request_id)
        self._drop(withdraw.request_id)
        self._serve_queue()
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
            self._notify(holder.channel, NotificationKind.REVOKED, holder.request_id, holder.token)
        if victims:
            self.state.counter = self._next_token(0)
        self._serve_queue()
        return [self._view_holder(holder) for holder in victims]

    def request_revocation(self) -> list[HolderView]:
        """Ask those who hold the name to let go; return who can hear it."""
        self._begin()
        self._serve_queue()
        asked = [holder for holder in self.state.holders if holder.channel]
        for holder in asked:
            self._notify(holder.channel, NotificationKind.REVOCATION_REQUESTED, holder.request_id, holder.token)
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
            for waiter in [each for each in state.queue if each.request.weight > after]:
                self._drop(waiter.request.request_id)
                self._notify(waiter.request.channel, NotificationKind.HEAD, waiter.request.request_id, after=RETRY)
        self._serve_queue()
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

    def _serve_queue(self) -> None:
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
        while (request := self._live_head(asking)) and self._fits(request.weight):
            if request.votes and self.listening(request.channel):
                break
            self._drop(request.request_id)
            if request.request_id == asking:
                answer = self._grant(request)
            elif self.listening(request.channel):
                pushed = self._grant(request)
                self._notify(
                    request.channel,
                    NotificationKind.GRANTED,
                    request.request_id,
                    pushed.token,
                    contended=bool(self.state.queue),
                )
        return answer

    def _live_head(self, asking: str) -> AcquireRequest | None:
        queue = self.state.queue
        while queue and queue[0].request.request_id != asking and self._is_dead_weight(queue[0]):
            queue.drop(queue[0].request.request_id)
        return queue[0].request if queue else None

    def _is_dead_weight(self, head: Waiter) -> bool:
        """Tell whether a head fell silent; or cannot be told and is too heavy for now, while a lighter one fits."""
        if head.fresh_until < self.now:
            return True
        if head.request.weight == 1 or self._fits(head.request.weight):
            return False
        return self._fits(self.state.queue.lightest) and not self.listening(head.request.channel)

    def _grant(self, request: AcquireRequest) -> Granted:
        token = self.state.counter = self._next_token(request.proposal, votes=request.votes) + request.span - 1
        self.state.holders.append(
            Holder(
                request.request_id,
                request.channel,
                request.owner,
                token,
                request.weight,
                request.ttl,
                request.lock_delay,
                self.now,
                self.now + request.ttl,
                request.span > 1,
            )
        )
        return Granted(token, request.ttl)

    def _granted_before(self, holder: Holder, request: AcquireRequest) -> Granted:
        """Answer a request of a request that holds already: its reply or its push was lost, or is on its way."""
        holder.ttl = max(holder.ttl, request.ttl)
        holder.expires_at = max(holder.expires_at, self.now + request.ttl)
        return Granted(holder.token, request.ttl, contended=bool(self.state.queue))

    def _restore(self, renewal: RenewRequest) -> Holder | None:
        """Take up a lease that was granted by a store whose end this one did not see, unless it is known to be over.

        Its holder renews it, so it had not run out; and until the quarantine ends nobody else can be granted. A lease
        of everything is over if a later token was given out. Those that share a name renew in any order.
        """
        request, state, token = renewal.request, self.state, renewal.token
        if request is None or self.now >= self.quarantined_until or renewal.request_id in state.tombstones:
            return None
        if renewal.request_id == state.last_released or self._holder(KEPT + renewal.request_id):
            return None
        if request.weight == request.capacity:
            if token < state.counter or any(holder.token >= token for holder in state.holders):
                return None
            state.holders = []  # of an earlier time: they had ended when this lease was granted
        elif not self._make_room(request, token):
            return None
        state.capacity = request.capacity
        state.counter = max(state.counter, token)
        self._drop(request.request_id)
        expires_at = self.now + renewal.ttl
        holder = Holder(
            request.request_id,
            request.channel,
            request.owner,
            token,
            request.weight,
            renewal.ttl,
            request.lock_delay,
            self.now,
            expires_at,
            request.span > 1,
        )
        state.holders.append(holder)
        return holder

    def _make_room(self, request: AcquireRequest, token: int) -> bool:
        """Have room for a lease that is taken up beside others; tell if there is none.

        A holder of everything with a smaller token had ended, or made room, when the lease was granted. If room is
        still short, those who were not heard since the quarantine began come again when they renew, or are over.
        """
        state = self.state
        there = [each for each in state.holders if each.weight < state.capacity or each.token > token]
        if request.weight + sum(each.weight for each in there) > request.capacity:
            if any(each.weight == state.capacity for each in there):
                return False
            there = [each for each in there if each.expires_at - each.ttl >= self.quarantined_since]
        others = there or state.queue
        if others and state.capacity != request.capacity:
            return False
        if request.weight + sum(each.weight for each in there) > request.capacity:
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

    def _keep(self, request_id: str, length: int) -> bool:
        """Let a holding be nobody's from now on. Who waits is told anew when it ends: it was told another time."""
        holder = self._holder(request_id)
        if holder is None:
            return False
        holder.request_id, holder.channel = KEPT + holder.request_id, ""
        holder.ttl, holder.expires_at, holder.lock_delay = length, self.now + length, 0
        holder.told = False
        self._head_before = ""
        return True

    # -- the queue -----------------------------------------------------------------------------------------

    def _join(self, request: AcquireRequest) -> bool:
        """Stand at the tail, or, having a place already, stay in it. Return whether this is news to the holders.

        It is if nobody waited before; and when a waiter asks again, as the holder may not have heard.
        """
        queue, fresh_until = self.state.queue, self.now + request.waiter_ttl
        if waiter := queue.find(request.request_id):
            queue.replace(waiter, request)
            waiter.fresh_until = fresh_until
            return True
        queue.join(Waiter(request, self.now, fresh_until))
        return len(queue) == 1

    def _sit_down(self, request: AcquireRequest) -> bool:
        """Take a place among those who wait for a vote, or keep it. Return whether this is news to the holders.

        They are in the order in which they first asked by their own clocks, so that all stores have the same order;
        but nobody's clock gets it far ahead.
        """
        before = self.state.queue.find(request.place)
        first = before.request.proposal if before else min(max(request.proposal, self.stamp - EARLIER), self.stamp)
        return self._join(replace(request, request_id=request.place, proposal=first))

    def _tell_holders(self) -> None:
        """Tell who asked for it that somebody waits."""
        for holder in self.state.holders:
            if holder.told:
                self._notify(holder.channel, NotificationKind.CONTENDED, holder.request_id)

    def _waiting(self, request: AcquireRequest) -> Queued:
        """Say when to ask again: the head when the name may become free, each next one a little later."""
        place = self._place(request.request_id)
        slow = request.interval + request.interval * min(place, 10) // 10
        retry_in = min(slow, self._frees_in() + place * STAGGER)
        return Queued(self.state.counter, max(retry_in, RETRY), place, self._quarantine())

    def _busy(self) -> Busy:
        return Busy(max(self._frees_in(), RETRY), self._owners(), self._quarantine())

    def _frees_in(self) -> int:
        """Return how long until there may be room without anybody's doing: a delay ends, or else a lease does."""
        closed_until = self._closed_until()
        if closed_until > self.now:
            return closed_until - self.now
        return max(0, min((holder.expires_at for holder in self.state.holders), default=0) - self.now)

    def _place(self, request_id: str) -> int:
        return self.state.queue.place(request_id)

    def _waits(self, request_id: str) -> bool:
        return self.state.queue.find(request_id) is not None

    def _drop(self, request_id: str) -> None:
        self.state.queue.drop(request_id)

    def _head(self) -> str:
        return self.state.queue[0].request.request_id if self.state.queue else ""

    def _tell_new_head(self, asking: str = "") -> None:
        """Tell a waiter that became first when to ask, if it may not ask by itself before the name may be free.

        One that is asking learns it from its reply. All others ask again within two intervals of their last time. One
        that waits for a vote is told that there is one, which is kept for it for a while.
        """
        head = self._head()
        if head and self.state.queue[0].request.votes:
            if self._fits(1):
                self._reserve(self.state.queue[0].request)
        elif head and head not in (self._head_before, asking):
            waiter, frees_in = self.state.queue[0], self._frees_in()
            asks_by = waiter.fresh_until - waiter.request.waiter_ttl + 2 * waiter.request.interval
            if self.now + frees_in < asks_by + MARGIN:
                self._notify(waiter.request.channel, NotificationKind.HEAD, head, after=max(frees_in, RETRY))

    def _reserve(self, request: AcquireRequest) -> None:
        """Tell who waits for a vote that there is one, and let nobody else have it for a while."""
        self._notify(request.channel, NotificationKind.HEAD, request.request_id, after=RETRY)
        until = self.now + RESERVED
        self.state.holders.append(
            Holder(KEPT + request.request_id, "", request.owner, self.state.counter, 1, RESERVED, 0, self.now, until)
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
                    waiter.fresh_until = min(waiter.fresh_until, now + waiter.request.waiter_ttl)
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
                if holder.request_id.startswith(KEPT):  # for whoever was told, and did not come
                    self._drop(holder.request_id.removeprefix(KEPT))
            else:
                holder.expires_at = min(holder.expires_at, self.now + holder.ttl)
                kept.append(holder)
        state.holders = kept

    def _forget_tombstones(self, *, stepped_back: bool) -> None:
        """Forget the oldest ones, whose time is over."""
        tombstones, latest = self.state.tombstones, self.now + TOMBSTONE
        if stepped_back:
            tombstones.update((request_id, min(latest, until)) for request_id, until in tombstones.items())
        while tombstones and tombstones[oldest := next(iter(tombstones))] <= self.now:
            del tombstones[oldest]

    def _block(self, since: int, lock_delay: int) -> None:
        if lock_delay and since + lock_delay > self.state.blocked_until:
            self.state.blocked_until = since + lock_delay
            self.state.block = lock_delay

    # -- small things --------------------------------------------------------------------------------------

    def _holder(self, request_id: str) -> Holder | None:
        for holder in self.state.holders:
            if holder.request_id == request_id:
                return holder
        return None

    def _remove_holder(self, request_id: str) -> bool:
        before = len(self.state.holders)
        self.state.holders = [holder for holder in self.state.holders if holder.request_id != request_id]
        return len(self.state.holders) < before

    def _fate(self, token: int) -> Outcome:
        """Tell what became of a lease that is no longer held: whether a newer token was given out since."""
        return Outcome.TAKEN_OVER if self.state.counter > token else Outcome.EXPIRED

    def _bury(self, request_id: str) -> None:
        self.state.tombstones.pop(request_id, None)  # the newest stands last
        self.state.tombstones[request_id] = self.now + TOMBSTONE

    def _notify(
        self,
        channel: str,
        kind: NotificationKind,
        request_id: str,
        token: int = 0,
        after: int = 0,
        *,
        contended: bool = False,
    ) -> None:
        if channel:
            self.notifications.append(Notification(channel, kind, request_id, token, after, contended))

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
            waiter.request.owner,
            waiter.request.weight,
            seconds(self.now - waiter.joined_at),
            waiter.fresh_until >= self.now and self.listening(waiter.request.channel),
        )
