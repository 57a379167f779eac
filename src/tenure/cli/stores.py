"""The commands on a whole store: `doctor`, `schema`, `quarantine end`; and `demo`."""

import textwrap
from enum import StrEnum
from importlib import import_module

from tenure.cli import output
from tenure.cli.commands import (
    JSON,
    URL,
    YES,
    Options,
    argument,
    command,
    find_address,
    seconds,
    shown,
    width,
)
from tenure.cli.output import Status, confirmed, fields_json, print_line, tell
from tenure.cli.output import seconds as for_people
from tenure.client import Client
from tenure.contracts.findings import Finding, Report, Severity, Unseen
from tenure.errors import StoreError, UsageError
from tenure.escaping import escape
from tenure.fencing.schema import fences_ddl, fences_table

SOURCE = "https://github.com/tenure-locks/tenure"
"""The address of the repository of Tenure."""

QUARANTINE = """\
The store may have forgotten leases that are held. If a holder from before its restart or failover is still
at work, the next holder is at work beside it; only fencing tokens keep them apart."""
"""What is said before a quarantine is ended."""


@command(
    "doctor",
    "[URL]",
    *URL,
    seconds(
        "--ttl",
        least=0,
        help="The longest ttl that your programs use. Default: 30, or the longest that the store grants.",
    ),
    seconds("--timeout", least=0.01, default=2.0, help="How long each request may take. Default: 2."),
    JSON,
)
def doctor(options: Options) -> int:
    """Look at a store, and say what is wrongly set there for locks: `tenure doctor URL`.

    Each finding says what is set, why it matters for locks, and the line that changes it. Nothing is written to the
    store. What the store does not tell (a missing right, a managed service) is said, and is no failure.

    Into a pipe, each finding is one line with tabs between its fields: severity (error, warning, note), name, server,
    what, why, change. Then a line for each thing that was not seen: `unseen`, what, server, why.

    Exits with 0 if there is no error and no warning; 1: there is one; 2: no server could be looked at; 64: wrong usage.
    """
    with find_address(options).client(operation_timeout=options.timeout) as client:
        return examine(client, options)


def examine(client: Client, options: Options) -> int:
    """Look at the store, print what was found, and return the status to exit with."""
    try:
        report = client.examine(options.ttl)
    except StoreError as error:
        tell(f"could not look at the store: {error}")
        return Status.NOT_SEEN
    if options.as_json:
        found = [fields_json(each, *Finding.__dataclass_fields__) for each in report.findings]
        not_seen = [fields_json(each, *Unseen.__dataclass_fields__) for each in report.unseen]
        output.print_json({**fields_json(report, "store", "sound"), "findings": found, "unseen": not_seen})
    elif output.is_terminal():
        _print_for_people(report)
    else:
        for each in report.findings:
            print_line(each.severity, each.id, each.place, each.what, each.why, each.change)
        for unseen in report.unseen:
            print_line("unseen", unseen.what, unseen.place, unseen.why)
    return Status.DONE if report.sound else Status.NOBODY


def _print_for_people(report: Report) -> None:
    counts = [(severity, sum(each.severity is severity for each in report.findings)) for severity in Severity]
    found = ", ".join(f"{count} {severity}{'s' * (count > 1)}" for severity, count in counts if count)
    print(escape(f"{report.store}: {found or 'nothing is wrongly set'}"))
    for each in report.findings:
        print("\n" + escape(f"{each.severity:9}{each.id} at {each.place}"))
        for text in (f"{each.what} {each.why}", f"To change it: {each.change}"):
            print(_filled(text))
    if report.unseen:
        print("\nnot looked at:")
        for unseen in report.unseen:
            print(_filled(f"{unseen.what} of {unseen.place}: {unseen.why}"))


def _filled(text: str) -> str:
    # A line to paste is not broken at its hyphens.
    return textwrap.fill(
        escape(text),
        width(),
        initial_indent=" " * 9,
        subsequent_indent=" " * 9,
        break_on_hyphens=False,
        break_long_words=False,
    )


class SchemaKind(StrEnum):
    """A database for which there is a schema."""

    POSTGRESQL = "postgresql"
    MYSQL = "mysql"
    SQLITE = "sqlite"


@command(
    "schema",
    "DATABASE",
    argument(
        "database", metavar="DATABASE", help="The kind of database: postgresql, mysql (also for MariaDB) or sqlite."
    ),
    argument(
        "--schema",
        default="",
        metavar="NAME",
        help="The schema of the tables, in MySQL the database. Default: that of the connection.",
    ),
    argument(
        "--prefix",
        default="tenure_",
        metavar="TEXT",
        help="What the names of the tables begin with. Default: tenure_.",
    ),
    argument(
        "--role",
        default="",
        metavar="NAME",
        help="Also print the least rights for this role, in MySQL for this user: name or name@host.",
    ),
)
def schema(options: Options) -> int:
    """Print the SQL of the tables that Tenure keeps in a database, for an administrator to run.

    These are the tables of the locks, and the table of fences, which `lease.guard(connection)` uses. No database is
    connected. The statements leave alone what is there already.

    Exits with 0; 64: wrong usage.
    """
    if options.database not in set(SchemaKind):
        raise UsageError(f"{shown(options.database)} is none of {', '.join(SchemaKind)}. See `tenure schema --help`.")
    database, schema, prefix, role = SchemaKind(options.database), options.schema, options.prefix, options.role
    if database is SchemaKind.SQLITE and (schema or role):
        raise UsageError("SQLite has no schemas, roles or rights: leave --schema and --role out.")
    print(_ddl(database, schema, prefix, role), end="")
    return Status.DONE


def _ddl(database: SchemaKind, schema: str, prefix: str, role: str) -> str:
    """Return the statements. A lock file of SQLite makes its own tables, so there only the fences are left to make."""
    if database is SchemaKind.SQLITE:
        return fences_ddl(database, fences_table(schema, prefix))
    store = import_module(f"tenure.stores.{database}.schema")
    made: str = store.ddl(schema, prefix)
    return f"{made}\n{store.grants(schema, prefix, role)}" if role else made


@command("quarantine end", "[URL]", *URL, YES, JSON)
def end_quarantine(options: Options) -> int:
    """Let a store that restarted, failed over or is new grant locks again at once.

    Such a store may have forgotten leases, so it grants nothing for max_ttl (30 s) or longer, as such a lease may last.
    If a holder from before is still at work, the next holder works beside it, and only fencing tokens keep them apart:
    end the quarantine only if you know that there is no such holder. `tenure ls` and `show` say how long the
    quarantine lasts.

    Exits with 0 if the quarantine was ended; 1: there was none; 64: it was not confirmed, or the store never forgets;
    69: the store failed.
    """
    with find_address(options).client() as client:
        if not options.yes and not confirmed(QUARANTINE, "End the quarantine?"):
            tell("the quarantine was not ended, for it was not confirmed. --yes ends it without a question.")
            return Status.USAGE
        ended = client.end_quarantine()
    if options.as_json:
        output.print_json({"ended": ended})
    elif ended:
        tell(f"the quarantine was ended {for_people(ended)} early: the store grants locks again.")
    else:
        tell("the store is not quarantined.")
    return Status.DONE if ended else Status.NOBODY


@command("demo", "")
def demo(_options: Options) -> int:
    """Say how to see what a lock is good for: the demo comes with the source of Tenure.

    Exits with 64.
    """
    raise UsageError(f"the demo comes with the source of Tenure: `git clone {SOURCE}`, and run `make demo` there")
