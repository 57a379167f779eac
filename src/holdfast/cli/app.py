"""The commands and their options. The files beside this one contain what the commands do."""

import os
import signal
import sys
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from typer.core import TyperGroup

from holdfast.cli.acquisition import AnyLock, CommandOptions, retry_for, retry_for_job
from holdfast.cli.address import Address, find_address
from holdfast.cli.diagnostics import Status, tell
from holdfast.cli.hold import hold_lock
from holdfast.cli.job_commands import change_job, forget_job, list_jobs, repeat_job
from holdfast.cli.name_commands import end_quarantine, list_names, release_name, revoke_name, show_name, wait_for_name
from holdfast.cli.once import OnceOptions, run_once
from holdfast.cli.options import (
    AFTER_DASHES,
    AsJson,
    ConflictStatus,
    DashesCommand,
    Exclusive,
    LockDelay,
    MaxHold,
    Name,
    Namespace,
    NoWait,
    Owner,
    PassUrl,
    Permits,
    Shared,
    Timeout,
    Ttl,
    Url,
    UrlFile,
)
from holdfast.cli.run import CommandJob, run_job
from holdfast.cli.schema import SchemaKind, schema_sql
from holdfast.client import DEFAULT_TTL, Client
from holdfast.contracts.limits import RAISE, WAIT
from holdfast.errors import HoldfastError, LockTimeout, StoreError, UsageError
from holdfast.posix import require_posix
from holdfast.primitives.base import TO_WAIT
from holdfast.primitives.jobs import Job

SIGPIPE = 13
"""The number of the signal, where the system has none."""

IN_PYTHON = "take the lock in a Python program"


class Commands(TyperGroup):
    """All commands. A command whose output nobody reads any more ends with the status of SIGPIPE."""

    def invoke(self, ctx: typer.Context) -> Any:  # type: ignore[override] # noqa: ANN401 - typer's own is of click
        """Run the command that the arguments name."""
        try:
            status = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter flushes the rest at exit
            return Status.SIGNALLED + int(getattr(signal, "SIGPIPE", SIGPIPE))
        return status


app = typer.Typer(cls=Commands, rich_markup_mode=None, pretty_exceptions_enable=False)

CLICK_ERROR = cast("type[typer.BadParameter]", typer.BadParameter.__mro__[2])
"""The base class of all errors in arguments; its module depends on the version of typer."""


def run_app(arguments: list[str] | None = None) -> int:
    """Run the command with `arguments` (default: those of the process) and return the status to exit with."""
    try:
        return int(app(arguments, prog_name="holdfast", standalone_mode=False) or 0)
    except CLICK_ERROR as error:
        tell(_usage_message(error))
        return Status.USAGE
    except HoldfastError as error:
        tell(error)
        return _status_of(error)
    except (KeyboardInterrupt, typer.Abort):
        return Status.SIGNALLED + signal.SIGINT


def _usage_message(error: typer.BadParameter) -> str:
    """Return the message that says what is wrong with the arguments, and which help to read."""
    path = error.ctx.command_path if error.ctx else "holdfast"
    after = (
        " Write `--` before the command." if path.endswith((" run", " once")) and hasattr(error, "option_name") else ""
    )
    what = error.format_message().rstrip(".")
    return f"{what}{'' if what.endswith('?') else '.'}{after} See `{path} --help`."


def _status_of(error: HoldfastError) -> int:
    statuses = {UsageError: Status.USAGE, LockTimeout: Status.NOT_GRANTED, StoreError: Status.STORE}
    return next((status for kind, status in statuses.items() if isinstance(error, kind)), Status.LEASE_LOST)


@app.callback(invoke_without_command=True)
def holdfast(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,  # noqa: FBT002 - a flag
) -> None:
    """Distributed locks that you can trust.

    Every command exits with 0 if it succeeded; 64: wrong usage; 69: the store failed; 128+N: signal N ended the
    command. The help of a command lists its other statuses.
    """
    if version:
        from holdfast import __version__

        print(f"holdfast {__version__}")
    elif context.invoked_subcommand is None:
        print(context.get_help())
        raise typer.Exit(Status.USAGE)


