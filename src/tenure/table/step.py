"""The grant table: the executable specification of every lock that Tenure offers.

A name has a capacity, a request has a weight; holders and a strict queue of waiters share the name. Only this package
decides who holds what. The memory store is this table; SQLite and the SQL stores run it inside one transaction, the
stores over rows on a row that is written if nobody else has; property tests compare every other store with it.

The rules, each of which has a counterexample when it is dropped:

1.  A step is atomic and takes place at one instant of the store's clock. Clients' clocks decide nothing.
2.  The queue is strict: its head is granted first, then as many further heads as fit. A newcomer joins the tail; it
    never overtakes, except by rule 10.
3.  Every acquire, renewal, release and withdrawal also moves the queue: it drops dead heads and grants live ones.
4.  A request that is repeated gets the same reply; a request that was withdrawn is never granted.
5.  A token is larger than every token issued for the name before, and no smaller than the store's wall clock, unless
    that is centuries ahead.
6.  A grant is for the whole ttl, in a reply or by a push. A waiter counts a push from the send of its last request.
7.  After an expiry, but not after a release, the lock delay of the lease that expired keeps the name from everybody.
8.  In quarantine, because the store may have forgotten grants, nobody is granted; a holder can restore its lease. A
    waiter does not take a late push of a grant that was forgotten for a new one.
9.  No remaining time exceeds what was asked for: a clock that stepped back must not lock for hours.
10. A request may allow barging for a time, its bound (`fair_after`); the bound of all others is 0. While no waiter has
    waited for its bound, a free name is not granted to the head, but the head is notified; and the next request that
    allows barging takes the name, whether it is a newcomer or waits. From the first bound on the queue is strict again.
"""

from tenure.contracts.messages import (
    AcquireRequest,
    AdjustRequest,
    Busy,
    CapacityMismatch,
    Granted,
    HolderView,
    NameView,
    NotGranted,
    NotificationKind,
    Queued,
    ReleaseRequest,
    RenewReply,
    RenewRequest,
    Reply,
    Withdrawn,
    WithdrawRequest,
)
from tenure.outcome import Outcome
from tenure.table.granting import Granting
from tenure.table.quarantine import restore
from tenure.table.state import PLACEHOLDER, Holder
from tenure.table.times import RETRY, TOMBSTONE, next_token, retry_if_passed, retry_in
from tenure.table.views import view_holder, view_name


