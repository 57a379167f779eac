"""Bugs to plant in the shipped protocol, one at a time, to see that the simulation notices.

Each is a patch of a function or a constant: nothing in the package knows of them. A bug that the simulation does not
notice is a hole in the invariants or in what the simulated clients do.
"""

# ruff: noqa: ANN401, D103 - each function is told by the bug that it plants, and replaces a method of any type
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from simulation import Faults, Plan
from simulation.resource import Resource
from tenure.contracts.deadlines import NEVER, valid_until
from tenure.contracts.messages import (
    AcquireRequest,
    AdjustRequest,
    Busy,
    Granted,
    NotGranted,
    NotificationKind,
    Queued,
    RenewRequest,
)
from tenure.core import attempt, lease, multi_acquire
from tenure.core.agenda import Agendas
from tenure.core.attempt import Attempt
from tenure.core.background_releases import BackgroundReleases
from tenure.core.lease import CoreLease, Grant, LeaseState
from tenure.core.local_queue import LocalQueue, LocalQueues
from tenure.core.renewals import Renewals
from tenure.core.renewer import Renewer
from tenure.errors import OutcomeUnknown
from tenure.table import granting
from tenure.table.state import NameState, Queue, Waiter
from tenure.table.step import Step

if TYPE_CHECKING:
    from collections.abc import Generator

Patch = AbstractContextManager[Any]


@dataclass(frozen=True)
class Mutant:
    """A bug, how to plant it, and the scenarios in which to look for it, in order."""

    bug: str
    plant: Callable[[], Patch]
    scenarios: tuple[str, ...] = ("wire",)
    aim: Callable[[Plan], Plan] = lambda plan: plan
    """How to make the drawn plans likelier to meet it, within what the scenario allows."""
    first: int = 0
    """The seed to begin with: of a bug that is seldom met, one that met it when this was written."""

    def seeds(self, count: int) -> Iterator[int]:
        """Go through that many seeds, all of them, in the order in which to look."""
        return ((self.first + step) % count for step in range(count))


def replaced(owner: object, name: str, with_: object) -> Callable[[], Patch]:
    """Return a way to replace something."""
    return lambda: patch.object(owner, name, with_)


def wrapped(owner: type, name: str, wrapper: Callable[..., Any]) -> Callable[[], Patch]:
    """Return a way to replace a method by `wrapper(original, self, ...)`."""
    original = getattr(owner, name)

    def method(self: object, *args: object, **options: object) -> object:
        return wrapper(original, self, *args, **options)

    return lambda: patch.object(owner, name, method)


def both(*plants: Callable[[], Patch]) -> Callable[[], Patch]:
    """Return a way to plant several patches at once."""

    @contextmanager
    def plant() -> "Generator[None]":
        with ExitStack() as stack:
            for each in plants:
                stack.enter_context(each())
            yield

    return plant


def crowd_and_kill(plan: Plan) -> Plan:
    """Have long queues, and holders that die, some of whose leases end sooner than the ones before."""
    scenario, faults = replace(plan.scenario, ttls=(0.3, 8.0)), Faults(crashes=8)
    return replace(plan, scenario=scenario, clients=6, tasks=1, rounds=4, names=1, duration=5.0, faults=faults)


def kill_the_quick(plan: Plan) -> Plan:
    """Have holders with short leases die while those who wait have long ones, and ask seldom."""
    scenario = replace(plan.scenario, ttls=(0.3, 8.0, 8.0, 8.0, 8.0))
    return replace(
        plan, scenario=scenario, clients=5, tasks=1, rounds=4, names=1, duration=4.0, faults=Faults(crashes=4)
    )


def do_nothing(self: object, *args: object, **options: object) -> None:
    pass


# -- what a holder believes --------------------------------------------------------------------------------


def keep_half(original: Any, self: CoreLease) -> Any:
    return original(self) // 2


def make_too_much_room(original: Any, self: Step, adjust: AdjustRequest) -> Any:
    holder = self.state.find_holder(adjust.request_id)
    if holder is not None:
        holder.weight = 0
    return original(self, adjust)


