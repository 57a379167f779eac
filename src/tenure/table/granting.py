"""One name at one instant: who fits, who is granted, who moves up in the queue and who is notified.

`Granting` is the base of `Step`, which has the operations. The rules are in `step.py`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from tenure.contracts.messages import AcquireRequest, Granted, Notification, NotificationKind
from tenure.table.state import PLACEHOLDER, Holder, NameState, Waiter
from tenure.table.times import EARLIER, RETRY, VOTE_OFFER, must_be_told, next_token, silence_factor


@dataclass(slots=True)
class Granting:
    """The state of a name at one instant, and every change of it that more than one operation makes."""

    state: NameState
    now: int
    """The store's clock, which never steps back while the store keeps its state."""
    stamp: int
    """The store's wall clock, for tokens only."""
    listening: Callable[[str], bool]
    """Whether a client listens to a channel. A store that does not know says True."""
    quarantined_until: int = 0
    """When all grants that this store may have forgotten have ended."""
    quarantined_since: int = 0
    """When the quarantine of this store began: a holder that renewed since then is certainly alive."""
    notifications: list[Notification] = field(default_factory=list[Notification])
    long_silence: bool = False
    """Whether a waiter far back in the queue may be silent for longer than its `waiter_ttl`: see `silence_factor`."""
    _head_before: str = ""

    # -- time ----------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """End what has ended by now, and shorten what a clock that stepped back has stretched."""
        state, now = self.state, self.now
        before, state.used_at = state.used_at, now
        stepped_back = now < before
        for holder in state.holders:
            if holder.expires_at <= now:
                state.expire(now)
                break
            holder.expires_at = min(holder.expires_at, now + holder.ttl)
        if state.queue.order:
            self._head_before = state.queue.head
            if stepped_back:
                for waiter in state.queue:
                    waiter.step_back(before, now)
        if state.blocked_until:
            state.blocked_until = min(state.blocked_until, now + state.block)
            if state.blocked_until <= now:
                state.blocked_until = state.block = 0
        if state.tombstones:
            state.end_tombstones(now, stepped_back=stepped_back)

    def _closed_until(self) -> int:
        """Return when a lock delay or a quarantine ends that keeps the name from everybody."""
        return max(self.state.blocked_until, self.quarantined_until)

    def _quarantine_left(self) -> int:
        """Return how long the store still grants nothing because of a quarantine."""
        return max(0, self.quarantined_until - self.now)

    def _frees_in(self) -> int:
        """Return when room may appear though no holder releases: a lock delay or quarantine ends, or else a lease."""
        closed_until = self._closed_until()
        if closed_until > self.now:
            return closed_until - self.now
        return max(0, min((holder.expires_at for holder in self.state.holders), default=0) - self.now)

    # -- grants --------------------------------------------------------------------------------------------

    def _fits(self, weight: int) -> bool:
        """Tell whether a request of this weight can be granted now, if no waiter is ahead of it."""
        state, now = self.state, self.now
        if state.blocked_until > now or self.quarantined_until > now:
            return False
        return not state.holders or state.has_room(weight)

    def _grant(self, request: AcquireRequest) -> Granted:
        """Make the request a holder."""
        state, now, ttl, span = self.state, self.now, request.ttl, request.span
        token = state.counter = next_token(state.counter, request.proposal, self.stamp, votes=request.votes) + span - 1
        state.holders.append(
            Holder(
                request.request_id,
                request.channel,
                request.owner,
                token,
                request.weight,
                ttl,
                request.lock_delay,
                now,
                now + ttl,
                span > 1,
            )
        )
        return Granted(token, ttl)

    # -- the queue -----------------------------------------------------------------------------------------

    def _join(self, request: AcquireRequest) -> bool:
        """Add the request to the tail of the queue, or refresh its place. Return whether to notify the holders.

        Notify them if nobody waited before; and if a waiter asks again, for a holder may have missed the notification.
        """
        queue = self.state.queue
        waiter = queue.find(request.request_id)
        if joins := waiter is None:
            waiter = Waiter(request, self.now, 0)
            queue.join(waiter)
        else:
            queue.replace(waiter, request)
        waiter.fresh_until = self.now + request.waiter_ttl * self._silence_factor(request)
        return len(queue) == 1 or not joins

    def _silence_factor(self, request: AcquireRequest) -> int:
        return silence_factor(request, self.state.queue.place(request.request_id)) if self.long_silence else 1

    def _join_votes(self, request: AcquireRequest) -> bool:
        """Add a request for a vote to the queue, or refresh its place. Return whether to notify the holders.

        The order is that of the first proposals, which are the clients' clocks, so that all stores have the same order.
        A proposal is limited to the store's wall clock, so that no client's clock gains it much.
        """
        before = self.state.queue.find(request.place)
        first = before.request.proposal if before else min(max(request.proposal, self.stamp - EARLIER), self.stamp)
        return self._join(replace(request, request_id=request.place, proposal=first))

    def _may_barge(self, request: AcquireRequest) -> bool:
        """Tell whether a request may take the free name before the live waiters."""
        return bool(request.fair_after) and (not self._live_head(request.request_id) or self._is_passable())

    def _is_passable(self) -> bool:
        """Tell whether requests may pass the waiters, because none of them has waited for its bound.

        The head has waited longest. So no waiter has, if the head has not waited for the shortest bound.
        """
        queue = self.state.queue
        return self.now - queue[0].joined_at < queue.fair_after

    def _serve_queue(self) -> None:
        """Grant the waiters that the step made room for, and notify the head of the queue of what it must know."""
        if self.state.queue.order:
            self._advance()
            self._notify_new_head()

    def _advance(self, answered: str = "") -> Granted | None:
        """Grant the heads of the queue while they fit and may not be passed.

        Return the grant of the request `answered`, whose reply this step is; push all other grants. While nothing fits,
        the queue is not looked at: dead waiters are dropped when that matters.
        """
        if not self._fits(1):
            return None
        reply = None
        while (request := self._live_head(answered)) and self._fits(request.weight):
            if request.votes and self.listening(request.channel):
                break
            if self._is_passable():
                return self._pass(answered)
            self.state.queue.drop(request.request_id)
            if request.request_id == answered:
                reply = self._grant(request)
            elif self.listening(request.channel):
                pushed = self._grant(request)
                self._notify(
                    request.channel,
                    NotificationKind.GRANTED,
                    request.request_id,
                    pushed.token,
                    contended=bool(self.state.queue),
                )
        return reply

    def _pass(self, answered: str) -> Granted | None:
        """Grant the request `answered` before the waiters ahead of it, which may be passed, if it allows barging."""
        waiter = self.state.queue.find(answered)
        if waiter is None or not waiter.request.fair_after:
            return None
        self.state.queue.drop(answered)
        return self._grant(waiter.request)

    def _live_head(self, answered: str) -> AcquireRequest | None:
        """Drop dead waiters from the head of the queue, and return the request of the first live one."""
        queue = self.state.queue
        while queue and queue.head != answered and self._is_dead(queue[0]):
            queue.drop(queue.head)
        return queue[0].request if queue else None

    def _is_dead(self, head: Waiter) -> bool:
        """Tell whether the head of the queue is dead.

        A dead head fell silent; or nobody listens to its channel, and it blocks a lighter waiter that fits.
        """
        if head.fresh_until < self.now:
            return True
        if head.request.weight == 1 or self._fits(head.request.weight):
            return False
        return self._fits(self.state.queue.lightest) and not self.listening(head.request.channel)

    # -- notifications -------------------------------------------------------------------------------------

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

    def _notify_holders(self) -> None:
        """Notify the holders that asked for it that somebody waits."""
        for holder in self.state.holders:
            if holder.notify_contended:
                self._notify(holder.channel, NotificationKind.CONTENDED, holder.request_id)

    def _notify_new_head(self, answered: str = "") -> None:
        """Tell a new head of the queue when to ask, unless it will ask anyway before the name may be free.

        The request `answered` learns its retry time from the reply. The head of a queue for votes is notified when the
        vote is free, and a placeholder takes the room for this waiter. A head that may be passed is notified when the
        name is free.
        """
        queue = self.state.queue
        head = queue.head
        if head and queue[0].request.votes:
            if self._fits(1):
                self._offer_vote(queue[0].request)
        elif head and self._is_passable() and self._fits(queue[0].request.weight):
            self._notify_that_free()
        elif head and head not in (self._head_before, answered):
            waiter, frees_in = queue[0], self._frees_in()
            if must_be_told(waiter.request, waiter.fresh_until, self.now + frees_in):
                self._notify(waiter.request.channel, NotificationKind.HEAD, head, after=max(frees_in, RETRY))

    def _notify_that_free(self) -> None:
        """Notify the head that the name is free. Drop heads that do not listen.

        A head that comes too late is notified again only after as long as it has waited by now, and after half its
        bound not any more: then it asks by itself. So a holder that releases and acquires again and again wakes only a
        few waiters, and the name does not lie free for longer than the head has waited.
        """
        queue, now = self.state.queue, self.now
        while self._live_head(""):
            head = queue[0]
            waited = now - head.joined_at
            if head.quiet_until > now or waited >= queue.fair_after // 2:
                return
            if self.listening(head.request.channel):
                head.quiet_until = now + max(RETRY, waited)
                self._notify(head.request.channel, NotificationKind.HEAD, queue.head)
                return
            queue.drop(queue.head)

    def _offer_vote(self, request: AcquireRequest) -> None:
        """Notify a waiter for a vote that the vote is free, and block all others by a placeholder for a while."""
        self._notify(request.channel, NotificationKind.HEAD, request.request_id, after=RETRY)
        request_id, until = PLACEHOLDER + request.request_id, self.now + VOTE_OFFER
        self.state.holders.append(
            Holder(request_id, "", request.owner, self.state.counter, 1, VOTE_OFFER, 0, self.now, until)
        )
