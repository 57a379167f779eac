"""`tenure run`: a command under a lock.

The rules:

*   The command runs in a process group of its own. SIGINT, SIGTERM, SIGHUP and SIGQUIT are forwarded to the whole
    group, as a terminal does; SIGUSR1 and SIGUSR2 to the command alone.
*   If the lease is lost, the group gets SIGTERM at once, for another holder may be at work already. It gets SIGKILL
    after the grace, or as soon as the command itself has ended.
*   The command finds its fencing token in TENURE_TOKEN and the name in TENURE_NAME; several are one a line, in the
    order in which they were given. If tenure itself is killed or stopped, no process ends the command. Then only
    the token protects the resource that the command writes to: the resource must refuse the smaller token.
"""

import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tenure.cli.acquisition import TO_GROUP, AnyLock, InterruptedWait, Lease, acquire, loss_of, tokens_of
from tenure.cli.child import Child
from tenure.cli.diagnostics import Status, tell, tell_warnings
from tenure.cli.wakeups import Wakeups, known_signals
from tenure.client import Client

TO_COMMAND = known_signals("SIGUSR1", "SIGUSR2")
TAKEN = (*TO_GROUP, *TO_COMMAND, *known_signals("SIGTSTP", "SIGCHLD"))


@dataclass(slots=True)
class CommandJob:
    """What to run, and how."""

    command: Sequence[str]
    names: Sequence[str]
    grace: float
    environment: Mapping[str, str | None]
    """Variables of the command's environment, besides those of this process, its names and its tokens. None removes a
    variable."""
    facts: Mapping[str, str] = field(default_factory=dict[str, str])
    """Further variables, known once the lock is held."""


def run_job(client: Client, lock: AnyLock, job: CommandJob) -> int:
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
            status = run_under(lease, job, wakeups)
            return Status.LEASE_LOST if status is None else _release(lease, status)
        finally:
            lease.release()


# -- under the lock ------------------------------------------------------------------------------------------


def run_under(lease: Lease, job: CommandJob, wakeups: Wakeups) -> int | None:
    """Run a command to its end under a lease, and return its status; None if the lease was lost and it was ended."""
    lease.on_lost(lambda _loss: wakeups.wake())
    tokens = tokens_of(lease)
    numbers = [tokens[name] for name in job.names]
    facts = {
        "TENURE_NAME": "\n".join(job.names),
        "TENURE_TOKEN": None if None in numbers else "\n".join(map(str, numbers)),  # None: the store has no tokens
    }
    environment = {**os.environ, **job.environment, **facts, **job.facts}
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
    if status is None:
        _end_after_loss(child, lease, wakeups, job.grace)
    return status


def _cannot_run(command: str, error: OSError) -> int:
    tell(f"{command}: {error.strerror}")
    return Status.NOT_FOUND if isinstance(error, FileNotFoundError) else Status.CANNOT_RUN


def _watch(child: Child, lease: Lease, wakeups: Wakeups) -> int | None:
    """Forward signals until the command ends (return its status) or the lease is lost (return None)."""
    while (status := child.poll()) is None:
        if lease.lost:
            return None
        for number in wakeups.wait(lease.remaining()):
            _forward(number, child)
    return status


def _forward(number: int, child: Child) -> None:
    if number in TO_COMMAND:
        child.signal(number)
    elif number != signal.SIGCHLD:
        child.signal_all(number)


def _end_after_loss(child: Child, lease: Lease, wakeups: Wakeups, grace: float) -> None:
    """End the command and its process group: with SIGTERM, then with SIGKILL."""
    tell(f"{loss_of(lease)} Ending the command: SIGTERM now, SIGKILL after {grace:g} s.")
    child.signal_all(signal.SIGTERM)
    child.signal_all(signal.SIGCONT)
    give_up_at = time.monotonic() + grace
    while child.poll() is None and (left := give_up_at - time.monotonic()) > 0:
        for number in wakeups.wait(left):
            _forward(number, child)
    child.signal_all(signal.SIGKILL)
    child.wait()


def _release(lease: Lease, status: int) -> int:
    if lease.release().kept:
        return status
    tell(f"{loss_of(lease)} The command had just ended with status {status}.")
    return Status.LEASE_LOST