async def count_grant_from_reply(original: Any, self: Attempt, until: float) -> Any:
    reply = await original(self, until)
    if isinstance(reply, Granted):
        self._sent = self._runtime.now()
    return reply


async def keep_what_was_won(self: Any) -> None:
    pass


async def leave_nothing(self: Attempt, waiter_ttl: float) -> NotGranted:
    return NotGranted()


def count_from_now(original: Any, self: Any, reply: Any) -> Any:
    self._sent = self._runtime.now()
    return original(self, reply)


along_from_reply = wrapped(multi_acquire._Part, "is_answered", count_from_now)


async def count_place_from_reply(original: Any, self: Attempt, until: float) -> Any:
    reply = await original(self, until)
    if isinstance(reply, Queued):
        self._sent = self._runtime.now()
    return reply


def count_from_push(self: Attempt, token: int) -> CoreLease | None:
    return self._enter(token, valid_until(self._runtime.now(), self._request.ttl))


async def trust_any_push(original: Any, self: Attempt, reply: Queued) -> Any:
    return await original(self, Queued(0, reply.retry_in, reply.place))


def enter_too_late(original: Any, self: Attempt, token: int, until: float) -> Any:
    return original(self, token, max(until, self._runtime.now() + 0.001))


def count_renewal_from_reply(original: Any, self: CoreLease, sent: float, ttl: int) -> bool:
    return bool(original(self, self.runtime.now(), ttl))


def without_drift(sent: float, ttl: int) -> float:
    return sent + ttl / 1_000_000


def revive(self: CoreLease, sent: float, ttl: int) -> bool:
    self.current, self.lost_because = LeaseState.HELD, ""
    self.valid_until = max(self.valid_until, valid_until(sent, ttl))
    return True


def lose_in_silence(self: CoreLease) -> bool:
    return self.runtime.now() >= self.valid_until


def lose_again(self: CoreLease, because: str) -> bool:
    self.current, self.lost_because = LeaseState.LOST, because
    self._tell()
    return True


def look_for_what_is_due_only(original: Any, self: Renewer, now: float) -> float:
    original(self, now)
    return max(now + 0.05, min((lease.due_at for lease in self.kept()), default=now + 1.0))


def tell_when_renewed(original: Any, self: Renewer, now: float) -> float:
    return now + 0.01 if self._renewals.running else float(original(self, now))


def ignore_refusal(self: Renewals, lease: CoreLease, sent: float, renewal: RenewRequest, reply: object) -> None:
    if lease.renewed(sent, renewal.ttl):
        lease.schedule(self._runtime.random())


def find_nothing(self: Agendas, now: float) -> list[CoreLease]:
    return []


def hold_for_ever(original: Any, self: Attempt, token: int, until: float) -> Any:
    self.spec = replace(self.spec, max_hold=NEVER)
    return original(self, token, until)


# -- asking and leaving ------------------------------------------------------------------------------------


async def forget_to_leave_when_cancelled(
    original: Any, self: Attempt, ended_by: BaseException | None = None
) -> NotGranted:
    return NotGranted() if ended_by is not None else await original(self)


def forgetting_to_leave(when: str) -> Callable[[], Patch]:
    """Forget to leave after a timeout; a cancellation still does (its `finish` is of the same coroutine)."""
    original_run, original_leave = Attempt.run, Attempt._withdraw

    async def run(self: Attempt) -> CoreLease | NotGranted:
        try:
            return await original_run(self)
        finally:
            self._engaged = False

    async def withdraw(self: Attempt, ended_by: BaseException | None = None) -> NotGranted:
        return NotGranted() if self._is_late() or when == "always" else await original_leave(self, ended_by)

    return both(replaced(Attempt, "run", run), replaced(Attempt, "_withdraw", withdraw))


