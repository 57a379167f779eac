"""The work of simulated clients: they acquire names, use the protected resource, and release the names."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from simulation.at_clients import Believed
from simulation.at_store import FAIRNESS_COUNT
from simulation.checker import Checker
from simulation.faults import Faults
from simulation.followed import FollowedStore
from simulation.handovers import ADOPTING, DETACHED, Handles, Handovers
from simulation.invariants import Invariant
from simulation.jobs import JobRounds, Ledger
from simulation.network import Link
from simulation.quantities import QuantityLedger, QuantityRounds
from simulation.resource import Resource
from simulation.runtime import Cancelled, Future, Process, SimRuntime, SimTask, World
from tenure.contracts.deadlines import NEVER, micros, seconds
from tenure.core.lease import CoreLease
from tenure.core.multi_acquire import acquire_all
from tenure.core.requests import Settings
from tenure.core.session import Session
from tenure.core.spec import LockSpec
from tenure.errors import LeaseLost, StoreError, UsageError

WRITER_WEIGHT = 1000
"""The capacity of a reader/writer name, and the weight of a writer."""


@dataclass(slots=True, frozen=True)
class Kind:
    """A kind of name: its capacity, and the weights of its requests."""

    name: str
    capacity: int
    weights: tuple[int, ...]


MUTEXES = (Kind("mutex-a", 1, (1,)), Kind("mutex-b", 1, (1,)))
WEIGHTED = (Kind("semaphore", 3, (1, 1, 2)), Kind("rwlock", WRITER_WEIGHT, (1, 1, WRITER_WEIGHT)))


MIN_HOLD_SHARE = 0.3
"""The share of shared acquisitions with a min_hold."""

WITHDRAWN_WITHIN = 10.0
"""Within how many seconds the requests of an ended multi-acquire are withdrawn, if the store does not answer."""

MULTI_ACQUIRE_SHARE = 0.6
"""The share of rounds with a multi-acquire, in a scenario that has it."""

BOUNDS = 0, 100_000, 300_000, 300_000, 1_000_000
"""For how long the requests of a client may be passed, in microseconds."""

PACE = 8
"""How many times as often as others clients that may be passed acquire names: while a waiter is being woken."""

LONG_DELAYS = 0.6, 1.5
"""The long lock delays, as multiples of the longest ttl."""

DOWNGRADES = 0.5
"""The share of writers that downgrade to readers before they release."""


class Client:
    """One simulated process with its session and its tasks."""

    def __init__(
        self,
        process: Process,
        checker: Checker,
        link: Link,
        store: Callable[[SimRuntime], FollowedStore],
        *,
        kinds: tuple[Kind, ...],
        ttls: tuple[float, ...],
        multi_acquire: bool = False,
        bounded: bool = False,
        barging: bool = False,
        lingers: bool = True,
        ledger: Ledger | QuantityLedger | None = None,
        handles: Handles | None = None,
    ) -> None:
        """Make a client of names of `kinds`, or of the job or the quantities in `ledger`.

        With `handles` it detaches and adopts leases. `bounded`: the longest of `ttls` is the longest that the store
        grants. `barging`: it may allow barging. `lingers`: its leases may linger.
        """
        runtime = SimRuntime(process)
        self.process = process
        self.link = link
        self.store = store(runtime)
        self.session = Session(runtime, self.store, Settings(process.name, 1.0, 2.0, fairness_count=FAIRNESS_COUNT))
        self.tasks: list[SimTask[None]] = []
        self._runtime = runtime
        self._checker = checker
        self._kinds = kinds
        self._ttls = ttls
        self._multi_acquire = multi_acquire
        self._bounded = bounded
        self.cells: JobRounds | QuantityRounds | None = None
        """The calls of a client that uses a job or quantities; None: the client acquires names."""
        if isinstance(ledger, Ledger):
            self.cells = JobRounds(process, self.session, ledger, lambda: self.link.faults)
        if isinstance(ledger, QuantityLedger):
            self.cells = QuantityRounds(process, self.session, ledger, lambda: self.link.faults)
        self._handles = handles
        self._handovers: Handovers | None = None
        if handles is not None:
            self._handovers = Handovers(process, self.session, link, checker, handles)
        rng = process.world.random
        self._habit = self._draw(rng) if rng.random() < 0.5 else None
        """The ttl and lock delay of all requests, if they are always the same, which allows local hand-offs."""
        self._linger = rng.choice((0.0, 0.0, 0.2, 1.0)) if lingers else 0.0
        """The linger time of its mutexes, in seconds."""
        self._fair_after = rng.choice(BOUNDS) if barging else 0
        """For how long its requests for mutexes may be passed, in microseconds."""
        self._pace = PACE if barging else 1
        """How many times as often as others it acquires names, and for how much shorter it holds them."""

    @property
    def world(self) -> World:
        """The world of the client."""
        return self.process.world

    @property
    def faults(self) -> Faults:
        """The present faults."""
        return self.link.faults

    def start(self, tasks: int, rounds: int) -> None:
        """Start the tasks of the client."""
        for number in range(tasks):
            self.tasks.append(self.process.start(self._work(rounds), f"{self.process.name}/{number}"))

    def crash(self) -> None:
        """Kill the client: its code stops at once, and its channel closes."""
        self._checker.crashed(self.process)
        self._checker.store.died(self.store.channel)
        self.process.crash()
        self.store.vanish()

    async def _work(self, rounds: int) -> None:
        rng = self.world.random
        for _ in range(rounds * min(self._pace, 4)):
            await self._runtime.sleep(rng.expovariate(5.0 * self._pace))
            if self.cells is not None:
                await self.cells.round(rng)
            elif self._multi_acquire and rng.random() < MULTI_ACQUIRE_SHARE:
                await self._multi_acquire_round(rng)
            elif self._handles is not None and self._handles.passed_on and rng.random() < ADOPTING:
                await self._adoption_round(rng)
            else:
                await self._round(rng)

    async def _multi_acquire_round(self, rng: random.Random) -> None:
        """Acquire several names in one multi-acquire, and use the resource of one of them."""
        names = sorted(rng.sample([kind.name for kind in self._kinds], rng.randint(1, len(self._kinds))))
        ttl, lock_delay = self._habit or self._draw(rng)
        max_hold = rng.choice((NEVER, NEVER, NEVER, 1.5))
        timeout = rng.choice((None, None, None, 0.0, 0.1, 0.5, 2.0))
        specs = [LockSpec(name, ttl, lock_delay, title=name) for name in names]
        believed: list[Believed] = []
        joined = self.world.time
        for lease in await self._acquire_all(specs, timeout, max_hold, rng):
            believed.append(Believed(self.process, lease, 1, 1, self.process.clock() + max_hold))
            self._checker.entered(believed[-1], joined)
        if believed:
            await self._use(rng.choice(believed), rng)
        for each in believed:
            await self._release(each)

    async def _acquire_all(
        self, specs: list[LockSpec], timeout: float | None, max_hold: float, rng: random.Random
    ) -> list[CoreLease]:
        acquisition = acquire_all(self.session, specs, timeout, max_hold)
        task = self.process.start(acquisition, f"{self.process.name}/acquire several")
        if self.faults.cancel and rng.random() < self.faults.cancel:
            task.cancel_at = rng.randint(1, 20)
        try:
            result = await task.result
        except (Cancelled, StoreError) as error:
            if isinstance(error, Cancelled):
                self.link.happened["acquire of several cancelled"] += 1
            self._checker.trace(self.process.name, f"{task.note} ended with {error!r}")
            result = None
        lease = result if isinstance(result, list) else []
        for request_id in sorted(set(task.note.split()) - {each.grant.request_id for each in lease}):
            self._checker.store.settled(request_id)
            # Not at once: the requests are withdrawn one after another.
            self.process.later(WITHDRAWN_WITHIN, partial(self._check_withdrawn, request_id))
        return lease

    def _check_withdrawn(self, request_id: str) -> None:
        engaged = request_id in self.store.unsure and request_id not in self.store.released
        self._checker.ended_without_lease(request_id, engaged=engaged)

    async def _round(self, rng: random.Random) -> None:
        kind = rng.choice(self._kinds)
        weight = rng.choice(kind.weights)
        max_hold = rng.choice((NEVER, NEVER, NEVER, NEVER, 1.5))
        ttl, lock_delay = self._habit or self._draw(rng)
        able = self.store.capabilities
        linger = self._linger if kind.capacity == 1 and able.queue and able.span > 1 else 0.0
        min_hold = 0
        if kind.capacity > 1 and rng.random() < MIN_HOLD_SHARE:
            min_hold = min(ttl, micros(rng.choice((0.2, 1.0))))
        fair_after = self._fair_after if kind.capacity == 1 else 0
        sizes = (weight, kind.capacity)
        spec = LockSpec(
            kind.name,
            ttl,
            lock_delay,
            max_hold,
            *sizes,
            min_hold,
            title=kind.name,
            linger=linger,
            fair_after=fair_after,
        )
        timeout = rng.choice((None, None, None, 0.0, 0.1, 0.5, 2.0))
        joined = self.world.time
        lease = await self._acquire(spec, timeout, rng)
        if lease is not None:
            ends_at = self.process.clock() + max_hold
            believed = Believed(self.process, lease, weight, kind.capacity, ends_at)
            self._checker.entered(believed, joined)
            if spec.min_hold:
                self._checker.store.holds_at_least(lease.grant.name, lease.grant.request_id, seconds(spec.min_hold))
            await self._use(believed, rng)
            await self._leave(believed, rng)

    async def _adoption_round(self, rng: random.Random) -> None:
        """Adopt a lease that another client has detached, or this one, and go on with it."""
        joined = self.world.time
        believed = None if self._handovers is None else await self._handovers.adopt(rng)
        if believed is not None:
            self._checker.entered(believed, joined)
            await self._use(believed, rng)
            await self._leave(believed, rng)

    async def _leave(self, believed: Believed, rng: random.Random) -> None:
        """Detach a lease that can be handed over, or release it."""
        lease, handovers = believed.lease, self._handovers
        able = believed.weight == lease.grant.request.weight and not lease.grant.free_at and lease.ends_at == NEVER
        if handovers is not None and able and rng.random() < DETACHED and await handovers.detach(believed, rng):
            return
        await self._release(believed)

    def _draw(self, rng: random.Random) -> tuple[int, int]:
        ttl, lock_delay = rng.choice(self._ttls), rng.choice((0.0, 0.0, 0.0, 0.2))
        if self.faults.delays and rng.random() < self.faults.delays:
            lock_delay = rng.choice(LONG_DELAYS) * self._ttls[-1]
            self.link.happened["long lock delay"] += 1
        return micros(ttl), micros(lock_delay)

    async def _acquire(self, spec: LockSpec, timeout: float | None, rng: random.Random) -> CoreLease | None:
        task = self.process.start(self.session.acquire(spec, timeout), f"{self.process.name}/acquire")
        if self.faults.cancel and rng.random() < self.faults.cancel:
            # The later await points have more chances, because few acquisitions have so many.
            task.cancel_at = rng.choice((1, 2, 3, 4, 4, 5, 5, 6, 6, 7, 7, 7, 8, 8, 8, 8))
        try:
            result = await task.result
        except (Cancelled, StoreError) as error:
            if isinstance(error, Cancelled):
                self.link.happened[f"acquire cancelled at await {task.cancel_at}"] += 1
            elif self._checker.healthy:
                self._checker.broken(Invariant.NO_ERRORS, f"{task.note} ended with {error!r} though nothing was wrong")
            self._checker.trace(self.process.name, f"{task.note} ended with {error!r}")
            result = None
        if isinstance(result, CoreLease):
            return result
        self._checker.ended_without_lease(task.note, engaged=task.note in self.store.unsure)
        return None

    async def _use(self, believed: Believed, rng: random.Random) -> None:
        """Read the resource, work and write; with a partial weight, only hold the name for a while."""
        lease = believed.lease
        hold = rng.expovariate(4.0 * self._pace) if rng.random() < 0.8 else rng.uniform(1.0, 4.0) / self._pace
        if believed.weight < believed.capacity:
            await self._runtime.sleep(hold)
            return
        resource = self._checker.resources.setdefault(lease.grant.name, Resource())
        value = await self._send(lambda: resource.read(lease.token))
        if value is None:
            self._checker.trace(
                self.process.name, f"{lease.grant.name}: token {lease.token} is refused by the resource"
            )
            return
        await self._runtime.sleep(hold)
        if rng.random() < 0.1:
            await self._extend(lease, rng)
        if lease.trusted():
            await self._send(lambda: resource.write(lease.token, value + 1))
            if believed.weight > 1 and rng.random() < DOWNGRADES:
                await self._downgrade(believed, rng)

    async def _downgrade(self, believed: Believed, rng: random.Random) -> None:
        """Reduce the weight of a lease to 1, and hold the lease for a while."""
        believed.weight = 1  # others may be granted before the reply arrives
        try:
            await self.session.adjust(believed.lease, weight=1)
        except (LeaseLost, StoreError) as error:
            self._checker.trace(self.process.name, f"{believed.lease.grant.request_id} is not adjusted: {error}")
        await self._runtime.sleep(rng.expovariate(4.0))

    async def _extend(self, lease: CoreLease, rng: random.Random) -> None:
        """Extend a lease. If the store has a longest ttl, sometimes request more first, which the store refuses."""
        longest = self._ttls[-1]
        most = 2 * longest if self._bounded else longest
        ttl = min(rng.choice((None, 1.0, 5.0)) or most, most)
        try:
            try:
                await self.session.extend(lease, ttl)
            except UsageError as error:
                self._checker.trace(self.process.name, f"{lease.grant.request_id} is not extended so far: {error}")
                self.link.happened["extension refused"] += 1
                await self.session.extend(lease, longest)
        except (LeaseLost, StoreError) as error:
            self._checker.trace(self.process.name, f"{lease.grant.request_id} is not extended: {error}")
        if ttl > longest:
            await self._runtime.sleep(rng.uniform(0.0, ttl))

    async def _send(self, action: Callable[[], Any]) -> Any:  # noqa: ANN401 - the type of the resource's reply
        """Send a message to the resource, which acts on it even if the client is paused or dead by then."""
        answer: Future[Any] = Future()

        def arrive() -> None:
            result = action()
            self.process.later(0.0, lambda: answer.resolve(result))

        self.world.after(self.link.delay(), arrive)
        return await answer

    async def _release(self, believed: Believed) -> None:
        lease = believed.lease
        was_lost = bool(lease.lost_because)
        believed.ends_at = NEVER  # the holder has released the lease in time
        outcome = await self.session.release(lease)
        if self._checker.healthy and not outcome.kept and not was_lost:
            self._checker.broken(Invariant.KEPT, f"{lease.grant.request_id} releases {lease.grant.name}: {outcome}")
