"""A client: one store, one renewer, one channel, and any number of locks. Make one a process and keep it."""

import inspect
import os
import platform
import re
import warnings
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from types import TracebackType
from typing import Never, Self, Unpack, cast

from holdfast import fork
from holdfast.contracts.limits import MOST_TOKENS, check_count, check_duration, check_name, check_number
from holdfast.contracts.messages import HolderView, NameView
from holdfast.contracts.runtime import Runtime
from holdfast.contracts.store import StoreSource
from holdfast.core.access import FairnessBudget, Settings
from holdfast.core.events import LockEvent
from holdfast.core.session import NO_LINGER, NO_TOKENS, Session
from holdfast.errors import BlockedEventLoop, UsageError, Wait
from holdfast.primitives.election import AsyncElection, Election
from holdfast.primitives.lock import AsyncLock, Lock
from holdfast.primitives.multilock import AsyncMultiLock, MultiLock
from holdfast.primitives.options import (
    ElectionOptions,
    LockOptions,
    MultiLockOptions,
    Options,
    PlainLockOptions,
    PlainOptions,
    refuse_unknown,
)
from holdfast.primitives.reentrant import AsyncReentrantLock, ReentrantLock
from holdfast.primitives.rwlock import AsyncRWLock, RWLock
from holdfast.primitives.semaphore import AsyncSemaphore, Semaphore
from holdfast.runtimes.aio import AsyncioRuntime, in_event_loop
from holdfast.runtimes.ending import close_at_the_end
from holdfast.runtimes.threads import ThreadsRuntime, drive
from holdfast.stores.urls import store_source

DEFAULT_TTL = 30.0

COMMON = ("name", "ttl", "timeout")
"""What everything that can be locked takes."""
PLAIN, SHARED = PlainOptions.__optional_keys__, Options.__optional_keys__
TOGETHER, ELECTION = MultiLockOptions.__optional_keys__, ElectionOptions.__optional_keys__
"""What else."""


def _literal(pattern: str | None) -> str:
    """Return what all names that match a pattern begin with."""
    return re.split(r"[*?\[]", pattern or "", maxsplit=1)[0]


def _this_process() -> str:
    return f"{platform.node()}/{os.getpid()}"


class _ClientBase:
    """All of a client that needs no store."""

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
        """Prepare a client; the store is opened by the first operation.

        Args:
            url: the store, or a redis-py client whose servers are used; default: the environment's HOLDFAST_URL, else
                an embedded lock file of this user.
            namespace: a prefix of all names, so that programs can share a store.
            owner: who this client is, for people who look at a lock: up to 512 bytes of UTF-8; default: host and
                process id.
            operation_timeout: the longest, in seconds, that one request to the store may take.
            retry_for: how long, in seconds, an acquisition rides out a store that does not answer, or cannot be opened
                yet; never beyond its own `timeout`. What does not wait asks once.
            fairness_count: how often this client hands a name on among its own threads or tasks, while somebody outside
                waits for it; 0: always to whoever waits outside.
            fairness_time: for how many seconds it does.
            on_event: called with a LockEvent whenever one of this client's locks is waited for, acquired, renewed,
                lost, handed on or released, in the thread or event loop where that happens: it must not block. Its
                errors are logged.
            store: the source of a store of your own, instead of a URL.
            quorum: the independent nodes, at least three, of which a majority must agree (Redlock), instead of a URL:
                each a URL, or a redis-py client whose server is used.

        Raises UsageError if something can't be right.
        """
        if unknown:
            refuse_unknown(type(self).__name__, unknown, inspect.signature(_ClientBase).parameters.keys() - {"unknown"})
        if sum(each is not None for each in (url, store, quorum)) > 1:
            message = "give one of url, store and quorum"
            raise UsageError(message)
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
        self._own_label = owner is not None
        self._source = store or (store_source(url) if quorum is None else _quorum_of(quorum))
        self._session: Session | None = None
        self._closed = False
        self._beginning = ThreadsRuntime().mutex()
        fork.watch(self)

    def after_fork_in_child(self) -> None:
        """Start anew in a forked child: nothing of the parent's is used."""
        session, self._session = self._session, None
        self._beginning = ThreadsRuntime().mutex()  # a thread that is not here may have held the old one
        if not self._own_label:
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
        """Raise UsageError if the store cannot let several hold a name."""
        if not self._source.capabilities.weights:
            raise UsageError(
                f"{self._source.title} keeps no {kind}: of a name it knows only whether it is held. Use lock(), or "
                "another store, such as sqlite:///path or redis://host."
            )

    def _full(self, name: str) -> str:
        return self._prefix() + check_name(name)

    def _prefix(self) -> str:
        return f"{self.namespace}:" if self.namespace else ""

    def _matching(self, names: Iterable[str], pattern: str | None) -> Iterator[str]:
        """Yield those of this client's namespace that match a pattern, without the prefix of the namespace."""
        for name in names:
            short = name.removeprefix(self._prefix())
            if pattern is None or fnmatchcase(short, pattern):
                yield short

    def _short(self, view: NameView) -> NameView:
        view.name = view.name.removeprefix(self._prefix())
        return view


