"""The commands and their options. What they do is in the files beside this one."""

from pathlib import Path
from typing import Annotated, cast

import typer

from holdfast.cli.look import list_names, release_name, show_name
from holdfast.cli.run import Job, run_job
from holdfast.cli.say import Status, tell
from holdfast.client import DEFAULT_TTL, Client
from holdfast.demo.show import show_demo
from holdfast.errors import HoldfastError, LockTimeout, StoreError, UsageError
from holdfast.primitives.base import TO_WAIT

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)

CLICK_ERROR = cast("type[typer.BadParameter]", typer.BadParameter.__mro__[2])
"""The base of all errors in arguments; which module it is in depends on the version of typer."""

Name = Annotated[str, typer.Argument(help="What is locked.", show_default=False)]
Url = Annotated[
    str | None,
    typer.Option(envvar="HOLDFAST_URL", show_envvar=True, help="The store. Default: a lock file of this user."),
]
Namespace = Annotated[str, typer.Option(help="A prefix of all names, so that programs can share a store.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def run_app(arguments: list[str] | None = None) -> int:
    """Run the command with `arguments` (default: those of the process) and return the status to exit with."""
    try:
        return int(app(arguments, prog_name="holdfast", standalone_mode=False) or 0)
    except CLICK_ERROR as error:
        tell(_in_words(error))
        return Status.USAGE
    except HoldfastError as error:
        tell(error)
        return _status_of(error)
    except (KeyboardInterrupt, typer.Abort):
        return Status.SIGNALLED + 2


def _in_words(error: typer.BadParameter) -> str:
    """Say what is wrong with the arguments, and where to read on."""
    path = error.ctx.command_path if error.ctx else "holdfast"
    after = " Write `--` before the command." if path.endswith(" run") and hasattr(error, "option_name") else ""
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
    """Distributed locks that you can trust."""
    if version:
        from holdfast import __version__

        print(f"holdfast {__version__}")
    elif context.invoked_subcommand is None:
        print(context.get_help())
        raise typer.Exit(Status.USAGE)


@app.command()
def run(  # noqa: PLR0917 - typer tells options from arguments by their annotations
    name: Name,
    command: Annotated[list[str], typer.Argument(help="The command and its arguments, after `--`.")],
    ttl: Annotated[float, typer.Option(help="Seconds that the lock outlives a holder that fell silent.")] = DEFAULT_TTL,
    timeout: Annotated[float | None, typer.Option(help="Seconds to wait for the lock. Default: for ever.")] = None,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Give up at once if it is held, with 75.")] = False,  # noqa: FBT002
    max_hold: Annotated[
        float | None, typer.Option(help="Seconds after which a command that still runs is ended.")
    ] = None,
    min_hold: Annotated[
        float, typer.Option(help="Seconds after the grant for which nobody else gets it, however quick the command is.")
    ] = 0.0,
    lock_delay: Annotated[float, typer.Option(help="Seconds for which nobody gets it after a lease ran out.")] = 0.0,
    grace: Annotated[float, typer.Option(min=0, help="Seconds from SIGTERM to SIGKILL if the lease is lost.")] = 10.0,
    url: Url = None,
    namespace: Namespace = "",
    owner: Annotated[str | None, typer.Option(help="Who you are, for others to read. Default: host/pid.")] = None,
) -> int:
    """Run a command under a lock: `holdfast run NAME -- COMMAND...`.

    The command gets its fencing token in HOLDFAST_TOKEN, the name in HOLDFAST_NAME, and the signals sent to holdfast.
    If the lease is lost, the command and all it started get SIGTERM, and SIGKILL after the grace.

    Exits with the status of the command (128+N if signal N ended it); 64: wrong usage; 69: the store failed; 75: not
    granted in time; 76: the lease was lost; 126: the command cannot be run; 127: it is not found.
    """
    if no_wait and timeout is not None:
        raise UsageError("--no-wait and --timeout contradict each other; give one of them.")
    client = Client(url, namespace=namespace, owner=owner)
    wait = 0 if no_wait else timeout
    lock = client.lock(name, ttl, wait, lock_delay=lock_delay, max_hold=max_hold, min_hold=min_hold)
    environment = {"HOLDFAST_NAME": name, **({"HOLDFAST_URL": url} if url else {})}
    try:
        return run_job(client, lock, Job(command, grace, environment))
    except LockTimeout as error:
        tell(str(error).replace(TO_WAIT, "Leave --no-wait out to wait for it"))
        return Status.NOT_GRANTED


@app.command("ls")
def list_(url: Url = None, namespace: Namespace = "", as_json: Json = False) -> int:  # noqa: FBT002 - a flag
    """List what is held or waited for."""
    with Client(url, namespace=namespace) as client:
        return list_names(client, as_json=as_json)


@app.command()
def show(name: Name, url: Url = None, namespace: Namespace = "", as_json: Json = False) -> int:  # noqa: FBT002 - a flag
    """Show who holds a name, and who waits for it, in order."""
    with Client(url, namespace=namespace) as client:
        return show_name(client, name, as_json=as_json)


@app.command()
def release(
    name: Name,
    force: Annotated[bool, typer.Option("--force", help="Take it from whoever holds it.")] = False,  # noqa: FBT002
    url: Url = None,
    namespace: Namespace = "",
) -> int:
    """Take a name from whoever holds it: `holdfast release NAME --force`.

    See first who that is, by `holdfast show NAME`. Its lease is lost at once, and the next in the queue gets the name.
    The holder is told, and a command of `holdfast run` is ended; but what it writes until then can be refused only by
    checking fencing tokens.

    Exits with 0 if it was taken from somebody; 1: nobody held it; 64: without --force nothing is done; 69: the store
    failed.
    """
    with Client(url, namespace=namespace) as client:
        return release_name(client, name, force=force)


@app.command()
def demo(
    log: Annotated[Path | None, typer.Argument(help="An access log (may be .gz). Default: one made up.")] = None,
    workers: Annotated[int, typer.Option(min=3, max=64, help="How many processes work on it.")] = 8,
    out: Annotated[Path | None, typer.Option(help="Folder for a file a day. Default: a fresh temporary one.")] = None,
    url: Annotated[str | None, typer.Option(help="The store. Default: a fresh lock file.")] = None,
    as_json: Json = False,  # noqa: FBT002 - a flag
) -> int:
    """See what a lock is good for: processes that count a web access log into one shared record.

    First without the lock, then under it, with one process killed and one stopped for too long. Exits with 1 if a
    single count under the lock is wrong, with 2 if the log cannot be read.
    """
    return show_demo(log, workers=workers, out=out, url=url, as_json=as_json)
