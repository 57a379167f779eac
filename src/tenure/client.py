"""The two clients: a client has one store, one renewer, one channel and any number of locks.

Make one client per process, and keep it.
"""

import inspect
import os
import re
import warnings
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from importlib import import_module
from types import TracebackType
from typing import TYPE_CHECKING, Any, Never, Self, TypeVar, Unpack

from tenure import fork
from tenure.callables import refuse_async_callback
from tenure.contracts.findings import Report
from tenure.contracts.handles import Handle, read_handle
from tenure.contracts.limits import (
    EVERYBODY,
    MOST_TOKENS,
    check_count,
    check_duration,
    check_name,
    check_number,
    check_timeout,
    check_ttl,
)
from tenure.contracts.messages import HolderView, NameView
from tenure.contracts.runtime import Runtime
from tenure.contracts.store import StoreSource
from tenure.core.access import DRAINED
from tenure.core.events import LockEvent
from tenure.core.handover import adopt
from tenure.core.requests import Settings
from tenure.core.session import NO_LINGER, NO_TOKENS, Session
from tenure.entering import EnteredByAsyncWith, EnteredByWith
from tenure.errors import BlockedEventLoop, Stopped, UsageError, Wait
from tenure.explanation import Explanation
from tenure.keeping import NotCopied
from tenure.lease import AsyncLease, Lease
from tenure.primitives.base import F, guarded
from tenure.primitives.lock import AsyncLock, Lock
from tenure.primitives.options import (
    Busy_co,
    ElectionOptions,
    LockOptions,
    MultiLockOptions,
    OnceOptions,
    Options,
    PlainLockOptions,
    PlainOptions,
    refuse_unknown,
)
from tenure.reentry import holds, is_inside, outside, reentered
from tenure.runtimes.ending import close_at_the_end, import_executors_at_exit
from tenure.runtimes.real import host_name
from tenure.runtimes.tasks import in_event_loop
from tenure.runtimes.threads import ThreadsRuntime, drive

if TYPE_CHECKING:
    from tenure.core.lease import CoreLease
    from tenure.jobs.once import JobSpec
    from tenure.primitives.counter import AsyncCounter, Counter
    from tenure.primitives.election import AsyncElection, Election
    from tenure.primitives.history import HistoryEntry
    from tenure.primitives.jobs import AsyncJob, Job, JobView
    from tenure.primitives.limit import AsyncLimit, Limit
    from tenure.primitives.multilock import AsyncMultiLock, MultiLock
    from tenure.primitives.once import AsyncOnceJob, OnceJob
    from tenure.primitives.rwlock import AsyncRWLock, RWLock
    from tenure.primitives.semaphore import AsyncSemaphore, Semaphore
    from tenure.primitives.stock import AsyncStock, Stock
    from tenure.runtimes.aio import Loop

Made = TypeVar("Made", bound=LockOptions)

DEFAULT_TTL = 30.0
DRAIN_TIMEOUT = 20.0
"""For how many seconds a client that is drained waits for its holders: less than the 30 that Kubernetes gives a pod."""

CLOSING = 10.0
"""For how many seconds the close of a client waits for the event loops of other threads."""

MOST_ADVICE = 2
"""How many findings about the settings of the store a client logs."""

COMMON = ("name", "ttl", "timeout")
"""The arguments that every primitive takes."""
OPTIONS = {
    "lock": PlainOptions.__optional_keys__,
    "semaphore": Options.__optional_keys__,
    "rwlock": Options.__optional_keys__,
    "multilock": MultiLockOptions.__optional_keys__,
    "election": ElectionOptions.__optional_keys__,
    "once": OnceOptions.__optional_keys__,
}
"""The options of each call."""

JOBS = "jobs that run once"
NO_CELLS = (
    "it keeps nothing but locks. Use another store, such as sqlite:///path, redis://host or postgresql://host/database."
)
NO_WEIGHTS = "a name has one holder there. Use lock(), or another store, such as sqlite:///path or redis://host."
NO_RECORDS = (
    "nothing there shows a value or a term. Use another store, such as sqlite:///path or redis://host, or the one with "
    "a table in this database."
)

LATER = (
    "tenure.core.explaining",
    "tenure.fencing.sql",
    "tenure.primitives.counter",
    "tenure.primitives.election",
    "tenure.primitives.jobs",
    "tenure.primitives.limit",
    "tenure.primitives.multilock",
    "tenure.primitives.once",
    "tenure.primitives.reentrant",
    "tenure.primitives.rwlock",
    "tenure.primitives.semaphore",
    "tenure.primitives.stock",
    "tenure.primitives.why",
)
"""The modules that the first client imports. `import tenure` leaves them out, to take less time."""


def _literal(pattern: str | None) -> str:
    """Return the prefix of all names that match a pattern."""
    return re.split(r"[*?\[]", pattern or "", maxsplit=1)[0]


def _this_process() -> str:
    return f"{host_name()}/{os.getpid()}"