@app.command(cls=DashesCommand)
def run(  # noqa: PLR0917 - typer tells options from arguments by their annotations
    context: typer.Context,
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME... -- COMMAND...", help="The names to lock, `--`, the command to run."),
    ] = None,
    shell: Annotated[
        str | None, typer.Option("-c", metavar="SCRIPT", help="Run this script with /bin/sh instead of COMMAND.")
    ] = None,
    ttl: Ttl = DEFAULT_TTL,
    timeout: Timeout = None,
    no_wait: NoWait = False,  # noqa: FBT002 - a flag
    shared: Shared = False,  # noqa: FBT002 - a flag
    exclusive: Exclusive = False,  # noqa: FBT002 - a flag
    permits: Permits = None,
    max_hold: MaxHold = None,
    min_hold: Annotated[
        float, typer.Option(help="Seconds after the grant before anybody else is granted, even if the command ends.")
    ] = 0.0,
    lock_delay: LockDelay = 0.0,
    grace: Annotated[float, typer.Option(min=0, help="Seconds from SIGTERM to SIGKILL if the lease is lost.")] = 10.0,
    done: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="Run the command once for this key; others wait until it is done."),
    ] = None,
    conflict_status: ConflictStatus = Status.NOT_GRANTED,
    url: Url = None,
    url_file: UrlFile = None,
    pass_url: PassUrl = False,  # noqa: FBT002 - a flag
    namespace: Namespace = "",
    owner: Owner = None,
) -> int:
    """Run a command under a lock, or under several: `holdfast run NAME... -- COMMAND...`.

    The command finds its fencing token in HOLDFAST_TOKEN, the name in HOLDFAST_NAME (one line for each of several
    names), and the store in HOLDFAST_URL, without its password. It gets the signals sent to holdfast. If the lease is
    lost, the command and all processes that it started get SIGTERM, and SIGKILL after the grace.

    With --done KEY and at most one name, which is that of a job, the command runs once for ever: where it is done
    already, nothing is run. After a failure the next call runs it again. See `holdfast once`.

    Exits with the status of the command (128+N if signal N ended it); 64: wrong usage; 69: the store failed; 75 (or
    that of -E): not granted in time; 76: the lease was lost; 126: the command cannot be run; 127: it is not found.
    """
    require_posix("holdfast run, which passes signals to the command,", IN_PYTHON)
    after_dashes = cast("list[str] | None", context.meta.get(AFTER_DASHES))
    address, wait = find_address(url, url_file), _wait(timeout, no_wait=no_wait)
    if done is not None:
        of_locks = (shared, exclusive, permits is not None, max_hold is not None, min_hold, lock_delay)
        if any(of_locks) or len(names or ()) > 1:
            raise UsageError("--done runs a job, under a lock of its own: give it no options of locks, and one name.")
        title, busy = (names or ["run"])[0], RAISE if no_wait else WAIT
        _, command = _split([title], after_dashes or [], shell)
        once_options = OnceOptions(title, key=done, busy=busy, ttl=ttl, timeout=timeout)
        once_job = CommandJob(command, [title], grace, address.environment(pass_url=pass_url))
        once_client = address.client(namespace=namespace, owner=owner, retry_for=retry_for_job(timeout))
        return _run_once(once_client, once_options, once_job, conflict_status)
    if not names:
        raise UsageError("there is no name. Give one before `--`. See `holdfast run --help`.")
    locked, command = _split(names, after_dashes, shell)
    options = CommandOptions(locked, ttl, wait, shared, exclusive, permits, max_hold, min_hold, lock_delay)
    client, lock = _prepare(address, options, namespace, owner)
    job = CommandJob(command, locked, grace, address.environment(pass_url=pass_url))
    try:
        return run_job(client, lock, job)
    except LockTimeout as error:
        return _not_granted(error, conflict_status)


def _split(names: list[str], after_dashes: list[str] | None, shell: str | None) -> tuple[list[str], list[str]]:
    """Return the names and the command. Without `--` and -c, the first word is the name."""
    if shell is not None:
        if after_dashes:
            raise UsageError("the command is given twice, after `--` and by -c. Leave one of them out.")
        return names, ["/bin/sh", "-c", shell]
    command = names[1:] if after_dashes is None else after_dashes
    if not command:
        raise UsageError("there is no command to run. Give it after `--`, or by -c. See `holdfast run --help`.")
    return names[:1] if after_dashes is None else names, command


