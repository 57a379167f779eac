"""Clients at work on a few names, in threads and tasks, and what they did: who held what, when, by which token.

A test sees both kinds of harm in it: two at once who both believe in their lease, and an update that is lost.
"""

import asyncio
import math
import random
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Self

from tenure import AsyncClient, AsyncLease, Client, LockTimeout, StaleTokenError, StoreError
from tenure.runtimes.clocks import steady
from tenure.runtimes.threads import complete
from tenure_testing.conformance.adapter import Adapter, adapt
from tests.faults.resource import Resource
from tests.hazards.helpers import eventually

GRAIN = 0.005
"""How often a holder looks whether it still believes in its lease, in seconds."""

TEST_TIMEOUT = 60.0
"""How long to wait, in seconds, for workers to end: only ever used up by a failure."""


@dataclass(slots=True)
class Hold:
    """A lease that was believed from `since` to `until`, by a clock that all processes of a machine share."""

    name: str
    token: int
    since: float
    until: float
    asked: float = -math.inf
    """When it began to be acquired."""


@dataclass(slots=True)
class Record:
    """What some workers did."""

    holds: list[Hold] = field(default_factory=list[Hold])
    counts: Counter[str] = field(default_factory=Counter[str])
    """How often what happened: `written`, `stale`, `lost`, `timeout`, `error`, and the outcomes of releases."""

    def merge(self, other: "Record") -> None:
        """Add what others did."""
        self.holds += other.holds
        self.counts += other.counts

    def overlaps(self) -> list[tuple[Hold, Hold]]:
        """Return the pairs of leases of one name that were believed at once."""
        found: list[tuple[Hold, Hold]] = []
        last: dict[str, Hold] = {}
        for hold in sorted(self.holds, key=lambda each: each.since):
            before = last.get(hold.name)
            if before is not None and before.until > hold.since:
                found.append((before, hold))
            if before is None or hold.until > before.until:
                last[hold.name] = hold
        return found

    def repeated_tokens(self) -> list[int]:
        """Return the tokens that two leases of one name had, or that were smaller than one before.

        Of leases that exclude each other; one that was over before its holder heard of it comes at any time.
        """
        found: list[int] = []
        last: Counter[str] = Counter()
        for hold in sorted((each for each in self.holds if each.until > each.since), key=lambda each: each.since):
            if hold.token <= last[hold.name]:
                found.append(hold.token)
            last[hold.name] = hold.token
        return found

    def disordered_tokens(self) -> list[int]:
        """Return the tokens of one name that two leases had, or that were asked for after a greater one was there.

        Whoever stood still may hear of its lease after others had later ones: that is no disorder.
        """
        found: list[int] = []
        for name in {hold.name for hold in self.holds}:
            by_asked = sorted((hold for hold in self.holds if hold.name == name), key=lambda each: each.asked)
            arriving = sorted(by_asked, key=lambda each: each.since, reverse=True)
            greatest = 0
            for hold in by_asked:
                while arriving[-1].since < hold.asked:
                    greatest = max(greatest, arriving.pop().token)
                if hold.token <= greatest:
                    found.append(hold.token)
            found += [token for token, count in Counter(hold.token for hold in by_asked).items() if count > 1]
        return found


@dataclass(slots=True)
class Job:
    """What a worker is to do: until it is stopped, or has had `rounds` leases. Times in seconds."""

    names: Sequence[str]
    ttl: float = 5.0
    timeout: float | None = 30.0
    hold: float = 0.0
    rounds: int = 10**9
    workers: int = 1
    """How many workers a process has; a `Crew` is told how many of each colour it has."""