class Client(_ClientBase):
    """Locks for threads. Safe to share by all threads; close it, or use it with `with`, to stop its own.

    It starts two daemon threads when first used: the channel, which hears of grants, and the renewer, which renews
    leases in the background for as long as they are held. In a coroutine use `AsyncClient`: this one would block the
    event loop while it waits. Do not call it in a signal handler, nor in a `__del__` of yours: like every lock of
    threads, it would wait for ever for what the interrupted thread is just holding. Set a flag there.
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
            name: what to lock; of a decorator it is a format string for the arguments of the call, else it is taken
                as it stands.
            ttl: the crash bound, in seconds: how long the lock outlives a holder that fell silent. A holder that
                lives is renewed in the background, however long it works.
            timeout: how long to wait, in seconds; None: for ever; 0: ask once.
            lock_delay: for how many seconds nobody gets the lock after a lease ran out (not after a release).
            max_hold: after how many seconds the lease is no longer renewed, so that a stuck holder loses it.
            min_hold: for how many seconds after the grant nobody else gets the lock, even if it is released before: a
                quick job is not run again by a node whose clock is a little behind. At most ttl and max_hold.
            on_lost: called once with a LeaseLost when a lease is lost, in the thread that notices, mostly the
                renewer's. It must not block.
            on_revoke: called once with the lease when somebody asks for the name by `revoke`. It must not block.
            detect_deadlock: whether to look, while waiting, for others that wait for what this thread holds, in a
                circle: then one of them gets DeadlockDetected. All must have asked for it. Each acquisition then has
                its own place in the store's queue, and is not handed on within the process.
            linger: for how many seconds a released lease is kept in case this client wants the name again, which it
                then has without a word to the store. To everybody else the name is held meanwhile, and `inspect` shows
                it so. Whoever asks for it elsewhere ends that at once: a waiter is granted it, and `try_acquire`,
                which finds it held, will get it the next time.
            reentrant: whether a thread (or task) that holds the lock may acquire it again: it gets a lease of its own
                with the same token, and the name is released with the last of them.

        Raises UsageError if a value is not allowed.
        """
        made = self._plain_options(ttl, timeout, options)
        return (ReentrantLock if made.reentrant else Lock)(self, name, made)

    def semaphore(
        self,
        name: str,
        permits: int,
        ttl: float = DEFAULT_TTL,
        timeout: float | None = None,
        **options: Unpack[Options],
    ) -> Semaphore:
        """Make a semaphore on `name`: leases take one or more of its `permits`, from 1 to 1048575.

        Everybody who uses the name at a time must give the same number, else acquiring raises UsageError: it may be
        changed by `resize`, or when nobody holds or waits. A name is the same for locks, semaphores and reader/writer
        locks. Waiters are served first come, first served, however many permits they want.

        The other arguments and errors are those of `lock`; also raises UsageError if the store keeps no semaphores.
        """
        self._shared("semaphores")
        return Semaphore(self, name, permits, self._options("semaphore", SHARED, ttl, timeout, options))

    def rwlock(
        self,
        name: str,
        ttl: float = DEFAULT_TTL,
        timeout: float | None = None,
        **options: Unpack[Options],
    ) -> RWLock:
        """Make a reader/writer lock on `name`: `read()` and `write()` of it are used as locks are.

        Readers hold it together (up to 1048576 of them), a writer alone. Readers and writers are served first come,
        first served: neither starves. So no lease of it is reentrant, nor does a read lease become a write lease; but a
        write lease can be downgraded.

        The arguments and errors are those of `lock`; also raises UsageError if the store keeps no reader/writer locks.
        """
        self._shared("reader/writer locks")
        return RWLock(self, name, self._options("rwlock", SHARED, ttl, timeout, options))

    def multilock(
        self,
        names: Iterable[str],
        ttl: float = DEFAULT_TTL,
        timeout: float | None = None,
        **options: Unpack[MultiLockOptions],
    ) -> MultiLock:
        """Make a lock on several names (up to 1000), of which one holder has all or none.

        They are taken in one order, whatever order is given, so that users of overlapping names never wait for each
        other in a circle; each of them is also kept out by a `lock` of that name, and keeps it out. If one is lost, all
        are. The embedded store, `memory://` and a Redis server grant all names that are free in one step; a Redis
        Cluster, whose names lie on several nodes, grants them one after another.

        The `timeout` counts for all names together, and `max_hold` from when all are held. As of a decorator, the names
        are taken as they stand. The other arguments and errors are those of `lock`; also raises UsageError if a name
        is given twice.
        """
        return MultiLock(self, names, self._options("multilock", TOGETHER, ttl, timeout, cast("Options", options)))

    def election(
        self,
        name: str,
        ttl: float = DEFAULT_TTL,
        timeout: float | None = None,
        **options: Unpack[ElectionOptions],
    ) -> Election:
        """Make an election by `name`: `campaign` in it to become the leader, or `observe` who leads.

        A leader that died or hangs is followed when its ttl has run out; one that is alive but stuck is followed only
        if there is a `max_hold`. The arguments and errors are those of `lock`, and so is the name: who holds a lock of
        this name is the leader.
        """
        return Election(self, name, self._options("election", ELECTION, ttl, timeout, cast("Options", options)))

    def inspect(self, name: str) -> NameView:
        """Show who holds `name` and who waits for it."""
        return self._short(drive(self.session().inspect(self._full(name))))

    def names(self, pattern: str | None = None) -> list[str]:
        """List the names of this client's namespace that are held or waited for, sorted; see `iter_names`."""
        return sorted(self.iter_names(pattern))

    def iter_names(self, pattern: str | None = None) -> Iterator[str]:
        """Yield the names that `names` lists, in no order, as the store lists them page by page.

        The pattern is that of a shell: `*`, `?`, `[abc]`. What stands before the first of these is looked for by the
        store, the rest here. A name that is in use all the time is yielded once; one that is acquired or released
        meanwhile may be. Each page is asked for when it is needed, within `operation_timeout`. Raises StoreError.
        """
        rest: object = None
        while True:
            page = drive(self.session().page(self._prefix() + _literal(pattern), rest))
            yield from self._matching(page.names, pattern)
            if (rest := page.rest) is None:
                return

    def deadlocks(self) -> list[tuple[Wait, ...]]:
        """List who waits for each other in a circle, for names of this client's namespace, in any process.

        Only locks made with `detect_deadlock=True` are seen. Asks the store for every name in use: meant for people.
        """
        return drive(self.session().deadlocks())

    def revoke(self, name: str, *, force: bool = False, token: int | None = None) -> list[HolderView]:
        """Ask the holders of `name` to let go; with `force`, take it from them and hand it on. Returns who they are.

        Who is asked hears of it by `lease.on_revoke` and `lease.revoking`, and may go on: nothing is lost. What asks
        them can get lost, or not reach a lease that is a second old: ask again. By force their leases are lost at once,
        and their late writes carry smaller fencing tokens than any lease after this.

        With `force` and a `token`, the name is taken only from the holder that `inspect` shows with this token: never
        from somebody who was granted it since you looked, nor from others who hold permits of it.
        """
        only = _only(token, force=force)
        session, full = self.session(), self._full(name)
        return drive(session.revoke(full, only) if force else session.request_revocation(full))

    def end_quarantine(self) -> float:
        """Have a quarantined store grant again at once; return for how many seconds it would have granted nothing.

        A Redis that restarted, failed over or is new may have forgotten who holds what, so it grants nothing until the
        longest lease has run out. End that only if you know that nobody works under a lease from before: such a holder
        would not be alone. Returns 0.0 if it was not quarantined.

        Raises UsageError if the store never forgets, StoreError if it did not answer (then call it again).
        """
        return drive(self.session().end_quarantine())

    def close(self) -> None:
        """Release what is still held, and stop. Idempotent."""
        session, self._session = self._session, None
        self._closed = True
        if session is not None:
            drive(session.close())

    def session(self) -> Session:
        """Return the session of this process; internal."""
        session = self._session
        return session if session is not None else self._begin()

    def _begin(self) -> Session:
        if in_event_loop():
            warnings.warn(
                f"{self!r} is used in a thread that runs an event loop, which stands still while it waits: use "
                "AsyncClient there, or asyncio.to_thread().",
                BlockedEventLoop,
                stacklevel=_stack_level(),
            )
        with self._beginning:
            if self._session is None:
                self._session = self._start(ThreadsRuntime())
                close_at_the_end(self)
            return self._session

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncClient(_ClientBase):
    """Locks for asyncio. Belongs to the event loop that first uses it; close it, or use it with `async with`.

    It starts one task, the renewer, which renews leases in the background for as long as they are held. A loop that
    is blocked for longer than a lease lasts loses it: blocking work belongs into a thread.
    """

    def lock(
        self,
        name: str,
        ttl: float = DEFAULT_TTL,
        timeout: float | None = None,
        **options: Unpack[PlainOptions],
    ) -> AsyncLock:
        """Make a lock on `name`; arguments and errors as of `Client.lock`. `on_lost` is called in the event loop."""
        made = self._plain_options(ttl, timeout, options)
        return (AsyncReentrantLock if made.reentrant else AsyncLock)(self, name, made)

    def semaphore(
        self,
        name: str,
        permits: int,
        ttl: float = DEFAULT_TTL,
        timeout: float | None = None,
        **options: Unpack[Options],
    ) -> AsyncSemaphore:
        """Make a semaphore of `permits` on `name`; arguments and errors as of `Client.semaphore`."""
        self._shared("semaphores")
        return AsyncSemaphore(self, name, permits, self._options("semaphore", SHARED, ttl, timeout, options))

    def rwlock(
        self,
        name: str,
        ttl: float = DEFAULT_TTL,
        timeout: float | None = None,
        **options: Unpack[Options],
    ) -> AsyncRWLock:
        """Make a reader/writer lock on `name`; arguments and errors as of `Client.rwlock`."""
        self._shared("reader/writer locks")
        return AsyncRWLock(self, name, self._options("rwlock", SHARED, ttl, timeout, options))

    def multilock(
        self,
        names: Iterable[str],
        ttl: float = DEFAULT_TTL,
        timeout: float | None = None,
        **options: Unpack[MultiLockOptions],
    ) -> AsyncMultiLock:
        """Make a lock on several names; arguments and errors as of `Client.multilock`."""
        return AsyncMultiLock(self, names, self._options("multilock", TOGETHER, ttl, timeout, cast("Options", options)))

    def election(
        self,
        name: str,
        ttl: float = DEFAULT_TTL,
        timeout: float | None = None,
        **options: Unpack[ElectionOptions],
    ) -> AsyncElection:
        """Make an election by `name`; arguments and errors as of `Client.election`."""
        return AsyncElection(self, name, self._options("election", ELECTION, ttl, timeout, cast("Options", options)))

    async def inspect(self, name: str) -> NameView:
        """Show who holds `name` and who waits for it."""
        return self._short(await self.session().inspect(self._full(name)))

    async def names(self, pattern: str | None = None) -> list[str]:
        """List the names of this client's namespace that are held or waited for, sorted; see `Client.iter_names`."""
        return sorted([name async for name in self.iter_names(pattern)])

    async def iter_names(self, pattern: str | None = None) -> AsyncIterator[str]:
        """Yield the names that `names` lists, in no order, as the store lists them. See `Client.iter_names`."""
        rest: object = None
        while True:
            page = await self.session().page(self._prefix() + _literal(pattern), rest)
            for name in self._matching(page.names, pattern):
                yield name
            if (rest := page.rest) is None:
                return

    async def deadlocks(self) -> list[tuple[Wait, ...]]:
        """List who waits for each other in a circle, in any process. See `Client.deadlocks`."""
        return await self.session().deadlocks()

    async def revoke(self, name: str, *, force: bool = False, token: int | None = None) -> list[HolderView]:
        """Ask the holders of `name` to let go, or take it from them by `force`. See `Client.revoke`."""
        only = _only(token, force=force)
        session, full = self.session(), self._full(name)
        return await (session.revoke(full, only) if force else session.request_revocation(full))

    async def end_quarantine(self) -> float:
        """Have a quarantined store grant again at once. See `Client.end_quarantine`."""
        return await self.session().end_quarantine()

    async def close(self) -> None:
        """Release what is still held, and stop. Idempotent. Cancelled, it is carried out all the same."""
        session, self._session = self._session, None
        self._closed = True
        if session is None:
            return
        if self._runtime is not None and self._runtime.is_current():
            await self._runtime.finish(session.close())
        else:  # its loop has ended, and with it all that could be cancelled
            await session.close()

    def session(self) -> Session:
        """Return the session of this process and event loop; internal."""
        runtime = self._runtime
        if self._session is None or runtime is None:
            runtime = self._runtime = AsyncioRuntime()
            self._session = self._start(runtime)
        elif not runtime.is_current():
            message = "this AsyncClient belongs to another event loop; make one in each loop"
            raise UsageError(message)
        return self._session

    _runtime: AsyncioRuntime | None = None

    def __del__(self) -> None:
        if getattr(self, "_session", None) is not None:
            warnings.warn(
                f"{self!r} was not closed: what it holds ends at its ttl. Use it with `async with`, or await close().",
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
    """Return the token of the only holder to take a name from; 0: all of them."""
    if token is None:
        return 0
    if not force:
        raise UsageError("a token says from whom a name is taken, so it goes with force=True; to ask, leave it out.")
    return check_number(token, "a token", MOST_TOKENS)


def _stack_level() -> int:
    """Return how far up the code is that called Holdfast, for a warning that is raised by the caller."""
    package = f"{__name__.partition('.')[0]}."
    level, frame = 0, inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").startswith(package):
        level, frame = level + 1, frame.f_back
    return level


def _quorum_of(nodes: Sequence[object]) -> StoreSource:
    from holdfast.stores.quorum import quorum_source

    return quorum_source(nodes)
