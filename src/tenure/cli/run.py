"""A command under a lock, as `tenure run` runs it; and how every command waits for a lock and for signals.

The rules:

*   The command runs in a process group of its own. SIGINT, SIGTERM, SIGHUP and SIGQUIT are forwarded to the whole
    group, as a terminal does; SIGUSR1 and SIGUSR2 to the command alone.
*   If the lease is lost, the group gets SIGTERM at once, for another holder may be at work already. It gets SIGKILL
    after the grace, or as soon as the command itself has ended.
*   The command finds its fencing token in TENURE_TOKEN and the name in TENURE_NAME; several are one a line, in the
    order in which they were given.
*   If tenure itself is killed, the command is killed with it (`child.py`). If tenure is stopped, no process ends the
    command. Then only the token protects the resource that the command writes to: the resource must refuse the
    smaller token.
*   No work is done inside a signal handler, and no handler raises an exception. The main thread reads the signals in
    their order when it is ready for them, and an acquisition has a thread of its own, so that no signal interrupts it
    half-way.
"""

import contextlib
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol, Self

from tenure.cli.child import Child, known_signals, stop_oneself
from tenure.cli.commands import Ended, Options, find_address
from tenure.cli.output import Status, tell
from tenure.client import Client
from tenure.errors import LeaseLost, UsageError
from tenure.lease import Lease as OneLease
from tenure.primitives.options import UNFAIR

if TYPE_CHECKING:
    from tenure.primitives.multilock import MultiLease

    Lease = OneLease | MultiLease
else:  # a lock of one name does without the locks of several
    Lease = object

TO_GROUP = known_signals("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT")
"""The signals that end a wait; `run` forwards them to all processes of the command."""

TO_COMMAND = known_signals("SIGUSR1", "SIGUSR2")
TO_HOLDER = (*TO_GROUP, *known_signals("SIGTSTP"))
TO_RUNNER = (*TO_HOLDER, *TO_COMMAND, *known_signals("SIGCHLD"))

CLOSING = 10.0
"""How long to wait, in seconds, for an interrupted acquisition to end."""

RETRY_FOR = 10.0
"""For how long, in seconds, a request to a store that does not answer is repeated if there is no --timeout."""

WAKE = 0
READ = 4096


# -- what is to be run, and the lock -------------------------------------------------------------------------


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


def runner_of(options: Options, called: str, retry_for: float) -> tuple[Client, CommandJob]:
    """Return a client that repeats requests for so many seconds, and what to run.

    Without `--` and -c, the first word is the name.
    """
    names, after = options.names, options.after_dashes
    if options.shell is not None:
        if after:
            raise UsageError("the command is given twice, after `--` and by -c. Leave one of them out.")
        words = ["/bin/sh", "-c", options.shell]
    else:
        words = names[1:] if after is None else after
        names = names[:1] if after is None else names
        if not words:
            raise UsageError(f"there is no command to run. Give it after `--`, or by -c. See `tenure {called} --help`.")
    if called == "once" and len(names) > 1:
        raise UsageError("a job has one name. Write `--` before the command. See `tenure once --help`.")
    client, environment = opened(options, retry_for)
    return client, CommandJob(words, names, options.grace, environment)


def opened(options: Options, retry_for: float) -> tuple[Client, Mapping[str, str | None]]:
    """Return a client, and the environment by which a command finds the same store."""
    address = find_address(options)
    client = address.client(namespace=options.namespace, owner=options.owner, retry_for=retry_for)
    return client, address.environment(pass_url=getattr(options, "pass_url", False))


def wait_of(options: Options) -> float | None:
    """Return for how long to wait. Raises UsageError if the options contradict each other."""
    if options.no_wait and options.timeout is not None:
        raise UsageError("--no-wait and --timeout contradict each other; give one of them.")
    return 0 if options.no_wait else options.timeout


class AnyLock(Protocol):
    """A lock of any kind."""

    def acquire(self) -> Lease:
        """Acquire with the timeout that the lock was made with."""
        ...


def lock_of(options: Options, client: Client, names: Sequence[str], wait: float | None) -> AnyLock:
    """Return the lock that the options describe. Raises UsageError if they contradict each other."""
    min_hold: float = getattr(options, "min_hold", 0.0)
    given = [f"--{option}" for option in ("shared", "exclusive", "permits", "unfair") if getattr(options, option)]
    if len(given) > 1:
        raise UsageError(f"{' and '.join(given)} contradict each other; give one of them.")
    common: dict[str, Any] = {"ttl": options.ttl, "timeout": wait, "lock_delay": options.lock_delay}
    common["max_hold"] = options.max_hold
    if len(names) > 1:
        if refused := [*given, *(["--min-hold"] if min_hold else [])]:
            raise UsageError(f"{refused[0]} applies to a single name; leave it out, or give one name.")
        return client.multilock(names, **common)
    name, common["min_hold"] = names[0], min_hold
    if options.permits is not None:
        return client.semaphore(name, options.permits, **common)
    if options.shared or options.exclusive:
        sides = client.rwlock(name, **common)
        return sides.read() if options.shared else sides.write()
    try:
        return client.lock(name, fair=not options.unfair, **common)
    except UsageError as error:
        raise UsageError(str(error).replace(UNFAIR, "--unfair")) from error