async def lost_reply_is_no(original: Any, self: Attempt, until: float) -> Any:
    try:
        return await original(self, until)
    except OutcomeUnknown:
        self._unsure = False
        return Busy(1000)


def never_unsure(original: Any, self: Grant, request: Any, title: str, last: int, _unsure: object) -> None:
    original(self, request, title, last, unsure=False)


def ignore_grants(original: Any, self: Attempt, notification: Any) -> None:
    if notification.kind is not NotificationKind.GRANTED:
        original(self, notification)


def forget_to_wake(self: Attempt, notification: Any) -> None:
    if notification.kind is NotificationKind.GRANTED:
        self._granted = max(self._granted, notification.token)


# -- the table ---------------------------------------------------------------------------------------------


def overtake(original: Any, self: Step, request: AcquireRequest) -> Any:
    if (
        not self.state.find_holder(request.request_id)
        and request.request_id not in self.state.tombstones
        and self._fits(request.weight)
    ):
        self.state.queue.drop(request.request_id)
        return self._grant(request)
    return original(self, request)


def stand_in_front(self: Step, request: AcquireRequest) -> None:
    self.state.queue.drop(request.request_id)
    self.state.queue = Queue([Waiter(request, self.now, self.now + request.waiter_ttl), *self.state.queue])


def stand_at_tail_again(self: Step, request: AcquireRequest) -> None:
    self.state.queue.drop(request.request_id)
    self.state.queue.join(Waiter(request, self.now, self.now + request.waiter_ttl))


def light_ones_first(self: Step, answered: str) -> AcquireRequest | None:
    waiting = [waiter for waiter in self.state.queue if self._fits(waiter.request.weight)] or [*self.state.queue]
    if waiting:
        self.state.queue.drop(waiting[0].request.request_id)
        self.state.queue = Queue([waiting[0], *self.state.queue])
    return waiting[0].request if waiting else None


def grant_without_counting(original: Any, self: Step, *args: Any, **options: Any) -> Any:
    counter = self.state.counter
    granted = original(self, *args, **options)
    self.state.counter = counter
    return granted


def remove_anyone(self: NameState, request_id: str) -> bool:
    removed, self.holders = bool(self.holders), []
    return removed


def leave_the_queue_only(original: Any, self: Step, withdraw: Any) -> NotGranted:
    if withdraw.unsure:
        self.state.add_tombstone(withdraw.request_id, self.now)
    self.state.queue.drop(withdraw.request_id)
    return NotGranted()


def leave_the_grant_only(original: Any, self: Step, withdraw: Any) -> NotGranted:
    self._begin()
    if withdraw.unsure:
        self.state.add_tombstone(withdraw.request_id, self.now)
    self.state.remove_holder(withdraw.request_id)
    self._serve_queue()
    return NotGranted()


def ask_the_dead(self: Step, answered: str) -> AcquireRequest | None:
    self.listening = lambda channel: True  # whoever listens or not
    return self.state.queue[0].request if self.state.queue else None


def forget_to_prolong(self: Step, holder: Any, request: AcquireRequest) -> Granted:
    return Granted(holder.token, request.ttl)


def push_for_less(original: Any, self: Step, channel: str, kind: NotificationKind, *args: Any, **options: Any) -> None:
    if kind is NotificationKind.GRANTED:
        self.state.holders[-1].expires_at = self.now + min(self.state.holders[-1].ttl, 200_000)
    original(self, channel, kind, *args, **options)


def answer_for_less(original: Any, self: Step, request: AcquireRequest) -> Any:
    before = self.state.find_holder(request.request_id)
    reply = original(self, request)
    holder = self.state.find_holder(request.request_id)
    if before is None and holder is not None:
        holder.expires_at = self.now + min(request.ttl, 200_000)
    return reply


def count_push_for_longer(self: Attempt, token: int) -> CoreLease | None:
    return self._enter(token, valid_until(self._sent, self._request.ttl + self._request.interval))


