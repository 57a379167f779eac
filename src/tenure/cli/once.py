"""`tenure once`, and `tenure run --done`: a command that runs once in a window, or once for a key.

The command runs as that of `tenure run` does, under the lock of the job. A command that ends with another status than
0 is a failed attempt.
"""

from typing import Any

from tenure.cli.commands import (
    CONFLICT_STATUS,
    GRACE,
    OWNER,
    PASS_URL,
    SHELL,
    STORE,
    TTL,
    Options,
    argument,
    command,
    flag,
    seconds,
    status,
    whole,
)
from tenure.cli.output import Status, tell, tell_warnings
from tenure.cli.output import seconds as for_people
from tenure.cli.run import RETRY_FOR, TO_RUNNER, CommandJob, Wakeups, acquire, loss_of, run_under, runner_of
from tenure.client import Client
from tenure.contracts.deadlines import seconds as of_micros
from tenure.contracts.limits import RAISE, WAIT
from tenure.core.lease import OVERHELD, CoreLease
from tenure.errors import StoreError, UsageError
from tenure.escaping import shown
from tenure.jobs.once import Begun, JobSpec, Once, Verdict
from tenure.jobs.record import SUPERSEDED, JobStatus
from tenure.jobs.windows import instant
from tenure.lease import Lease
from tenure.posix import require_posix
from tenure.primitives.once import MOST_ATTEMPTS, WHEN
from tenure.runtimes.threads import drive


@command(
    "once",
    "JOB -- COMMAND...",
    argument("names", nargs="+", metavar="JOB", help="The name of the job."),
    SHELL,
    argument(
        "--window", help='hourly, daily, "daily Europe/Paris", a number of seconds, or a cron expression in quotes.'
    ),
    argument("--key", help="Run once for this key, instead of once in each window."),
    argument(
        "--attempts",
        type=whole(1),
        default=1,
        metavar="N",
        help="How many runs may begin if runs fail or nodes die. Default: 1.",
    ),
    seconds("--at-least", least=0, default=0.0, help="The least time between the beginnings of two runs."),
    seconds(
        "--at-most",
        help="After how long a run has failed: the command is ended as if the lease were lost, and another may begin.",
    ),
    argument(
        "--busy",
        metavar="POLICY",
        help="While another node runs the job: skip (the default of a window), wait until it is done (the default of a "
        "key), or raise: exit with 75.",
    ),
    seconds("-w", "--timeout", least=0, help="How long to wait at most, with --busy wait."),
    argument(
        "--max-waiters",
        type=whole(0),
        metavar="N",
        help="With --busy wait: exit with 75 at once if so many wait already.",
    ),
    seconds("--keep", help="After how long the record of a key is forgotten."),
    TTL,
    GRACE,
    status("--skip-exit-code", dest="skipped", default=0, help="The status if there was nothing to run. Default: 0."),
    flag("-q", "--quiet", help="Say nothing if there was nothing to run."),
    CONFLICT_STATUS,
    *STORE,
    PASS_URL,
    OWNER,
    dashes=True,
)
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
    require_posix("tenure once, which passes signals to the command,", "call Client.once in a Python program")
    client, job = runner_of(options, "once", _retry_for(options))
    given = ("key", "attempts", "at_least", "at_most", "busy", "ttl", "timeout", "max_waiters", "keep")
    spec = _spec(client, job, options.window, **{name: getattr(options, name) for name in given})
    return _run_once(client, spec, job, skipped=options.skipped, quiet=options.quiet)


def run_for_key(options: Options) -> int:
    """Run a command once for a key: `tenure run --done KEY`."""
    of_locks = (options.shared, options.exclusive, options.permits is not None, options.max_hold is not None)
    if any(of_locks) or options.min_hold or options.lock_delay or options.unfair or len(options.names) > 1:
        raise UsageError("--done runs a job, under a lock of its own: give it no options of locks, and one name.")
    options.names = options.names or ["run"]
    options.after_dashes = options.after_dashes or []
    client, job = runner_of(options, "run", _retry_for(options))
    rest = {"busy": RAISE if options.no_wait else WAIT, "ttl": options.ttl, "timeout": options.timeout}
    spec = _spec(client, job, None, key=options.done, attempts=MOST_ATTEMPTS, **rest)
    return _run_once(client, spec, job, skipped=Status.DONE, quiet=False)


def _retry_for(options: Options) -> float:
    """Return for how long to repeat requests: a short wait must not cost the note of the end of the run."""
    return max(RETRY_FOR, options.timeout or 0.0)


def _spec(client: Client, job: CommandJob, window: str | None, **given: Any) -> JobSpec:  # noqa: ANN401
    """Return the job. Raises UsageError if an option is wrong."""
    every: object = window
    if window is not None and window.replace(".", "", 1).isdecimal():
        every = float(window) if "." in window else int(window)
    try:
        return client.once(job.names[0], window=every, **given).spec
    except UsageError as error:
        raise UsageError(str(error).replace(WHEN, "--window or --key")) from error