class _ClientBase(NotCopied):
    """What both clients share: everything that needs no store."""

    _instead = "make a client in each process, from the same URL; threads may share one"

    def __init__(
        self,
        url: object = None,
        *,
        namespace: str = "",
        owner: str | None = None,
        ttl: float | None = None,
        operation_timeout: float = 1.0,
        retry_for: float = 10.0,
        fairness_count: int = 32,
        wait_for_release: bool = True,
        advice: bool = True,
        on_event: Callable[[LockEvent], object] | None = None,
        event_lines: bool = False,
        record: bool = False,
        store: StoreSource | None = None,
        quorum: Sequence[object] | None = None,
        **unknown: Never,
    ) -> None:
        """Make a client. Its first operation opens the store.

        Args:
            url: the URL of the store; or a redis-py client, a pool of psycopg or an engine of SQLAlchemy, whose server
                and login to use; default: the environment's TENURE_URL, else an embedded lock file of this user.
            namespace: a prefix of all names, so that programs can share a store.
            owner: the name of this client, for people who inspect a lock: up to 512 bytes of UTF-8; default: host and
                process id.
            ttl: the ttl of its locks, in seconds, unless they say another; also in a URL, as ?ttl=10. Default: 30, or
                the store's max_ttl if that is smaller.
            operation_timeout: the longest time, in seconds, that one request to the store may take.
            retry_for: how long, in seconds, an acquisition retries while the store does not answer or cannot be opened;
                never beyond its own `timeout`. An acquisition that does not wait asks once.
            fairness_count: to how many of its own threads or tasks this client hands a name on in one turn, while
                another client waits for it; 0: to none. It hands on only to those that already waited when the turn
                began: with the grant or, if no other client waited then, when this client learns that one does.
            wait_for_release: False to end a `with` before the reply to its release comes; see `lock`.
            advice: whether to log, once in the life of this client, the two worst things that are wrongly set at the
                store for locks, as far as it shows them when it is connected. `examine` finds more.
            on_event: called with a LockEvent whenever a lock of this client is waited for, acquired, renewed, lost,
                handed over or released, and for what EventKind lists besides, in the thread or event loop where that
                happens: it must not block. Its errors are logged. `listen` adds more.
            event_lines: whether events say which line of the program began an acquisition.
            record: whether this client writes the grants and losses of its names into the store, for `history` and
                `tenure log`: in the background, a second later. Not for names of which there is a new one each time.
            store: the source of your own store, instead of a URL.
            quorum: at least three independent nodes, of which a majority must agree (Redlock), instead of a URL: each
                is a URL, or a redis-py client whose server to use.

        Raises UsageError if an argument is wrong.
        """
        if unknown:
            refuse_unknown(type(self).__name__, unknown, inspect.signature(_ClientBase).parameters.keys() - {"unknown"})
        if sum(each is not None for each in (url, store, quorum)) > 1:
            raise UsageError("a client has one store: give only one of `url`, `store` and `quorum`")
        refuse_async_callback(on_event, "on_event")
        self.namespace = check_name(namespace, "a namespace") if namespace else ""
        self._settings = Settings(
            check_name(owner, "an owner") if owner else _this_process(),
            check_duration(operation_timeout, "operation_timeout", 0.01),
            check_duration(retry_for, "retry_for"),
            self._prefix(),
            check_count(fairness_count, "fairness_count"),
            wait_for_release=wait_for_release,
            event_lines=event_lines,
            advice=MOST_ADVICE if advice else 0,
        )
        self._owner_given = owner is not None
        import_executors_at_exit()
        self._source = store or (_source_of(url) if quorum is None else _quorum_of(quorum))
        self._settings.store_title = self._source.title
        self._able, ttl = self._source.capabilities, self._source.ttl if ttl is None else ttl
        self.ttl = min(DEFAULT_TTL, self._able.max_ttl) if ttl is None else check_ttl(ttl, self._able)
        """The ttl of its locks that say none, in seconds."""
        self._used = self._closed = self._drained = False
        if record:
            self._cells_of("history of names (record=True)")
            self._settings.record = True
        if on_event is not None:
            self.listen(on_event)
        self._prepare()
        self._beginning = ThreadsRuntime().mutex()
        fork.watch(self)

    def listen(self, listener: Callable[[LockEvent], object]) -> None:
        """Call `listener` with each LockEvent as well, as `on_event`: any number of listeners hear each event.

        Raises UsageError if it is async, or the client was used before: then the listener would hear of ends whose
        beginnings it has not heard.
        """
        refuse_async_callback(listener, "on_event")
        self.listen_within(partial(outside, listener))

    def listen_within(self, listener: Callable[[LockEvent], object]) -> None:
        """Call a listener that is a part of Tenure, and makes no calls of it; internal.

        A signal handler that comes while it runs finds its thread inside Tenure, and so releases in the background: it
        does not wait for a mutex that the listener has locked.
        """
        if self._used:
            raise UsageError("this client was used before: add listeners and metrics when you have made the client")
        self._settings.listeners.append(listener)

    def _prepare(self) -> None:
        """Import what the operations need: a child that is forked in the middle of an import would wait for ever."""
        for module in LATER:
            import_module(module)

    def after_fork_in_child(self) -> None:
        """Start anew in a forked child, which uses nothing of its parent's."""
        sessions, self._used = self._take_sessions(), False
        self._beginning = ThreadsRuntime().mutex()  # a thread that the child does not have may hold the old mutex
        if not self._owner_given:
            self._settings.owner = _this_process()
        for session in sessions:
            session.abandon()

    def _take_sessions(self) -> list[Session]:
        """Forget the sessions of this process, and return them."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._source.title}>"

    def _refuse_if_ended(self) -> None:
        if self._drained:
            raise Stopped(DRAINED)
        if self._closed:
            message = "this client is closed; make a new one"
            raise UsageError(message)

    def _start(self, runtime: Runtime) -> Session:
        self._refuse_if_ended()
        self._used = True
        session = Session(runtime, self._source.make(runtime), self._settings)
        session.face = self
        return session

    def _options(
        self, kind: type[Made], call: str, ttl: float | None, timeout: float | None, options: Mapping[str, Any]
    ) -> Made:
        """Return the options of a primitive, checked. Raises UsageError if one is wrong."""
        if not options.keys() <= OPTIONS[call]:
            refuse_unknown(call, options, (*COMMON, *OPTIONS[call]))
        return kind(ttl=self.ttl if ttl is None else ttl, timeout=timeout, **options).check(self._able)

    def _plain_options(self, ttl: float | None, timeout: float | None, options: Mapping[str, Any]) -> PlainLockOptions:
        made, able = self._options(PlainLockOptions, "lock", ttl, timeout, options), self._able
        if made.linger and (able.span == 1 or not (able.queue or able.tells)):
            raise UsageError(f"{self._source.title}: {NO_LINGER if able.span > 1 else NO_TOKENS}")
        return made

    def _require(self, able: bool, kind: str, why: str) -> None:  # noqa: FBT001 - what the store must be able to
        """Raise UsageError if the store keeps none of a kind of primitive."""
        if not able:
            raise UsageError(f"{self._source.title} keeps no {kind}: {why}")

    def _cells_of(self, kind: str) -> str:
        """Return the prefix of the names of cells. Raises UsageError if the store keeps no cells."""
        self._require(self._able.cells, kind, NO_CELLS)
        return self._prefix()

    def _job_spec(self, job: str, options: OnceOptions) -> "JobSpec":
        from tenure.primitives.once import job_spec

        self._cells_of(JOBS)
        if not options.keys() <= OPTIONS["once"]:
            refuse_unknown("once", options, OPTIONS["once"])
        return job_spec(self, self._able, self.ttl, job, **options)

    def _adopt(
        self, face: Callable[[Session, "CoreLease", str], F], handle: str, ttl: float | None, timeout: float | None
    ) -> Coroutine[Any, Any, F]:
        (found, title), within = self._handled(handle), check_timeout(timeout)

        async def go_on(session: Session, owned: "list[CoreLease]") -> F:
            core = await adopt(session, found, title, ttl=ttl, timeout=within, owned=owned)
            core.by = session.runtime.mark()
            return face(session, core, title)

        return guarded(go_on, self.session())

    def _why(self, name: str, weight: int, owner: str | None) -> Coroutine[Any, Any, Explanation]:
        from tenure.primitives.why import why

        check_number(weight, "weight", EVERYBODY)
        return why(self.session(), self.namespace, check_name(name), weight=weight, owner=owner)

    def _revoke(self, name: str, token: int | None, *, force: bool) -> Coroutine[Any, Any, list[HolderView]]:
        only = _only(token, force=force)
        session, full = self.session(), self._full(name)
        return session.revoke(full, only) if force else session.request_revocation(full)

    def _examine(self, ttl: float | None) -> Coroutine[Any, Any, Report]:
        return self.session().examine(self.ttl if ttl is None else check_duration(ttl, "ttl"))

    def session(self) -> Session:
        """Return the session of this process, and of this event loop; internal."""
        raise NotImplementedError

    def _handled(self, handle: str) -> tuple[Handle, str]:
        """Return a handle, and its name without the prefix of the namespace, which it must have."""
        found, prefix = read_handle(handle), self._prefix()
        if not found.name.startswith(prefix):
            raise UsageError(
                f"the handle is of {found.name!r}, which is not in the namespace {self.namespace!r} of this client: "
                "use a client with the namespace in which the lease was acquired."
            )
        return found, found.name.removeprefix(prefix)

    def _full(self, name: str) -> str:
        return self._prefix() + check_name(name)

    def _prefix(self) -> str:
        return f"{self.namespace}:" if self.namespace else ""

    def _matching(self, names: Iterable[str], pattern: str | None) -> Iterator[str]:
        """Yield the names of this client's namespace that match a pattern, without the prefix of the namespace."""
        for name in names:
            short = name.removeprefix(self._prefix())
            if pattern is None or fnmatchcase(short, pattern):
                yield short

    def _named(self, report: Report) -> Report:
        report.store = self._source.title
        return report

    def _short(self, view: NameView) -> NameView:
        view.name = view.name.removeprefix(self._prefix())
        return view


