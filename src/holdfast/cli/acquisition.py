"""How `holdfast run` and `holdfast lock` get what they hold: which lock the options ask for, and the wait for it."""

import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from holdfast.cli.child import stop_oneself
from holdfast.cli.say import Status, tell
from holdfast.cli.wakeups import Wakeups, known_signals
from holdfast.client import Client
from holdfast.errors import LeaseLost, UsageError
from holdfast.lease import Lease as OneLease
from holdfast.primitives.multilock import MultiLease

Lease = OneLease | MultiLease

TO_GROUP = known_signals("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT")
"""The signals that end a wait; `run` passes them on to all processes of the command."""

CLOSING = 10.0
"""The longest to wait for an acquisition that was told to end, in seconds."""


RIDE_OUT = 10.0
"""For how long a store that does not answer is ridden out, in seconds, if no --timeout says so."""


def ride_out(timeout: float | None) -> float:
    """Return for how long a store that does not answer is ridden out, by whoever would wait for so long."""
    return RIDE_OUT if timeout is None else timeout


class AnyLock(Protocol):
    """What can be acquired, of whatever kind."""

    def acquire(self) -> Lease:
        """Acquire as the lock was made to."""
        ...


@dataclass(slots=True)
class Wish:
    """What the options ask for."""

    names: Sequence[str]
    ttl: float
    timeout: float | None
    shared: bool = False
    exclusive: bool = False
    permits: int | None = None
    max_hold: float | None = None
    min_hold: float = 0.0
    lock_delay: float = 0.0

    def lock(self, client: Client) -> AnyLock:
        """Return the lock. Raises UsageError if the options contradict."""
        kinds = {"--shared": self.shared, "--exclusive": self.exclusive, "--permits": self.permits is not None}
        given = [option for option, on in kinds.items() if on]
        if len(given) > 1:
            raise UsageError(f"{' and '.join(given)} contradict each other; give one of them.")
        if len(self.names) > 1:
            return self._of_several(client, [*given, *(["--min-hold"] if self.min_hold else [])])
        name, ttl, timeout = self.names[0], self.ttl, self.timeout
        delay, most, least = self.lock_delay, self.max_hold, self.min_hold
        if self.permits is not None:
            return client.semaphore(name, self.permits, ttl, timeout, lock_delay=delay, max_hold=most, min_hold=least)
        if given:
            sides = client.rwlock(name, ttl, timeout, lock_delay=delay, max_hold=most, min_hold=least)
            return sides.read() if self.shared else sides.write()
        return client.lock(name, ttl, timeout, lock_delay=delay, max_hold=most, min_hold=least)

    def _of_several(self, client: Client, refused: Sequence[str]) -> AnyLock:
        if refused:
            raise UsageError(f"{refused[0]} is for one name; leave it out, or give one name.")
        return client.multilock(self.names, self.ttl, self.timeout, lock_delay=self.lock_delay, max_hold=self.max_hold)


class InterruptedWait(Exception):
    """A signal ended the wait for the lock."""

    def __init__(self, number: int) -> None:
        """Note which signal."""
        super().__init__(number)
        self.status = Status.SIGNALLED + number


def acquire(client: Client, lock: AnyLock, wakeups: Wakeups) -> Lease:
    """Wait for the lock. Raises InterruptedWait if a signal ended that, and what the acquisition raises."""
    asking = _Acquisition(lock, wakeups.wake)
    asking.start()
    while True:
        for number in wakeups.wait(None):
            if number in TO_GROUP:
                client.close()  # wakes the waiter, lets it leave the queue, and releases what was just granted
                asking.join(CLOSING)
                raise InterruptedWait(number)
            if number == signal.SIGTSTP:
                stop_oneself()
        lease = asking.result()
        if lease is not None:
            if isinstance(lease, OneLease):
                lease.on_revoke(lambda asked: tell(f"somebody asks for {asked.name!r} by `holdfast revoke`."))
            return lease


class _Acquisition(threading.Thread):
    """An acquisition in a thread, so that a signal never strikes in the middle of it."""

    def __init__(self, lock: AnyLock, done: Callable[[], None]) -> None:
        super().__init__(name="holdfast-acquisition", daemon=True)
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
        """Return the lease, or None while it is not granted; raise what the acquisition raised."""
        if self.error is not None:
            raise self.error
        return self.lease


def tokens_of(lease: Lease) -> dict[str, int]:
    """Return the fencing token of each name."""
    return lease.tokens if isinstance(lease, MultiLease) else {lease.name: lease.token}


def loss_of(lease: Lease) -> str:
    """Say that a lease is lost, and why."""
    try:
        lease.check()
    except LeaseLost as loss:
        return str(loss)
    return f"the lease of {', '.join(map(repr, tokens_of(lease)))} is lost."