# -- waiting -------------------------------------------------------------------------------------------------


class Wakeups:
    """The place where the main thread waits: signals and `wake` write bytes to a socket pair."""

    def __init__(self, signals: Iterable[int]) -> None:
        """Prepare to receive `signals`; a signal that is ignored, as nohup ignores SIGHUP, stays ignored."""
        self._signals = list(signals)
        self._before: dict[int, object] = {}
        self._reader, self._writer = socket.socketpair()
        self._reader.settimeout(0)
        self._writer.settimeout(0)
        self._wakeup_before = -1

    def wake(self) -> None:
        """Wake the main thread. Callable from any thread, at any time."""
        with contextlib.suppress(OSError):
            self._writer.send(bytes([WAKE]))

    def wait(self, timeout: float | None) -> list[int]:
        """Wait for a signal, a wake-up or the timeout; return the signals that arrived, in order."""
        if not select.select([self._reader], [], [], timeout)[0]:
            return []
        return [number for number in self._reader.recv(READ) if number != WAKE]

    def put_back(self, numbers: Iterable[int]) -> None:
        """Have the next wait return these signals again."""
        self._writer.send(bytes(numbers))

    def ended_by(self, timeout: float | None) -> int | None:
        """Wait likewise, and stop at ^Z; return the status to exit with if a signal ends this process."""
        for number in self.wait(timeout):
            if number in TO_GROUP:
                return Status.SIGNALLED + number
            if number == signal.SIGTSTP:
                stop_oneself()
        return None

    def __enter__(self) -> Self:
        self._wakeup_before = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        for number in self._signals:
            if number == signal.SIGCHLD or signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, _leave_it_to_the_socket)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type] # what signal.signal returned
        signal.set_wakeup_fd(self._wakeup_before)
        self._reader.close()
        self._writer.close()


def _leave_it_to_the_socket(_number: int, _frame: FrameType | None) -> None:
    """Do nothing: the interpreter has written the signal's number to the socket already."""


def acquire(client: Client, lock: AnyLock, wakeups: Wakeups) -> Lease:
    """Wait for the lock. Raises Ended if a signal ended the wait, and what the acquisition raises."""
    granted: list[Lease] = []
    failed: list[Exception] = []

    def wait() -> None:
        try:
            granted.append(lock.acquire())
        except Exception as error:  # noqa: BLE001 - raised again in the main thread
            failed.append(error)
        wakeups.wake()

    waiter = threading.Thread(target=wait, name="tenure-acquisition", daemon=True)
    waiter.start()
    while True:
        if (status := wakeups.ended_by(None)) is not None:
            client.close()  # wakes the waiter, withdraws its request, and releases a lease that was just granted
            waiter.join(CLOSING)
            raise Ended(status)
        if failed:
            raise failed[0]
        if granted:
            if isinstance(granted[0], OneLease):
                granted[0].on_revoke(_tell_of_revocation)
            return granted[0]


def _tell_of_revocation(lease: OneLease) -> None:
    tell(f"`tenure revoke` asks this process to release {lease.name!r}; end this process to release it.")


def tokens_of(lease: Lease) -> Mapping[str, int | None]:
    """Return the fencing token of each name; None if the store has no tokens."""
    names = (lease.name,) if isinstance(lease, OneLease) else lease.names
    try:
        return {lease.name: lease.token} if isinstance(lease, OneLease) else lease.tokens
    except UsageError:
        return dict.fromkeys(names)


def loss_of(lease: Lease) -> str:
    """Return the message that says that a lease is lost, and why."""
    try:
        lease.check()
    except LeaseLost as loss:
        return str(loss)
    return f"the lease of {', '.join(map(repr, tokens_of(lease)))} is lost."


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
    """End the command and its process group: with SIGTERM, then with SIGKILL.

    A signal that comes meanwhile is for tenure, too: `elect` does not stand again.
    """
    tell(f"{loss_of(lease)} Ending the command: SIGTERM now, SIGKILL after {grace:g} s.")
    child.signal_all(signal.SIGTERM)
    child.signal_all(signal.SIGCONT)
    give_up_at, came = time.monotonic() + grace, list[int]()
    while child.poll() is None and (left := give_up_at - time.monotonic()) > 0:
        for number in wakeups.wait(left):
            _forward(number, child)
            came.append(number)
    child.signal_all(signal.SIGKILL)
    child.wait()
    wakeups.put_back(each for each in came if each in TO_GROUP)