def _wait(timeout: float | None, *, no_wait: bool) -> float | None:
    """Return for how long to wait. Raises UsageError if the options contradict each other."""
    if no_wait and timeout is not None:
        raise UsageError("--no-wait and --timeout contradict each other; give one of them.")
    return 0 if no_wait else timeout


def _prepare(address: Address, options: CommandOptions, namespace: str, owner: str | None) -> tuple[Client, AnyLock]:
    """Return the lock, and a client that waits for its store for as long as for the lock."""
    client = address.client(namespace=namespace, owner=owner, retry_for=retry_for(options.timeout))
    return client, options.lock(client)


def _not_granted(error: LockTimeout, status: int) -> int:
    tell(str(error).replace(TO_WAIT, "Leave --no-wait out to wait for it"))
    return status


@app.command(cls=DashesCommand)
def once(  # noqa: PLR0917 - typer tells options from arguments by their annotations
    context: typer.Context,
    names: Annotated[
        list[str], typer.Argument(metavar="JOB -- COMMAND...", help="The name of the job, `--`, the command to run.")
    ],
    shell: Annotated[
        str | None, typer.Option("-c", metavar="SCRIPT", help="Run this script with /bin/sh instead of COMMAND.")
    ] = None,
    window: Annotated[
        str | None,
        typer.Option(help='hourly, daily, "daily Europe/Paris", a number of seconds, or a cron expression in quotes.'),
    ] = None,
    key: Annotated[str | None, typer.Option(help="Run once for this key, instead of once in each window.")] = None,
    attempts: Annotated[int, typer.Option(min=1, help="How many runs may begin if runs fail or nodes die.")] = 1,
    at_least: Annotated[float, typer.Option(min=0, help="Seconds between the beginnings of two runs, at least.")] = 0.0,
    busy: Annotated[
        str | None,
        typer.Option(
            help="While another node runs the job: skip (the default of a window), wait until it is done (the default "
            "of a key), or raise: exit with 75."
        ),
    ] = None,
    timeout: Annotated[
        float | None, typer.Option("-w", "--timeout", min=0, help="Seconds to wait at most, with --busy wait.")
    ] = None,
    max_waiters: Annotated[
        int | None, typer.Option(min=0, help="With --busy wait: exit with 75 at once if so many wait already.")
    ] = None,
    keep: Annotated[float | None, typer.Option(help="Seconds after which the record of a key is forgotten.")] = None,
    ttl: Ttl = DEFAULT_TTL,
    grace: Annotated[float, typer.Option(min=0, help="Seconds from SIGTERM to SIGKILL if the lease is lost.")] = 10.0,
    skipped: Annotated[
        int, typer.Option("--skip-exit-code", min=0, max=255, help="The status if there was nothing to run.")
    ] = Status.DONE,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Say nothing if there was nothing to run.")] = False,  # noqa: FBT002 - a flag
    conflict_status: ConflictStatus = Status.NOT_GRANTED,
    url: Url = None,
    url_file: UrlFile = None,
    pass_url: PassUrl = False,  # noqa: FBT002 - a flag
    namespace: Namespace = "",
    owner: Owner = None,
) -> int:
    """Run a command once in a window, or once for a key: `holdfast once JOB --window hourly -- COMMAND`.

    Call it on every node, for instance from each crontab; one of them runs it. A command that ends with another status
    than 0 is a failed attempt; a later call makes the next one, after a back-off. The command finds the name of the job
    in HOLDFAST_NAME, the fencing token in HOLDFAST_TOKEN, its window in HOLDFAST_WINDOW, and the number of the attempt
    in HOLDFAST_ATTEMPT. Signals and a lost lease are as with `holdfast run`.

    Exits with the status of the command if it was run; 0 (or that of --skip-exit-code): it was done before, another
    node runs it, its window is over, or it is paused; 64: wrong usage; 69: the store failed; 70: it has failed, and no
    attempt is left; 75: it has failed, and the next attempt is not due yet; 75 (or that of -E): it is busy, with --busy
    raise or after --timeout; 76: the lease was lost.
    """
    require_posix("holdfast once, which passes signals to the command,", "call Client.once in a Python program")
    locked, command = _split(names, cast("list[str] | None", context.meta.get(AFTER_DASHES)), shell)
    if len(locked) > 1:
        raise UsageError("a job has one name. Write `--` before the command. See `holdfast once --help`.")
    address = find_address(url, url_file)
    options = OnceOptions(locked[0], window, key, attempts, at_least, busy, ttl, timeout, max_waiters, keep)
    command_job = CommandJob(command, locked, grace, address.environment(pass_url=pass_url))
    client = address.client(namespace=namespace, owner=owner, retry_for=retry_for_job(timeout))
    return _run_once(client, options, command_job, conflict_status, skipped, quiet=quiet)