class Worker:
    """One worker, in threads or in asyncio."""

    def __init__(self, client: AsyncClient, job: Job, resource: Resource, stop: threading.Event) -> None:
        """Prepare to work until `stop` is set."""
        self.record = Record()
        self._client = client
        self._job = job
        self._resource = resource
        self._stop = stop
        self._rests = False
        self._chance = random.Random()
        self._blocks = isinstance(client, Adapter)

    def rest(self) -> None:
        """Acquire nothing until told to keep."""
        self._rests = True

    def keep(self) -> None:
        """From now on hold what it gets to the end."""
        self._job.hold = math.inf
        self._rests = False

    async def work(self) -> None:
        """Work until the end."""
        counts, job = self.record.counts, self._job
        while len(self.record.holds) < job.rounds and not self._stop.is_set():
            if self._rests:
                await self._pause(GRAIN)
                continue
            name, asked = self._chance.choice(job.names), steady()
            try:
                lease = await self._client.lock(name, ttl=job.ttl).acquire(job.timeout)
            except LockTimeout:
                counts["timeout"] += 1
            except StoreError:
                counts["error"] += 1
                await self._pause(0.02)
            else:
                await self._use(name, lease, asked)

    async def _use(self, name: str, lease: AsyncLease, asked: float) -> None:
        counts, began = self.record.counts, steady()
        hold = Hold(name, lease.token, began, began, asked)
        self._believe(hold, lease)
        try:
            value = self._resource.read(name, lease.token)
            await self._stay(hold, lease)
            self._resource.write(name, lease.token, value + 1)
            counts["written"] += 1
        except StaleTokenError:
            counts["stale"] += 1
        self._believe(hold, lease)
        self.record.holds.append(hold)
        counts["lost"] += lease.lost.is_set()
        outcome = await lease.release()
        counts[outcome.name] += 1

    async def _stay(self, hold: Hold, lease: AsyncLease) -> None:
        until = steady() + self._job.hold * self._chance.uniform(0.5, 1.5)
        await self._pause(0)
        while self._believe(hold, lease) and (left := until - steady()) > 0 and not self._stop.is_set():
            await self._pause(min(left, GRAIN))

    @staticmethod
    def _believe(hold: Hold, lease: AsyncLease) -> bool:
        """Note that the lease is believed at this moment, if it is."""
        now = steady()  # before the look: what is believed then was believed now
        believed = lease.remaining() > 0
        if believed:
            hold.until = now
        return believed

    async def _pause(self, seconds: float) -> None:
        if self._blocks:
            self._stop.wait(seconds)
        else:
            await asyncio.sleep(seconds)


class Crew:
    """Workers of both forms of the API in this process, a client for each colour; `with` starts and stops them."""

    def __init__(self, url: str, job: Job, resource: Resource, *, threads: int = 2, tasks: int = 2) -> None:
        """Prepare them, all for one job."""
        self._url = url
        self._job = job
        self._resource = resource
        self._stop = threading.Event()
        self._errors: list[BaseException] = []
        self._workers: list[Worker] = []
        works: list[Callable[[], None]] = [lambda: self._block(threads), lambda: asyncio.run(self._loop(tasks))]
        self._threads = [threading.Thread(target=self._run, args=(work,), daemon=True) for work in works]

    def holds(self) -> int:
        """Return how many leases there were so far."""
        return sum(len(worker.record.holds) for worker in self._workers)

    def await_holds(self, more: int) -> None:
        """Return when they have had so many more leases."""
        enough = self.holds() + more
        eventually(lambda: self.holds() >= enough, f"{more} more leases", within=TEST_TIMEOUT)

    def end(self, *, stop: bool = True) -> Record:
        """Tell them to end, or await it, and return what they did. Raises what they raised."""
        if stop:
            self._stop.set()
        for thread in self._threads:
            thread.join(TEST_TIMEOUT)
            assert not thread.is_alive(), "a worker does not end"
        if self._errors:
            raise self._errors[0]
        record = Record()
        for worker in self._workers:
            record.merge(worker.record)
        return record

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(TEST_TIMEOUT)

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - raised in the test's own thread
            self._errors.append(error)

    def _block(self, workers: int) -> None:
        with Client(self._url, owner="thread") as client:
            made = self._hire(adapt(client), workers)
            threads = [threading.Thread(target=self._run, args=(lambda w=w: complete(w.work()),)) for w in made]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

    async def _loop(self, workers: int) -> None:
        async with AsyncClient(self._url, owner="task") as client:
            await asyncio.gather(*(worker.work() for worker in self._hire(client, workers)))

    def _hire(self, client: AsyncClient, count: int) -> list[Worker]:
        made = [Worker(client, self._job, self._resource, self._stop) for _ in range(count)]
        self._workers += made
        return made
