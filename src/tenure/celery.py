"""Adapter for Celery 5.4 and later: tasks under a lock, and a beat scheduler of which one node ticks.

The settings of the app are `tenure_backend`, the URL of the store (default: the environment's TENURE_URL, else an
embedded lock file of this user); `tenure_namespace`, a prefix of all names; and `tenure_beat_scheduler`, the scheduler
that `Scheduler` wraps. Each process has one client, which connects when it is first used.
"""

import inspect
import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from types import MethodType
from typing import Any, ClassVar, Never, Self, cast

from tenure.callables import finished
from tenure.client import Client
from tenure.errors import LockTimeout, StoreError, StoreUnavailable, UsageError
from tenure.lease import Lease
from tenure.primitives.counter import Counter
from tenure.primitives.decorating import name_from_call
from tenure.stores.extras import needed_by

with needed_by("tenure.celery", "Celery", "celery", "celery"):
    import celery
    from celery import beat
    from celery.exceptions import Retry
    from celery.signals import worker_init
    from celery.utils.imports import symbol_by_name
    from celery.utils.time import maybe_make_aware

__all__ = ["Scheduler", "Task", "client_of"]

RETRY, DROP, COALESCE, WAIT = POLICIES = ("retry", "drop", "coalesce", "wait")

RETURNED = "tenure_returned"
"""The header of a message that was redelivered and sent back: it is not dropped. Its lock may be that of its own dead
run."""

LEADER = "celery:beat"
"""The election of the schedulers, and the prefix of the counters that have the last runs of their entries."""

LONGEST_WAIT = 1.0
"""How long a scheduler waits to be elected, and sleeps between two ticks, at most, in seconds."""

EPOCH, MICROSECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1)

log = logging.getLogger("tenure")


def client_of(app: celery.Celery) -> Client:
    """Return the client of an app in this process, which tasks may use for locks of their own."""
    known: Client | None = vars(app).get("_tenure_client")
    if known is not None:
        return known
    made = Client(app.conf.get("tenure_backend"), namespace=app.conf.get("tenure_namespace") or "")
    return cast("Client", vars(app).setdefault("_tenure_client", made))  # another thread may have been faster


@worker_init.connect
def _make_client_before_the_fork(sender: Any, **_of_signal: object) -> None:  # noqa: ANN401 - Celery has no types
    """Make the client before the pool forks: then no child has to import what it needs. It connects in each child."""
    client_of(sender.app)


OPTIONS = ("busy", "busy_countdown")
"""The options of a task that say what it does about a lock that is held."""


