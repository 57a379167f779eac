"""The commands on what a store keeps besides locks: jobs that run once, counters, limits and stocks."""

from collections.abc import Callable, Sequence
from datetime import datetime
from shlex import quote

from tenure.cli import output
from tenure.cli.commands import (
    JSON,
    STORE,
    YES,
    Argument,
    Options,
    argument,
    client_of,
    command,
    flag,
    one_of,
    whole,
)
from tenure.cli.output import (
    ANY_RULE,
    BY_KEY,
    Status,
    confirmed,
    fields_json,
    job_fields,
    job_row,
    limit_text,
    plain,
    read_stock,
    state_of,
    stock_text,
    tell,
)
from tenure.errors import UsageError
from tenure.primitives.jobs import Job, JobRun, JobView
from tenure.runtimes.threads import drive


@command("jobs", "", *STORE, JSON)
def jobs(options: Options) -> int:
    """List the jobs that run once: their windows, their last runs, and when they are next due.

    Into a pipe, a job is one line with tabs between its fields: name, window, state (new, running, done, failed,
    paused), beginning of the last run, how many seconds it took, by whom, beginning of the next window, last error.
    Times are those of the store, in UTC. With --json, the last 20 runs.

    Exits with 0, also if there is nothing to list; 64: wrong usage; 69: the store failed.
    """
    with client_of(options) as client:
        views = client.jobs()
    output.print_all(options, views, _job_json, job_fields, _draw, nothing="no job has run.")
    return Status.DONE


def _draw(views: Sequence[JobView]) -> None:
    from tenure.cli.screen import JOBS, print_rows

    print_rows(JOBS, map(job_row, views))


def _job_json(view: JobView) -> output.Json:
    return {
        **fields_json(view, "name", "every"),
        "state": state_of(view),
        **fields_json(view, "paused", "running"),
        "since": _iso(view.since),
        **fields_json(view, "running_for", "usual", "overdue_for", "done", "error"),
        "next": _iso(view.next),
        "runs": [_run_json(run) for run in view.runs],
    }


def _run_json(run: JobRun) -> output.Json:
    return {"by": run.by, "at": _iso(run.at), "took": run.took, "attempt": run.attempt, "error": run.error}