class Step(Granting):
    """One atomic step on one name. Make one, call one operation, store `state`, then send `notifications`."""

    __slots__ = ()

    # -- acquire -------------------------------------------------------------------------------------------

    def acquire(self, request: AcquireRequest) -> Reply:  # noqa: PLR0911 - each reply ends the step
        """Grant the name, or queue the request, or refuse it. Also move the queue."""
        self._begin()
        state, request_id = self.state, request.request_id
        if state.tombstones.get(request_id, 0) > self.now or request_id == state.last_released:
            self._serve_queue()
            return Withdrawn()
        if state.holders and (holder := state.find_holder(request_id)):
            self._serve_queue()
            return self._grant_again(holder, request)
        if state.capacity != request.capacity and not self._agree_on_capacity(request):
            return CapacityMismatch(state.capacity)
        if request.votes:
            return self._vote(request)
        if self._fits(request.weight) and (not state.queue.order or self._may_barge(request)):
            return self._take(request)
        if self._join(request):
            self._notify_holders()
        granted = self._advance(request_id)
        if granted is None and not request.wait:
            state.queue.drop(request_id)
        self._notify_new_head(request_id)
        if granted is not None:
            granted.contended = bool(state.queue)
            return granted
        return self._queued(request) if request.wait else self._busy()

    def _take(self, request: AcquireRequest) -> Granted:
        """Grant the request what is free. It may have waited for that."""
        queue = self.state.queue
        if not queue.order:
            return self._grant(request)
        queue.drop(request.request_id)
        granted = self._grant(request)
        granted.contended = bool(queue)
        self._notify_new_head(request.request_id)
        return granted

    def _agree_on_capacity(self, request: AcquireRequest) -> bool:
        """Set another capacity if nobody uses the name; return False if the request must be refused.

        The capacity may have been changed while the request waits: a waiter goes on waiting.
        """
        state = self.state
        if state.adopt_capacity(request.capacity) or self._waits(request.place):
            return True
        self._serve_queue()  # perhaps only dead waiters keep the name in use: this drops them
        return state.adopt_capacity(request.capacity)

    def _vote(self, request: AcquireRequest) -> Granted | Busy:
        """Grant the name if it is free, or offered to this waiter, which was notified and now asks all stores again."""
        state = self.state
        state.remove_holder(PLACEHOLDER + request.place)
        if self._fits(request.weight):
            state.queue.drop(request.place)
            granted = self._grant(request)
            granted.contended = bool(state.queue)
            return granted
        if not request.wait:
            state.queue.drop(request.place)
        elif self._join_votes(request):
            self._notify_holders()
        return self._busy()

    def _grant_again(self, holder: Holder, request: AcquireRequest) -> Granted:
        """Reply to a request that was granted before: its reply or its push was lost, or is still under way."""
        holder.ttl = max(holder.ttl, request.ttl)
        holder.expires_at = max(holder.expires_at, self.now + request.ttl)
        return Granted(holder.token, request.ttl, contended=bool(self.state.queue))

    def _queued(self, request: AcquireRequest) -> Queued:
        """Return the reply to a waiter. The head asks when the name may be free, each next waiter a little later."""
        place, last_token = self.state.queue.place(request.request_id), self.state.counter
        if self.quarantined_until:
            # Every later token is larger than this. The token of a grant that was forgotten is not.
            last_token = max(last_token, self.quarantined_until - self.now + self.stamp - 1)
        retry = retry_in(request, place, self._frees_in(), self._silence_factor(request))
        if request.fair_after:
            waiter, now = self.state.queue[place], self.now
            bound_in = waiter.joined_at + request.fair_after - now
            retry = retry_if_passed(retry, place, bound_in, waiter.quiet_until - now)
        return Queued(last_token, retry, place, self._quarantine_left())

    def _busy(self) -> Busy:
        owners, quarantine = self.state.owners(), self._quarantine_left()
        blocked = 0 if owners or quarantine else max(0, self.state.blocked_until - self.now)
        return Busy(max(self._frees_in(), RETRY), owners, quarantine, blocked=blocked)

    def _waits(self, request_id: str) -> bool:
        return self.state.queue.find(request_id) is not None

    def withdraw(self, withdraw: WithdrawRequest) -> NotGranted:
        """Give up a place in the queue, and also a grant that was made while this request was under way."""
        self._begin()
        state, request_id = self.state, withdraw.request_id
        if withdraw.unsure:
            state.add_tombstone(request_id, self.now)
        reply = NotGranted(state.owners(), state.queue.place(request_id), self._quarantine_left())
        state.remove_holder(request_id)
        state.remove_holder(PLACEHOLDER + request_id)
        state.queue.drop(request_id)
        self._serve_queue()
        return reply

    # -- release, renew, adjust ----------------------------------------------------------------------------

    def release(self, release: ReleaseRequest) -> Outcome:
        """End a lease, and hand the name over in the same step. A repeated release gets the same reply.

        A release with `keep` leaves a placeholder: it takes the room of the lease until its own end. In quarantine the
        store may have forgotten the lease; if it has issued no newer token, nobody had the name since: it is released.
        """
        self._begin()
        state, request_id, keep = self.state, release.request_id, release.keep
        release.unrevoked_for = 0  # also if this step was taken before, on a state that was out of date
        if release.unsure:
            state.add_tombstone(request_id, self.now)
            state.queue.drop(request_id)  # of a late copy of the acquire request, after the lease had run out
            state.queue.drop(request_id.rpartition("/")[0])  # of a vote that was refused, and left its waiter here
        if self._leave_placeholder(request_id, keep) if keep else state.remove_holder(request_id):
            state.last_released = request_id
            if state.queue.order:
                self._serve_queue()
            return Outcome.RELEASED
        released = state.find_holder(PLACEHOLDER + request_id) is not None or state.last_released == request_id
        if self._quarantine_left():
            state.add_tombstone(request_id, self.now)  # so that a late renewal cannot restore the lease
            state.queue.drop(request_id)  # the store may have forgotten that the request was granted
            released = released or state.counter <= release.token
        self._serve_queue()
        if released:
            return Outcome.RELEASED
        if not (self._quarantine_left() or state.was_revoked(request_id, self.now)):
            release.unrevoked_for = TOMBSTONE
        return self._outcome_of(release.token)

    def _leave_placeholder(self, request_id: str, length: int) -> bool:
        """Turn a holder into a placeholder, for `length`; return whether there was a holder.

        The waiters' retry times change with it, so the head of the queue is notified as if it were new.
        """
        holder = self.state.find_holder(request_id)
        if holder is None:
            return False
        holder.request_id, holder.channel = PLACEHOLDER + holder.request_id, ""
        holder.ttl, holder.expires_at, holder.lock_delay = length, self.now + length, 0
        holder.notify_contended = False
        self._head_before = ""
        return True

    def renew(self, renewal: RenewRequest) -> RenewReply:
        """Prolong a lease; never shorten it."""
        self._begin()
        self._serve_queue()
        holder = self.state.find_holder(renewal.request_id) or self._restore(renewal)
        if holder is None or holder.token != renewal.token:
            return self._outcome_of(renewal.token)
        holder.ttl = max(holder.ttl, renewal.ttl)
        holder.expires_at = max(holder.expires_at, self.now + renewal.ttl)
        renewal.contended = bool(self.state.queue)
        return None

    def _restore(self, renewal: RenewRequest) -> Holder | None:
        """Restore a lease that the store may have forgotten; outside a quarantine, return None."""
        if self.now >= self.quarantined_until:
            return None
        return restore(self.state, renewal, self.now, range(self.quarantined_since, self.quarantined_until))

    def adjust(self, adjust: AdjustRequest) -> RenewReply:
        """Change a lease that goes on, and grant the waiters that this makes room for. Never increase the weight."""
        self._begin()
        if adjust.successor and self.state.find_holder(adjust.successor) is not None:  # it was handed over before
            self._serve_queue()
            return None
        holder = self.state.find_holder(adjust.request_id)
        if (
            holder is None
            or holder.token not in (adjust.token, adjust.raise_to)
            or (adjust.successor and (holder.token != adjust.token or self._quarantine_left()))
            or not self._raise(holder, adjust)
        ):
            self._serve_queue()
            return self._outcome_of(adjust.token)
        if adjust.weight:
            holder.weight = min(holder.weight, adjust.weight)
        holder.owner = adjust.owner or holder.owner
        if adjust.successor:
            self._hand_over(holder, adjust)
        self._serve_queue()
        return None

    def _hand_over(self, holder: Holder, adjust: AdjustRequest) -> None:
        """Keep a lease for another client. To the client that had it, this is a revocation."""
        self.state.add_tombstone(holder.request_id, self.now)
        self.state.note_revocation(holder.request_id, self.now)
        self._notify(holder.channel, NotificationKind.REVOKED, holder.request_id, adjust.token)
        holder.request_id, holder.channel, holder.notify_contended = adjust.successor, adjust.channel, False
        if adjust.ttl:
            holder.ttl, holder.expires_at = adjust.ttl, self.now + adjust.ttl
            if self.long_silence:
                self._head_before = ""  # the head waits for another instant now

    def _raise(self, holder: Holder, adjust: AdjustRequest) -> bool:
        """Issue a larger token to a holder, for a quorum; return False if a token as large was issued before."""
        if not adjust.raise_to or holder.token == adjust.raise_to:
            return True
        if self.state.counter >= adjust.raise_to:
            return False
        holder.token = self.state.counter = adjust.raise_to
        return True

    def _outcome_of(self, token: int) -> Outcome:
        """Return what became of a lease that has ended: whether a newer token was issued since."""
        return Outcome.TAKEN_OVER if self.state.counter > token else Outcome.EXPIRED

    # -- revoke, resize, inspect ---------------------------------------------------------------------------

    def revoke(self, token: int = 0) -> list[HolderView]:
        """Take the name from all its holders, or from the holder of a token; notify them, and hand the name over.

        Also skip a token, so that the next grant fences them off.
        """
        self._begin()
        state = self.state
        revoked = [holder for holder in state.holders if token in (0, holder.token)]
        state.holders = [holder for holder in state.holders if token not in (0, holder.token)]
        for holder in revoked:
            state.note_revocation(holder.request_id, self.now)
            state.block_for(holder.lock_delay, self.now)
            self._notify(holder.channel, NotificationKind.REVOKED, holder.request_id, holder.token)
        if revoked:
            state.counter = next_token(state.counter, 0, self.stamp)
            if self.long_silence:
                self._head_before = ""  # it waits for another instant now, and may not ask before it for long
        self._serve_queue()
        return [view_holder(holder, self.now) for holder in revoked]

    def request_revocation(self) -> list[HolderView]:
        """Ask the holders of the name to let go; return those that a notification can reach."""
        self._begin()
        self._serve_queue()
        reachable = [holder for holder in self.state.holders if holder.channel]
        for holder in reachable:
            self._notify(holder.channel, NotificationKind.REVOCATION_REQUESTED, holder.request_id, holder.token)
        return [view_holder(holder, self.now) for holder in reachable]

    def resize(self, before: int, after: int) -> int:
        """Change the capacity of the name if it is `before`, or if nobody uses the name; return the capacity.

        Holders keep their leases, and waiters their places. Waiters that are too heavy now lose theirs: they are told
        to ask again, and are refused when they do.
        """
        self._begin()
        state = self.state
        if state.capacity != before:
            self._advance()  # perhaps only dead waiters keep the name in use: this drops them
        if state.capacity == before or not (state.holders or state.queue):
            state.capacity = after
            for request in [each.request for each in state.queue if each.request.weight > after]:
                state.queue.drop(request.request_id)
                self._notify(request.channel, NotificationKind.HEAD, request.request_id, after=RETRY)
        self._serve_queue()
        return state.capacity

    def view(self, name: str) -> NameView:
        """Return who holds the name and who waits, without moving the queue."""
        self._begin()
        left = self._quarantine_left()
        quarantine = (left, max(0, self.now - self.quarantined_since) if left else 0)
        return view_name(name, self.state, self.now, self.listening, quarantine)
