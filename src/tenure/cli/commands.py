"""The commands that look after names, jobs and stores, with their options. What they do stands in files of its own."""

from typing import TYPE_CHECKING

from tenure.cli.diagnostics import Status
from tenure.cli.parser import (
    Command,
    Options,
    Parser,
    add_flag,
    add_json,
    add_name,
    add_seconds,
    add_store,
    add_url_file,
    shown,
    whole,
)
from tenure.errors import UsageError

if TYPE_CHECKING:
    from tenure.client import Client

SOURCE = "https://github.com/tenure-locks/tenure"
"""The address of the repository of Tenure."""


def _client(options: Options) -> "Client":
    from tenure.cli.address import find_address

    return find_address(options.url, options.url_file).client(namespace=options.namespace)


def _add_wait_options(parser: Parser) -> None:
    add_name(parser)
    add_seconds(parser, "-w", "--timeout", text="How long to wait. Default: for ever.", least=0)
    add_flag(parser, "--change", text="Also end when the holder changes.")
    add_store(parser)
    add_json(parser)


def wait(options: Options) -> int:
    """Wait until a name is free. The command looks twice a second. It joins no queue, so it delays no waiter.

    When it ends, others may be granted the name at once. To do something while nobody else holds the name, use
    `tenure run`.

    Exits with 0 if the name is free, or with --change if its holder has changed; 64: wrong usage; 69: the store failed;
    75: the name was held all the time.
    """
    from tenure.cli.name_commands import wait_for_name

    with _client(options) as client:
        return wait_for_name(client, options.name, options.timeout, change=options.change, as_json=options.as_json)


def _add_list_options(parser: Parser) -> None:
    parser.add_argument(
        "pattern",
        nargs="?",
        metavar="PATTERN",
        help="List only matching names: * ? [abc] as in a shell. Quote it.",
    )
    add_store(parser)
    add_json(parser)


def list_(options: Options) -> int:
    """List the names that are held or waited for.

    Into a pipe, a name is one line with tabs between its fields: name, holders, tokens, seconds held, seconds until the
    lease expires, number of waiters.

    Exits with 0, also if there is nothing to list; 64: wrong usage; 69: the store failed.
    """
    from tenure.cli.name_commands import list_names

    with _client(options) as client:
        return list_names(client, options.pattern, as_json=options.as_json)


def _add_name_options(parser: Parser) -> None:
    add_name(parser)
    add_store(parser)
    add_json(parser)


def show(options: Options) -> int:
    """Show the holders of a name, and its waiters in their order.

    Into a pipe, each holder and each waiter is one line with tabs between its fields. A holder: `holder`, owner, token,
    seconds held, seconds until the lease expires. A waiter: `waiter` (or `gone`, if it will be skipped), owner, seconds
    waited. A name without a holder: `free`, or `blocked` and for how many seconds. A store that may have forgotten
    grants, and grants nothing for a while, adds a first line: `quarantined` and for how many seconds.

    Exits with 0, whether the name is held or not; 64: wrong usage; 69: the store failed.
    """
    from tenure.cli.name_commands import show_name

    with _client(options) as client:
        return show_name(client, options.name, as_json=options.as_json)


def revoke(options: Options) -> int:
    """Ask the holders of a name to release it. They may go on: no lease is lost.

    A program receives the request by `on_revoke`; `tenure run` and `tenure lock` print a line on standard error,
    and go on. `tenure release NAME --force` takes the name whatever its holders do.

    Exits with 0 if a holder was asked; 1: nobody held the name; 64: wrong usage; 69: the store failed.
    """
    from tenure.cli.name_commands import revoke_name

    with _client(options) as client:
        return revoke_name(client, options.name, as_json=options.as_json)


def _add_release_options(parser: Parser) -> None:
    add_name(parser)
    add_flag(parser, "--force", text="Take the name from all its holders.")
    parser.add_argument(
        "--token",
        type=whole(),
        metavar="N",
        help="Take the name only from the holder with this token in `tenure show`.",
    )
    add_store(parser)
    add_json(parser)


def release(options: Options) -> int:
    """Take a name from its holders: `tenure release NAME --force`, or `tenure release NAME --token N`.

    Look first at the holders, with `tenure show NAME`. With --token N the name is taken only from the holder with
    that token, and not from a holder that was granted the name meanwhile. The lease is lost at once, and the next
    waiter is granted the name. The holder is notified, and a command of `tenure run` is ended; but only a check of
    fencing tokens can refuse what it writes until then.

    Exits with 0 if the name was taken; 1: nobody held it (by that token); 64: without --force or --token
    nothing is done; 69: the store failed.
    """
    from tenure.cli.name_commands import release_name

    with _client(options) as client:
        return release_name(client, options.name, options.token, force=options.force, as_json=options.as_json)


def _add_schema_options(parser: Parser) -> None:
    parser.add_argument(
        "database",
        metavar="DATABASE",
        help="The kind of database: postgresql, mysql (also for MariaDB) or sqlite.",
    )
    parser.add_argument(
        "--schema",
        default="",
        metavar="NAME",
        help="The schema of the tables, in MySQL the database. Default: that of the connection.",
    )
    parser.add_argument(
        "--prefix",
        default="tenure_",
        metavar="TEXT",
        help="What the names of the tables begin with. Default: tenure_.",
    )
    parser.add_argument(
        "--role",
        default="",
        metavar="NAME",
        help="Also print the least rights for this role, in MySQL for this user: name or name@host.",
    )


