"""The checks of the store: the order of grants, the queue, what is left behind, and how long waiters wait.

They observe one node. A store of several nodes needs these checks for each node, and the order of tokens across them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from simulation.invariants import Invariant, Tell, Trace
from simulation.node import Node
from simulation.runtime import World
from tenure.contracts.deadlines import DRIFT, EPSILON, MICROS, NEVER
from tenure.table.state import PLACEHOLDER, Holder, NameState, Waiter
from tenure.table.times import GRACE, STAGGER

RE_POLLED = 2.5
"""Within how many seconds each waiter has sent its request again, and so found a dead head that blocks lighter ones."""

FAIRNESS_COUNT = 1
"""The `fairness_count` of the simulated clients, which have few tasks."""

RENEWING = 0.4
"""Within what share of its ttl a holder has renewed its lease, and has learnt whether the name is contended."""


@dataclass(slots=True)
class Place:
    """The place of a waiter: the order in which it joined, and the true time."""

    order: int
    since: float
    joined_at: int
    """The same by the store's clock; the present time if that stepped back to before."""
    fresh_until: int = 0
    """When the waiter counts as dead unless it repeats its request, by the store's clock."""
    heard: float = 0.0
    """When it was last heard, in true time."""


@dataclass(slots=True)
class Followed:
    """The observations of one name."""

    token: int = 0
    """The highest granted token."""
    counter: int = 0
    tokens: dict[str, int] = field(default_factory=dict[str, int])
    """The token of each granted request."""
    holders: dict[str, Holder] = field(default_factory=dict[str, Holder])
    granted_at: dict[str, float] = field(default_factory=dict[str, float])
    """When each holder was granted the name, in true time."""
    pushed: dict[str, int] = field(default_factory=dict[str, int])
    """By request: the end of a lease that was granted by a notification and that its client has not confirmed."""
    turns: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    """By request: when its client had each lease of it, the first by the grant, the others by a local hand-off."""
    queue: dict[str, Place] = field(default_factory=dict[str, Place])
    delayed_until: int = 0
    """The end of the lock delay after an expiry, by the store's clock."""
    delayed_until_in_true_time: float = 0.0
    """The same in true time, for a store that keeps a time for each name."""
    forgotten: dict[str, Holder] = field(default_factory=dict[str, Holder])
    """By request: leases that the node may have forgotten, or whose end it may not know, with a lock delay to keep."""
    free_since: float | None = None
    """Since when the first live waiter fits."""
    first: str = ""
    """Which waiter that is."""
    head_fits_since: float | None = None
    """Since when the head of the queue fits as well, which may be dead."""


def ended(forgotten: Mapping[str, Holder], state: NameState) -> list[Holder]:
    """Return which forgotten leases have ended: a semaphore grants beside one that a node has after all."""
    held = {holder.request_id for holder in state.holders}
    return [lease for request_id, lease in forgotten.items() if request_id not in held]