class Client(EnteredByWith, _ClientBase):
    """Locks for threads. All threads can share a client; close it, or use it with `with`, to stop its own threads.

    The first operation starts two daemon threads: the channel, which receives notifications from the store, and the
    renewer, which renews all leases in the background. In a coroutine use `AsyncClient`: a `Client` blocks the event
    loop while it waits. In a signal handler or a `__del__` that comes in the middle of another call, a release runs in
    the background, and everything else raises UsageError: set a flag there.
    """

    _session: Session | None = None

    def lock(
        self,
        name: str,
        *,
        ttl: float | None = None,
        timeout: float | None = None,
        **options: Unpack[PlainOptions[Busy_co]],
    ) -> Lock[Busy_co]:
        """Make a lock on `name`: any non-empty str of up to 512 bytes of UTF-8.

        Args:
            name: what to lock. In a decorator, a format string for the arguments of the call; otherwise used as it is.
            ttl: the crash bound, in seconds: how long the lock stays locked after its holder fell silent. The lease of
                a live holder is renewed in the background, however long it works. Default: that of the client.
            timeout: how long to wait, in seconds; None: for ever; 0: ask once.
            lock_delay: how long, in seconds, nobody gets the lock after a lease expired (not after a release).
            max_hold: after how many seconds the lease is no longer renewed, so that a stuck holder loses it.
            min_hold: how long, in seconds, after the grant nobody else gets the lock, even if it is released before:
                another machine whose clock is a little behind does not run a quick job again. At most ttl and max_hold.
            on_lost: called once with a LeaseLost when a lease is lost, in the thread that notices the loss, mostly the
                renewer's. It must not block.
            on_revoke: called once with the lease when somebody requests a revocation by `revoke`. It must not block.
            detect_deadlock: whether to look, while waiting, for threads or tasks that wait for each other in a circle:
                one of them gets DeadlockDetected. All of them must have this option. Each acquisition then has its own
                place in the store's queue, and there is no local hand-off.
            busy: what is done while another holds the lock: "wait" waits (the default), "raise" raises LockTimeout at
                once, "skip" is for decorators: the function is not called, and the call returns None, at once or when
                the `timeout` is over, if one is given.
            max_waiters: raise LockTimeout at once if so many wait already. An acquisition then asks first whether the
                lock is free, and if it is not, how many wait: each of this client's waiters, and every other client
                once. Those who ask at the same time may exceed the number by some.
            linger: how long, in seconds, this client keeps a released lease, so that it can acquire the name again
                without a request to the store. To all other clients the name is held meanwhile, also in `inspect`. A
                request of another client ends that at once: a waiter is granted the name; `try_acquire` is refused once
                and will succeed the next time.
            reentrant: whether a thread (or task) that holds the lock may acquire it again: it gets another lease with
                the same token, and the release of the last lease releases the name. If the lease is lost, `acquire`
                raises LeaseLost until all leases of the name that the thread has are released.
            fair: False for throughput: a newcomer may take the lock when it is free, even while another client that
                waits is being woken (barging). Locks of the same name with fair=True are never passed.
            fair_after: with fair=False, for how long, in seconds, a waiter may be passed: from then on the next release
                hands the lock to the waiters in their order, so nobody starves (default: 0.1).
            renew: False for a lease that is not renewed: it ends `ttl` seconds after its grant, or as the last `extend`
                says, which may also shorten it. Nothing else ends it before but a release: neither `close` nor the end
                of the process, unless the store ties it to a session (ZooKeeper, etcd, advisory and named locks).
            wait_for_release: False to send the release at the end of a `with` and wait for no reply (Redis, and locks
                on PostgreSQL; else it waits): the `with` ends a round trip earlier, and nobody is told what the reply
                says but by the log and an event. Somebody who is told of the end by another way may find the name held
                for as long as the release is under way. `release()` waits. Default: that of the client.
            template: what metrics call the lock, whatever its name, as "invoice-{n}" for f"invoice-{n}". The name in a
                decorator is one. Without it, metrics know only the kind of primitive.

        Raises UsageError if a value is not allowed.
        """
        made = self._plain_options(ttl, timeout, options)
        if made.reentrant:
            from tenure.primitives.reentrant import ReentrantLock

            return ReentrantLock(self, name, made)
        return Lock(self, name, made)

    def semaphore(
        self,
        name: str,
        permits: int | None,
        *,
        ttl: float | None = None,
        timeout: float | None = None,
        **options: Unpack[Options[Busy_co]],
    ) -> "Semaphore[Busy_co]":
        """Make a semaphore on `name`: each lease takes one or more of its `permits` (from 1 to 1048575).

        All users of the name must give the same number of permits, else acquiring raises UsageError. `resize` changes
        the number; without it, the number can change only while nobody holds or waits.

        With `permits=None`, each acquisition reads the number that the last `resize` has set from the store. So one
        `resize` changes it for all nodes. Before the first `resize`, an acquisition takes the number of the present
        users of the name, and raises UsageError if there are none.

        Locks, semaphores and reader/writer locks share their names. Waiters are served first come, first served,
        however many permits they ask for.

        The other arguments and errors are those of `lock`; also raises UsageError if the store keeps no semaphores.
        """
        from tenure.primitives.semaphore import Semaphore

        self._require(self._able.weights, "semaphores", NO_WEIGHTS)
        if permits is None:
            self._cells_of("number of permits for permits=None")
        return Semaphore(self, name, permits, self._options(LockOptions, "semaphore", ttl, timeout, options))

    def rwlock(
        self, name: str, *, ttl: float | None = None, timeout: float | None = None, **options: Unpack[Options[Busy_co]]
    ) -> "RWLock[Busy_co]":
        """Make a reader/writer lock on `name`, with the locks `read()` and `write()`.

        Up to 1048576 readers share the lock; a writer holds it alone. Readers and writers are served first come, first
        served, so neither starves. For this reason no lease is reentrant, and a read lease cannot become a write lease;
        but a write lease can be downgraded.

        The arguments and errors are those of `lock`; also raises UsageError if the store keeps no reader/writer locks.
        """
        from tenure.primitives.rwlock import RWLock

        self._require(self._able.weights, "reader/writer locks", NO_WEIGHTS)
        return RWLock(self, name, self._options(LockOptions, "rwlock", ttl, timeout, options))

    def multilock(
        self,
        names: Iterable[str],
        *,
        ttl: float | None = None,
        timeout: float | None = None,
        **options: Unpack[MultiLockOptions],
    ) -> "MultiLock":
        """Make a lock on several names (up to 1000): a holder has all of them or none.

        The names are acquired in one fixed order, whatever order you give, so that users of overlapping names never
        deadlock. A multilock and a `lock` of one of its names exclude each other. If one lease of the group is lost,
        all are. The embedded store, `memory://` and a Redis server grant all free names in one step; a Redis Cluster,
        whose names lie on several nodes, grants them one after another.

        The `timeout` counts for all names together, and `max_hold` from the last grant. A decorator uses the names as
        they are. The other arguments and errors are those of `lock`; also raises UsageError if a name is given twice.
        """
        from tenure.primitives.multilock import MultiLock

        return MultiLock(self, names, self._options(LockOptions, "multilock", ttl, timeout, options))

    def election(
        self, name: str, *, ttl: float | None = None, timeout: float | None = None, **options: Unpack[ElectionOptions]
    ) -> "Election":
        """Make an election on `name`: `campaign` to become the leader, or `observe` the leaders.

        A leader that died is followed by another when its ttl has run out. A leader that is alive but stuck is followed
        only if there is a `max_hold`. The arguments and errors are those of `lock`. The name is a lock's name: the
        holder of a lock on this name is the leader.
        """
        from tenure.primitives.election import Election

        self._require(self._able.records, "elections", NO_RECORDS)
        return Election(self, name, self._options(LockOptions, "election", ttl, timeout, options))

    def counter(self, name: str) -> "Counter":
        """Make a counter on `name`, which begins at 0.

        Counters, limits, stocks and locks of the same name have nothing to do with each other. Raises UsageError if the
        store keeps no counters.
        """
        from tenure.primitives.counter import Counter

        return Counter(self, name, self._cells_of("counters"))

    def limit(
        self,
        name: str,
        rate: int,
        per: float | str,
        *,
        smooth: bool = False,
        burst: int | None = None,
        timeout: float | None = None,
        template: str = "",
    ) -> "Limit":
        """Make a limit on `name`: at most `rate` units in any `per` seconds, as soon as they are wanted.

        Args:
            name: the name of the limit.
            rate: the number of units.
            per: a number of seconds, or a window of the calendar: "hour" or "day" (in UTC), "week" or "month", the last
                three with or without a time zone, as "day Europe/Berlin".
            smooth: space the units evenly, but for `burst` of them after a pause: in any half-open window of `per`
                seconds at most rate + burst - 1 units pass.
            burst: how many units may pass at once with smooth=True (default: 1).
            timeout: how long `acquire` and decorated functions wait if they are not told, in seconds; None: for ever.
            template: what events and metrics call the limit instead of its name.

        All users must give the same numbers; another rate counts at once for whoever comes next. Of a rate above 100
        units come back up to a hundredth of `per` later. A limit that nobody uses is forgotten by the store. Raises
        UsageError if a number is not allowed, or the store keeps no limits.
        """
        from tenure.primitives.limit import Limit, rule_of

        prefix, rule = self._cells_of("limits"), rule_of(rate, per, burst, smooth=smooth)
        return Limit(self, name, prefix, rule, timeout=timeout, template=template)

    def stock(self, name: str, segments: int = 8, *, template: str = "") -> "Stock":
        """Make a stock on `name`, which is empty at first: `restock` it, then `take` or `reserve` units.

        The units lie in `segments` places (up to 32), so that those who take some at the same time rarely wait for each
        other; in a Redis Cluster the segments lie on several nodes. All users must give the same number, else every
        call raises UsageError. Raises UsageError if the store keeps no stocks.
        """
        from tenure.primitives.stock import Stock

        return Stock(self, name, self._cells_of("stocks"), segments, template)

    def once(self, job: str, **options: Unpack[OnceOptions]) -> "OnceJob":
        """Make a job that runs once in each window, or once for a key, over all clients of the store.

        Call `run(function, *args)` on every node, or decorate the function. One node runs it; the store keeps that it
        is done, so a late node does not run it again. The window is named by the store's clock, never by a node's.

        Args:
            job: the name of the job.
            window: "hourly", "daily", "weekly", "monthly" or a number of seconds, counted in UTC; "daily
                Europe/Paris"; or a cron expression of five fields with or without a time zone,
                "0 3 * * 1-5 Europe/Paris" (the extra `tenure[cron]`).
            key: instead of a window: run once for this key for ever, for instance the revision of a migration.
            attempts: how many runs may begin in a window (or for a key) if runs fail or their nodes die (default: 1).
                After a failure the next one waits for a back-off of 1 s, which doubles up to 60 s.
            at_least: the least time, in seconds, between the beginnings of two runs (default: 0).
            at_most: for how long, in seconds, a run may go on: then it has failed, its lease is lost, and another
                attempt may begin. An async function is cancelled then; a thread cannot be stopped, and goes on until
                it ends by itself. None: for ever (the default), so a run that hangs stops the job on all nodes.
            busy: what a call does while another node runs the job: "skip" returns at once (the default of a window),
                "wait" waits until it is done, and takes over if it fails (the default of a key), "raise" raises
                LockTimeout.
            ttl: the crash bound of a run, in seconds: how long after its node died another attempt may begin.
            timeout: how long "wait" waits, in seconds, before it raises LockTimeout; None: for ever.
            max_waiters: with "wait": raise LockTimeout at once if so many wait already.
            keep: for how many seconds after its last run began or ended a key is remembered, by the store's clock, and
                with it what that run returned: every later call returns it as `OnceResult.value`, as JSON gives it
                back. If JSON cannot express it, or it takes more than 16 KiB, the job is done all the same, and
                every call raises ResultNotKept. None: the key is remembered for ever, without a result.
            fingerprint: a str or any other JSON value, of which the store keeps a hash: what calls for one key have in
                common, for instance the body of a request. A call whose key came before with another fingerprint
                runs nothing, and raises FingerprintMismatch. None: the call does not ask.
            template: what events and metrics call the job, as of `lock`.

        If the store's clock steps back by up to an hour, or the clocks of the members of a store disagree by as much,
        no window is run twice. What a store forgets, for instance in a failover, may be run again: see the guarantees
        of the store.

        Raises UsageError if a value is not allowed, or the store keeps no cells.
        """
        from tenure.primitives.once import OnceJob

        return OnceJob(self, self._job_spec(job, options))

    def job(self, name: str) -> "Job":
        """Return what an operator can do with a job: pause, resume, repeat and forget it."""
        from tenure.primitives.jobs import Job

        self._cells_of(JOBS)
        return Job(self, name)

    def jobs(self) -> "list[JobView]":
        """Return the jobs of this client's namespace with their last runs, sorted by name."""
        from tenure.primitives.jobs import views

        prefix = self._cells_of(JOBS)
        return drive(views(self.session(), prefix))

    def history(self, name: str) -> "list[HistoryEntry]":
        """Return what clients with `record=True` have written of `name`, the oldest first; see `HistoryEntry`.

        Raises StoreError if the store does not answer, and UsageError if it keeps no histories.
        """
        from tenure.primitives.history import history_of

        self._cells_of("history of names")
        return drive(history_of(self.session(), self._full(name)))[0]

    def adopt(self, handle: str, ttl: float | None = None, *, timeout: float | None = None) -> Lease:
        """Go on with the lease of a handle, which `lease.detach()` returned or `tenure acquire` printed.

        From then on this client renews the lease, for `ttl` seconds each (None: that of the handle). Its token is
        larger than before, and the name was held by nobody else meanwhile. A lease that was detached is adopted at
        once. If it was adopted before, the last adopter gets it: the one before is refused at its next renewal, so this
        call waits until that one no longer takes the lease for its own, for at most its ttl.

        Raises LeaseLost if the lease has ended; LockTimeout if an earlier adopter may hold it for longer than `timeout`
        seconds (None: wait): then nothing has changed; UsageError if the text is no handle, the name is not of this
        client's namespace, the store hands over no leases, or grants none for this ttl; StoreError if the store did not
        answer, or is in quarantine: calling again is safe.
        """
        return drive(self._adopt(Lease, handle, ttl, timeout))

    def inspect(self, name: str) -> NameView:
        """Return who holds `name` and who waits for it."""
        return self._short(drive(self.session().inspect(self._full(name))))

    def why(self, name: str, *, weight: int = 1, owner: str | None = None) -> Explanation:
        """Return what keeps `name` from being granted, who holds it, who waits, and what to do about it.

        It is explained for a newcomer that asks for `weight` permits, 1048576 for a writer; or, with `owner`, for the
        first waiter of that owner. Meant for people: it takes one request for a name that is held, and a few more for a
        name with a deadlock or a job, or to find what was meant by a name that nobody uses. Waiters of this client that
        wait for a local hand-off are shown; those of other clients are not.

        Raises UsageError if no waiter has that owner, and StoreError if the store did not answer.
        """
        return drive(self._why(name, weight, owner))

    def names(self, pattern: str | None = None) -> list[str]:
        """List the names of this client's namespace that are held or waited for, sorted; see `iter_names`."""
        return sorted(self.iter_names(pattern))

    def iter_names(self, pattern: str | None = None) -> Iterator[str]:
        """Yield the names that `names` returns, in no order, page by page as the store lists them.

        The pattern is that of a shell: `*`, `?`, `[abc]`. The store finds the names that begin with the text before the
        first of these characters; the client matches the rest. A name that is in use during the whole listing is
        yielded exactly once; a name that is acquired or released meanwhile may be yielded or not. Each page is
        requested when it is needed, within `operation_timeout`. Raises StoreError.
        """
        rest: object = None
        while True:
            page = drive(self.session().page(self._prefix() + _literal(pattern), rest))
            yield from self._matching(page.names, pattern)
            if (rest := page.rest) is None:
                return

    def deadlocks(self) -> list[tuple[Wait, ...]]:
        """Return all deadlocks on names of this client's namespace, of any process: each is a circle of waits.

        Only locks with `detect_deadlock=True` are seen. Inspects every name in use: meant for people, not for programs.
        """
        return drive(self.session().deadlocks())

    def revoke(self, name: str, *, force: bool = False, token: int | None = None) -> list[HolderView]:
        """Ask the holders of `name` to let go; with `force`, take it from them. Return these holders.

        A holder that is asked hears of it by `lease.on_revoke` and `lease.revoking`, and may go on: no lease is lost.
        The revocation request can get lost, and may not reach a lease in its first second: repeat it. With `force`, the
        leases are lost at once, the name is handed over, and late writes of the old holders carry smaller fencing
        tokens than any later lease.

        With `force` and a `token`, only the holder that `inspect` shows with this token loses its lease: never a holder
        that was granted the name since you looked, nor the holders of other permits.
        """
        return drive(self._revoke(name, token, force=force))

    def end_quarantine(self) -> float:
        """End the quarantine of the store at once; return how many seconds it would still have lasted.

        A Redis that restarted, failed over or is new may have forgotten leases, so it grants nothing for `max_ttl`
        (30 s) or longer, as a forgotten lease may last. End the quarantine only if you know that nobody works under a
        lease from before: that holder and the next one would work at the same time. Returns 0.0 if there was no
        quarantine.

        Raises UsageError if the store never forgets, StoreError if the store did not answer (then call it again).
        """
        return drive(self.session().end_quarantine())

    def examine(self, ttl: float | None = None) -> Report:
        """Look at the settings of the store, and return what is wrong with them for locks, as `tenure doctor` does.

        `ttl` is the longest ttl, in seconds, that your program uses (default: 30, or the longest that the store
        grants). Sends a few requests to each server, each within
        `operation_timeout`, and writes nothing; the store need not be fit to be opened. What a server does not tell is
        in `Report.unseen`. Raises StoreError if no server answers.
        """
        return self._named(drive(self._examine(ttl)))

    def drain(self, timeout: float = DRAIN_TIMEOUT) -> bool:
        """End the work of this client in order, and close it; return whether all leases were released in time.

        From the call on, each acquisition, and each wait for one, raises Stopped: nothing new is held, and no place in
        a queue is left behind. Who holds a lease goes on, and gets a revocation request (`on_revoke`, `revoking`), for
        it is time to end. Leadership is handed on: a term is lost here first, so that its body stops, and is then
        released at once, or when the `with` that entered it is left. After `timeout` seconds, or as soon as nothing is
        held, the client is closed: that releases what is left. Other calls, such as a renewal or an inspection, work
        until then.

        Raises UsageError within another call of Tenure in this thread: in a signal handler use `release_on_sigterm`.
        """
        check_duration(timeout, "timeout")
        if is_inside(self._beginning):
            raise reentered()
        self._drained = True  # first, so that no session is begun from now on
        session = self._session
        try:
            return session is None or drive(session.drain(timeout))
        finally:
            self.close()

    def close(self) -> None:
        """Release all leases, and stop. Idempotent. Raises UsageError within another call of Tenure in this thread."""
        if is_inside(self._beginning):
            raise reentered()
        self._closed = True  # first, so that a thread that begins a session now finds it
        for session in self._take_sessions():
            drive(session.close())

    def _take_sessions(self) -> list[Session]:
        session, self._session = self._session, None
        return [] if session is None else [session]

    def session(self) -> Session:
        """Return the session of this process; internal."""
        session = self._session
        return session if session is not None else self._begin()

    def _begin(self) -> Session:
        if in_event_loop():
            warnings.warn(
                f"{self!r} is used in a thread that runs an event loop, and blocks the loop while it waits: use "
                "AsyncClient there, or asyncio.to_thread().",
                BlockedEventLoop,
                stacklevel=_stack_level(),
            )
        if holds(self._beginning):
            raise reentered()
        with self._beginning:
            session = self._session
            if session is None:
                session = self._session = self._start(ThreadsRuntime())
                if self._drained:  # by another thread, which has not seen the session
                    session.draining, session.acquires = True, False
                close_at_the_end(self)
            if not self._closed:
                return session
        self.close()  # another thread has closed the client meanwhile, and may not have seen the session
        return session

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncClient(EnteredByAsyncWith, _ClientBase):
    """Locks for asyncio. Any number of event loops can use a client, also in several threads at once.

    Each event loop gets connections and a renewer of its own when it first uses the client. When the loop is closed, as
    asyncio.run() does at its end, they are closed before, and the leases that were acquired in it are released. Close
    the client, or use it with `async with`, to do so earlier. A lease belongs to the loop in which it was acquired; the
    locks of the client, and the functions that they decorate, belong to none.

    The renewer is one task, which renews all leases in the background. If the event loop is blocked for longer than the
    ttl of a lease, the lease is lost: run blocking work in a thread.
    """

    def _prepare(self) -> None:
        super()._prepare()
        from tenure.runtimes import aio

        self._running_loop = aio.running_loop
        self._run_in_each = aio.run_in_each
        self._new_runtime = aio.AsyncioRuntime
        self._sessions: dict[Loop, Session] = {}

    def lock(
        self,
        name: str,
        *,
        ttl: float | None = None,
        timeout: float | None = None,
        **options: Unpack[PlainOptions[Busy_co]],
    ) -> AsyncLock[Busy_co]:
        """Make a lock on `name`; arguments and errors as of `Client.lock`. `on_lost` is called in the event loop."""
        made = self._plain_options(ttl, timeout, options)
        if made.reentrant:
            from tenure.primitives.reentrant import AsyncReentrantLock

            return AsyncReentrantLock(self, name, made)
        return AsyncLock(self, name, made)

    def semaphore(
        self,
        name: str,
        permits: int | None,
        *,
        ttl: float | None = None,
        timeout: float | None = None,
        **options: Unpack[Options[Busy_co]],
    ) -> "AsyncSemaphore[Busy_co]":
        """Make a semaphore of `permits` on `name`; arguments and errors as of `Client.semaphore`."""
        from tenure.primitives.semaphore import AsyncSemaphore

        self._require(self._able.weights, "semaphores", NO_WEIGHTS)
        if permits is None:
            self._cells_of("number of permits for permits=None")
        return AsyncSemaphore(self, name, permits, self._options(LockOptions, "semaphore", ttl, timeout, options))

    def rwlock(
        self, name: str, *, ttl: float | None = None, timeout: float | None = None, **options: Unpack[Options[Busy_co]]
    ) -> "AsyncRWLock[Busy_co]":
        """Make a reader/writer lock on `name`; arguments and errors as of `Client.rwlock`."""
        from tenure.primitives.rwlock import AsyncRWLock

        self._require(self._able.weights, "reader/writer locks", NO_WEIGHTS)
        return AsyncRWLock(self, name, self._options(LockOptions, "rwlock", ttl, timeout, options))

    def multilock(
        self,
        names: Iterable[str],
        *,
        ttl: float | None = None,
        timeout: float | None = None,
        **options: Unpack[MultiLockOptions],
    ) -> "AsyncMultiLock":
        """Make a lock on several names; arguments and errors as of `Client.multilock`."""
        from tenure.primitives.multilock import AsyncMultiLock

        return AsyncMultiLock(self, names, self._options(LockOptions, "multilock", ttl, timeout, options))

    def election(
        self, name: str, *, ttl: float | None = None, timeout: float | None = None, **options: Unpack[ElectionOptions]
    ) -> "AsyncElection":
        """Make an election by `name`; arguments and errors as of `Client.election`."""
        from tenure.primitives.election import AsyncElection

        self._require(self._able.records, "elections", NO_RECORDS)
        return AsyncElection(self, name, self._options(LockOptions, "election", ttl, timeout, options))

    def counter(self, name: str) -> "AsyncCounter":
        """Make a counter on `name`; errors as of `Client.counter`."""
        from tenure.primitives.counter import AsyncCounter

        return AsyncCounter(self, name, self._cells_of("counters"))

    def limit(
        self,
        name: str,
        rate: int,
        per: float | str,
        *,
        smooth: bool = False,
        burst: int | None = None,
        timeout: float | None = None,
        template: str = "",
    ) -> "AsyncLimit":
        """Make a limit on `name`; arguments and errors as of `Client.limit`."""
        from tenure.primitives.limit import AsyncLimit, rule_of

        prefix, rule = self._cells_of("limits"), rule_of(rate, per, burst, smooth=smooth)
        return AsyncLimit(self, name, prefix, rule, timeout=timeout, template=template)

    def stock(self, name: str, segments: int = 8, *, template: str = "") -> "AsyncStock":
        """Make a stock on `name`; arguments and errors as of `Client.stock`."""
        from tenure.primitives.stock import AsyncStock

        return AsyncStock(self, name, self._cells_of("stocks"), segments, template)

    def once(self, job: str, **options: Unpack[OnceOptions]) -> "AsyncOnceJob":
        """Make a job that runs once in each window, or once for a key; arguments and errors as of `Client.once`."""
        from tenure.primitives.once import AsyncOnceJob

        return AsyncOnceJob(self, self._job_spec(job, options))

    def job(self, name: str) -> "AsyncJob":
        """Return what an operator can do with a job. See `Client.job`."""
        from tenure.primitives.jobs import AsyncJob

        self._cells_of(JOBS)
        return AsyncJob(self, name)

    async def jobs(self) -> "list[JobView]":
        """Return the jobs of this client's namespace. See `Client.jobs`."""
        from tenure.primitives.jobs import views

        prefix = self._cells_of(JOBS)
        return await views(self.session(), prefix)

    async def history(self, name: str) -> "list[HistoryEntry]":
        """Return what clients with `record=True` have written of `name`. See `Client.history`."""
        from tenure.primitives.history import history_of

        self._cells_of("history of names")
        return (await history_of(self.session(), self._full(name)))[0]

    async def adopt(self, handle: str, ttl: float | None = None, *, timeout: float | None = None) -> AsyncLease:
        """Go on with the lease of a handle; arguments and errors as of `Client.adopt`.

        If it is cancelled, nobody renews the lease, and its handle can be adopted again.
        """
        return await self._adopt(AsyncLease, handle, ttl, timeout)

    async def inspect(self, name: str) -> NameView:
        """Return who holds `name` and who waits for it."""
        return self._short(await self.session().inspect(self._full(name)))

    async def why(self, name: str, *, weight: int = 1, owner: str | None = None) -> Explanation:
        """Return what keeps `name` from being granted, and what to do about it. See `Client.why`."""
        return await self._why(name, weight, owner)

    async def names(self, pattern: str | None = None) -> list[str]:
        """List the names of this client's namespace that are held or waited for, sorted; see `Client.iter_names`."""
        return sorted([name async for name in self.iter_names(pattern)])

    async def iter_names(self, pattern: str | None = None) -> AsyncIterator[str]:
        """Yield the names that `names` returns, in no order, page by page. See `Client.iter_names`."""
        rest: object = None
        while True:
            page = await self.session().page(self._prefix() + _literal(pattern), rest)
            for name in self._matching(page.names, pattern):
                yield name
            if (rest := page.rest) is None:
                return

    async def deadlocks(self) -> list[tuple[Wait, ...]]:
        """Return all deadlocks, of any process. See `Client.deadlocks`."""
        return await self.session().deadlocks()

    async def revoke(self, name: str, *, force: bool = False, token: int | None = None) -> list[HolderView]:
        """Ask the holders of `name` to let go; with `force`, take it from them. See `Client.revoke`."""
        return await self._revoke(name, token, force=force)

    async def end_quarantine(self) -> float:
        """End the quarantine of the store at once. See `Client.end_quarantine`."""
        return await self.session().end_quarantine()

    async def examine(self, ttl: float | None = None) -> Report:
        """Look at the settings of the store, and return what is wrong with them for locks. See `Client.examine`."""
        return self._named(await self._examine(ttl))

    async def drain(self, timeout: float = DRAIN_TIMEOUT) -> bool:
        """End the work of this client in order, and close it. See `Client.drain`.

        The body of a leader is cancelled. If this is cancelled, the client is closed at once.
        """
        check_duration(timeout, "timeout")
        self._drained = True  # first, so that no session is begun from now on
        try:
            drains = {loop: partial(session.drain, timeout) for loop, session in self._begun().items()}
            return all(await self._run_in_each(drains, timeout))
        finally:
            await self.close()

    async def close(self) -> None:
        """Release all leases, and stop, in each event loop that has used the client. Idempotent.

        A cancellation does not stop it half-way. It waits up to 10 seconds for the event loops of other threads; one
        that is blocked, or stands still, closes its part of the client when it runs again, or is closed.
        """
        self._closed = True  # first, so that a thread that begins a session now finds it
        closes = {loop: session.close for loop, session in self._begun().items()}
        self._take_sessions()
        if closes:
            self._last = self._new_runtime()  # keeps the task
            await self._last.finish(self._run_in_each(closes, CLOSING))

    def _begun(self) -> "dict[Loop, Session]":
        """Return the sessions that can still do anything."""
        return {loop: each for loop, each in self._sessions.copy().items() if not (each.closed or loop.is_closed())}

    def _take_sessions(self) -> list[Session]:
        sessions, self._sessions = self._sessions, {}
        return list(sessions.values())

    def session(self) -> Session:
        """Return the session of this process and event loop; internal."""
        loop = self._running_loop()
        session = self._sessions.get(loop)
        return self._begin(loop) if session is None else session

    def _begin(self, loop: "Loop") -> Session:
        for each in list(self._sessions):  # those of other threads, too
            if each.is_closed():
                self._sessions.pop(each, None)
        runtime = self._new_runtime()
        session = self._sessions[loop] = self._start(runtime)
        if self._closed or self._drained:  # by another thread, which may not have seen the session
            self._sessions.pop(loop, None)
            self._refuse_if_ended()
        runtime.before_loop_closes(session.close)
        return session

    def __del__(self) -> None:
        if any(not each.closed for each in getattr(self, "_sessions", {}).values()):
            warnings.warn(
                f"{self!r} was not closed: its leases end at their ttl. Use it with `async with`, or await close().",
                ResourceWarning,
                stacklevel=2,
                source=self,
            )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def _only(token: int | None, *, force: bool) -> int:
    """Return the token of the holder to revoke; 0: all holders."""
    if token is None:
        return 0
    if not force:
        raise UsageError("a token is only for revoke(force=True): without force all holders are asked, so leave it out")
    return check_number(token, "a token", MOST_TOKENS)


def _stack_level() -> int:
    """Return the `stacklevel` of the code that called Tenure, for a warning."""
    package = f"{__name__.partition('.')[0]}."
    level, frame = 0, inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").startswith(package):
        level, frame = level + 1, frame.f_back
    return level


def _source_of(url: object) -> StoreSource:
    from tenure.stores.urls import store_source

    return store_source(url)


def _quorum_of(nodes: Sequence[object]) -> StoreSource:
    from tenure.stores.quorum import quorum_source

    return quorum_source(nodes)
