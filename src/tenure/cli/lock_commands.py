"""The commands that hold a lock: `run`, `once` and `lock`, with their options.

What they do stands in files of its own, which are imported when the command runs: so that `tenure ls` starts soon.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tenure.cli.diagnostics import Status, tell
from tenure.cli.parser import (
    Command,
    Options,
    Parser,
    add_conflict_status,
    add_flag,
    add_grace,
    add_json,
    add_owner,
    add_pass_url,
    add_seconds,
    add_shell,
    add_status,
    add_store,
    add_ttl,
    whole,
)
from tenure.errors import LockTimeout, UsageError
from tenure.posix import require_posix

if TYPE_CHECKING:
    from tenure.cli.acquisition import AnyLock
    from tenure.cli.address import Address
    from tenure.cli.once import OnceOptions
    from tenure.cli.run import CommandJob
    from tenure.client import Client

IN_PYTHON = "take the lock in a Python program"


def _add_lock_options(parser: Parser) -> None:
    """Add what `run` and `lock` have in common."""
    add_ttl(parser)
    text = (
        "How long to wait for the lock, and for a store that does not answer yet. Default: for ever, but 10 s for the "
        "store."
    )
    add_seconds(parser, "-w", "--timeout", least=0, text=text)
    add_flag(parser, "-n", "--no-wait", text="Exit with 75 at once if the name is held.")
    add_flag(parser, "-s", "--shared", text="Hold the name as a reader, beside others that use --shared.")
    add_flag(parser, "-x", "--exclusive", text="Hold the name alone, as a writer, where others use --shared.")
    parser.add_argument(
        "--permits",
        type=whole(1),
        metavar="N",
        help="Hold one of so many permits. All users of the name give the same number.",
    )
    text = (
        "For throughput, without a strict order: take a free name even if others that use --unfair have waited for it, "
        "each for less than 0.1 s."
    )
    add_flag(parser, "--unfair", text=text)
    add_seconds(parser, "--max-hold", text="After how long the lease is lost, even if it is renewed.")
    add_seconds(
        parser, "--lock-delay", text="For how long nobody is granted the name after a lease expired.", default=0.0
    )
    add_conflict_status(parser)


def _add_run_options(parser: Parser) -> None:
    parser.add_argument("names", nargs="*", metavar="NAME", help="The names to lock.")
    add_shell(parser)
    _add_lock_options(parser)
    text = "For how long after the grant nobody else is granted the name, even if the command ends."
    add_seconds(parser, "--min-hold", default=0.0, text=text)
    add_grace(parser)
    parser.add_argument(
        "--done", metavar="KEY", help="Run the command once for this key; others wait until it is done."
    )
    add_store(parser)
    add_pass_url(parser)
    add_owner(parser)


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
    from tenure.cli.address import find_address

    require_posix("tenure run, which passes signals to the command,", IN_PYTHON)
    address, wait = find_address(options.url, options.url_file), _wait(options)
    if options.done is not None:
        return _run_for_key(options, address)
    if not options.names:
        raise UsageError("there is no name. Give one before `--`. See `tenure run --help`.")
    from tenure.cli.run import CommandJob, run_job

    names, command = _split("run", options.names, options.after_dashes, options.shell)
    client, lock = _prepare(options, address, names, wait, options.min_hold)
    job = CommandJob(command, names, options.grace, address.environment(pass_url=options.pass_url))
    try:
        return run_job(client, lock, job)
    except LockTimeout as error:
        return _not_granted(error, options.conflict_status)


def _run_for_key(options: Options, address: "Address") -> int:
    """Run a command once for a key: `tenure run --done KEY`."""
    from tenure.cli.acquisition import retry_for_job
    from tenure.cli.once import OnceOptions
    from tenure.cli.run import CommandJob
    from tenure.contracts.limits import RAISE, WAIT

    of_locks = (options.shared, options.exclusive, options.permits is not None, options.max_hold is not None)
    if any(of_locks) or options.min_hold or options.lock_delay or options.unfair or len(options.names) > 1:
        raise UsageError("--done runs a job, under a lock of its own: give it no options of locks, and one name.")
    title = (options.names or ["run"])[0]
    _, command = _split("run", [title], options.after_dashes or [], options.shell)
    made = OnceOptions(
        title,
        key=options.done,
        busy=RAISE if options.no_wait else WAIT,
        ttl=options.ttl,
        timeout=options.timeout,
    )
    job = CommandJob(command, [title], options.grace, address.environment(pass_url=options.pass_url))
    client = address.client(namespace=options.namespace, owner=options.owner, retry_for=retry_for_job(options.timeout))
    return _run_once(client, made, job, options.conflict_status)


def _split(
    called: str, names: list[str], after_dashes: list[str] | None, shell: str | None
) -> tuple[list[str], list[str]]:
    """Return the names and the command. Without `--` and -c, the first word is the name."""
    if shell is not None:
        if after_dashes:
            raise UsageError("the command is given twice, after `--` and by -c. Leave one of them out.")
        return names, ["/bin/sh", "-c", shell]
    command = names[1:] if after_dashes is None else after_dashes
    if not command:
        raise UsageError(f"there is no command to run. Give it after `--`, or by -c. See `tenure {called} --help`.")
    return names[:1] if after_dashes is None else names, command


def _wait(options: Options) -> float | None:
    """Return for how long to wait. Raises UsageError if the options contradict each other."""
    if options.no_wait and options.timeout is not None:
        raise UsageError("--no-wait and --timeout contradict each other; give one of them.")
    return 0 if options.no_wait else options.timeout


def _prepare(
    options: Options, address: "Address", names: Sequence[str], wait: float | None, min_hold: float
) -> "tuple[Client, AnyLock]":
    """Return the lock, and a client that waits for its store for as long as for the lock."""
    from tenure.cli.acquisition import CommandOptions, retry_for

    wanted = CommandOptions(
        names,
        options.ttl,
        wait,
        options.shared,
        options.exclusive,
        options.permits,
        options.max_hold,
        min_hold,
        options.lock_delay,
        options.unfair,
    )
    client = address.client(namespace=options.namespace, owner=options.owner, retry_for=retry_for(wait))
    return client, wanted.lock(client)


def _not_granted(error: LockTimeout, status: int) -> int:
    from tenure.primitives.base import TO_WAIT

    tell(str(error).replace(TO_WAIT, "Leave --no-wait or --timeout 0 out to wait for it"))
    return status


def _add_once_options(parser: Parser) -> None:
    parser.add_argument("names", nargs="+", metavar="JOB", help="The name of the job.")
    add_shell(parser)
    parser.add_argument(
        "--window",
        help='hourly, daily, "daily Europe/Paris", a number of seconds, or a cron expression in quotes.',
    )
    parser.add_argument("--key", help="Run once for this key, instead of once in each window.")
    parser.add_argument(
        "--attempts",
        type=whole(1),
        default=1,
        metavar="N",
        help="How many runs may begin if runs fail or nodes die. Default: 1.",
    )
    add_seconds(parser, "--at-least", text="The least time between the beginnings of two runs.", least=0, default=0.0)
    parser.add_argument(
        "--busy",
        metavar="POLICY",
        help="While another node runs the job: skip (the default of a window), wait until it is done (the default of a "
        "key), or raise: exit with 75.",
    )
    add_seconds(parser, "-w", "--timeout", text="How long to wait at most, with --busy wait.", least=0)
    parser.add_argument(
        "--max-waiters",
        type=whole(0),
        metavar="N",
        help="With --busy wait: exit with 75 at once if so many wait already.",
    )
    add_seconds(parser, "--keep", text="After how long the record of a key is forgotten.")
    add_ttl(parser)
    add_grace(parser)
    add_status(
        parser, "--skip-exit-code", dest="skipped", default=Status.DONE, text="The status if there was nothing to run."
    )
    add_flag(parser, "-q", "--quiet", text="Say nothing if there was nothing to run.")
    add_conflict_status(parser)
    add_store(parser)
    add_pass_url(parser)
    add_owner(parser)


def once(options: Options) -> int:
    """Run a command once in a window, or once for a key: `tenure once JOB --window hourly -- COMMAND`.

    Call it on every node, for instance from each crontab; one of them runs it. A command that ends with another status
    than 0 is a failed attempt; a later call makes the next one, after a back-off. The command finds the name of the job
    in TENURE_NAME, the fencing token in TENURE_TOKEN, its window in TENURE_WINDOW, and the number of the attempt
    in TENURE_ATTEMPT. Signals and a lost lease are as with `tenure run`.

    Exits with the status of the command if it was run; 0 (or that of --skip-exit-code): it was done before, another
    node runs it, its window is over, or it is paused; 64: wrong usage; 69: the store failed; 70: it has failed, and no
    attempt is left; 75: it has failed, and the next attempt is not due yet; 75 (or that of -E): it is busy, with --busy
    raise or after --timeout; 76: the lease was lost.
    """
    from tenure.cli.acquisition import retry_for_job
    from tenure.cli.address import find_address
    from tenure.cli.once import OnceOptions
    from tenure.cli.run import CommandJob

    require_posix("tenure once, which passes signals to the command,", "call Client.once in a Python program")
    names, command = _split("once", options.names, options.after_dashes, options.shell)
    if len(names) > 1:
        raise UsageError("a job has one name. Write `--` before the command. See `tenure once --help`.")
    address = find_address(options.url, options.url_file)
    made = OnceOptions(
        names[0],
        options.window,
        options.key,
        options.attempts,
        options.at_least,
        options.busy,
        options.ttl,
        options.timeout,
        options.max_waiters,
        options.keep,
    )
    job = CommandJob(command, names, options.grace, address.environment(pass_url=options.pass_url))
    client = address.client(namespace=options.namespace, owner=options.owner, retry_for=retry_for_job(options.timeout))
    return _run_once(client, made, job, options.conflict_status, options.skipped, quiet=options.quiet)


def _run_once(
    client: "Client",
    options: "OnceOptions",
    job: "CommandJob",
    conflict_status: int,
    skipped: int = Status.DONE,
    *,
    quiet: bool = False,
) -> int:
    from tenure.cli.once import run_once

    try:
        return run_once(client, options.spec(client), job, skipped=skipped, quiet=quiet)
    except LockTimeout as error:
        return _not_granted(error, conflict_status)


def _add_hold_options(parser: Parser) -> None:
    parser.add_argument("names", nargs="*", metavar="NAME", help="The names to lock.")
    _add_lock_options(parser)
    add_store(parser)
    add_owner(parser)
    add_json(parser)


def hold(options: Options) -> int:
    """Hold a lock without a command, until the standard input ends or a signal arrives: `tenure lock NAME`.

    Prints a line for each name once all are held: the name, a tab, and the fencing token.

    Exits with 0 if its input ended and the lock was released, with 128+N if signal N arrived and the lock was released;
    64: wrong usage; 69: the store failed; 75 (or that of -E): not granted in time; 76: the lease was lost.
    """
    from tenure.cli.address import find_address
    from tenure.cli.hold import hold_lock

    require_posix("tenure lock, which ends by signals,", IN_PYTHON)
    if options.names and options.after_dashes:
        raise UsageError("tenure lock runs no command: use `tenure run`, or leave `--` out.")
    names = options.names or options.after_dashes
    if not names:
        raise UsageError("there is no name. See `tenure lock --help`.")
    wait, address = _wait(options), find_address(options.url, options.url_file)
    client, lock = _prepare(options, address, names, wait, 0.0)
    try:
        return hold_lock(client, lock, as_json=options.as_json)
    except LockTimeout as error:
        return _not_granted(error, options.conflict_status)


LOCK_COMMANDS = (
    Command("run", "NAME... -- COMMAND...", _add_run_options, run, dashes=True),
    Command("once", "JOB -- COMMAND...", _add_once_options, once, dashes=True),
    Command("lock", "NAME...", _add_hold_options, hold, dashes=True),
)