class Task(celery.Task):
    """The class of all tasks of an app: `Celery(..., task_cls="tenure.celery:Task")`.

    A task with `lock="import:{customer}"` runs under that lock; the name is formatted from the arguments of the call.
    Raises UsageError when the task is made if the name has another field than its parameters, or an option is wrong.

    A run whose lease is lost cannot be stopped: it goes on to its end, and then fails with LeaseLost. `self.lease` of a
    bound task tells it earlier.
    """

    abstract = True

    lock: ClassVar[str | None] = None
    """The name of the lock; None: the task runs without one."""

    busy: ClassVar[str] = RETRY
    """What a message does that finds the lock held. "retry": it goes back to the broker for `busy_countdown` seconds,
    and counts as no retry of the task. "drop": the task is not run, and its result is {"dropped": name}. "coalesce":
    one message goes back, and each other one gets the result {"folded": name}, for the run of that message begins
    later, and so sees what was asked before. "wait": it keeps a slot of the worker until the lock is granted.

    A call without a message (`task()`, `apply()`, `task_always_eager`) cannot go back: "retry" and "coalesce" wait.
    If the store does not answer, "retry" and "coalesce" go back, and the others fail with StoreUnavailable."""

    busy_countdown: ClassVar[float] = 5.0
    """For how many seconds a message goes back to the broker, at least."""

    def __init_subclass__(cls, **options: Any) -> None:  # noqa: ANN401 - of other bases
        """Check the options of a task, and let its `run` take the lock."""
        super().__init_subclass__(**options)
        run = inspect.getattr_static(cls, "run")
        if cls.busy not in POLICIES:
            raise UsageError(f"busy must be one of {', '.join(map(repr, POLICIES))}, not {cls.busy!r}")
        for option in vars(cls):
            if option.startswith("busy") and option not in OPTIONS:
                raise UsageError(f"{option} is no option of a task: {' and '.join(OPTIONS)} are")
        if cls.lock is None:
            if vars(cls).keys() >= {"busy", "run"}:
                raise UsageError(f"busy={cls.busy!r} says what a task does about a lock: give it lock='name', too")
            return
        if not (isinstance(cls.lock, str) and cls.lock):  # pyright: ignore[reportUnnecessaryIsInstance] - Celery checks no option
            raise UsageError(f"lock is the name to lock, such as 'import:{{customer}}', not {cls.lock!r}")
        if run is not celery.Task.run:
            cls.run = _locked(cls, getattr(run, "body", run), cls.lock)

    @property
    def lease(self) -> Lease:
        """The lease of the present run. Raises UsageError outside of a run of a task with a lock."""
        lease: Lease | None = self.request.get("tenure_lease")
        if lease is None:
            raise UsageError(f"{self.name} does not run under a lock now: give it lock='name'")
        return lease

    def _run_locked(self, name: str, run: Callable[..., Any], args: Any, kwargs: Any) -> Any:  # noqa: ANN401
        """Run a task under its lock, or do what `busy` says."""
        request, client, began = self.request, client_of(self.app), False
        returns = self.busy in (RETRY, COALESCE) and not (request.called_directly or request.is_eager)
        waits = self.busy != DROP and not returns
        try:
            try:
                with client.lock(name, timeout=None if waits else 0, template=self.lock or "") as lease:
                    if self.busy == COALESCE:
                        self._begin(client.counter(f"celery:queued:{name}"))
                    began = True
                    request.tenure_lease = lease
                    return finished(run, run(*args, **kwargs))
            except LockTimeout:
                if began:
                    raise
            return self._refused(client, name)
        except StoreUnavailable as error:
            if began or not returns:
                raise
            self._send_back(str(error))

    def _begin(self, queued: Counter) -> None:
        """End the mark of a queued message: whoever asks from now on is not folded into a run that has begun.

        The mark may be another's, whose message was lost. If it was not lost, that one is marked again or folded.
        """
        if marked := queued.get():
            queued.compare_and_set(marked, 0)

    def _refused(self, client: Client, name: str) -> dict[str, str]:
        """Return the result of a message that found the lock held, or send it back."""
        why, request = f"{name!r} is held", self.request
        delivery: dict[str, object] = request.delivery_info or {}
        headers: dict[str, object] = request.as_execution_options()["headers"] or {}
        if self.busy == RETRY:
            self._send_back(why)
        if self.busy == DROP:
            if not (request.get(RETURNED) or delivery.get("redelivered")):
                return {"dropped": name}
            self._send_back(why, headers={**headers, RETURNED: True})
        queued, mark = client.counter(f"celery:queued:{name}"), _mark(request.id)
        if not queued.compare_and_set(0, mark) and queued.get() != mark:
            return {"folded": name}
        try:
            self._send_back(why, expires=None)  # others are folded into it
        except Retry:
            raise
        except Exception:
            queued.compare_and_set(mark, 0)
            raise

    def _send_back(self, why: str, **options: object) -> Never:
        """Send the message back to the broker, and tell Celery so. It counts as no retry of the task."""
        request, countdown = self.request, self.busy_countdown
        self.signature_from_request(request, countdown=countdown, retries=request.retries, **options).apply_async()
        raise Retry(exc=why, when=countdown)


def _mark(task_id: str) -> int:
    """Return what a counter says of a message that is queued: never 0."""
    return int(sha256(task_id.encode()).hexdigest()[:13], 16) or 1


def _locked(cls: type[Task], body: Any, template: str) -> Any:  # noqa: ANN401 - a function or a staticmethod
    """Return the method that runs `body`, the `run` of a task, under its lock."""
    bound = body.__func__ if isinstance(body, staticmethod) else MethodType(body, cls)
    name_of = name_from_call(bound, template)

    def run(self: Task, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        plain = body.__get__(self, type(self))
        return self._run_locked(name_of(*args, **kwargs), plain, args, kwargs)  # pyright: ignore[reportPrivateUsage]

    parameters = inspect.signature(bound).parameters.values()
    vars(run)["body"] = body
    vars(run)["__signature__"] = inspect.Signature(  # Celery looks at it when a task is retried with other arguments
        [inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY), *parameters]
    )
    return run


def _refuse_lock(cls: type[celery.Task], _app: celery.Celery) -> None:
    """Raise UsageError if a task has a lock, but not the class that takes it."""
    lock = getattr(cls, "lock", None)
    if isinstance(lock, str) and not issubclass(cls, Task):
        raise UsageError(
            f"the task {cls.name} has lock={lock!r}, and its class takes no locks: make the app with "
            "task_cls='tenure.celery:Task', and derive base classes of tasks from tenure.celery.Task"
        )


