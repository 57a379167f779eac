"""`tenure elect`: a candidate of an election, which stands again after each loss, until a signal ends it.

The rules:

*   Whether this candidate leads is told by the deadline of its lease on this machine, and asks no store. So a candidate
    that was stopped, or cut off from the store, says that it does not lead before the store grants the next one.
*   Who leads elsewhere is asked of the store when somebody wants to know, at most once a second.
*   A store that does not answer ends nothing: the candidate stands again when the store is back.
"""

import json
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from http import HTTPStatus

from tenure.cli.commands import GRACE, OWNER, PASS_URL, STORE, TTL, Options, argument, command
from tenure.cli.http import Answer, listening
from tenure.cli.output import Status, tell, tell_warnings
from tenure.cli.run import RETRY_FOR, TO_RUNNER, CommandJob, Wakeups, acquire, loss_of, opened, run_under
from tenure.client import Client
from tenure.contracts.messages import NameView
from tenure.errors import StoreError, UsageError
from tenure.lease import Lease
from tenure.posix import require_posix
from tenure.primitives.election import Election, Leadership, check_value
from tenure.runtimes.real import host_name

LOOK_EVERY = 1.0
"""The least time between two looks at the store, and between two campaigns that the store has not answered."""

JSON = "application/json"

Now = Callable[[], float]


class Candidate:
    """A candidate, and what it answers to those who ask who leads."""

    def __init__(self, client: Client, election: Election, name: str, value: str, now: Now = time.monotonic) -> None:
        self._client = client
        self._election = election
        self._name = name
        self._value = value
        self._now = now
        self._mutex = threading.Lock()
        self._term: Leadership | None = None
        self._seen: NameView | StoreError | None = None
        self._seen_at = 0.0
        self._since_token, self._since = 0, ""

    def acquire(self) -> Lease:
        """Wait to be elected, and return the term. Raises StoreError."""
        self._term = self._election.campaign(self._value, None)
        return self._term

    def answer(self, path: str) -> Answer | None:
        """Return what a request for a path is answered: /leader whether this candidate leads, / who leads."""
        term = self._term
        leads = term is not None and term.remaining() > 0
        if path == "/leader":
            status = HTTPStatus.OK if leads else HTTPStatus.SERVICE_UNAVAILABLE
            return Answer(_json(leading=leads), JSON, status)
        if path != "/":
            return None
        if term is not None and leads:
            return self._of_leader(self._value, term.token, 0.0, leads=True)
        seen = self._look()
        if isinstance(seen, StoreError):
            return Answer(_json(name="", leading=False, error=str(seen)), JSON, HTTPStatus.SERVICE_UNAVAILABLE)
        for each in seen.holders:
            return self._of_leader(each.value or each.owner, each.token, each.held_for, leads=False)
        return Answer(_json(name="", leading=False, token=None, since=None), JSON)

    def _of_leader(self, name: str, token: int, led_for: float, *, leads: bool) -> Answer:
        """Return the answer about a leader. Its term begins at the same instant in each answer."""
        with self._mutex:
            if token != self._since_token:
                began = datetime.now(UTC) - timedelta(seconds=led_for)
                self._since_token, self._since = token, f"{began:%Y-%m-%dT%H:%M:%SZ}"
            since = self._since
        return Answer(_json(name=name, leading=leads, token=token, since=since), JSON)

    def _look(self) -> NameView | StoreError:
        """Return what the store has shown within the last second; else ask it. Others wait, and get the same."""
        with self._mutex:
            if self._seen is None or self._now() - self._seen_at >= LOOK_EVERY:
                try:
                    self._seen = self._client.inspect(self._name)
                except StoreError as error:
                    self._seen = error
                self._seen_at = self._now()
            return self._seen


def _json(**fields: object) -> str:
    return json.dumps(fields) + "\n"


@command(
    "elect",
    "NAME --http :4040",
    argument("names", nargs="*", metavar="NAME", help="The name of the election."),
    argument(
        "--http",
        metavar="HOST:PORT",
        help="Answer who leads at HOST:PORT, without a host at 127.0.0.1, for this machine (in Kubernetes: this pod) "
        "alone.",
    ),
    argument(
        "--value",
        metavar="TEXT",
        help="What this candidate is called when it leads: the name in the answers. Default: the name of the host.",
    ),
    TTL,
    GRACE,
    *STORE,
    PASS_URL,
    OWNER,
    dashes=True,
)
def elect(options: Options) -> int:
    """Stand for election, and say who leads: `tenure elect NAME --http :4040`, for programs that ask over HTTP.

    GET / is answered with JSON: the `name` of the leader, `leading` (whether it is this candidate), the fencing `token`
    and the beginning of its term (`since`). GET /leader has status 200 while this candidate leads, else 503, and asks
    no store. Whoever loses its term stands again.

    With `-- COMMAND`, the command runs while this candidate leads, as with `tenure run`. If it ends, another leads.

    Exits with the status of the command if that ends; 64: wrong usage; 76: the lease was lost at the end; 126: the
    command cannot be run; 127: it is not found; 128+N: signal N ended it, and it has resigned.
    """
    require_posix("tenure elect, which ends by signals,", "campaign in a Python program")
    if len(options.names) != 1:
        raise UsageError("an election has one name. A command stands after `--`. See `tenure elect --help`.")
    if options.http is None and not options.after_dashes:
        raise UsageError("nobody would learn who leads: give --http, or a command after `--`.")
    (name,) = options.names
    value = check_value(host_name() if options.value is None else options.value)
    client, environment = opened(options, RETRY_FOR)
    job = CommandJob(options.after_dashes, [name], options.grace, environment) if options.after_dashes else None
    candidate = Candidate(client, client.election(name, ttl=options.ttl), name, value)
    server = None if options.http is None else listening(options.http, "--http", candidate.answer)
    tell_warnings()
    if server is not None:
        threading.Thread(target=server.serve_forever, name="tenure-http", daemon=True).start()
        tell(f"answering at {server.url}/.")
    try:
        with Wakeups(TO_RUNNER) as wakeups, client:
            while (status := _stand(client, candidate, job, wakeups)) is None:
                pass
            return status
    finally:
        if server is not None:
            server.shutdown()
            server.server_close()


def _stand(client: Client, candidate: Candidate, job: CommandJob | None, wakeups: Wakeups) -> int | None:
    """Wait to be elected, and lead; return the status to exit with, or None to stand again."""
    try:
        term = acquire(client, candidate, wakeups)
    except StoreError as error:
        tell(f"{error} Standing again.")
        return _pause(wakeups, time.monotonic() + LOOK_EVERY)
    assert isinstance(term, Lease)  # noqa: S101 - for the type checkers: a term is the lease of one name
    try:
        tell(f"leading, with token {term.token}.")
        status = _lead(term, wakeups) if job is None else run_under(term, job, wakeups)
    finally:
        kept = term.release().kept
    if status is None:
        tell("standing again.")
    elif not kept:
        tell(loss_of(term))
        return Status.LEASE_LOST
    return status


def _lead(term: Lease, wakeups: Wakeups) -> int | None:
    """Lead until a signal (return the status to exit with), or the loss of the term (return None)."""
    term.on_lost(lambda _loss: wakeups.wake())
    while not term.lost:
        if (status := wakeups.ended_by(term.remaining())) is not None:
            return status
    tell(loss_of(term))
    return None


def _pause(wakeups: Wakeups, until: float) -> int | None:
    """Wait until an instant, or a signal: return the status to exit with after that."""
    while (left := until - time.monotonic()) > 0:
        if (status := wakeups.ended_by(left)) is not None:
            return status
    return None