def shorten_on_renewal(original: Any, self: Step, renewal: Any) -> Any:
    reply = original(self, renewal)
    holder = self.state.find_holder(renewal.request_id)
    if reply is None and holder is not None:
        holder.expires_at = self.now + renewal.ttl
    return reply


def shorten_on_asking(self: Step, holder: Any, request: AcquireRequest) -> Granted:
    holder.expires_at = self.now + min(request.ttl, 200_000)
    return Granted(holder.token, request.ttl)


def forget_who_waits_for_it(original: Any, self: Step, renewal: Any) -> Any:
    reply = original(self, renewal)
    renewal.contended = False
    return reply


def lose_many_pushes(plan: Plan) -> Plan:
    """Have few clients that want the same name again and again, and hear little of each other."""
    faults = Faults(loss=0.6)
    return replace(plan, clients=3, tasks=1, rounds=4, names=1, duration=5.0, faults=faults)


def grant_twice(original: Any, self: NameState, request_id: str) -> Any:
    return None


def ignore_tombstones(original: Any, self: Step, request: AcquireRequest) -> Any:
    self.state.tombstones.pop(request.request_id, None)
    return original(self, request)


def expire_early(original: Any, self: Step) -> None:
    for holder in self.state.holders:
        if holder.expires_at - self.now < holder.ttl // 10:
            holder.expires_at = self.now
    original(self)


def never_expire(original: Any, self: Step) -> None:
    for holder in self.state.holders:
        holder.expires_at = max(holder.expires_at, self.now + 1)
    original(self)


def never_clamp(original: Any, self: Step) -> None:
    before = {holder.request_id: holder.expires_at for holder in self.state.holders}
    original(self)
    for holder in self.state.holders:
        holder.expires_at = before[holder.request_id]


def any_weight_fits(self: Step, weight: int) -> bool:
    state = self.state
    return self.now >= state.blocked_until and len(state.holders) < state.capacity


def only_own_clock(counter: int, proposal: int, clock: int, *, votes: bool = False) -> int:
    return proposal


def plain_counter(counter: int, proposal: int, clock: int, *, votes: bool = False) -> int:
    return counter + 1


# -- the local queue -----------------------------------------------------------------------------------------


def note_only(self: LocalQueues, lease: CoreLease) -> None:
    if isinstance(lease.local_queue, LocalQueue):
        lease.local_queue.contended = True


def forget_who_waits(original: Any, self: LocalQueues, lease: CoreLease) -> Any:
    if isinstance(lease.local_queue, LocalQueue):
        lease.local_queue.contended = False
    return original(self, lease)


def ignore_deadline(original: Any, self: LocalQueues, spec: Any, key: Any, owned: Any) -> Any:
    local_queue = self._queues.get(key)
    lingering = local_queue.lingering() if local_queue is not None else None
    if lingering is not None:
        lingering.current, lingering.lost_because = LeaseState.HELD, ""
        lingering.kept_until = lingering.valid_until = self._runtime.now() + lingering.ttl / 1_000_000
    return original(self, spec, key, owned)


def same_token(original: Any, self: CoreLease, ttl: int, ends_at: float) -> CoreLease:
    successor: CoreLease = original(self, ttl, ends_at)
    successor.token = self.token
    return successor


def hand_to_newcomers(original: Any, self: LocalQueues, local_queue: LocalQueue, *others: Any) -> Any:
    if local_queue.waiters:
        local_queue.waiters[0].turn = -1
    return original(self, local_queue, *others)


def count_nothing(original: Any, self: LocalQueues, local_queue: LocalQueue, *others: Any) -> Any:
    local_queue.passed = -1
    return original(self, local_queue, *others)


def pass_on_for_ever(self: LocalQueues, local_queue: LocalQueue, lease: CoreLease, contender: Any, now: float) -> bool:
    return lease.token < lease.grant.last and lease.kept_until - now > 0.1


# -- the resource ------------------------------------------------------------------------------------------


def read_without_fence(self: Resource, token: int) -> int | None:
    return self.value


