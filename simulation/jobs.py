"""Simulated nodes that call one job, and the ledger of what they did: what was run, and what was said to be done."""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from simulation.faults import Faults
from simulation.invariants import Invariant, Tell
from tenure.contracts.limits import SKIP, WAIT
from tenure.core.lease import CoreLease
from tenure.core.session import Session
from tenure.errors import LockTimeout, StoreError
from tenure.jobs.once import Begun, JobSpec, Once, Verdict
from tenure.jobs.record import SUPERSEDED, JobRules, JobStatus
from tenure.jobs.windows import schedule
from tenure.runtimes.simulated import Cancelled, Process

ATTEMPTS = 3

WINDOW = 2.0
"""The length of a window, in seconds."""

CALLS = 3
"""How often a client calls the job in one round."""

KEY = 0
"""The window of a run by key, as it stands in the ledger."""


@dataclass
class Ledger:
    """The runs of all nodes, by the beginning of the window."""

    tell: Tell
    began: Counter[int] = field(default_factory=Counter[int])
    """How often the function began."""
    done: Counter[int] = field(default_factory=Counter[int])
    """How often a node was told that its run is the one that is done."""
    unsure: set[int] = field(default_factory=set[int])
    """Windows in which a run ended, and the store did not say whether it noted that."""

    def begins(self, window: int) -> None:
        """Note that the function begins."""
        self.began[window] += 1
        if self.began[window] > ATTEMPTS:
            self.tell(Invariant.JOB, f"window {window}: {self.began[window]} runs began, of {ATTEMPTS} attempts")
        if self.done[window]:
            self.tell(Invariant.JOB, f"window {window}: a run began after one was done")

    def ends(self, window: int) -> None:
        """Note that a run was done, as the store says."""
        self.done[window] += 1
        if self.done[window] > 1:
            self.tell(Invariant.JOB, f"window {window}: {self.done[window]} runs were done")

    def says(self, window: int, verdict: Verdict) -> None:
        """Check what a node is told that does not run the job."""
        if verdict["status"] == JobStatus.DONE and not self.done[window] and window not in self.unsure:
            self.tell(Invariant.JOB, f"window {window}: it is said to be done, but no run was")
        if verdict["status"] == JobStatus.FAILED and verdict["attempts"] == ATTEMPTS and not self.began[window]:
            self.tell(Invariant.JOB, f"window {window}: it is said to have failed, but no run began")


class JobRounds:
    """The calls of one simulated client."""

    def __init__(self, process: Process, session: Session, ledger: Ledger, faults: Callable[[], Faults]) -> None:
        """Call the job by `session`."""
        self._process = process
        self._session = session
        self._ledger = ledger
        self._faults = faults

    async def round(self, rng: random.Random) -> None:
        """Call the job several times, by window or by key. An error of the store ends its call alone."""
        for _ in range(CALLS):
            await self._call(rng)
            await self._session.runtime.sleep(rng.expovariate(2.0))

    async def _call(self, rng: random.Random) -> None:
        keyed, busy = rng.random() < 0.3, rng.choice((SKIP, WAIT))
        name = "job:job:key" if keyed else "job:job"
        every = None if keyed else schedule(WINDOW)[1]
        timeout = rng.choice((None, 0.5, 2.0))
        rules = JobRules(ATTEMPTS, rng.choice((0, 0, 500_000)), every=f"{WINDOW} s")
        spec = JobSpec("job", name, name, "job:job", "jobs", every, rules, busy, 1_000_000, timeout, None)
        once, owned = Once(self._session, spec), list[CoreLease]()
        begun: Begun | Verdict | None = None
        task = self._process.start(once.begin(owned), f"{self._process.name}/begin")
        if self._faults().cancel and rng.random() < self._faults().cancel:
            task.cancel_at = rng.randint(1, 12)
        try:
            begun = await task.result
        except (Cancelled, LockTimeout, StoreError):
            await self._session.give_back(owned)
            return
        window = KEY if keyed else once.window.starts
        if isinstance(begun, Begun):
            if begun.lease.trusted():  # else its node was paused just now, and cannot know
                self._ledger.begins(window)
            await self._session.runtime.sleep(rng.expovariate(4.0))
            await self._finish(once, begun, window, None if rng.random() < 0.7 else "failed")
        else:
            self._ledger.says(window, begun)

    async def _finish(self, once: Once, begun: Begun, window: int, error: str | None) -> None:
        self._ledger.unsure.add(window)  # until the store has answered
        try:
            verdict = await once.finish(begun, error)
        except StoreError:
            await self._session.give_back([begun.lease])
            return
        if error is None and verdict["status"] != SUPERSEDED:
            self._ledger.ends(window)