def _run_once(
    client: Client,
    options: OnceOptions,
    command_job: CommandJob,
    conflict_status: int,
    skipped: int = Status.DONE,
    *,
    quiet: bool = False,
) -> int:
    try:
        return run_once(client, options.spec(client), command_job, skipped=skipped, quiet=quiet)
    except LockTimeout as error:
        return _not_granted(error, conflict_status)


@app.command("lock")
def hold(  # noqa: PLR0917 - typer tells options from arguments by their annotations
    names: Annotated[list[str], typer.Argument(metavar="NAME", help="The names to lock.", show_default=False)],
    ttl: Ttl = DEFAULT_TTL,
    timeout: Timeout = None,
    no_wait: NoWait = False,  # noqa: FBT002 - a flag
    shared: Shared = False,  # noqa: FBT002 - a flag
    exclusive: Exclusive = False,  # noqa: FBT002 - a flag
    permits: Permits = None,
    max_hold: MaxHold = None,
    lock_delay: LockDelay = 0.0,
    conflict_status: ConflictStatus = Status.NOT_GRANTED,
    url: Url = None,
    url_file: UrlFile = None,
    namespace: Namespace = "",
    owner: Owner = None,
    as_json: AsJson = False,  # noqa: FBT002 - a flag
) -> int:
    """Hold a lock without a command, until the standard input ends or a signal arrives: `holdfast lock NAME`.

    Prints a line for each name once all are held: the name, a tab, and the fencing token.

    Exits with 0 if its input ended and the lock was released, with 128+N if signal N arrived and the lock was released;
    64: wrong usage; 69: the store failed; 75 (or that of -E): not granted in time; 76: the lease was lost.
    """
    require_posix("holdfast lock, which ends by signals,", IN_PYTHON)
    wait = _wait(timeout, no_wait=no_wait)
    options = CommandOptions(names, ttl, wait, shared, exclusive, permits, max_hold, 0.0, lock_delay)
    client, lock = _prepare(find_address(url, url_file), options, namespace, owner)
    try:
        return hold_lock(client, lock, as_json=as_json)
    except LockTimeout as error:
        return _not_granted(error, conflict_status)


@app.command()
def wait(  # noqa: PLR0917 - typer tells options from arguments by their annotations
    name: Name,
    timeout: Annotated[
        float | None, typer.Option("-w", "--timeout", min=0, help="Seconds to wait. Default: for ever.")
    ] = None,
    change: Annotated[bool, typer.Option("--change", help="Also end when the holder changes.")] = False,  # noqa: FBT002 - a flag
    url: Url = None,
    url_file: UrlFile = None,
    namespace: Namespace = "",
    as_json: AsJson = False,  # noqa: FBT002 - a flag
) -> int:
    """Wait until nobody holds a name. The command polls twice a second and joins no queue, so it delays no waiter.

    When it ends, others may be granted the name at once. To do something while nobody else holds the name, use
    `holdfast run`.

    Exits with 0 if nobody holds the name (with --change: or another holder does); 64: wrong usage; 69: the store
    failed; 75: the name was held all the time.
    """
    with find_address(url, url_file).client(namespace=namespace) as client:
        return wait_for_name(client, name, timeout, change=change, as_json=as_json)


@app.command("ls")
def list_(
    pattern: Annotated[
        str | None,
        typer.Argument(
            metavar="PATTERN", help="List only matching names: * ? [abc] as in a shell. Quote it.", show_default=False
        ),
    ] = None,
    url: Url = None,
    url_file: UrlFile = None,
    namespace: Namespace = "",
    as_json: AsJson = False,  # noqa: FBT002 - a flag
) -> int:
    """List the names that are held or waited for.

    Into a pipe, a name is one line with tabs between its fields: name, holders, tokens, seconds held, seconds until the
    lease expires, number of waiters.

    Exits with 0, also if there is nothing to list; 64: wrong usage; 69: the store failed.
    """
    with find_address(url, url_file).client(namespace=namespace) as client:
        return list_names(client, pattern, as_json=as_json)


