"""The acquisition of `tenure run` and `tenure lock`: the lock that the options describe, and the wait for it."""

import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from tenure.cli.child import stop_oneself
from tenure.cli.diagnostics import Status, tell
from tenure.cli.wakeups import Wakeups, known_signals
from tenure.client import Client
from tenure.errors import LeaseLost, UsageError
from tenure.lease import Lease as OneLease
from tenure.primitives.multilock import MultiLease
from tenure.primitives.options import UNFAIR

Lease = OneLease | MultiLease

TO_GROUP = known_signals("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT")
"""The signals that end a wait; `run` forwards them to all processes of the command."""

CLOSING = 10.0
"""How long to wait, in seconds, for an interrupted acquisition to end."""


RETRY_FOR = 10.0
"""For how long, in seconds, a request to a store that does not answer is repeated if there is no --timeout."""


def retry_for(timeout: float | None) -> float:
    """Return for how many seconds to repeat requests to a store that does not answer, given the timeout of the wait."""
    return RETRY_FOR if timeout is None else timeout


def retry_for_job(timeout: float | None) -> float:
    """Return the same for a job: never less than RETRY_FOR, so that a short wait does not cost the note of its end."""
    return max(RETRY_FOR, retry_for(timeout))


class AnyLock(Protocol):
    """A lock of any kind."""

    def acquire(self) -> Lease:
        """Acquire with the timeout that the lock was made with."""
        ...


@dataclass(slots=True)
class CommandOptions:
    """The options that describe the lock to acquire."""

    names: Sequence[str]
    ttl: float
    timeout: float | None
    shared: bool = False
    exclusive: bool = False
    permits: int | None = None
    max_hold: float | None = None
    min_hold: float = 0.0
    lock_delay: float = 0.0
    unfair: bool = False

    def lock(self, client: Client) -> AnyLock:
        """Return the lock. Raises UsageError if the options contradict each other."""
        kinds = {"--shared": self.shared, "--exclusive": self.exclusive, "--permits": self.permits is not None}
        kinds["--unfair"] = self.unfair
        given = [option for option, on in kinds.items() if on]
        if len(given) > 1:
            raise UsageError(f"{' and '.join(given)} contradict each other; give one of them.")
        if len(self.names) > 1:
            return self._of_several(client, [*given, *(["--min-hold"] if self.min_hold else [])])
        name, ttl, timeout = self.names[0], self.ttl, self.timeout
        delay, most, least = self.lock_delay, self.max_hold, self.min_hold
        if self.permits is not None:
            return client.semaphore(name, self.permits, ttl, timeout, lock_delay=delay, max_hold=most, min_hold=least)
        if self.shared or self.exclusive:
            sides = client.rwlock(name, ttl, timeout, lock_delay=delay, max_hold=most, min_hold=least)
            return sides.read() if self.shared else sides.write()
        fair = not self.unfair
        try:
            return client.lock(name, ttl, timeout, lock_delay=delay, max_hold=most, min_hold=least, fair=fair)
        except UsageError as error:
            raise UsageError(str(error).replace(UNFAIR, "--unfair")) from error

    def _of_several(self, client: Client, refused: Sequence[str]) -> AnyLock:
        if refused:
            raise UsageError(f"{refused[0]} applies to a single name; leave it out, or give one name.")
        return client.multilock(self.names, self.ttl, self.timeout, lock_delay=self.lock_delay, max_hold=self.max_hold)


class InterruptedWait(Exception):
    """A signal ended the wait for the lock."""

    def __init__(self, number: int) -> None:
        """Record the signal by its number."""
        super().__init__(number)
        self.status = Status.SIGNALLED + number


def acquire(client: Client, lock: AnyLock, wakeups: Wakeups) -> Lease:
    """Wait for the lock. Raises InterruptedWait if a signal ended the wait, and what the acquisition raises."""
    acquisition = _Acquisition(lock, wakeups.wake)
    acquisition.start()
    while True:
        for number in wakeups.wait(None):
            if number in TO_GROUP:
                client.close()  # wakes the waiter, withdraws its request, and releases a lease that was just granted
                acquisition.join(CLOSING)
                raise InterruptedWait(number)
            if number == signal.SIGTSTP:
                stop_oneself()
        lease = acquisition.result()
        if lease is not None:
            if isinstance(lease, OneLease):
                lease.on_revoke(_tell_of_revocation)
            return lease


def _tell_of_revocation(lease: OneLease) -> None:
    tell(f"`tenure revoke` asks this process to release {lease.name!r}; end this process to release it.")


class _Acquisition(threading.Thread):
    """An acquisition in a thread of its own, so that a signal never interrupts it half-way."""

    def __init__(self, lock: AnyLock, done: Callable[[], None]) -> None:
        super().__init__(name="tenure-acquisition", daemon=True)
        self._lock = lock
        self._tell = done
        self.lease: Lease | None = None
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            self.lease = self._lock.acquire()
        except Exception as error:  # noqa: BLE001 - raised again in the main thread
            self.error = error
        self._tell()

    def result(self) -> Lease | None:
        """Return the lease, or None while the lock is not granted; raise the error of the acquisition."""
        if self.error is not None:
            raise self.error
        return self.lease


def tokens_of(lease: Lease) -> Mapping[str, int | None]:
    """Return the fencing token of each name; None if the store has no tokens."""
    names = lease.names if isinstance(lease, MultiLease) else (lease.name,)
    try:
        return lease.tokens if isinstance(lease, MultiLease) else {lease.name: lease.token}
    except UsageError:
        return dict.fromkeys(names)


def loss_of(lease: Lease) -> str:
    """Return the message that says that a lease is lost, and why."""
    try:
        lease.check()
    except LeaseLost as loss:
        return str(loss)
    return f"the lease of {', '.join(map(repr, tokens_of(lease)))} is lost."