def schema(options: Options) -> int:
    """Print the SQL of the tables that Tenure keeps in a database, for an administrator to run.

    These are the tables of the locks, and the table of fences, which `lease.guard(connection)` uses. No database is
    connected. The statements leave alone what is there already.

    Exits with 0; 64: wrong usage.
    """
    from tenure.cli.schema import SchemaKind, schema_sql

    if options.database not in set(SchemaKind):
        raise UsageError(f"{shown(options.database)} is none of {', '.join(SchemaKind)}. See `tenure schema --help`.")
    print(schema_sql(SchemaKind(options.database), options.schema, options.prefix, options.role), end="")
    return Status.DONE


def _add_jobs_options(parser: Parser) -> None:
    add_store(parser)
    add_json(parser)


def jobs(options: Options) -> int:
    """List the jobs that run once: their windows, their last runs, and when they are next due.

    Into a pipe, a job is one line with tabs between its fields: name, window, state (new, running, done, failed,
    paused), beginning of the last run, how many seconds it took, by whom, beginning of the next window, last error.
    Times are those of the store, in UTC. With --json, the last 20 runs.

    Exits with 0, also if there is nothing to list; 64: wrong usage; 69: the store failed.
    """
    from tenure.cli.job_commands import list_jobs

    with _client(options) as client:
        return list_jobs(client, as_json=options.as_json)


def _add_job_options(parser: Parser) -> None:
    parser.add_argument("name", metavar="JOB", help="The name of the job.")
    add_store(parser)


def _add_keyed_job_options(parser: Parser) -> None:
    parser.add_argument("--key", help="Only the record of this key.")
    _add_job_options(parser)


def pause(options: Options) -> int:
    """Let no run of a job begin until `tenure job resume`. A run that has begun goes on.

    Exits with 0; 1: no such job has run; 64: wrong usage; 69: the store failed.
    """
    from tenure.cli.job_commands import change_job
    from tenure.primitives.jobs import Job

    with _client(options) as client:
        return change_job(client, options.name, Job.pause, "{} is paused: no run begins")


def resume(options: Options) -> int:
    """Let runs of a paused job begin again.

    Exits with 0; 1: no such job has run; 64: wrong usage; 69: the store failed.
    """
    from tenure.cli.job_commands import change_job
    from tenure.primitives.jobs import Job

    with _client(options) as client:
        return change_job(client, options.name, Job.resume, "{} may run again")


def repeat(options: Options) -> int:
    """Let the next call run a job in the present window, though it is done or has no attempt left.

    A job that runs by key needs --key.

    Exits with 0; 1: no such job has run; 64: wrong usage; 69: the store failed.
    """
    from tenure.cli.job_commands import repeat_job

    with _client(options) as client:
        return repeat_job(client, options.name, options.key)


def forget(options: Options) -> int:
    """Remove the record of a job: the next call runs it.

    Exits with 0; 1: no such job has run; 64: wrong usage; 69: the store failed.
    """
    from tenure.cli.job_commands import forget_job

    with _client(options) as client:
        return forget_job(client, options.name, options.key)


def _add_quarantine_options(parser: Parser) -> None:
    parser.add_argument("url", nargs="?", metavar="URL", help="The store. Default: TENURE_URL in the environment.")
    add_url_file(parser)
    add_flag(parser, "-y", "--yes", text="Do not ask for confirmation.")
    add_json(parser)


def end_quarantine(options: Options) -> int:
    """Let a store that restarted, failed over or is new grant locks again at once.

    Such a store may have forgotten leases, so it grants nothing until the longest of them has expired. If a holder
    from before is still at work, the next holder works beside it, and only fencing tokens keep them apart: end the
    quarantine only if you know that there is no such holder. `tenure ls` and `show` say how long the quarantine
    lasts.

    Exits with 0 if the quarantine was ended; 1: there was none; 64: it was not confirmed, or the store never forgets;
    69: the store failed.
    """
    from tenure.cli import name_commands
    from tenure.cli.address import find_address

    with find_address(options.url, options.url_file).client() as client:
        return name_commands.end_quarantine(client, sure=options.yes, as_json=options.as_json)


def _add_no_options(_parser: Parser) -> None:
    pass


def demo(_options: Options) -> int:
    """Say how to see what a lock is good for: the demo comes with the source of Tenure.

    Exits with 64.
    """
    raise UsageError(f"the demo comes with the source of Tenure: `git clone {SOURCE}`, and run `make demo` there")


COMMANDS = (
    Command("wait", "NAME", _add_wait_options, wait),
    Command("ls", "[PATTERN]", _add_list_options, list_),
    Command("show", "NAME", _add_name_options, show),
    Command("revoke", "NAME", _add_name_options, revoke),
    Command("release", "NAME", _add_release_options, release),
    Command("schema", "DATABASE", _add_schema_options, schema),
    Command("jobs", "", _add_jobs_options, jobs),
    Command("job pause", "JOB", _add_job_options, pause),
    Command("job resume", "JOB", _add_job_options, resume),
    Command("job run", "JOB", _add_keyed_job_options, repeat),
    Command("job forget", "JOB", _add_keyed_job_options, forget),
    Command("quarantine end", "[URL]", _add_quarantine_options, end_quarantine),
    Command("demo", "", _add_no_options, demo),
)