@app.command()
def show(
    name: Name,
    url: Url = None,
    url_file: UrlFile = None,
    namespace: Namespace = "",
    as_json: AsJson = False,  # noqa: FBT002 - a flag
) -> int:
    """Show who holds a name, and who waits for it, in order.

    Into a pipe, each is one line with tabs between its fields: `holder`, owner, token, seconds held, seconds until the
    lease expires; `waiter` (or `gone`, if it will be skipped), owner, seconds waited. A name that nobody holds is
    `free`, or `blocked` and for how many seconds. The first line is `quarantined` and for how many seconds, if the
    store may have forgotten grants and grants nothing for that time.

    Exits with 0, also if nobody holds the name; 64: wrong usage; 69: the store failed.
    """
    with find_address(url, url_file).client(namespace=namespace) as client:
        return show_name(client, name, as_json=as_json)


@app.command()
def revoke(
    name: Name,
    url: Url = None,
    url_file: UrlFile = None,
    namespace: Namespace = "",
    as_json: AsJson = False,  # noqa: FBT002 - a flag
) -> int:
    """Ask the holders of a name to release it. They may go on: no lease is lost.

    A program receives the request by `on_revoke`; `holdfast run` and `holdfast lock` print a line on standard error,
    and go on. `holdfast release NAME --force` takes the name whatever its holders do.

    Exits with 0 if a holder was asked; 1: nobody held the name; 64: wrong usage; 69: the store failed.
    """
    with find_address(url, url_file).client(namespace=namespace) as client:
        return revoke_name(client, name, as_json=as_json)


@app.command()
def release(  # noqa: PLR0917 - typer tells options from arguments by their annotations
    name: Name,
    force: Annotated[bool, typer.Option("--force", help="Take the name from all its holders.")] = False,  # noqa: FBT002
    token: Annotated[
        int | None, typer.Option(help="Take the name only from the holder with this token in `holdfast show`.")
    ] = None,
    url: Url = None,
    url_file: UrlFile = None,
    namespace: Namespace = "",
    as_json: AsJson = False,  # noqa: FBT002 - a flag
) -> int:
    """Take a name from its holders: `holdfast release NAME --force`, or `holdfast release NAME --token N`.

    Look first at the holders, with `holdfast show NAME`. With --token N the name is taken only from the holder with
    that token, and not from a holder that was granted the name meanwhile. The lease is lost at once, and the next
    waiter is granted the name. The holder is notified, and a command of `holdfast run` is ended; but only a check of
    fencing tokens can refuse what it writes until then.

    Exits with 0 if the name was taken; 1: nobody held it (by that token); 64: without --force or --token
    nothing is done; 69: the store failed.
    """
    with find_address(url, url_file).client(namespace=namespace) as client:
        return release_name(client, name, token, force=force, as_json=as_json)


@app.command()
def schema(
    database: Annotated[SchemaKind, typer.Argument(help="The kind of database; mysql is for MariaDB, too.")],
    schema: Annotated[
        str, typer.Option(help="The schema of the tables, in MySQL the database. Default: that of the connection.")
    ] = "",
    prefix: Annotated[str, typer.Option(help="What the names of the tables begin with.")] = "holdfast_",
    role: Annotated[
        str, typer.Option(help="Also print the least rights for this role, in MySQL for this user: name or name@host.")
    ] = "",
) -> None:
    """Print the SQL of the tables that Holdfast keeps in a database, for an administrator to run.

    These are the tables of the locks, and the table of fences, which `lease.guard(connection)` uses. No database is
    connected. The statements leave alone what is there already.

    Exits with 0; 64: wrong usage.
    """
    print(schema_sql(database, schema, prefix, role), end="")


@app.command("jobs")
def jobs(
    url: Url = None,
    url_file: UrlFile = None,
    namespace: Namespace = "",
    as_json: AsJson = False,  # noqa: FBT002 - a flag
) -> int:
    """List the jobs that run once: their windows, their last runs, and when they are next due.

    Into a pipe, a job is one line with tabs between its fields: name, window, state (new, running, done, failed,
    paused), beginning of the last run, how many seconds it took, by whom, beginning of the next window, last error.
    Times are those of the store, in UTC. With --json, the last 20 runs.

    Exits with 0, also if there is nothing to list; 64: wrong usage; 69: the store failed.
    """
    with find_address(url, url_file).client(namespace=namespace) as client:
        return list_jobs(client, as_json=as_json)


