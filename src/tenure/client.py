"""The two clients: a client has one store, one renewer, one channel and any number of locks.

Make one client per process, and keep it.
"""

import inspect
import os
import re
import warnings
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from importlib import import_module
from types import TracebackType
from typing import TYPE_CHECKING, Never, Self, Unpack, cast

from tenure import fork
from tenure.contracts.limits import MOST_TOKENS, check_count, check_duration, check_name, check_number
from tenure.contracts.messages import HolderView, NameView
from tenure.contracts.runtime import Runtime
from tenure.contracts.store import StoreSource
from tenure.core.access import FairnessBudget, Settings
from tenure.core.events import LockEvent
from tenure.core.session import NO_LINGER, NO_TOKENS, Session
from tenure.entering import EnteredByAsyncWith, EnteredByWith
from tenure.errors import BlockedEventLoop, UsageError, Wait
from tenure.primitives.lock import AsyncLock, Lock
from tenure.primitives.options import (
    ElectionOptions,
    LockOptions,
    MultiLockOptions,
    Options,
    PlainLockOptions,
    PlainOptions,
    refuse_unknown,
)
from tenure.runtimes.ending import close_at_the_end
from tenure.runtimes.real import host_name
from tenure.runtimes.tasks import in_event_loop
from tenure.runtimes.threads import ThreadsRuntime, drive

if TYPE_CHECKING:
    from tenure.primitives.counter import AsyncCounter, Counter
    from tenure.primitives.election import AsyncElection, Election
    from tenure.primitives.jobs import AsyncJob, Job, JobView
    from tenure.primitives.limit import AsyncLimit, Limit
    from tenure.primitives.multilock import AsyncMultiLock, MultiLock
    from tenure.primitives.once import AsyncOnceJob, OnceJob
    from tenure.primitives.rwlock import AsyncRWLock, RWLock
    from tenure.primitives.semaphore import AsyncSemaphore, Semaphore
    from tenure.primitives.stock import AsyncStock, Stock
    from tenure.runtimes.aio import AsyncioRuntime

DEFAULT_TTL = 30.0

COMMON = ("name", "ttl", "timeout")
"""The arguments that every primitive takes."""
PLAIN, SHARED = PlainOptions.__optional_keys__, Options.__optional_keys__
TOGETHER, ELECTION = MultiLockOptions.__optional_keys__, ElectionOptions.__optional_keys__
"""The options of each kind of primitive."""

LATER = (
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
)
"""The modules that the first client imports. `import tenure` leaves them out, to take less time."""


def _literal(pattern: str | None) -> str:
    """Return the prefix of all names that match a pattern."""
    return re.split(r"[*?\[]", pattern or "", maxsplit=1)[0]


def _this_process() -> str:
    return f"{host_name()}/{os.getpid()}"


