"""The commands that hold a lock: `run`, `lock`, and those of leases without a process.

`tenure lock` prints one line a name once it holds all names, and releases them at a signal, or when its input ends, for
instance because the script that opened the input died. A background job of a terminal may not read from the terminal,
and so holds its names until a signal.
"""

import errno
import os
import signal
import sys
import threading

from tenure.cli import output
from tenure.cli.commands import (
    CONFLICT_STATUS,
    GRACE,
    JSON,
    NAME,
    NO_WAIT,
    OWNER,
    PASS_URL,
    SHELL,
    STORE,
    TTL,
    Options,
    argument,
    client_of,
    command,
    flag,
    length,
    whole,
)
from tenure.cli.commands import seconds as of_seconds
from tenure.cli.output import Status, seconds, tell, tell_warnings
from tenure.cli.run import (
    RETRY_FOR,
    TO_HOLDER,
    TO_RUNNER,
    AnyLock,
    Lease,
    Wakeups,
    acquire,
    lock_of,
    loss_of,
    opened,
    run_under,
    runner_of,
    tokens_of,
    wait_of,
)
from tenure.client import Client
from tenure.contracts.handles import check_reason, read_handle
from tenure.contracts.limits import check_ttl
from tenure.core import handover
from tenure.errors import UsageError
from tenure.lease import Lease as OneLease
from tenure.outcome import Outcome
from tenure.posix import require_posix
from tenure.runtimes.threads import drive

STDIN = 0
PIECE = 65536

IN_PYTHON = "take the lock in a Python program"

LOCK = (
    TTL,
    *NO_WAIT,
    flag("-s", "--shared", help="Hold the name as a reader, beside others that use --shared."),
    flag("-x", "--exclusive", help="Hold the name alone, as a writer, where others use --shared."),
    argument(
        "--permits",
        type=whole(1),
        metavar="N",
        help="Hold one of so many permits. All users of the name give the same number.",
    ),
    flag(
        "--unfair",
        help="For throughput, without a strict order: take a free name even if others that use --unfair have waited "
        "for it, each for less than 0.1 s.",
    ),
    of_seconds("--max-hold", help="After how long the lease is lost, even if it is renewed."),
    of_seconds("--lock-delay", default=0.0, help="For how long nobody is granted the name after a lease expired."),
    CONFLICT_STATUS,
)
"""What `run` and `lock` have in common."""


@command(
    "run",
    "NAME... -- COMMAND...",
    argument("names", nargs="*", metavar="NAME", help="The names to lock."),
    SHELL,
    *LOCK,
    of_seconds(
        "--min-hold",
        default=0.0,
        help="For how long after the grant nobody else is granted the name, even if the command ends.",
    ),
    GRACE,
    argument("--done", metavar="KEY", help="Run the command once for this key; others wait until it is done."),
    *STORE,
    PASS_URL,
    OWNER,
    dashes=True,
)
def run(options: Options) -> int:
    """Run a command under a lock, or under several: `tenure run NAME... -- COMMAND...`.

    The command finds its fencing token in TENURE_TOKEN, the name in TENURE_NAME (one line for each of several
    names), and the store in TENURE_URL, without its password. It gets the signals sent to tenure. If the lease is
    lost, the command and all processes that it started get SIGTERM, and SIGKILL after the grace.

    With --done KEY and at most one name, which is that of a job, the command runs once for ever: where it is done
    already, nothing is run. After a failure the next call runs it again. See `tenure once`.

    Exits with the status of the command (128+N if signal N ended it); 64: wrong usage; 69: the store failed; 75 (or
    that of -E): not granted in time; 76: the lease was lost; 126: the command cannot be run; 127: it is not found.
    """
    require_posix("tenure run, which passes signals to the command,", IN_PYTHON)
    wait = wait_of(options)
    if options.done is not None:
        from tenure.cli.once import run_for_key

        return run_for_key(options)
    if not options.names:
        raise UsageError("there is no name. Give one before `--`. See `tenure run --help`.")
    client, job = runner_of(options, "run", RETRY_FOR if wait is None else wait)
    lock = lock_of(options, client, job.names, wait)
    tell_warnings()
    with Wakeups(TO_RUNNER) as wakeups, client:
        lease = acquire(client, lock, wakeups)
        try:
            status = run_under(lease, job, wakeups)
            return Status.LEASE_LOST if status is None else _release(lease, status)
        finally:
            lease.release()