of_jobs = typer.Typer(rich_markup_mode=None)
app.add_typer(of_jobs, name="job")

JobName = Annotated[str, typer.Argument(metavar="JOB", help="The name of the job.", show_default=False)]


@of_jobs.callback()
def describe_job() -> None:
    """Pause a job that runs once, let it go on, let it run again, or forget it.

    Each exits with 0; 1: no such job has run; 64: wrong usage; 69: the store failed.
    """


@of_jobs.command("pause")
def pause(name: JobName, url: Url = None, url_file: UrlFile = None, namespace: Namespace = "") -> int:
    """Let no run of a job begin until `holdfast job resume`. A run that has begun goes on."""
    with find_address(url, url_file).client(namespace=namespace) as client:
        return change_job(client, name, Job.pause, "{} is paused: no run begins")


@of_jobs.command("resume")
def resume(name: JobName, url: Url = None, url_file: UrlFile = None, namespace: Namespace = "") -> int:
    """Let runs of a paused job begin again."""
    with find_address(url, url_file).client(namespace=namespace) as client:
        return change_job(client, name, Job.resume, "{} may run again")


@of_jobs.command("run")
def repeat(
    name: JobName,
    key: Annotated[str | None, typer.Option(help="Repeat only the run by this key.")] = None,
    url: Url = None,
    url_file: UrlFile = None,
    namespace: Namespace = "",
) -> int:
    """Let the next call run a job in the present window, though it is done or has no attempt left.

    A job that runs by key needs --key.
    """
    with find_address(url, url_file).client(namespace=namespace) as client:
        return repeat_job(client, name, key)


@of_jobs.command("forget")
def forget(
    name: JobName,
    key: Annotated[str | None, typer.Option(help="Forget only the record of this key.")] = None,
    url: Url = None,
    url_file: UrlFile = None,
    namespace: Namespace = "",
) -> int:
    """Remove the record of a job: the next call runs it."""
    with find_address(url, url_file).client(namespace=namespace) as client:
        return forget_job(client, name, key)


quarantine = typer.Typer(rich_markup_mode=None)
app.add_typer(quarantine, name="quarantine")


@quarantine.callback()
def warn_of_quarantine() -> None:
    """End a quarantine: the time in which a store that may have forgotten its leases grants nothing."""


@quarantine.command("end")
def end(
    url: Annotated[
        str | None, typer.Argument(metavar="URL", help="The store. Default: HOLDFAST_URL in the environment.")
    ] = None,
    url_file: UrlFile = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,  # noqa: FBT002
    as_json: AsJson = False,  # noqa: FBT002 - a flag
) -> int:
    """Let a store that restarted, failed over or is new grant locks again at once.

    Such a store may have forgotten leases, so it grants nothing until the longest of them has expired. If a holder
    from before is still at work, the next holder works beside it, and only fencing tokens keep them apart: end the
    quarantine only if you know that there is no such holder. `holdfast ls` and `show` say how long the quarantine
    lasts.

    Exits with 0 if the quarantine was ended; 1: there was none; 64: it was not confirmed, or the store never forgets;
    69: the store failed.
    """
    with find_address(url, url_file).client() as client:
        return end_quarantine(client, sure=yes, as_json=as_json)


@app.command()
def demo(
    log: Annotated[Path | None, typer.Argument(help="An access log (may be .gz). Default: an invented one.")] = None,
    workers: Annotated[int, typer.Option(min=3, max=64, help="How many processes count it.")] = 8,
    out: Annotated[Path | None, typer.Option(help="Folder for a file a day. Default: a new temporary one.")] = None,
    url: Annotated[str | None, typer.Option(help="The store. Default: a new lock file.")] = None,
    as_json: AsJson = False,  # noqa: FBT002 - a flag
) -> int:
    """See what a lock is good for: several processes count a web access log into one shared record.

    They count first without the lock, then under it, while one process is killed and one is stopped for too long. Exits
    with 1 if a count under the lock is wrong, with 2 if the log cannot be read.
    """
    if url is not None:
        find_address(url, None).warn()
    from holdfast.demo.show import show_demo

    return show_demo(log, workers=workers, out=out, url=url, as_json=as_json)