class _ClientBase:
    """What both clients share: everything that needs no store."""

    def __init__(
        self,
        url: object = None,
        *,
        namespace: str = "",
        owner: str | None = None,
        operation_timeout: float = 1.0,
        retry_for: float = 10.0,
        fairness_count: int = 32,
        fairness_time: float = 0.05,
        on_event: Callable[[LockEvent], object] | None = None,
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
            operation_timeout: the longest time, in seconds, that one request to the store may take.
            retry_for: how long, in seconds, an acquisition retries while the store does not answer or cannot be opened;
                never beyond its own `timeout`. An acquisition that does not wait asks once.
            fairness_count: how often this client may hand a name over among its own threads or tasks while another
                client waits for it; 0: never.
            fairness_time: how long, in seconds, this client may do so.
            on_event: called with a LockEvent whenever a lock of this client is waited for, acquired, renewed, lost,
                handed over or released, in the thread or event loop where that happens: it must not block. Its errors
                are logged.
            store: the source of your own store, instead of a URL.
            quorum: at least three independent nodes, of which a majority must agree (Redlock), instead of a URL: each
                is a URL, or a redis-py client whose server to use.

        Raises UsageError if an argument is wrong.
        """
        if unknown:
            refuse_unknown(type(self).__name__, unknown, inspect.signature(_ClientBase).parameters.keys() - {"unknown"})
        if sum(each is not None for each in (url, store, quorum)) > 1:
            raise UsageError("a client has one store: give only one of `url`, `store` and `quorum`")
        self.namespace = check_name(namespace, "a namespace") if namespace else ""
        self._settings = Settings(
            check_name(owner, "an owner") if owner else _this_process(),
            check_duration(operation_timeout, "operation_timeout", 0.01),
            check_duration(retry_for, "retry_for"),
            self._prefix(),
            on_event,
            FairnessBudget(
                check_count(fairness_count, "fairness_count"), check_duration(fairness_time, "fairness_time")
            ),
        )
        self._owner_given = owner is not None
        self._source = store or (_source_of(url) if quorum is None else _quorum_of(quorum))
        self._session: Session | None = None
        self._closed = False
        self._prepare()
        self._beginning = ThreadsRuntime().mutex()
        fork.watch(self)

    def _prepare(self) -> None:
        """Import what the operations need: a child that is forked in the middle of an import would wait for ever."""
        for module in LATER:
            import_module(module)

    def after_fork_in_child(self) -> None:
        """Start anew in a forked child, which uses nothing of its parent's."""
        session, self._session = self._session, None
        self._beginning = ThreadsRuntime().mutex()  # a thread that the child does not have may hold the old mutex
        if not self._owner_given:
            self._settings.owner = _this_process()
        if session is not None:
            session.abandon()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._source.title}>"

    def _start(self, runtime: Runtime) -> Session:
        if self._closed:
            message = "this client is closed; make a new one"
            raise UsageError(message)
        session = Session(runtime, self._source.make(runtime), self._settings)
        session.face = self
        return session

    def _options(
        self, kind: str, allowed: frozenset[str], ttl: float, timeout: float | None, options: Options
    ) -> LockOptions:
        able = self._source.capabilities
        if not options.keys() <= allowed:
            refuse_unknown(kind, options, (*COMMON, *allowed))
        return LockOptions(ttl=ttl, timeout=timeout, **options).check(able)

    def _plain_options(self, ttl: float, timeout: float | None, options: PlainOptions) -> PlainLockOptions:
        able = self._source.capabilities
        if not options.keys() <= PLAIN:
            refuse_unknown("lock", options, (*COMMON, *PLAIN))
        made = PlainLockOptions(ttl=ttl, timeout=timeout, **options).check(able)
        if made.linger and (able.span == 1 or not (able.queue or able.tells)):
            raise UsageError(f"{self._source.title}: {NO_LINGER if able.span > 1 else NO_TOKENS}")
        return made

    def _shared(self, kind: str) -> None:
        """Raise UsageError if the store cannot let several holders share a name."""
        if not self._source.capabilities.weights:
            raise UsageError(
                f"{self._source.title} keeps no {kind}: a name has one holder there. Use lock(), or another store, "
                "such as sqlite:///path or redis://host."
            )

    def _recorded(self, kind: str) -> None:
        """Raise UsageError if the store keeps no record of a name that others could read."""
        if not self._source.capabilities.records:
            raise UsageError(
                f"{self._source.title} keeps no {kind}: nothing there shows a value or a term. Use another store, such "
                "as sqlite:///path or redis://host, or the one with a table in this database."
            )

    def _celled(self, kind: str) -> None:
        """Raise UsageError if the store keeps no cells."""
        if not self._source.capabilities.cells:
            raise UsageError(
                f"{self._source.title} keeps no {kind}: it keeps nothing but locks. Use another store, such as "
                "sqlite:///path, redis://host or postgresql://host/database."
            )

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

    def _short(self, view: NameView) -> NameView:
        view.name = view.name.removeprefix(self._prefix())
        return view