class _NotRun(Exception):
    """The job is not to be run by this call."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict)
        self.verdict = verdict


class _JobRunner:
    """One call of a job. Its `acquire` begins a run, and `finish` ends it."""

    _begun: Begun
    """The run, once it has begun."""

    def __init__(self, client: Client, spec: JobSpec) -> None:
        self._session = client.session()
        self._spec = spec
        self._once = Once(self._session, spec)

    def acquire(self) -> Lease:
        """Begin a run, and return the lease of the job. Raises _NotRun, LockTimeout or StoreError."""
        owned = list[CoreLease]()
        begun = drive(self._once.begin(owned))
        if not isinstance(begun, Begun):
            raise _NotRun(begun)
        self._begun = begun
        return Lease(self._session, begun.lease, self._spec.title)

    def facts(self) -> dict[str, str]:
        """Return what the command finds in its environment about the run."""
        window = "" if self._spec.schedule is None else self._once.window.name
        return {"TENURE_ATTEMPT": str(self._begun.run.attempt), "TENURE_WINDOW": window}

    def loss(self) -> str:
        """Return why the command was ended."""
        overdue = self._begun.lease.lost_because == OVERHELD
        most = of_micros(self._spec.rules.at_most)
        return f"it ran for longer than --at-most {most:g}" if overdue else "its lease was lost"

    def finish(self, error: str | None) -> Verdict:
        """Note that the command is done, or failed with `error`, and release the lock. Raises StoreError."""
        return drive(self._once.finish(self._begun, error))


def _run_once(client: Client, spec: JobSpec, job: CommandJob, *, skipped: int, quiet: bool) -> int:
    """Run a command unless its job is done or runs elsewhere; return the status to exit with, else `skipped`."""
    tell_warnings()
    runner = _JobRunner(client, spec)
    with Wakeups(TO_RUNNER) as wakeups, client:
        try:
            lease = acquire(client, runner, wakeups)
        except _NotRun as found:
            return _explain(spec, found.verdict, skipped, quiet=quiet)
        status: int | None = None
        error: str | None = "the run was interrupted"
        try:
            job.facts = runner.facts()
            status = run_under(lease, job, wakeups)
            error = runner.loss() if status is None else _failure(status)
        finally:
            ended = _finish(runner, error)
    if status is None or ended == SUPERSEDED or (ended == JobStatus.FAILED and not status):
        if status is not None:
            what = "was given up" if ended == SUPERSEDED else "has failed, because it took longer than --at-most"
            tell(f"{loss_of(lease)} The command had just ended with status {status}, and {what}.")
        return Status.LEASE_LOST
    return Status.STORE if ended is None and status == 0 else status


def _failure(status: int) -> str | None:
    if not status:
        return None
    return f"signal {status - Status.SIGNALLED}" if status > Status.SIGNALLED else f"exit status {status}"


def _finish(runner: _JobRunner, error: str | None) -> str | None:
    """End the run in the record, and return its status there; None if the store did not answer."""
    try:
        return str(runner.finish(error)["status"])
    except StoreError as failure:
        if error is None:
            tell(f"the command has run to its end, but the store did not note that, so it may run again: {failure}")
        else:
            tell(f"the store did not note that the job has failed ({error}): {failure}")
        return None


def _explain(spec: JobSpec, verdict: Verdict, skipped: int, *, quiet: bool) -> int:
    """Say why a call did not run the job, and return the status."""
    status, attempts = verdict["status"], verdict["attempts"]
    if status == JobStatus.FAILED:
        none_left = attempts >= spec.rules.attempts
        rest = "and no attempt is left" if none_left else "and the next attempt is not due yet"
        tell(f"the job {spec.title!r} has failed at attempt {attempts} ({shown(verdict['error'])}), {rest}.")
        return Status.JOB_FAILED if none_left else Status.NOT_GRANTED
    if not quiet:
        tell(f"the job {spec.title!r} {_state(verdict)}.")
    return skipped


def _state(verdict: Verdict) -> str:
    by = f" by {shown(verdict['by'])}" if verdict.get("by") else ""
    at = "" if verdict.get("at") is None else f" at {instant(verdict['at']):%Y-%m-%d %H:%M:%S} UTC"
    match verdict["status"]:
        case JobStatus.DONE:
            return f"is done: it was begun{by}{at} and took {for_people(of_micros(verdict['took']))}"
        case JobStatus.RUNNING:
            return f"was begun{by}{at}, and is running or not due again yet"
        case JobStatus.PAUSED:
            return "is paused: `tenure job resume` lets it run again"
        case _:
            return (
                "was not run: its next window has begun, or it ran before with a shorter window (then `tenure job "
                "forget JOB` lets it run now)"
            )