celery.Task.on_bound = classmethod(_refuse_lock)  # Celery takes any option of a task, and ignores what it does not know


class Scheduler(beat.Scheduler):
    """A scheduler of which one node ticks: `celery beat -S tenure.celery:Scheduler`, on any number of nodes.

    It wraps the scheduler in the setting `tenure_beat_scheduler` (default: Celery's PersistentScheduler). The nodes
    elect a leader, and the leader alone sends tasks. Right before each, it claims the run in the store by comparing
    the last run, and looks at its lease. So no run is sent twice; one is left out if the leader dies, or is stopped
    until its lease ends, between the claim and the sending. A node that loses the lease stands again, and reads the
    last runs when it is elected.
    """

    def __new__(cls, app: celery.Celery, *_args: Any, **_options: Any) -> Self:  # noqa: ANN401 - those of the wrapped one
        """Make a scheduler that is also the one that is wrapped."""
        wrapped = symbol_by_name(app.conf.get("tenure_beat_scheduler") or beat.PersistentScheduler)
        return super().__new__(type(cls.__name__, (cls, wrapped), {}))

    def __init__(self, app: celery.Celery, *args: Any, lazy: bool = False, **options: Any) -> None:  # noqa: ANN401
        """Make it; with `lazy`, only to show its settings. Raises UsageError if the store keeps no counters."""
        super().__init__(app, *args, lazy=lazy, **options)
        self._client = client_of(app)
        self._election = self._client.election(LEADER)
        self._client.counter(LEADER)
        self._answers = True

    def tick(self, *args: Any, **options: Any) -> float:  # noqa: ANN401
        """Send what is due if this node leads, else stand for election; return the seconds until the next tick."""
        if not (self._election.is_leader or self._elected()):
            return 0.0 if self._answers else LONGEST_WAIT
        return min(super().tick(*args, **options), LONGEST_WAIT)

    def _elected(self) -> bool:
        """Wait for a moment to be elected, and then read what the leaders before have sent."""
        try:
            self._election.campaign(timeout=LONGEST_WAIT)
            self._read_last_runs()
        except LockTimeout:
            self._answers = True
            return False
        except StoreError as error:
            self._stand_down(error)
            return False
        self._answers = True
        log.info("beat: this node leads")
        return True

    def _read_last_runs(self) -> None:
        for entry in self.schedule.values():
            counter, own = self._last_run(entry), _micros(entry)
            known = counter.get() or (counter.compare_and_set(0, own) and own) or counter.get()
            entry.last_run_at = (EPOCH + known * MICROSECOND).astimezone(self.app.timezone)
        self._heap = None

    def _last_run(self, entry: beat.ScheduleEntry) -> Counter:
        """Return the counter that has the last run of an entry, in microseconds."""
        return self._client.counter(f"{LEADER}:{entry.name}")

    def reserve(self, entry: beat.ScheduleEntry) -> beat.ScheduleEntry:
        """Note the entry as it is after the run that is now sent."""
        self._reserved = super().reserve(entry)
        return self._reserved

    def apply_entry(self, entry: beat.ScheduleEntry, producer: object = None) -> None:
        """Send a task that is due, unless another node leads or has sent it."""
        if self._claims(entry):
            super().apply_entry(entry, producer=producer)

    def _claims(self, entry: beat.ScheduleEntry) -> bool:
        why: object = "another node leads"
        try:
            claimed = self._election.is_leader and self._last_run(entry).compare_and_set(
                _micros(entry), _micros(self._reserved)
            )
        except StoreError as error:
            claimed, why = False, error
        if claimed and self._election.is_leader:  # the claim may have taken long
            return True
        log.warning("beat: %s is not sent by this node, which stands for election again: %s", entry.name, why)
        self._election.resign()
        return False

    def _stand_down(self, error: StoreError) -> None:
        if self._answers:
            log.warning("beat: no task is sent by this node until the store answers: %s", error)
        self._answers = False
        self._election.resign()

    def close(self) -> None:
        """Close the scheduler that is wrapped, and let another node lead."""
        try:
            super().close()
        finally:
            self._election.resign()


def _micros(entry: beat.ScheduleEntry) -> int:
    return (maybe_make_aware(entry.last_run_at) - EPOCH) // MICROSECOND
