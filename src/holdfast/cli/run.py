"""`holdfast run`: a command under a lock.

What holds for the command:

*   It runs in a process group of its own. SIGINT, SIGTERM, SIGHUP and SIGQUIT are passed on to the whole group, as
    a terminal would do; SIGUSR1 and SIGUSR2 to the command alone.
*   If the lease is lost, the group gets SIGTERM at once (another holder may be at work already, there is nothing to
    wait for) and SIGKILL after the grace, or as soon as the command itself has ended.
*   It finds its fencing token in HOLDFAST_TOKEN, the name in HOLDFAST_NAME; of several, one a line,
    in the order in which they were given. If holdfast itself
    is killed or stopped, nobody is there to end the command; then the token is the net: what the command writes to must
    refuse the smaller one.
"""

import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from holdfast.cli.acquisition import TO_GROUP, AnyLock, InterruptedWait, Lease, acquire, loss_of, tokens_of
from holdfast.cli.child import Child
from holdfast.cli.say import Status, tell, tell_warnings
from holdfast.cli.wakeups import Wakeups, known_signals
from holdfast.client import Client

TO_COMMAND = known_signals("SIGUSR1", "SIGUSR2")
TAKEN = (*TO_GROUP, *TO_COMMAND, *known_signals("SIGTSTP", "SIGCHLD"))


@dataclass(slots=True)
class Job:
    """What to run, and how."""

    command: Sequence[str]
    names: Sequence[str]
    grace: float
    environment: Mapping[str, str | None]
    """What the command finds in its environment, besides all that is in ours, its names and its tokens. None: what it
    does not find."""


def run_job(client: Client, lock: AnyLock, job: Job) -> int:
    """Run a command under `lock`, and return the status to exit with.

    Raises LockTimeout or StoreError if the lock was not granted. The client is closed at the end.
    """
    tell_warnings()
    with Wakeups(TAKEN) as wakeups, client:
        try:
            lease = acquire(client, lock, wakeups)
        except InterruptedWait as interrupted:
            return interrupted.status
        try:
            return _under(lease, job, wakeups)
        finally:
            lease.release()


# -- under the lock ------------------------------------------------------------------------------------------


def _under(lease: Lease, job: Job, wakeups: Wakeups) -> int:
    lease.on_lost(lambda _loss: wakeups.wake())
    tokens = tokens_of(lease)
    facts = {
        "HOLDFAST_NAME": "\n".join(job.names),
        "HOLDFAST_TOKEN": "\n".join(str(tokens[name]) for name in job.names),
    }
    environment = {**os.environ, **job.environment, **facts}
    try:
        child = Child(job.command, {key: value for key, value in environment.items() if value is not None})
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
            _pass(number, child)
    return status


def _pass(number: int, child: Child) -> None:
    if number in TO_COMMAND:
        child.signal(number)
    elif number != signal.SIGCHLD:
        child.signal_all(number)


def _end_after_loss(child: Child, lease: Lease, wakeups: Wakeups, grace: float) -> int:
    """End the command: asked first, then by force, and with it what it leaves behind in its group."""
    tell(f"{loss_of(lease)} Ending the command: SIGTERM now, SIGKILL after {grace:g} s.")
    child.signal_all(signal.SIGTERM)
    child.signal_all(signal.SIGCONT)
    give_up_at = time.monotonic() + grace
    while child.poll() is None and (left := give_up_at - time.monotonic()) > 0:
        for number in wakeups.wait(left):
            _pass(number, child)
    child.signal_all(signal.SIGKILL)
    child.wait()
    return Status.LEASE_LOST


def _release(lease: Lease, status: int) -> int:
    if lease.release().kept:
        return status
    tell(f"{loss_of(lease)} The command had just ended by itself, with status {status}.")
    return Status.LEASE_LOST
