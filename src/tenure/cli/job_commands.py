"""The commands about jobs that run once: `jobs`, and `job pause`, `resume`, `run` and `forget`."""

from collections.abc import Callable
from datetime import datetime
from shlex import quote

from tenure.cli import output
from tenure.cli.diagnostics import Status, tell
from tenure.client import Client
from tenure.errors import UsageError
from tenure.primitives.jobs import Job, JobRun, JobView

BY_KEY = "by key"
"""What a view says instead of a window."""


def list_jobs(client: Client, *, as_json: bool) -> int:
    """Print the jobs of a namespace, by name."""
    views = client.jobs()
    if as_json:
        output.print_json([_job_json(view) for view in views])
    elif not output.draws_tables():
        for view in views:
            output.print_line(*fields_of(view))
    elif views:
        from tenure.cli.tables import print_jobs

        print_jobs([fields_of(view) for view in views])
    else:
        print("No job has run.")
    return Status.DONE


def fields_of(view: JobView) -> tuple[str, ...]:
    """Return what a line of `jobs` shows: name, window, state, last run, how long it took, by whom, next, error."""
    last = view.runs[-1] if view.runs else None
    return (
        view.name,
        view.every,
        _state(view),
        _text(last.at if last else view.since),
        output.plain(last.took) if last else "",
        last.by if last else view.running,
        _text(view.next),
        last.error if last else "",
    )


def _state(view: JobView) -> str:
    if view.paused:
        return "paused"
    if view.running:
        return "running"
    if view.every == BY_KEY and view.runs:  # each key has a record of its own; the job has their history
        return "failed" if view.runs[-1].error else "done"
    return "done" if view.done else "failed" if view.error else "new"


def _text(at: datetime | None) -> str:
    return "" if at is None else f"{at:%Y-%m-%d %H:%M:%S}"


def _job_json(view: JobView) -> output.Json:
    return {
        "name": view.name,
        "every": view.every,
        "state": _state(view),
        "paused": view.paused,
        "running": view.running,
        "since": _iso(view.since),
        "done": view.done,
        "error": view.error,
        "next": _iso(view.next),
        "runs": [_run_json(run) for run in view.runs],
    }


def _run_json(run: JobRun) -> output.Json:
    return {"by": run.by, "at": _iso(run.at), "took": run.took, "attempt": run.attempt, "error": run.error}


def _iso(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat()


def change_job(client: Client, name: str, change: Callable[[Job], bool], said: str) -> int:
    """Change a job, and say what was done."""
    if not change(client.job(name)):
        return _unknown(name)
    tell(f"{said.format(f'the job {name!r}')}.")
    return Status.DONE


def repeat_job(client: Client, name: str, key: str | None) -> int:
    """Let the next call run a job again in its window, or for a key.

    Raises UsageError if the job runs by key and none is given: nothing would run again.
    """
    if key is None and any(view.name == name and view.every == BY_KEY for view in client.jobs()):
        raise UsageError(f"the job {name!r} runs by key: give --key with the key that is to run again.")
    of_key = _of_key(key)
    if not client.job(name).repeat(key):
        return _unknown(name, of_key)
    tell(f"the next call runs the job {name!r} again{of_key}.")
    return Status.DONE


def forget_job(client: Client, name: str, key: str | None) -> int:
    """Remove the record of a job, or of one key."""
    of_key = _of_key(key)
    if not client.job(name).forget(key):
        return _unknown(name, of_key)
    tell(f"the job {name!r} was forgotten{of_key}: the next call runs it.")
    return Status.DONE


def _of_key(key: str | None) -> str:
    return "" if key is None else f" for the key {quote(key)}"


def _unknown(name: str, of_key: str = "") -> int:
    tell(f"no job {name!r} has run here{of_key}. See `tenure jobs`.")
    return Status.NOBODY
