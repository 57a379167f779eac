"""Simulated nodes that call one job, operators at it, and the ledger of what was run, and what was said to be done."""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from simulation.faults import Faults
from simulation.invariants import Invariant, Tell
from simulation.runtime import Cancelled, Process
from tenure.contracts.deadlines import NEVER
from tenure.contracts.limits import SKIP, WAIT
from tenure.core.lease import CoreLease
from tenure.core.session import Session
from tenure.errors import LockTimeout, StoreError
from tenure.jobs.once import Begun, JobSpec, Once, Verdict
from tenure.jobs.record import SUPERSEDED, JobRules, JobStatus, forget, pause, repeat
from tenure.jobs.windows import schedule

if TYPE_CHECKING:
    from tenure.core.cells import Change

ATTEMPTS = 3

WINDOW = 2.0
"""The length of a window, in seconds."""

CALLS = 3
"""How often a client calls the job in one round."""

KEY = 0
"""The window of a run by key, as it stands in the ledger."""

JOB = 1
"""Any window of the job, which are all in one record."""

OPERATIONS = "repeat", "repeat", "forget", "forget", "revoke", "pause", "resume", "resume"
"""The operations that an operator draws from. A name that stands twice is drawn twice as often."""

OPERATED = 0.2
"""The share of calls of an operator's client that are the operator's."""


@dataclass(slots=True)
class Operation:
    """An operation of the operator on the job, or on its key."""

    what: str
    keyed: bool
    began: float
    ended: float = NEVER
    """When the store had answered; NEVER if it did not: then it may happen at any time."""

    def concerns(self, window: int, since: float) -> bool:
        """Tell whether it may have been under way since an instant, at the record of a window."""
        return self.keyed == (window == KEY) and self.ended >= since


@dataclass(slots=True)
class Going:
    """A call of a node that has begun a run, or tries to."""

    window: int
    since: float
    """When the call began."""
    begun: float = NEVER
    """When the run began, as its node knows."""
    ends: float = NEVER
    """When its node began to note its end."""
    ended: float = NEVER
    """When the store had answered."""
    result: str = ""
    """The result that the function of this run returned."""