def write_raises_fence(original: Any, self: Resource, token: int, value: int) -> None:
    original(self, token, value)
    self.fence = max(self.fence, token)


MUTANTS: Sequence[Mutant] = (
    Mutant("the ttl is counted from the reply", wrapped(Attempt, "_send_once", count_grant_from_reply)),
    Mutant(
        "the ttl of a push is counted from the reply before it",
        wrapped(Attempt, "_send_once", count_place_from_reply),
    ),
    Mutant("the ttl is counted from the push", replaced(Attempt, "_enter_pushed", count_from_push)),
    Mutant("a renewal is counted from its reply", wrapped(CoreLease, "renewed", count_renewal_from_reply)),
    Mutant(
        "no allowance for drift",
        both(replaced(attempt, "valid_until", without_drift), replaced(lease, "valid_until", without_drift)),
        ("wire", "calm"),
    ),
    Mutant("a push is trusted without the token test", wrapped(Attempt, "_wait_for_push", trust_any_push), first=1518),
    Mutant("a grant heard too late is entered", wrapped(Attempt, "_enter", enter_too_late)),
    Mutant("a late renewal revives a lost lease", replaced(CoreLease, "renewed", revive)),
    Mutant("nobody is told of a deadline that passes", replaced(CoreLease, "_expire", lose_in_silence)),
    Mutant("a loss is told again", replaced(CoreLease, "lose", lose_again)),
    Mutant("the renewer does not watch deadlines", wrapped(Renewer, "_look", look_for_what_is_due_only)),
    Mutant("a renewal that hangs hides a deadline", wrapped(Renewer, "_look", tell_when_renewed)),
    Mutant("the renewer ignores a refusal", replaced(Renewals, "_answered", ignore_refusal), ("clock_forward",)),
    Mutant("nothing is ever renewed", replaced(Renewals, "start", do_nothing), ("calm",)),
    Mutant("the renewer spins", replaced(Agendas, "take_due", find_nothing), ("calm",)),
    Mutant("max_hold is forgotten", wrapped(Attempt, "_enter", hold_for_ever), ("calm",)),
    Mutant("a cancelled acquisition forgets to leave", wrapped(Attempt, "_withdraw", forget_to_leave_when_cancelled)),
    Mutant("a timeout forgets to leave", forgetting_to_leave("over"), ("calm",)),
    Mutant("a lost reply counts as a refusal", wrapped(Attempt, "_send_once", lost_reply_is_no)),
    Mutant("nothing is known of unanswered asks", wrapped(Grant, "__init__", never_unsure)),
    Mutant("pushed grants are ignored", wrapped(Attempt, "hear", ignore_grants), ("calm",)),
    Mutant("a push does not wake its waiter", replaced(Attempt, "hear", forget_to_wake), ("calm",)),
    Mutant("newcomers overtake the queue", wrapped(Step, "acquire", overtake)),
    Mutant("the last to come is served first", replaced(Step, "_join", stand_in_front), ("calm",)),
    Mutant("who asks again goes to the tail", replaced(Step, "_join", stand_at_tail_again)),
    Mutant("whoever fits goes first", replaced(Step, "_live_head", light_ones_first), ("weights",)),
    Mutant("the counter is not stored", wrapped(Step, "_grant", grant_without_counting)),
    Mutant("tokens are the client's clock alone", replaced(granting, "next_token", only_own_clock)),
    Mutant("tokens are a plain counter", replaced(granting, "next_token", plain_counter), ("amnesia",)),
    Mutant("a release removes whoever holds", replaced(NameState, "remove_holder", remove_anyone)),
    Mutant("a release does not hand off", replaced(Step, "_serve_queue", do_nothing), ("calm",)),
    Mutant("a new head is never told", replaced(Step, "_notify_new_head", do_nothing), ("calm",), crowd_and_kill, 769),
    Mutant("leaving does not pass on a grant", wrapped(Step, "withdraw", leave_the_queue_only)),
    Mutant("leaving keeps the place in the queue", wrapped(Step, "withdraw", leave_the_grant_only)),
    Mutant("grants are pushed to the dead", replaced(Step, "_live_head", ask_the_dead), ("calm",)),
    Mutant("asking again does not prolong the lease", replaced(Step, "_grant_again", forget_to_prolong)),
    Mutant("a push grants less than the ttl", wrapped(Step, "_notify", push_for_less)),
    Mutant("a reply grants less than the ttl", wrapped(Step, "acquire", answer_for_less)),
    Mutant("a push is counted for longer than the ttl", replaced(Attempt, "_enter_pushed", count_push_for_longer)),
    Mutant("a renewal shortens the lease", wrapped(Step, "renew", shorten_on_renewal)),
    Mutant("asking again shortens the lease", replaced(Step, "_grant_again", shorten_on_asking)),
    Mutant("a request that is asked again is granted again", wrapped(NameState, "find_holder", grant_twice)),
    Mutant("what was given up may arrive", wrapped(Step, "acquire", ignore_tombstones)),
    Mutant("leases end early", wrapped(Step, "_begin", expire_early)),
    Mutant("leases never end", wrapped(Step, "_begin", never_expire), ("calm",)),
    Mutant("a clock that stepped back locks for hours", wrapped(Step, "_begin", never_clamp)),
    Mutant("weights are ignored", replaced(Step, "_fits", any_weight_fits), ("weights",)),
    Mutant("the lock delay is ignored", replaced(NameState, "block_for", do_nothing)),
    Mutant("half of min_hold is kept", wrapped(CoreLease, "to_keep", keep_half), ("weights",)),
    Mutant("a downgrade makes too much room", wrapped(Step, "adjust", make_too_much_room), ("weights",)),
    Mutant(
        "who waits outside does not end a lease that lingers", replaced(LocalQueues, "contended", note_only), ("calm",)
    ),
    Mutant(
        "the reply to a renewal does not say that somebody waits",
        wrapped(Step, "renew", forget_who_waits_for_it),
        ("embedded",),
        lose_many_pushes,
    ),
    Mutant(
        "nobody listens to what the reply to a renewal says",
        replaced(CoreLease, "note_contention", do_nothing),
        ("embedded",),
        lose_many_pushes,
    ),
    Mutant("a lease lingers though somebody waits", wrapped(LocalQueues, "linger_on", forget_who_waits), ("calm",)),
    Mutant(
        "a lease that lingered is counted from when it is taken up", wrapped(LocalQueues, "take_up", ignore_deadline)
    ),
    Mutant("a lease lingers for ever", replaced(LocalQueue, "on_linger_end", do_nothing), ("calm",)),
    Mutant("whose time is up does not leave", replaced(Attempt, "_withdraw_in_time", leave_nothing), ("calm",)),
    Mutant("what lingered is never released", replaced(BackgroundReleases, "add", do_nothing), ("calm",)),
    Mutant("a lease is handed on with the same token", wrapped(CoreLease, "successor", same_token), ("calm",)),
    Mutant("a newcomer is handed the lease", wrapped(LocalQueues, "_may_hand_off", hand_to_newcomers), ("calm",)),
    Mutant("hand-offs are not counted", wrapped(LocalQueues, "_may_hand_off", count_nothing), ("calm",)),
    Mutant("a turn is passed on for ever", replaced(LocalQueues, "_may_hand_off", pass_on_for_ever), ("calm",)),
    Mutant(
        "asked along, it is not left",
        replaced(multi_acquire._MultiAcquire, "_withdraw_parts", keep_what_was_won),
        ("several",),
    ),
    Mutant(
        "what was won of several is kept",
        replaced(multi_acquire._MultiAcquire, "_undo", keep_what_was_won),
        ("several",),
    ),
    Mutant("a grant along with another is counted from its reply", along_from_reply, ("several",), first=476),
    Mutant(
        "the resource is fenced on writes only",
        both(replaced(Resource, "read", read_without_fence), wrapped(Resource, "write", write_raises_fence)),
    ),
)