def _release(lease: Lease, status: int) -> int:
    if lease.release().kept:
        return status
    tell(f"{loss_of(lease)} The command had just ended with status {status}.")
    return Status.LEASE_LOST


@command(
    "lock",
    "NAME...",
    argument("names", nargs="*", metavar="NAME", help="The names to lock."),
    *LOCK,
    *STORE,
    OWNER,
    JSON,
    dashes=True,
)
def hold(options: Options) -> int:
    """Hold a lock without a command, until the standard input ends or a signal arrives: `tenure lock NAME`.

    Prints a line for each name once all are held: the name, a tab, and the fencing token.

    Exits with 0 if its input ended and the lock was released, with 128+N if signal N arrived and the lock was released;
    64: wrong usage; 69: the store failed; 75 (or that of -E): not granted in time; 76: the lease was lost.
    """
    require_posix("tenure lock, which ends by signals,", IN_PYTHON)
    if options.names and options.after_dashes:
        raise UsageError("tenure lock runs no command: use `tenure run`, or leave `--` out.")
    names = options.names or options.after_dashes
    if not names:
        raise UsageError("there is no name. See `tenure lock --help`.")
    wait = wait_of(options)
    client, _ = opened(options, RETRY_FOR if wait is None else wait)
    lock = lock_of(options, client, names, wait)
    tell_warnings()
    with Wakeups(TO_HOLDER) as wakeups, client:
        lease = acquire(client, lock, wakeups)
        try:
            _print_tokens(lease, options)
            status = _hold(lease, wakeups)
        finally:
            kept = lease.release().kept
        if kept and status != Status.LEASE_LOST:
            return status
        tell(loss_of(lease))
        return Status.LEASE_LOST


def _print_tokens(lease: Lease, options: Options) -> None:
    tokens = tokens_of(lease)
    if options.as_json:
        output.print_json([{"name": name, "token": token} for name, token in tokens.items()])
    for name, token in () if options.as_json else tokens.items():
        output.print_line(name, "-" if token is None else token)
    sys.stdout.flush()
    if sys.stdin.isatty():
        tell("held until Ctrl-D or a signal.")


def _hold(lease: Lease, wakeups: Wakeups) -> int:
    """Wait for the end of the input, a signal, or the loss of the lease."""
    lease.on_lost(lambda _loss: wakeups.wake())
    ended = threading.Event()

    def read() -> None:
        """Read the standard input to its end, and discard it."""
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTIN})  # the kernel would stop a background job
        try:
            while os.read(STDIN, PIECE):
                pass
        except OSError as error:
            if error.errno == errno.EIO:  # a background job may not read from the terminal
                return
        ended.set()
        wakeups.wake()

    threading.Thread(target=read, name="tenure-input", daemon=True).start()
    while not lease.lost:
        if (status := wakeups.ended_by(lease.remaining())) is not None:
            return status
        if ended.is_set():
            return Status.DONE
    return Status.LEASE_LOST


# -- leases of handles ---------------------------------------------------------------------------------------


@command(
    "acquire",
    "NAME --for DURATION",
    NAME,
    length(
        "--for",
        required=True,
        help="How long the name stays held if nobody renews or releases it: 90s, 15m, 2h, 1d, or a number of seconds.",
    ),
    argument("--reason", metavar="TEXT", default="", help="What it is held for. `tenure show` shows it."),
    *NO_WAIT,
    CONFLICT_STATUS,
    *STORE,
    OWNER,
    JSON,
)
def acquire_name(options: Options) -> int:
    """Acquire a name that no process holds, and print its handle: `tenure acquire NAME --for 2h --reason TEXT`.

    For people, for steps of a pipeline, and for work that another process takes over. The command ends at once, and the
    name stays held until `tenure release HANDLE`, or until the time is over. `tenure renew HANDLE` prolongs it;
    `client.adopt(handle)` in a program goes on with the lease and renews it. The handle is a line of text without
    secrets.

    Exits with 0 once the name is held; 64: wrong usage, or a store whose leases end with their client; 69: the store
    failed; 75 (or that of -E): not granted in time; 128+N: signal N ended the wait.
    """
    require_posix("tenure acquire, which ends by signals,", IN_PYTHON)
    wait = wait_of(options)
    client, _ = opened(options, RETRY_FOR if wait is None else wait)
    lock = client.lock(options.name, ttl=min(client.ttl, options.length), timeout=wait)
    return acquire_handle(client, lock, options)


