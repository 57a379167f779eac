"""`holdfast run`: a command under a lock.

What holds for the command:

*   It runs in a process group of its own. SIGINT, SIGTERM, SIGHUP and SIGQUIT are passed on to the whole group, as
    a terminal would do; SIGUSR1 and SIGUSR2 to the command alone.
*   If the lease is lost, the group gets SIGTERM at once (another holder may be at work already, there is nothing to
    wait for) and SIGKILL after the grace, or as soon as the command itself has ended.
*   It finds its fencing token in HOLDFAST_TOKEN. If holdfast itself is killed or stopped, nobody is there to end the
    command; then the token is the net: what the command writes to must refuse the smaller one.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from holdfast.cli.child import Child, stop_oneself
from holdfast.cli.say import Status, tell, tell_warnings
from holdfast.cli.wakeups import Wakeups
from holdfast.client import Client
from holdfast.errors import LeaseLost
from holdfast.lease import Lease
from holdfast.primitives.lock import Lock

TO_GROUP = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT})
TO_COMMAND = frozenset({signal.SIGUSR1, signal.SIGUSR2})
TAKEN = (*TO_GROUP, *TO_COMMAND, signal.SIGTSTP, signal.SIGCHLD)

CLOSING = 10.0
"""The longest to wait for an acquisition that was told to end, in seconds."""


@dataclass(slots=True)
class Job:
    """What to run, and how."""

    command: Sequence[str]
    grace: float
    environment: dict[str, str]
    """What the command finds in its environment, besides all that is in ours, and its token."""


class InterruptedWait(Exception):
    """A signal ended the wait for the lock."""

    def __init__(self, number: int) -> None:
        """Note which signal."""
        super().__init__(number)
        self.status = Status.SIGNALLED + number


def run_job(client: Client, lock: Lock, job: Job) -> int:
    """Run a command under `lock`, and return the status to exit with.

    Raises LockTimeout or StoreError if the lock was not granted. The client is closed at the end.
    """
    tell_warnings()
    with Wakeups(TAKEN) as wakeups, client:
        try:
            lease = _acquire(client, lock, wakeups)
        except InterruptedWait as interrupted:
            return interrupted.status
        try:
            return _under(lease, job, wakeups)
        finally:
            lease.release()


# -- waiting for the lock ------------------------------------------------------------------------------------


class _Acquisition(threading.Thread):
    """An acquisition in a thread, so that a signal never strikes in the middle of it."""

    def __init__(self, lock: Lock, done: Callable[[], None]) -> None:
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


def _acquire(client: Client, lock: Lock, wakeups: Wakeups) -> Lease:
    asking = _Acquisition(lock, wakeups.poke)
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
            return lease


# -- under the lock ------------------------------------------------------------------------------------------


def _under(lease: Lease, job: Job, wakeups: Wakeups) -> int:
    lease.on_lost(lambda _loss: wakeups.poke())
    environment = {**os.environ, **job.environment, "HOLDFAST_TOKEN": str(lease.token)}
    try:
        child = Child(job.command, environment)
    except OSError as error:
        return _cannot_run(job.command[0], error)
    try:
        status = _watch(child, lease, wakeups)
    except BaseException:
        child.signal_all(signal.SIGKILL)
        child.wait()
        raise
    return _end_after_loss(child, lease, wakeups, job.grace) if status is None else _release(lease, status)


def _cannot_run(command: str, error: OSError) -> int:
    tell(f"{command}: {error.strerror}")
    return Status.NOT_FOUND if isinstance(error, FileNotFoundError) else Status.CANNOT_RUN


def _watch(child: Child, lease: Lease, wakeups: Wakeups) -> int | None:
    """Pass signals on until the command ends (its status) or the lease is lost (None)."""
    while (status := child.poll()) is None:
        if lease.lost:
            return None
        for number in wakeups.wait(lease.remaining()):
            _pass_on(number, child)
    return status


def _pass_on(number: int, child: Child) -> None:
    if number in TO_COMMAND:
        child.signal(number)
    elif number != signal.SIGCHLD:
        child.signal_all(number)


def _end_after_loss(child: Child, lease: Lease, wakeups: Wakeups, grace: float) -> int:
    """End the command: asked first, then by force, and with it what it leaves behind in its group."""
    tell(f"{_loss(lease)} Ending the command: SIGTERM now, SIGKILL after {grace:g} s.")
    child.signal_all(signal.SIGTERM)
    child.signal_all(signal.SIGCONT)
    give_up_at = time.monotonic() + grace
    while child.poll() is None and (left := give_up_at - time.monotonic()) > 0:
        for number in wakeups.wait(left):
            _pass_on(number, child)
    child.signal_all(signal.SIGKILL)
    child.wait()
    return Status.LEASE_LOST


def _release(lease: Lease, status: int) -> int:
    if lease.release().kept:
        return status
    tell(f"{_loss(lease)} The command had just ended by itself, with status {status}.")
    return Status.LEASE_LOST


def _loss(lease: Lease) -> str:
    try:
        lease.check()
    except LeaseLost as loss:
        return str(loss)
    return f"the lease of {lease.name!r} is lost."
