"""Processes that work under locks during faults of the store, and record when they believed in their leases."""

import asyncio
import json
import logging
import random
import signal
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

from tenure import AsyncClient, AsyncLease, Client, LeaseLost, LockTimeout, StaleTokenError, StoreError
from tenure.core.lease import EXPIRED
from tenure.runtimes.clocks import steady
from tenure.runtimes.threads import complete
from tenure_testing.conformance.adapter import Adapter, adapt
from tests.faults.children import API_FORMS, Children
from tests.faults.resource import SharedNumbers

GRAIN = 0.004
"""The interval in which a holder checks its lease, in seconds."""

TEST_TIMEOUT = 60.0
"""How long to wait for the end of a process, in seconds. Only a failure uses it up."""


@dataclass(slots=True)
class Tenure:
    """A lease in the view of its holder. Its instants are of a clock that all processes of a machine share."""

    name: str
    token: int
    process: int
    asked: float
    """When the holder began to acquire the lease."""
    since: float
    """When the holder had the lease."""
    until: float
    """When the holder began to release the lease, the lease ended by its clock, or it was notified of the loss."""
    outcome: str = ""


@dataclass(slots=True)
class Task:
    """The task of all processes, until the test asks them to end. Durations are in seconds."""

    url: str
    names: Sequence[str]
    """The names. The first is sometimes held for longer than a ttl, the others never for longer than `brief`. Every
    other worker of a process never uses the first name, so that some workers never wait for long."""
    ttl: float
    port: int
    """The port of the Redis server with the numbers."""
    space: str
    """The prefix of the keys of the numbers."""
    seed: int
    workers: int = 2
    timeout: float = 10.0
    brief: float = 0.05


@dataclass(slots=True)
class Account:
    """The record of some workers."""

    tenures: list[Tenure] = field(default_factory=list[Tenure])
    counts: Counter[str] = field(default_factory=Counter[str])
    """The counts of events: `written`, `stale`, `lost`, `timeout`, and the outcomes of releases."""
    errors: Counter[str] = field(default_factory=Counter[str])
    """The messages of the store's errors."""

    def merge(self, other: "Account") -> None:
        """Add the record of other workers."""
        self.tenures += other.tenures
        self.counts += other.counts
        self.errors += other.errors


class Staff(Children):
    """Several processes, every other one in asyncio. The end of the `with` kills them."""

    def __init__(self, task: Task, count: int = 4) -> None:
        """Start the processes."""
        super().__init__(__name__, ([json.dumps(asdict(task)), str(number)] for number in range(count)))

    def freeze(self, number: int) -> None:
        """Stop a process with SIGSTOP."""
        self._processes[number].send_signal(signal.SIGSTOP)

    def thaw(self, number: int) -> None:
        """Continue a stopped process."""
        self._processes[number].send_signal(signal.SIGCONT)

    def end(self) -> Account:
        """Ask the processes to end, and return their records. Each must end by itself, without an error."""
        account = Account()
        for told in self._end(TEST_TIMEOUT):
            tenures = [Tenure(**each) for each in told["tenures"]]
            account.merge(Account(tenures, Counter(told["counts"]), Counter(told["errors"])))
        return account


# -- what runs in each process -----------------------------------------------------------------------------------


class Worker:
    """One worker, a thread or a task."""

    def __init__(self, client: AsyncClient, shift: "Shift", number: int) -> None:
        """Prepare the worker."""
        self.account = Account()
        self._client = client
        self._shift = shift
        self._task = shift.task
        self._names = shift.task.names[number % 2 :]
        self._chance = random.Random(f"{shift.task.seed} {shift.number} {number}")
        self._blocks = isinstance(client, Adapter)

    async def work(self) -> None:
        """Acquire names and work under them until the end."""
        task, account = self._task, self.account
        while not self._shift.over.is_set():
            name, asked = self._chance.choice(self._names), steady()
            try:
                lease = await self._client.lock(name, ttl=task.ttl).acquire(task.timeout)
            except LockTimeout:
                account.counts["timeout"] += 1
            except StoreError as error:
                account.errors[f"{type(error).__name__}: {error}"] += 1
                await self._pause(0.02)
            else:
                since = steady()
                await self._use(lease, Tenure(name, lease.token, self._shift.number, asked, since, since))

    async def _use(self, lease: AsyncLease, tenure: Tenure) -> None:
        counts, belief = self.account.counts, Belief(lease, tenure)
        belief.look()
        try:
            value = self._shift.numbers.read(tenure.name, tenure.token)
            await self._stay(belief)
            self._shift.numbers.write(tenure.name, tenure.token, value + 1)
            counts["written"] += 1
        except StaleTokenError:
            counts["stale"] += 1
        counts["lost"] += not belief.look()
        self.account.tenures.append(tenure)
        tenure.outcome = (await lease.release()).name
        counts[tenure.outcome] += 1

    async def _stay(self, belief: "Belief") -> None:
        longest = self._task.brief
        if belief.tenure.name == self._task.names[0] and self._chance.random() < 0.2:
            longest = 2 * self._task.ttl
        until = steady() + longest * self._chance.random() ** 2
        await self._pause(0)
        while belief.look() and (left := until - steady()) > 0 and not self._shift.over.is_set():
            await self._pause(min(left, GRAIN))

    async def _pause(self, seconds: float) -> None:
        if self._blocks:
            self._shift.over.wait(seconds)
        else:
            await asyncio.sleep(seconds)