def acquire_handle(client: Client, lock: AnyLock, options: Options) -> int:
    """Acquire `lock`, detach its lease, and print the handle.

    The lease is short until it is detached, so that nothing stays behind for long if this process is killed before.
    """
    length, reason = options.length, options.reason
    tell_warnings()
    check_reason(reason)
    _check_length(client, length)
    with Wakeups(TO_HOLDER) as wakeups, client:
        lease = acquire(client, lock, wakeups)
        assert isinstance(lease, OneLease)  # noqa: S101 - for the type checkers: that of a lock is one
        token, owner = tokens_of(lease)[lease.name], lease.owner
        handle = lease.detach(length, reason=reason)
        try:
            if options.as_json:
                facts = {"handle": handle, "name": lease.name, "owner": owner, "reason": reason, "for": length}
                output.print_json(facts if token is None else {**facts, "token": read_handle(handle).token})
            else:
                print(handle)
            sys.stdout.flush()
        except BrokenPipeError:  # nobody can ever release it
            drive(handover.release(client.session(), read_handle(handle)))
            raise
    if output.is_terminal():
        tell(f"{lease.name!r} is held for {seconds(length)}. `tenure release HANDLE` releases it.")
    return Status.DONE


def _check_length(client: Client, length: float) -> None:
    """Raise UsageError if the store keeps no lease of a handle, or not for so long."""
    session = client.session()
    handover.refuse_if_bound(session)
    able = session.store.capabilities
    if length > able.max_ttl:
        raise UsageError(
            f"--for {length:g} s is longer than this store's max_ttl of {able.max_ttl:g} s, which is the length of a "
            "quarantine, too. Nobody renews the lease of a handle in the background, so raise max_ttl for all clients "
            f"of the store: write ?max_ttl={length:g} in its URL. Or renew the lease in time by `tenure renew HANDLE`."
        )
    check_ttl(length, able)


@command(
    "renew",
    "HANDLE",
    argument("handle", metavar="HANDLE", help="The handle that `tenure acquire` or `lease.detach()` gave."),
    length("--for", help="For how long from now on: 90s, 15m, 2h, 1d, or a number of seconds. Default: as before."),
    *STORE,
    JSON,
)
def renew(options: Options) -> int:
    """Renew a lease by its handle: `tenure renew HANDLE --for 1h`. It never ends earlier for it.

    A lease that a program has adopted is renewed by that program, and not by its handle.

    Exits with 0 if it was renewed; 64: wrong usage; 69: the store failed; 76: the lease has ended, or was adopted.
    """
    with client_of(options) as client:
        handle = read_handle(options.handle)
        if options.length is not None:
            _check_length(client, options.length)
        renewed = drive(handover.renew(client.session(), handle, handle.name, options.length))
        ttl = renewed.ttl / 1_000_000
        facts = {"name": handle.name, "token": handle.token, "for": ttl}
        output.print_one(options, facts, f"Renewed {handle.name!r} for {seconds(ttl)}.")
    return Status.DONE


def release_handle(client: Client, options: Options) -> int:
    """Release the lease of a handle, and report whether it lasted until now."""
    handle = read_handle(options.name)
    outcome = drive(handover.release(client.session(), handle))
    released = outcome is Outcome.RELEASED
    said = f"Released {handle.name!r} (token {handle.token})." if released else ""
    output.print_one(options, {"name": handle.name, "token": handle.token, "outcome": outcome.value}, said)
    if released:
        return Status.DONE
    tell(f"the lease of {handle.name!r} (token {handle.token}) has ended before, or was adopted: nothing was released.")
    return Status.NOBODY