class Client(EnteredByWith, _ClientBase):
    """Locks for threads. All threads can share a client; close it, or use it with `with`, to stop its own threads.

    The first operation starts two daemon threads: the channel, which receives notifications from the store, and the
    renewer, which renews all leases in the background. In a coroutine use `AsyncClient`: a `Client` blocks the event
    loop while it waits. Do not call a client in a signal handler or in a `__del__`: like every lock of threads, it
    would wait for ever for a mutex of the interrupted thread. Set a flag there.
    """

    def lock(
        self,
        name: str,
        ttl: float = DEFAULT_TTL,
        timeout: float | None = None,
        **options: Unpack[PlainOptions],
    ) -> Lock:
        """Make a lock on `name`: any non-empty str of up to 512 bytes of UTF-8.

        Args:
            name: what to lock. In a decorator, a format string for the arguments of the call; otherwise used as it is.
            ttl: the crash bound, in seconds: how long the lock stays locked after its holder fell silent. The lease of
                a live holder is renewed in the background, however long it works.
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
                once, "skip" is for decorators: the function is not called, and the call returns None.
            max_waiters: raise LockTimeout at once if so many wait already. An acquisition then asks first whether the
                lock is free, and if it is not, how many wait: each of this client's waiters, and every other client
                once. Those who ask at the same time may exceed the number by some.
            linger: how long, in seconds, this client keeps a released lease, so that it can acquire the name again
                without a request to the store. To all other clients the name is held meanwhile, also in `inspect`. A
                request of another client ends that at once: a waiter is granted the name; `try_acquire` is refused once
                and will succeed the next time.
            reentrant: whether a thread (or task) that holds the lock may acquire it again: it gets another lease with
                the same token, and the release of the last lease releases the name.
            fair: False for throughput: a newcomer may take the lock when it is free, even while another client that
                waits is being woken (barging). Locks of the same name with fair=True are never passed.
            fair_after: with fair=False, for how long, in seconds, a waiter may be passed: from then on the next release
                hands the lock to the waiters in their order, so nobody starves (default: 0.1).

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
        permits: int,
        ttl: float = DEFAULT_TTL,
        timeout: float | None = None,
        **options: Unpack[Options],
    ) -> "Semaphore":
        """Make a semaphore on `name`: each lease takes one or more of its `permits` (from 1 to 1048575).

        All users of the name must give the same number of permits, else acquiring raises UsageError. `resize` changes
        the number; without it, the number can change only while nobody holds or waits. Locks, semaphores and
        reader/writer locks share their names. Waiters are served first come, first served, however many permits they
        ask for.

        The other arguments and errors are those of `lock`; also raises UsageError if the store keeps no semaphores.
        """
        from tenure.primitives.semaphore import Semaphore

        self._shared("semaphores")
        return Semaphore(self, name, permits, self._options("semaphore", SHARED, ttl, timeout, options))

    def rwlock(
        self,
        name: str,
        ttl: float = DEFAULT_TTL,
        timeout: float | None = None,
        **options: Unpack[Options],
    ) -> "RWLock":
        """Make a reader/writer lock on `name`, with the locks `read()` and `write()`.

        Up to 1048576 readers share the lock; a writer holds it alone. Readers and writers are served first come, first
        served, so neither starves. For this reason no lease is reentrant, and a read lease cannot become a write lease;
        but a write lease can be downgraded.

        The arguments and errors are those of `lock`; also raises UsageError if the store keeps no reader/writer locks.
        """
        from tenure.primitives.rwlock import RWLock

        self._shared("reader/writer locks")
        return RWLock(self, name, self._options("rwlock", SHARED, ttl, timeout, options))

    def multilock(
        self,
        names: Iterable[str],
        ttl: float = DEFAULT_TTL,
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

        return MultiLock(self, names, self._options("multilock", TOGETHER, ttl, timeout, cast("Options", options)))

    def election(
        self,
        name: str,
        ttl: float = DEFAULT_TTL,
        timeout: float | None = None,
        **options: Unpack[ElectionOptions],
    ) -> "Election":
        """Make an election on `name`: `campaign` to become the leader, or `observe` the leaders.

        A leader that died is followed by another when its ttl has run out. A leader that is alive but stuck is followed
        only if there is a `max_hold`. The arguments and errors are those of `lock`. The name is a lock's name: the
        holder of a lock on this name is the leader.
        """
        from tenure.primitives.election import Election

        self._recorded("elections")
        return Election(self, name, self._options("election", ELECTION, ttl, timeout, cast("Options", options)))

    def counter(self, name: str) -> "Counter":
        """Make a counter on `name`, which begins at 0.

        Counters, limits, stocks and locks of the same name have nothing to do with each other. Raises UsageError if the
        store keeps no counters.
        """
        from tenure.primitives.counter import Counter

        self._celled("counters")
        return Counter(self, name, self._prefix())

    def limit(self, name: str, rate: int, per: float, burst: int = 1) -> "Limit":
        """Make a limit on `name`: at most `rate` units per `per` seconds, and `burst` at once after a pause.

        In any half-open window of `per` seconds at most rate + burst - 1 units pass; `Limit` says what that means. All
        users must give the same numbers. A limit that nobody uses is forgotten by the store. Raises UsageError if a
        number is not allowed, or the store keeps no limits.
        """
        from tenure.primitives.limit import Limit

        self._celled("limits")
        return Limit(self, name, self._prefix(), (rate, per, burst))

    def stock(self, name: str, segments: int = 8) -> "Stock":
        """Make a stock on `name`, which is empty at first: `restock` it, then `take` or `reserve` units.

        The units lie in `segments` places (up to 32), so that those who take some at the same time rarely wait for each
        other; in a Redis Cluster the segments lie on several nodes. All users must give the same number, else every
        call raises UsageError. Raises UsageError if the store keeps no stocks.
        """
        from tenure.primitives.stock import Stock

        self._celled("stocks")
        return Stock(self, name, self._prefix(), segments)

    def once(
        self,
        job: str,
        *,
        window: object = None,
        key: str | None = None,
        attempts: int = 1,
        at_least: float = 0.0,
        busy: str | None = None,
        ttl: float = DEFAULT_TTL,
        timeout: float | None = None,
        max_waiters: int | None = None,
        keep: float | None = None,
    ) -> "OnceJob":
        """Make a job that runs once in each window, or once for a key, over all clients of the store.

        Call `run(function, *args)` on every node, or decorate the function. One node runs it; the store keeps that it
        is done, so a late node does not run it again. The window is named by the store's clock, never by a node's.

        Args:
            job: the name of the job.
            window: "hourly", "daily" or a number of seconds, counted in UTC; "daily Europe/Paris"; or a cron expression
                of five fields with or without a time zone, "0 3 * * 1-5 Europe/Paris" (the extra `tenure[cron]`).
            key: instead of a window: run once for this key for ever, for instance the revision of a migration.
            attempts: how many runs may begin in a window (or for a key) if runs fail or their nodes die. After a
                failure the next one waits for a back-off of 1 s, which doubles up to 60 s.
            at_least: the least time, in seconds, between the beginnings of two runs.
            busy: what a call does while another node runs the job: "skip" returns at once (the default of a window),
                "wait" waits until it is done, and takes over if it fails (the default of a key), "raise" raises
                LockTimeout.
            ttl: the crash bound of a run, in seconds: how long after its node died another attempt may begin.
            timeout: how long "wait" waits, in seconds, before it raises LockTimeout; None: for ever.
            max_waiters: with "wait": raise LockTimeout at once if so many wait already.
            keep: after how many seconds the record of a key may be forgotten; None: never.

        If the store's clock steps back by up to an hour, or the clocks of the members of a store disagree by as much,
        no window is run twice. What a store forgets, for instance in a failover, may be run again: see the guarantees
        of the store.

        Raises UsageError if a value is not allowed, or the store keeps no cells.
        """
        from tenure.primitives.once import OnceJob, job_spec

        self._celled("jobs that run once")
        spec = job_spec(
            self,
            self._source.capabilities,
            job,
            window=window,
            key=key,
            attempts=attempts,
            at_least=at_least,
            busy=busy,
            ttl=ttl,
            timeout=timeout,
            max_waiters=max_waiters,
            keep=keep,
        )
        return OnceJob(self, spec)

    def job(self, name: str) -> "Job":
        """Return what an operator can do with a job: pause, resume, repeat and forget it."""
        from tenure.primitives.jobs import Job

        self._celled("jobs that run once")
        return Job(self, name)

    def jobs(self) -> "list[JobView]":
        """Return the jobs of this client's namespace (up to 1000), with their last runs, sorted by name."""
        from tenure.primitives.jobs import views

        self._celled("jobs that run once")
        return drive(views(self.session(), self._prefix()))

    def inspect(self, name: str) -> NameView:
        """Return who holds `name` and who waits for it."""
        return self._short(drive(self.session().inspect(self._full(name))))

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
        only = _only(token, force=force)
        session, full = self.session(), self._full(name)
        return drive(session.revoke(full, only) if force else session.request_revocation(full))

    def end_quarantine(self) -> float:
        """End the quarantine of the store at once; return how many seconds it would still have lasted.

        A Redis that restarted, failed over or is new may have forgotten leases, so it grants nothing until the longest
        lease has run out. End the quarantine only if you know that nobody works under a lease from before: that holder
        and the next one would work at the same time. Returns 0.0 if there was no quarantine.

        Raises UsageError if the store never forgets, StoreError if the store did not answer (then call it again).
        """
        return drive(self.session().end_quarantine())

    def close(self) -> None:
        """Release all leases, and stop. Idempotent."""
        self._closed = True  # first, so that a thread that begins a session now finds it
        session, self._session = self._session, None
        if session is not None:
            drive(session.close())

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
        with self._beginning:
            session = self._session
            if session is None:
                session = self._session = self._start(ThreadsRuntime())
                close_at_the_end(self)
                if self._closed:  # meanwhile, by another thread, which may not have seen the session
                    self.close()
            return session

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncClient(EnteredByAsyncWith, _ClientBase):
    """Locks for asyncio. Belongs to the event loop that first uses it; close it, or use it with `async with`.

    The first operation starts one task, the renewer, which renews all leases in the background. If the event loop is
    blocked for longer than the ttl of a lease, the lease is lost: run blocking work in a thread.
    """

    _runtime: "AsyncioRuntime | None" = None

    def _prepare(self) -> None:
        super()._prepare()
        from tenure.runtimes.aio import AsyncioRuntime

        self._new_runtime = AsyncioRuntime

    def lock(
        self,
        name: str,
        ttl: float = DEFAULT_TTL,
        timeout: float | None = None,
        **options: Unpack[PlainOptions],
    ) -> AsyncLock:
        """Make a lock on `name`; arguments and errors as of `Client.lock`. `on_lost` is called in the event loop."""
        made = self._plain_options(ttl, timeout, options)
        if made.reentrant:
            from tenure.primitives.reentrant import AsyncReentrantLock

            return AsyncReentrantLock(self, name, made)
        return AsyncLock(self, name, made)

    def semaphore(
        self,
        name: str,
        permits: int,
        ttl: float = DEFAULT_TTL,
        timeout: float | None = None,
        **options: Unpack[Options],
    ) -> "AsyncSemaphore":
        """Make a semaphore of `permits` on `name`; arguments and errors as of `Client.semaphore`."""
        from tenure.primitives.semaphore import AsyncSemaphore

        self._shared("semaphores")
        return AsyncSemaphore(self, name, permits, self._options("semaphore", SHARED, ttl, timeout, options))

    def rwlock(
        self,
        name: str,
        ttl: float = DEFAULT_TTL,
        timeout: float | None = None,
        **options: Unpack[Options],
    ) -> "AsyncRWLock":
        """Make a reader/writer lock on `name`; arguments and errors as of `Client.rwlock`."""
        from tenure.primitives.rwlock import AsyncRWLock

        self._shared("reader/writer locks")
        return AsyncRWLock(self, name, self._options("rwlock", SHARED, ttl, timeout, options))

    def multilock(
        self,
        names: Iterable[str],
        ttl: float = DEFAULT_TTL,
        timeout: float | None = None,
        **options: Unpack[MultiLockOptions],
    ) -> "AsyncMultiLock":
        """Make a lock on several names; arguments and errors as of `Client.multilock`."""
        from tenure.primitives.multilock import AsyncMultiLock

        return AsyncMultiLock(self, names, self._options("multilock", TOGETHER, ttl, timeout, cast("Options", options)))

    def election(
        self,
        name: str,
        ttl: float = DEFAULT_TTL,
        timeout: float | None = None,
        **options: Unpack[ElectionOptions],
    ) -> "AsyncElection":
        """Make an election by `name`; arguments and errors as of `Client.election`."""
        from tenure.primitives.election import AsyncElection

        self._recorded("elections")
        return AsyncElection(self, name, self._options("election", ELECTION, ttl, timeout, cast("Options", options)))

    def counter(self, name: str) -> "AsyncCounter":
        """Make a counter on `name`; errors as of `Client.counter`."""
        from tenure.primitives.counter import AsyncCounter

        self._celled("counters")
        return AsyncCounter(self, name, self._prefix())

    def limit(self, name: str, rate: int, per: float, burst: int = 1) -> "AsyncLimit":
        """Make a limit on `name`; arguments and errors as of `Client.limit`."""
        from tenure.primitives.limit import AsyncLimit

        self._celled("limits")
        return AsyncLimit(self, name, self._prefix(), (rate, per, burst))

    def stock(self, name: str, segments: int = 8) -> "AsyncStock":
        """Make a stock on `name`; arguments and errors as of `Client.stock`."""
        from tenure.primitives.stock import AsyncStock

        self._celled("stocks")
        return AsyncStock(self, name, self._prefix(), segments)

    def once(
        self,
        job: str,
        *,
        window: object = None,
        key: str | None = None,
        attempts: int = 1,
        at_least: float = 0.0,
        busy: str | None = None,
        ttl: float = DEFAULT_TTL,
        timeout: float | None = None,
        max_waiters: int | None = None,
        keep: float | None = None,
    ) -> "AsyncOnceJob":
        """Make a job that runs once in each window, or once for a key; arguments and errors as of `Client.once`."""
        from tenure.primitives.once import AsyncOnceJob, job_spec

        self._celled("jobs that run once")
        spec = job_spec(
            self,
            self._source.capabilities,
            job,
            window=window,
            key=key,
            attempts=attempts,
            at_least=at_least,
            busy=busy,
            ttl=ttl,
            timeout=timeout,
            max_waiters=max_waiters,
            keep=keep,
        )
        return AsyncOnceJob(self, spec)

    def job(self, name: str) -> "AsyncJob":
        """Return what an operator can do with a job. See `Client.job`."""
        from tenure.primitives.jobs import AsyncJob

        self._celled("jobs that run once")
        return AsyncJob(self, name)

    async def jobs(self) -> "list[JobView]":
        """Return the jobs of this client's namespace. See `Client.jobs`."""
        from tenure.primitives.jobs import views

        self._celled("jobs that run once")
        return await views(self.session(), self._prefix())

    async def inspect(self, name: str) -> NameView:
        """Return who holds `name` and who waits for it."""
        return self._short(await self.session().inspect(self._full(name)))

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
        only = _only(token, force=force)
        session, full = self.session(), self._full(name)
        return await (session.revoke(full, only) if force else session.request_revocation(full))

    async def end_quarantine(self) -> float:
        """End the quarantine of the store at once. See `Client.end_quarantine`."""
        return await self.session().end_quarantine()

    async def close(self) -> None:
        """Release all leases, and stop. Idempotent. A cancellation does not stop it half-way."""
        self._closed = True
        session, self._session = self._session, None
        if session is None:
            return
        if self._runtime is not None and self._runtime.is_current():
            await self._runtime.finish(session.close())
        else:  # the loop has ended, so nothing can cancel this
            await session.close()

    def session(self) -> Session:
        """Return the session of this process and event loop; internal."""
        runtime = self._runtime
        if self._session is None or runtime is None:
            runtime = self._runtime = self._new_runtime()
            self._session = self._start(runtime)
        elif not runtime.is_current():
            raise UsageError("this AsyncClient belongs to another event loop: make one in each loop")
        return self._session

    def __del__(self) -> None:
        if getattr(self, "_session", None) is not None:
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