class StoreChecks:
    """Checks every state that a node stores."""

    def __init__(self, world: World, tell: Tell, trace: Trace, prompt_within: float) -> None:
        """Report violations to `tell`. `prompt_within` is in seconds; 0: grants need not be prompt."""
        self.grants = 0
        self.restored = 0
        """The number of forgotten leases that their holders took up again."""
        self.successors: dict[str, str] = {}
        """The requests of leases that were handed over, and those of their successors."""
        self._world = world
        self._tell = tell
        self._trace = trace
        self._prompt_within = prompt_within
        self._names: dict[str, Followed] = {}
        self._joins = 0
        self._gone: dict[str, int] = {}
        """By request whose withdrawal was acknowledged: the time of the store's clock when the withdrawal was sent."""
        self._settled: set[str] = set()
        self._min_holds: dict[str, float] = {}
        """By request: the end of its min_hold, in true time."""
        self._disturbed_until: dict[str, float] = {}
        self._dead: dict[str, float] = {}
        """The channels of clients that died, and when: a step that was read before does not see it."""
        self._bounds: dict[str, int] = {}
        self._sent: dict[str, int] = {}
        """By request that allows barging: for how long, in microseconds."""
        self._predecessors: dict[str, str] = {}
        """By request that a lease gets when it is handed over: the one that it had."""
        self._let_go: set[str] = set()
        """Requests whose client has begun to release or to withdraw them."""

    # -- events --------------------------------------------------------------------------------------------

    def after_step(self, node: Node, name: str) -> None:
        """Check the state that a node stored."""
        state = node.state(name)
        followed = self._names.setdefault(name, Followed())
        self._note_ends(node, name, state, followed)
        if state.counter < followed.counter:
            self._tell(Invariant.TOKENS, f"{name}: the counter goes back from {followed.counter} to {state.counter}")
        followed.counter = state.counter
        for holder in state.holders:
            if holder.request_id not in followed.holders and not holder.request_id.startswith(PLACEHOLDER):
                granted_anew = not node.takes_up() and self._waits(holder.request_id, followed)
                before = self._predecessors.get(holder.request_id, "")
                if before in followed.holders:
                    self._check_handed_over(node, name, before, holder, followed)
                elif followed.tokens.get(holder.request_id) == holder.token and not granted_anew:
                    self._check_taken_up(node, name, holder)
                else:
                    self._check_grant(node, name, holder, state, followed)
        followed.holders = {holder.request_id: holder for holder in state.holders}
        self._follow_queue(node, state, followed)
        requests = [holder.request_id for holder in state.holders] + [
            waiter.request.request_id for waiter in state.queue
        ]
        if len(set(requests)) < len(requests):
            self._tell_twice(name, requests)
        if not self._gone.keys().isdisjoint(requests):
            self._tell_gone(node, name, requests)

    def forgot(self, node: Node, name: str) -> None:
        """Start over from the state that a node still has, for the order of a forgotten queue no longer counts."""
        state = node.state(name)
        followed = self._names.setdefault(name, Followed())
        followed.queue = {}
        self._follow_queue(node, state, followed)
        # In a quarantine the node knows the length of their leases, too.
        known = {holder.request_id for holder in state.holders} if node.takes_up() else set[str]()
        followed.forgotten = {
            request_id: holder
            for request_id, holder in (followed.forgotten | followed.holders).items()
            if holder.lock_delay and (request_id in known or node.sits_out(holder.ttl + holder.lock_delay))
        }
        followed.holders = {holder.request_id: holder for holder in state.holders}
        followed.delayed_until = 0
        followed.counter = state.counter

    def clock_stepped(self) -> None:
        """Expect no lock delay that began before the step of the clock."""
        for followed in self._names.values():
            followed.delayed_until = 0
            followed.forgotten.clear()

    def settled(self, request_id: str) -> None:
        """Record that an acquisition has ended, with a lease or without."""
        self._settled.add(request_id)

    def sent(self, request_id: str, fresh_until: int) -> None:
        """Record that the client of a waiter sends its request, and for how long that is not long ago."""
        self._sent[request_id] = fresh_until

    def may_be_passed(self, request_id: str, fair_after: int) -> None:
        """Record that a request allows barging: for how long it may be passed."""
        self._bounds[request_id] = fair_after

    def holds_at_least(self, name: str, request_id: str, seconds: float) -> None:
        """Record the min_hold of a request, counted from its grant by the slowest clock."""
        granted_at = self._names[name].granted_at.get(request_id, 0.0)
        self._min_holds[request_id] = granted_at + seconds * (1.0 - DRIFT)

    def died(self, channel: str) -> None:
        """Record that a client died, so that it releases nothing any more."""
        self._dead[channel] = self._world.time

    def handing_over(self, request_id: str, successor: str) -> None:
        """Record that a client wants a lease to go on under another request."""
        self._predecessors[successor] = request_id

    def letting_go(self, request_id: str) -> None:
        """Record that a client begins to release a lease or to withdraw a request."""
        self._let_go.add(request_id)

    def gone(self, request_id: str, sent: int) -> None:
        """Record that a request must not appear any more. `sent` is the store's time when it was given up.

        The store promises this until its tombstone expires by its own clock, which may step forward.
        """
        self._gone[request_id] = sent

    def disturbed(self, channel: str, until: float) -> None:
        """Record that a client need not be prompt before `until`."""
        self._disturbed_until[channel] = max(until, self._disturbed_until.get(channel, 0.0))

    # -- grants --------------------------------------------------------------------------------------------

    def _note_ends(self, node: Node, name: str, state: NameState, followed: Followed) -> None:
        now, lease = node.clock(), {holder.request_id for holder in state.holders}
        for request_id, holder in followed.holders.items():
            if request_id not in lease:
                expired = holder.expires_at <= now
                self._trace("store", f"{name}: {request_id} {'has expired' if expired else 'is released'}")
                let_go = request_id.startswith(PLACEHOLDER) or not expired
                if let_go and PLACEHOLDER + request_id not in lease and not node.takes_up():
                    self._check_min_hold(name, request_id.removeprefix(PLACEHOLDER))
                if expired and holder.lock_delay:
                    delayed_until = holder.expires_at + holder.lock_delay
                    followed.delayed_until = max(followed.delayed_until, delayed_until)
                    followed.delayed_until_in_true_time = node.in_true_time(delayed_until)

    def _check_min_hold(self, name: str, request_id: str) -> None:
        early = self._min_holds.get(request_id, 0.0) - self._world.time
        if early > EPSILON:
            self._tell(Invariant.MIN_HOLD, f"{name}: {request_id} is released {early:.3f} s before its min_hold")

    def _waits(self, request_id: str, followed: Followed) -> bool:
        """Tell whether a request can be granted anew, for it is in the queue or its client still repeats it."""
        return request_id in followed.queue or request_id not in self._settled

    def _check_taken_up(self, node: Node, name: str, holder: Holder) -> None:
        self.restored += 1
        self._trace("store", f"{name}: {holder.request_id} takes its lease up again")
        if not node.takes_up():
            self._tell(Invariant.GUARD, f"{name}: {holder.request_id} took up again a lease that had expired")

    def _check_handed_over(self, node: Node, name: str, before: str, holder: Holder, followed: Followed) -> None:
        self._trace("store", f"{name}: {before} is handed over to {holder.request_id}, token {holder.token}")
        self.successors[before] = holder.request_id
        self.gone(before, node.clock())
        followed.granted_at[holder.request_id] = self._world.time
        followed.tokens[holder.request_id] = holder.token
        if holder.token <= followed.token:
            self._tell(Invariant.TOKENS, f"{name}: token {holder.token} was handed over after {followed.token}")
        followed.token = max(followed.token, holder.token)

    def _check_grant(self, node: Node, name: str, holder: Holder, state: NameState, followed: Followed) -> None:
        self.grants += 1
        self._trace("store", f"{name}: granted to {holder.request_id}, token {holder.token}")
        followed.granted_at[holder.request_id] = self._world.time
        if state.capacity == 1:
            followed.free_since = followed.head_fits_since = None  # also if it is free again when that is looked at
        followed.tokens[holder.request_id] = holder.token
        if holder.token <= followed.token:
            self._tell(Invariant.TOKENS, f"{name}: token {holder.token} was granted after {followed.token}")
        followed.token = max(followed.token, holder.token)
        early = node.closed_until() - self._world.time
        if early > 0.0:
            self._tell(Invariant.GUARD, f"{name}: {holder.request_id} was granted {early:.3f} s before it was safe")
        early = (followed.delayed_until - holder.granted_at) / 1e6
        if node.keeps_own_time:
            early = followed.delayed_until_in_true_time - self._world.time
        if early > 0:
            self._tell(
                Invariant.DELAY, f"{name}: {holder.request_id} was granted {early:.3f} s before the delay was over"
            )
        self._check_forgotten(name, holder, state, followed)
        if holder.expires_at - holder.granted_at < holder.ttl:
            length = (holder.expires_at - holder.granted_at) / 1e6
            self._tell(Invariant.WHOLE, f"{name}: {holder.request_id} was granted {length:.3f} s only")
        if holder.request_id in node.granted_by_push:
            followed.pushed[holder.request_id] = holder.expires_at
            self._check_push(node, name, holder, followed)
        self._check_overtaking(node, name, holder, state, followed)

    def _check_forgotten(self, name: str, holder: Holder, state: NameState, followed: Followed) -> None:
        for lease in ended(followed.forgotten, state):
            early = (lease.expires_at + lease.lock_delay - holder.granted_at) / 1e6
            if early > EPSILON and lease.request_id not in self._let_go and lease.channel in self._dead:
                late = f"before the delay after the forgotten lease of {lease.request_id} was over"
                self._tell(Invariant.DELAY, f"{name}: {holder.request_id} was granted {early:.3f} s {late}")

    def _check_push(self, node: Node, name: str, holder: Holder, followed: Followed) -> None:
        died = self._dead.get(holder.channel, 0.0)
        if not node.listens(holder.channel) and died <= node.in_true_time(holder.granted_at):
            self._tell(
                Invariant.PROMPT, f"{name}: {holder.request_id} was granted, and nobody receives the notification"
            )
        place = followed.queue.get(holder.request_id)
        if place is None:
            return
        fresh_until = place.fresh_until
        if node.steps_at_clients:  # the step that granted it may also have taken the request that its client sent last
            fresh_until = max(fresh_until, self._sent.get(holder.request_id, 0))
        if fresh_until < holder.granted_at:
            silent = (holder.granted_at - fresh_until) / 1e6
            self._tell(
                Invariant.PUSH, f"{name}: {holder.request_id} was granted after {silent:.3f} s of silence too many"
            )

    def _check_overtaking(self, node: Node, name: str, holder: Holder, state: NameState, followed: Followed) -> None:
        place = followed.queue.get(holder.request_id)
        for waiter in state.queue:
            who = waiter.request.request_id
            other = followed.queue.get(who)
            if other is None or self._joined_anew(node, other, waiter):
                continue
            if place is None or other.order < place.order:
                waited = holder.granted_at - other.joined_at
                if holder.request_id not in self._bounds or waited >= self._bounds.get(who, 0):
                    late = f"{who}, which waited longer, for {waited / 1e6:.3f} s"
                    self._tell(Invariant.FIFO, f"{name}: {holder.request_id} was granted before {late}")

    # -- the queue -----------------------------------------------------------------------------------------

    def _follow_queue(self, node: Node, state: NameState, followed: Followed) -> None:
        before, after = followed.queue, dict[str, Place]()
        now = max(node.clock(), state.used_at)  # a clock that stepped back is noticed by the next step, not by a write
        for waiter in state.queue:
            place = before.get(waiter.request.request_id)
            if place is None or self._joined_anew(node, place, waiter):
                self._joins += 1
                place = Place(self._joins, self._world.time, now)
            place.joined_at = min(place.joined_at, now)
            if place.fresh_until != waiter.fresh_until:
                place.heard = self._world.time
            place.fresh_until = waiter.fresh_until
            after[waiter.request.request_id] = place
        followed.queue = after

    def _joined_anew(self, node: Node, place: Place, waiter: Waiter) -> bool:
        """Tell whether a waiter counted as dead, lost its place and joined again, all in one step.

        Where a name has a time of its own, which may stand still, a client that has seen the waiter silent for its
        whole life takes it for dead, too.
        """
        dead = place.fresh_until < waiter.joined_at or not node.listens(waiter.request.channel)
        if node.keeps_own_time:
            silent = self._world.time - place.heard
            dead = dead or silent >= waiter.request.waiter_ttl / MICROS / (1 + DRIFT / 2)
        return dead and waiter.joined_at > place.joined_at

    def _tell_twice(self, name: str, requests: list[str]) -> None:
        seen: set[str] = set()
        for request_id in requests:
            if request_id in seen:
                self._tell(Invariant.ONCE, f"{name}: {request_id} holds or waits twice")
            seen.add(request_id)

    def _tell_gone(self, node: Node, name: str, requests: list[str]) -> None:
        for request_id in requests:
            if request_id in self._gone and node.withdrawals_clock() < self._gone[request_id] + node.refuses_for:
                self._tell(Invariant.CLEAN, f"{name}: {request_id} is back after its withdrawal was acknowledged")

    # -- time ----------------------------------------------------------------------------------------------

    def check_prompt(self, node: Node) -> None:
        """Check that no live waiter waits for a free name, and that every holder knows of its grant."""
        for name in node.names():
            followed, state = self._names.setdefault(name, Followed()), node.state(name)
            self._check_free(node, name, state, followed)
            for holder in state.holders:
                self._check_unaware(node, name, holder, followed)

    def _check_free(self, node: Node, name: str, state: NameState, followed: Followed) -> None:
        now = node.clock()
        waiting = [each for each in state.queue if each.fresh_until > now and node.listens(each.request.channel)]
        if (
            not waiting
            or not _would_fit(waiting[0], state, now)
            or (node.keeps_dead_waiters and state.queue[0] is not waiting[0])
        ):
            followed.free_since = followed.head_fits_since = None
            return
        first, before = waiting[0].request.request_id, followed.first
        followed.first = first
        left = first != before and before in self._bounds and before not in followed.queue
        if followed.free_since is None or left:  # who left may have been passed for longer than who is first now
            followed.free_since = self._world.time
        if not _would_fit(state.queue[0], state, now) or (
            state.queue[0] is not waiting[0] and _has_expired(state, now)
        ):
            followed.head_fits_since = None
        elif followed.head_fits_since is None:
            followed.head_fits_since = self._world.time
        bounds = [(followed.free_since, max(self._prompt_within, RE_POLLED))]
        if followed.head_fits_since is not None:
            bounds.append((followed.head_fits_since, self._prompt_within))
        # Dead waiters keep their places until a request arrives.
        late = state.queue.place(waiting[0].request.request_id) * STAGGER / 1e6
        late += self._free_for(state, followed, waiting[0])
        for waiter in waiting:
            place = followed.queue.get(waiter.request.request_id)
            joined = place.since if place else 0.0
            ended = waiter.request.request_id in self._settled  # its withdrawal was lost: the waiter will count as dead
            channel = waiter.request.channel
            if not ended and any(
                self._should_know(channel, max(since, joined), bound + late) for since, bound in bounds
            ):
                free = self._world.time - followed.free_since
                self._tell(
                    Invariant.PROMPT, f"{name} is free for {free:.3f} s, and {waiter.request.request_id} waits for it"
                )
                followed.free_since = followed.head_fits_since = self._world.time
                return

    def _free_for(self, state: NameState, followed: Followed, first: Waiter) -> float:
        """Return for how many seconds a name may lie free because its waiters may be passed: 0 if one never may.

        The live head is notified, or repeats its request by itself, before it has waited for twice as long as it had
        when the name became free; from half its bound on, soon after its bound. If the head is dead, so do the others.
        """
        bounds = [self._bounds.get(waiter.request.request_id, 0) / 1e6 for waiter in state.queue]
        place = followed.queue.get(first.request.request_id)
        if not all(bounds) or place is None or followed.free_since is None:
            return 0.0
        grace = (len(bounds) + 1) * GRACE / 1e6
        if state.queue[0] is not first:
            return max(bounds) * (1.0 + DRIFT) + grace
        waited = max(0.0, followed.free_since - place.since)
        if self._world.time - place.since < min(bounds) / 2:
            return waited
        return max(0.0, bounds[0] * (1.0 + DRIFT) - waited + grace)

    def _check_unaware(self, node: Node, name: str, holder: Holder, followed: Followed) -> None:
        unheard = holder.expires_at <= followed.pushed.get(holder.request_id, 0) or not node.has_told(holder.request_id)
        if not unheard or holder.request_id in self._settled or not node.listens(holder.channel):
            return
        since = followed.granted_at.get(holder.request_id, self._world.time)
        if self._should_know(holder.channel, since, self._prompt_within):
            self._tell(Invariant.PROMPT, f"{name} was granted to {holder.request_id}, which does not know of it")
            self._settled.add(holder.request_id)

    def _should_know(self, channel: str, since: float, within: float) -> bool:
        return self._world.time - max(since, self._disturbed_until.get(channel, 0.0)) > within

    def check_fairness(self, node: Node, name: str, request_id: str, joined: float) -> None:
        """Check a lease of a contender that joined at `joined`, in true time.

        While another client waits, a local hand-off goes only to who waited when the turn of the client began, and
        there are FAIRNESS_COUNT of them in a turn at most. A turn begins with the grant, or when the client knows that
        another waits.
        """
        turn = self._names.setdefault(name, Followed()).turns.setdefault(request_id, [])
        turn.append(self._world.time)
        began = max(turn[0], self._known_since(node, name, request_id))
        if len(turn) > 1 and joined > began:
            self._tell(Invariant.FIFO, f"{name} is handed off by {request_id} to a newcomer, though others wait")
        if sum(each > began for each in turn) > FAIRNESS_COUNT:
            self._tell(Invariant.FIFO, f"{name} is handed off by {request_id} too often, though others wait")

    def check_lingering(self, node: Node, name: str, request_id: str) -> None:
        """Check that a name does not linger while another client waits for it."""
        if self._world.time > self._known_since(node, name, request_id):
            self._tell(Invariant.PROMPT, f"{name} lingers for {request_id}, though others wait")
            self._disturbed_until[request_id] = float("inf")  # reported once

    def _known_since(self, node: Node, name: str, request_id: str) -> float:
        """Return when the holder of a name must have learnt that another client waits for it; NEVER if none does."""
        known = NEVER
        followed = self._names.get(name)
        holder = followed.holders.get(request_id) if followed is not None else None
        if not self._prompt_within or followed is None or holder is None or request_id in self._disturbed_until:
            return known
        for waiter in node.state(name).queue:
            place = followed.queue.get(waiter.request.request_id)
            alive = waiter.fresh_until > node.clock() and node.listens(waiter.request.channel)
            since = (
                max(place.since, followed.granted_at.get(request_id, 0.0)) if place is not None else self._world.time
            )
            within = self._prompt_within
            if within >= RE_POLLED:  # notifications may be lost, so the holder learns of the waiter when it renews
                within = max(within, RENEWING * holder.ttl / MICROS)
            if alive:
                known = min(known, max(since, self._disturbed_until.get(holder.channel, 0.0)) + within)
        return known

    def check_drained(self, node: Node) -> None:
        """Check that the store is empty when all clients have finished."""
        now = node.clock()
        for name in node.names():
            state = node.state(name)
            remaining = [holder.request_id for holder in state.holders if holder.expires_at > now]
            remaining += [waiter.request.request_id for waiter in state.queue if waiter.fresh_until > now]
            if remaining:
                self._tell(Invariant.DRAINED, f"{name}: {', '.join(remaining)} is left in the store at the end")


def _has_expired(state: NameState, now: int) -> bool:
    """Tell whether a lease or a lock delay has ended without a request since: then a dead head is not yet found."""
    return 0 < state.blocked_until <= now or any(holder.expires_at <= now for holder in state.holders)


def _would_fit(waiter: Waiter, state: NameState, now: int) -> bool:
    taken = sum(holder.weight for holder in state.holders if holder.expires_at > now)
    return state.blocked_until <= now and (not taken or taken + waiter.request.weight <= state.capacity)