def _iso(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat()


JOB = (argument("name", metavar="JOB", help="The name of the job."), *STORE)
KEYED_JOB = (argument("--key", help="Only the record of this key."), *JOB)


@command("job pause", "JOB", *JOB)
def pause(options: Options) -> int:
    """Let no run of a job begin until `tenure job resume`. A run that has begun goes on.

    Exits with 0; 1: no such job has run; 64: wrong usage; 69: the store failed.
    """
    return _change(options, Job.pause, "{} is paused: no run begins")


@command("job resume", "JOB", *JOB)
def resume(options: Options) -> int:
    """Let runs of a paused job begin again.

    Exits with 0; 1: no such job has run; 64: wrong usage; 69: the store failed.
    """
    return _change(options, Job.resume, "{} may run again")


@command("job run", "JOB", *KEYED_JOB)
def repeat(options: Options) -> int:
    """Let the next call run a job in the present window, though it is done or has no attempt left.

    A job that runs by key needs --key.

    Exits with 0; 1: no such job has run; 64: wrong usage; 69: the store failed.
    """
    name, key = options.name, options.key
    with client_of(options) as client:
        if key is None and any(view.name == name and view.every == BY_KEY for view in client.jobs()):
            raise UsageError(f"the job {name!r} runs by key: give --key with the key that is to run again.")
    return _change(options, lambda job: job.repeat(key), "the next call runs {} again{}")


@command("job forget", "JOB", *KEYED_JOB)
def forget(options: Options) -> int:
    """Remove the record of a job: the next call runs it.

    Exits with 0; 1: no such job has run; 64: wrong usage; 69: the store failed.
    """
    return _change(options, lambda job: job.forget(options.key), "{} was forgotten{}: the next call runs it")


def _change(options: Options, change: Callable[[Job], bool], said: str) -> int:
    """Change a job, and say what was done."""
    key = getattr(options, "key", None)
    of_key = "" if key is None else f" for the key {quote(key)}"
    with client_of(options) as client:
        changed = change(client.job(options.name))
    if not changed:
        tell(f"no job {options.name!r} has run here{of_key}. See `tenure jobs`.")
        return Status.NOBODY
    tell(f"{said.format(f'the job {options.name!r}', of_key)}.")
    return Status.DONE


# -- counters, limits and stocks -----------------------------------------------------------------------------


def _quantity(kind: str) -> tuple[Argument, ...]:
    return (argument("name", metavar="NAME", help=f"The name of the {kind}."), YES, *STORE, JSON)


@command(
    "counter",
    "NAME",
    *_quantity("counter"),
    one_of(
        argument("--add", type=whole(), metavar="N", help="Add N, which may be negative."),
        argument("--set", type=whole(), dest="value", metavar="N", help="Set it to N."),
        argument("--reset", action="store_const", const=0, dest="value", help="Set it to 0."),
    ),
)
def counter(options: Options) -> int:
    """Show the number of a counter, add to it, or set it: `tenure counter NAME --add 5`.

    Into a pipe it is one line with tabs between the fields: name, number, and after a change the number before. A
    counter begins at 0.

    Exits with 0; 64: wrong usage, or a change was not confirmed; 69: the store failed.
    """
    name, add, value = options.name, options.add, options.value
    with client_of(options) as client:
        made = client.counter(name)
        if add is None and value is None:
            now = made.get()
            return _print(options, f"counter {name!r}: {now}", {"name": name, "value": now})
        what = f"Add {add} to the counter {name!r}" if add is not None else f"Set the counter {name!r} to {value}"
        if not _sure(options, f"The counter {name!r} is at {made.get()}.", what):
            return Status.USAGE
        after = made.add(add) if add is not None else value
        before = after - add if add is not None else made.reset(value)
    facts = {"name": name, "value": after, "before": before}
    return _print(options, f"counter {name!r}: {after}, before: {before}", facts)


@command(
    "limit",
    "NAME",
    *_quantity("limit"),
    argument("--key", metavar="TEXT", help="The limit of this key."),
    flag("--reset", help="Let the limit be idle at once: those who wait keep their slots."),
)
def limit(options: Options) -> int:
    """Show for how long a limit is busy, or reset it: `tenure limit NAME --reset`.

    A limit is idle when it is as if nobody had used it. After a reset more units may pass than the limit allows, until
    those have passed that waited before. Into a pipe it is one line with tabs between the fields: name, seconds until
    the limit is idle, and after a reset the seconds before.

    Exits with 0; 64: wrong usage, or a reset was not confirmed; 69: the store failed.
    """
    name, key = options.name, options.key
    title = f"limit {name!r}" + ("" if key is None else f", key {key!r}")
    with client_of(options) as client:
        made = client.limit(name, *ANY_RULE)
        busy_for = made.busy_for(key=key)
        if not options.reset:
            return _print(options, f"{title}: {limit_text(busy_for)}", {"name": name, "busy_for": busy_for})
        warning = f"The {title}, is {limit_text(busy_for)}. After a reset, more may pass than it allows."
        if not _sure(options, warning, "Reset it"):
            return Status.USAGE
        before = made.reset(key=key)
    facts = {"name": name, "busy_for": 0.0, "before": before}
    return _print(options, f"{title}: idle, before: {limit_text(before)}", facts)


@command(
    "stock",
    "NAME",
    *_quantity("stock"),
    one_of(
        argument("--restock", type=whole(1), metavar="N", help="Add N units."),
        argument("--take", type=whole(1), metavar="N", help="Take N units, all or none."),
    ),
    argument("--segments", type=whole(1, 32), default=8, metavar="N", help="The segments of a new stock. Default: 8."),
)
def stock(options: Options) -> int:
    """Show how many units of a stock are left, add some, or take some: `tenure stock NAME --restock 100`.

    Into a pipe it is one line with tabs between the fields: name, units left, units reserved.

    Exits with 0; 1: there is no such stock, or fewer units were left than were to be taken; 64: wrong usage, or a
    change was not confirmed; 69: the store failed.
    """
    name, restock, take = options.name, options.restock, options.take
    with client_of(options) as client:
        client.stock(name)  # refuses a store without stocks, and a wrong name
        session = client.session()
        view = drive(read_stock(session, name))
        if view is None and restock is None:
            tell(f"there is no stock {name!r}: `tenure stock {quote(name)} --restock N` makes one with N units.")
            return Status.NOBODY
        made = client.stock(name, options.segments if view is None else view.segments)
        if restock is not None or take is not None:
            what = f"Add {restock} units" if restock is not None else f"Take {take} units"
            if not _sure(options, f"The stock {name!r}: {stock_text(view)}.", what):
                return Status.USAGE
            if restock is not None:
                made.restock(restock)
            elif not made.take(take):
                tell(f"nothing was taken: the stock {name!r} has fewer than {take} units left.")
                return Status.NOBODY
            view = drive(read_stock(session, name))
    left, reserved = (0, 0) if view is None else (view.left, view.reserved)
    return _print(options, f"stock {name!r}: {stock_text(view)}", {"name": name, "left": left, "reserved": reserved})


def _sure(options: Options, state: str, what: str) -> bool:
    """Tell whether a change is wanted; if not, say that nothing was done."""
    if options.yes or confirmed(state, f"{what}?"):
        return True
    tell("nothing was changed, for it was not confirmed. --yes changes it without a question.")
    return False


def _print(options: Options, sentence: str, facts: output.Json) -> int:
    """Print a quantity: a sentence for people, its facts for a pipe."""
    fields = (plain(each) if isinstance(each, float) else each for each in facts.values())
    output.print_one(options, facts, sentence, *fields)
    return Status.DONE