@dataclass
class Ledger:
    """The runs of all nodes, by the beginning of the window, and what operators did meanwhile.

    A call takes its time, and nobody knows at which instant of it the store acted. So an operation excuses what
    happened while it may have been under way, and binds what begins after it.
    """

    tell: Tell
    now: Callable[[], float]
    """The true time."""
    operated: bool
    """Whether there are operators."""
    began: Counter[int] = field(default_factory=Counter[int])
    """How often the function began, since the last operation that lets it run again."""
    calls: Counter[bool] = field(default_factory=Counter[bool])
    """How many calls by key, and by window, are under way that may begin a run."""
    done: dict[int, list[Going]] = field(default_factory=dict[int, list[Going]])
    """The runs of which a node was told that they are the one that is done, since the last such operation."""
    unsure: list[Going] = field(default_factory=list[Going])
    """Runs that have ended, and the store did not say whether it noted that."""
    operations: list[Operation] = field(default_factory=list[Operation])

    def happened(self, since: float, window: int, *what: str) -> bool:
        """Tell whether such an operation may have been under way since an instant."""
        return any(each.what in what and each.concerns(window, since) for each in self.operations)

    def operates(self, what: str, *, keyed: bool) -> Operation:
        """Note that an operation begins."""
        self.operations.append(Operation(what, keyed, self.now()))
        return self.operations[-1]

    def operated_on(self, operation: Operation, *, found: bool) -> None:
        """Note that the store has answered: what was before counts no longer if the job may run again."""
        operation.ended = self.now()
        if not found:
            self.operations = [each for each in self.operations if each is not operation]
        elif operation.what in {"repeat", "forget"}:
            for window in {*self.began, *self.done}:
                if (window == KEY) == operation.keyed:
                    self.began[window] = -self.calls[operation.keyed]  # their runs may have begun before
                    self.unsure += [run for run in self.done.pop(window, ()) if run.ended >= operation.began]

    def begins(self, going: Going) -> None:
        """Note that the function begins."""
        window, going.begun = going.window, self.now()
        self.began[window] += 1
        if self.began[window] > ATTEMPTS and not self.happened(going.begun, window, "repeat", "forget"):
            self.tell(Invariant.JOB, f"window {window}: {self.began[window]} runs began, of {ATTEMPTS} attempts")
        for run in self.done.get(window, ()):
            if not self.happened(run.ends, window, "repeat", "forget"):
                self.tell(Invariant.JOB, f"window {window}: a run began after one was done")
        pauses = (each for each in self.operations if each.what == "pause")
        for each in pauses:
            if each.ended <= going.since and not self.happened(each.began, JOB, "resume", "forget"):
                self.tell(Invariant.JOB, f"window {window}: a run began while the job was paused")

    def has_ended(self, going: Going, verdict: Verdict, *, holds: bool) -> None:
        """Note what a node is told of its run, which it ended with a lease that it still `holds`, or without."""
        window, going.ended = going.window, self.now()
        if verdict["status"] == SUPERSEDED and holds and not self.happened(going.since, window, "revoke"):
            self.tell(Invariant.JOB, f"window {window}: a run was given up though it had the lock")
        if verdict["status"] != JobStatus.RAN:
            return
        repeats = [each for each in self.operations if each.what == "repeat" and each.concerns(window, going.since)]
        if repeats:  # the run does not count if one was carried out between its beginning and its end
            surely = any(going.begun <= each.began and each.ended <= going.ends for each in repeats)
            if not surely or self.happened(going.since, window, "forget"):
                self.unsure.append(going)
            return
        done = self.done.setdefault(window, [])
        done.append(going)
        if len(done) > 1 and not self.happened(min(each.ends for each in done), window, "repeat", "forget"):
            self.tell(Invariant.JOB, f"window {window}: {len(done)} runs were done")

    def says(self, going: Going, verdict: Verdict) -> None:
        """Check what a node is told that does not run the job."""
        window = going.window
        if self.happened(going.since, window, "repeat", "forget"):
            return
        unsure, operated = any(each.window == window for each in self.unsure), self.happened(0.0, window, *OPERATIONS)
        if verdict["status"] == JobStatus.DONE and not self.done.get(window) and not unsure:
            self.tell(Invariant.JOB, f"window {window}: it is said to be done, but no run was")
        told = {each.result for each in (*self.done.get(window, ()), *self.unsure) if each.window == window}
        if verdict["status"] == JobStatus.DONE and verdict["value"] not in told:
            self.tell(Invariant.JOB, f"window {window}: a caller was told another result than that of the run")
        if (
            verdict["status"] == JobStatus.FAILED
            and verdict["attempts"] == ATTEMPTS
            and not (operated or self.began[window])
        ):
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
            if self._ledger.operated and rng.random() < OPERATED:
                await self._operate(rng)
            else:
                await self._call(rng)
            await self._session.runtime.sleep(rng.expovariate(2.0))

    async def _operate(self, rng: random.Random) -> None:
        """Do what an operator does, at any instant of a run."""
        ledger, session, what, keyed = self._ledger, self._session, rng.choice(OPERATIONS), rng.random() < 0.3
        keyed = keyed and what in {"repeat", "forget", "revoke"}
        name = "job:job:key" if keyed else "job:job"
        changes: dict[str, Callable[[Any, int], Change]] = {
            "repeat": repeat,
            "forget": forget,
            "pause": partial(pause, paused=True),
            "resume": partial(pause, paused=False),
        }
        operation = ledger.operates(what, keyed=keyed)
        try:
            found = bool(
                await (session.revoke(name) if what == "revoke" else session.cells.change(name, changes[what]))
            )
        except StoreError:
            return
        ledger.operated_on(operation, found=found)

    async def _call(self, rng: random.Random) -> None:
        keyed, busy = rng.random() < 0.3, rng.choice((SKIP, WAIT))
        name = "job:job:key" if keyed else "job:job"
        every = None if keyed else schedule(WINDOW)[1]
        timeout = rng.choice((None, 0.5, 2.0))
        rules = JobRules(ATTEMPTS, rng.choice((0, 0, 500_000)), rng.choice((0, 0, 1_000_000)), every=f"{WINDOW} s")
        spec = JobSpec("job", name, name, "job:job", "", every, rules, busy, 1_000_000, timeout, None)
        once, owned = Once(self._session, spec), list[CoreLease]()
        begun: Begun | Verdict | None = None
        ledger, going = self._ledger, Going(KEY, self._ledger.now())
        ledger.calls[keyed] += 1
        task = self._process.start(once.begin(owned), f"{self._process.name}/begin")
        if self._faults().cancel and rng.random() < self._faults().cancel:
            task.cancel_at = rng.randint(1, 12)
        try:
            begun = await task.result
        except (Cancelled, LockTimeout, StoreError):
            await self._session.give_back(owned)
            return
        finally:
            ledger.calls[keyed] -= 1
        going.window = KEY if keyed else once.window.starts
        if isinstance(begun, Begun):
            if begun.lease.trusted():
                ledger.begins(going)
            elif self._process.paused_until <= going.since:  # a node that was paused cannot know
                ledger.tell(Invariant.JOB, f"window {going.window}: a run began under a lease that had ended")
            await self._session.runtime.sleep(rng.expovariate(4.0))
            await self._finish(once, begun, going, None if rng.random() < 0.7 else "failed")
        else:
            ledger.says(going, begun)

    async def _finish(self, once: Once, begun: Begun, going: Going, error: str | None) -> None:
        ledger, lease = self._ledger, begun.lease
        going.ends, going.result = ledger.now(), begun.run.run.id
        ledger.unsure.append(going)  # until the store has answered
        try:
            verdict = await once.finish(begun, error, {"value": going.result})
        except StoreError:
            await self._session.give_back([begun.lease])
            return
        ledger.unsure.remove(going)
        ledger.has_ended(going, verdict, holds=not lease.lost_because and self._process.clock() < lease.valid_until)