class Belief:
    """A holder's belief in its lease. It records until when the holder may have relied on the lease."""

    def __init__(self, lease: AsyncLease, tenure: Tenure) -> None:
        """Begin to observe the lease."""
        self.tenure = tenure
        self._lease = lease
        self._ends = tenure.since

    def look(self) -> bool:
        """Tell whether the lease is valid; if it is not, record when it ended by its holder's clock."""
        now = steady()  # taken before the check: a lease that is valid at the check is valid now
        left = self._lease.remaining()
        if left > 0:
            self.tenure.until, self._ends = now, now + left
            return True
        try:
            self._lease.check()
        except LeaseLost as loss:
            if EXPIRED in str(loss):
                self.tenure.until = max(self.tenure.until, min(now, self._ends))
        return False


class Shift:
    """The workers of one process. They stop when the standard input ends."""

    def __init__(self, task: Task, number: int) -> None:
        """Prepare the workers."""
        self.task = task
        self.number = number
        self.over = threading.Event()
        self.numbers = SharedNumbers(task.port, task.space)
        self._workers: list[Worker] = []

    def block(self) -> None:
        """Run the workers in threads."""
        with Client(self.task.url) as client:
            threads = [threading.Thread(target=complete, args=(each.work(),)) for each in self._hire(adapt(client))]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

    async def loop(self) -> None:
        """Run the workers in tasks."""
        async with AsyncClient(self.task.url) as client:
            await asyncio.gather(*(each.work() for each in self._hire(client)))

    def report(self) -> None:
        """Print the records of the workers."""
        self.numbers.close()
        account = Account()
        for worker in self._workers:
            account.merge(worker.account)
        tenures = [asdict(each) for each in account.tenures]
        _say(json.dumps({"tenures": tenures, "counts": account.counts, "errors": account.errors}))

    def _hire(self, client: AsyncClient) -> list[Worker]:
        self._workers = [Worker(client, self, number) for number in range(self.task.workers)]
        threading.Thread(target=self._heed, daemon=True).start()
        return self._workers

    def _heed(self) -> None:
        while not any(worker.account.tenures for worker in self._workers):
            self.over.wait(0.002)
        _say("at work")
        sys.stdin.read()
        self.over.set()


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


class Failures(logging.Handler):
    """Collects errors in threads, and errors in the log, which no caller receives."""

    def __init__(self) -> None:
        """Observe all threads, and the log for errors."""
        super().__init__(logging.ERROR)
        self.heard: list[str] = []
        threading.excepthook = lambda failure: self.heard.append(repr(failure.exc_value))
        sys.unraisablehook = lambda failure: self.heard.append(f"{failure.err_msg} {failure.exc_value!r}")
        logging.basicConfig(handlers=[self])

    def emit(self, record: logging.LogRecord) -> None:
        """Record an error of the log."""
        self.heard.append(record.getMessage() + (f" {record.exc_info[1]!r}" if record.exc_info else ""))


def _main() -> None:
    failures = Failures()
    shift = Shift(Task(**json.loads(sys.argv[1])), int(sys.argv[2]))
    if API_FORMS[shift.number % 2] == "threads":
        shift.block()
    else:
        asyncio.run(shift.loop())
    shift.report()
    if failures.heard:
        sys.exit("\n".join(failures.heard))


if __name__ == "__main__":
    _main()
