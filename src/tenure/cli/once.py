"""`tenure once`, and `tenure run --done`: a command that runs once in a window, or once for a key.

The command runs as that of `tenure run` does, under the lock of the job. A command that ends with another status than
0 is a failed attempt.
"""

from dataclasses import dataclass

from tenure.cli.acquisition import InterruptedWait, acquire, loss_of
from tenure.cli.diagnostics import Status, seconds, tell, tell_warnings
from tenure.cli.run import TAKEN, CommandJob, run_under
from tenure.cli.wakeups import Wakeups
from tenure.client import DEFAULT_TTL, Client
from tenure.contracts.deadlines import seconds as of_micros
from tenure.core.lease import CoreLease
from tenure.errors import StoreError, UsageError
from tenure.escaping import shown
from tenure.jobs.once import Begun, JobSpec, Once, Verdict
from tenure.jobs.record import SUPERSEDED, JobStatus
from tenure.jobs.windows import instant
from tenure.lease import Lease
from tenure.primitives.once import MOST_ATTEMPTS, WHEN
from tenure.runtimes.threads import drive


@dataclass(slots=True)
class OnceOptions:
    """The options that describe the job."""

    title: str
    window: str | None = None
    key: str | None = None
    attempts: int = MOST_ATTEMPTS
    at_least: float = 0.0
    busy: str | None = None
    ttl: float = DEFAULT_TTL
    timeout: float | None = None
    max_waiters: int | None = None
    keep: float | None = None

    def spec(self, client: Client) -> JobSpec:
        """Return the job. Raises UsageError if an option is wrong."""
        every: object = self.window
        if self.window is not None and self.window.replace(".", "", 1).isdecimal():
            every = float(self.window) if "." in self.window else int(self.window)
        try:
            once = client.once(
                self.title,
                window=every,
                key=self.key,
                attempts=self.attempts,
                at_least=self.at_least,
                busy=self.busy,
                ttl=self.ttl,
                timeout=self.timeout,
                max_waiters=self.max_waiters,
                keep=self.keep,
            )
        except UsageError as error:
            raise UsageError(str(error).replace(WHEN, "--window or --key")) from error
        return once.spec


class NotRun(Exception):
    """The job is not to be run by this call."""

    def __init__(self, verdict: Verdict) -> None:
        """Record why."""
        super().__init__(verdict)
        self.verdict = verdict


class JobRunner:
    """One call of a job. Its `acquire` begins a run, and `finish` ends it."""

    _begun: Begun
    """The run, once it has begun."""

    def __init__(self, client: Client, spec: JobSpec) -> None:
        """Prepare a call; nothing has happened yet."""
        self._session = client.session()
        self._spec = spec
        self._once = Once(self._session, spec)

    def acquire(self) -> Lease:
        """Begin a run, and return the lease of the job. Raises NotRun, LockTimeout or StoreError."""
        owned = list[CoreLease]()
        begun = drive(self._once.begin(owned))
        if not isinstance(begun, Begun):
            raise NotRun(begun)
        self._begun = begun
        return Lease(self._session, begun.lease, self._spec.title)

    def facts(self) -> dict[str, str]:
        """Return what the command finds in its environment about the run."""
        window = "" if self._spec.schedule is None else self._once.window.name
        return {"TENURE_ATTEMPT": str(self._begun.attempts), "TENURE_WINDOW": window}

    def finish(self, error: str | None) -> Verdict:
        """Note that the command is done, or failed with `error`, and release the lock. Raises StoreError."""
        return drive(self._once.finish(self._begun, error))


def run_once(client: Client, spec: JobSpec, job: CommandJob, *, skipped: int, quiet: bool) -> int:
    """Run a command unless its job is done or runs elsewhere; return the status to exit with.

    `skipped` is the status if there is nothing to do for this call. Raises LockTimeout or StoreError if no run has
    begun. The client is closed at the end.
    """
    tell_warnings()
    runner = JobRunner(client, spec)
    with Wakeups(TAKEN) as wakeups, client:
        try:
            lease = acquire(client, runner, wakeups)
        except InterruptedWait as interrupted:
            return interrupted.status
        except NotRun as found:
            return _explain(spec, found.verdict, skipped, quiet=quiet)
        status: int | None = None
        error: str | None = "the run was interrupted"
        try:
            job.facts = runner.facts()
            status = run_under(lease, job, wakeups)
            error = "its lease was lost" if status is None else _failure(status)
        finally:
            ended = _finish(runner, error)
    if status is None or ended == SUPERSEDED:
        if status is not None:
            tell(f"{loss_of(lease)} The command had just ended with status {status}, and another attempt had begun.")
        return Status.LEASE_LOST
    return Status.STORE if ended is None and status == 0 else status


def _failure(status: int) -> str | None:
    if not status:
        return None
    return f"signal {status - Status.SIGNALLED}" if status > Status.SIGNALLED else f"exit status {status}"


def _finish(runner: JobRunner, error: str | None) -> str | None:
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
            return f"is done: it was begun{by}{at} and took {seconds(of_micros(verdict['took']))}"
        case JobStatus.RUNNING:
            return f"was begun{by}{at}, and is running or not due again yet"
        case JobStatus.PAUSED:
            return "is paused: `tenure job resume` lets it run again"
        case _:
            return "was not run: its next window has begun"
