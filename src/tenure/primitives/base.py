"""The base of all locks: names, options, `with` and decorators.

A lock, a semaphore and the two sides of a reader/writer lock differ only in the capacity of the name and the weight of
a lease. A lock object keeps no state but the leases that each `with` has entered. Each acquisition returns its own
lease, so any number of threads or tasks may share one lock object.
"""

import copy
import functools
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from shlex import quote
from types import TracebackType
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Literal,
    Never,
    ParamSpec,
    Protocol,
    Self,
    TypeVar,
    TypeVarTuple,
    cast,
    overload,
)

from tenure.callables import awaitable, finished, refuse_async, refuse_sync
from tenure.contracts.deadlines import NEVER, micros
from tenure.contracts.limits import SKIP, check_name, check_timeout
from tenure.contracts.messages import NameView, NotGranted
from tenure.core.lease import CoreLease
from tenure.core.session import Session
from tenure.core.spec import LockSpec
from tenure.core.stop import Stop
from tenure.entering import Entered, EnteredByAsyncWith, EnteredByWith
from tenure.errors import LeaseLost, LockTimeout
from tenure.escaping import escape, shown
from tenure.explanation import Cause, Explanation
from tenure.keeping import acquired, line_of
from tenure.lease import Acquiring, AsyncLease, Lease, LeaseBase
from tenure.primitives.decorating import name_from_call
from tenure.primitives.options import Busy_co, LockOptions, refuse_unknown
from tenure.runtimes import tasks, threads
from tenure.runtimes.threads import drive

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F")
"""What a caller gets: a lease, for threads or asyncio, of one name or of several."""
Ts = TypeVarTuple("Ts")

UNSET = -1.0
"""The default timeout of a call: it stands for the lock's own timeout."""

TO_WAIT = "Give a timeout to wait for it"
"""What the error of an acquisition with timeout 0 advises. The command line replaces it."""

OF_LEASES = {
    **{word: word for word in ("release", "extend", "check", "remaining", "token", "lost", "state")},
    **dict.fromkeys(("unlock", "force_release"), "release"),
    **dict.fromkeys(("renew", "refresh", "reacquire"), "extend"),
    **dict.fromkeys(("owned", "is_owned", "is_acquired", "acquired"), "check"),
}
"""The attributes that users look for in a lock, in the words of other libraries too, and their names in a lease."""

TAKEN = frozenset({Cause.HELD, Cause.CAPACITY})
"""The causes of which the holders have the name themselves."""


class Sessions(Protocol):
    """A client: the part of it that a lock uses."""

    namespace: str

    def session(self) -> Session:
        """Return the session of this process and event loop."""
        ...


async def guarded(
    work: Callable[[Session, *Ts, list[CoreLease]], Coroutine[Any, Any, F]], session: Session, *args: *Ts
) -> F:
    """Await `work(session, *args, owned)`, for threads or asyncio, and give back the leases in `owned` if it fails.

    Each granted lease is put into `owned` at once, so an interrupt or a cancellation loses none. Whoever drives this
    returns its result at once: between the end of a coroutine and its caller Python runs no signal handler.
    """
    owned: list[CoreLease] = []
    try:
        return await work(session, *args, owned)
    except GeneratorExit:  # the coroutine is being closed, and may await nothing more
        session.drop(owned)
        raise
    except BaseException:
        if owned:
            await session.runtime.finish(session.give_back(owned))
        raise


class LockBase(Generic[F]):
    """The part of a lock that is the same for threads and asyncio; `F` is the lease that a caller gets."""

    _kind = "a lock"
    """The kind of primitive, for errors."""
    _reported = "lock"
    """The kind of primitive, for events."""
    _resizable = False
    """Whether the capacity of the name may change while it is in use."""
    _if_held = "is not reentrant"
    """What a LockTimeout says of the kind if the client may hold the name itself."""
    _advice = "Make the lock with reentrant=True to acquire it again, or release it first, or give a timeout."
    """The advice of a SelfDeadlock."""
    _wait_for_release: bool | None = None
    """Whether the end of a `with` waits for the reply to its release; None: as the client says."""
    _explains = True
    """Whether somebody sees the error of an acquisition that was not granted in time."""
    _face: Callable[[Session, CoreLease, str], Any]
    """Makes the lease that a caller gets."""

    def __init__(
        self,
        client: Sessions,
        name: str,
        options: LockOptions,
        *,
        capacity: int = 1,
        weight: int = 1,
        linger: float = 0.0,
        fair_after: int = 0,
    ) -> None:
        self._client = client
        self._name = check_name(name)
        self._options = options
        self._plain = not (options.detect_deadlock or options.max_waiters is not None)
        """Whether an acquisition is a request and nothing more."""
        self._prepares = options.on_lost is not None or options.on_revoke is not None
        """Whether a lease is prepared before the caller gets it."""
        if self._wait_for_release is None:
            self._wait_for_release = options.wait_for_release
        max_hold = NEVER if options.max_hold is None else options.max_hold
        self._spec = LockSpec(
            self._full(name),
            micros(options.ttl),
            micros(options.lock_delay),
            max_hold,
            weight,
            capacity,
            micros(options.min_hold),
            name,
            linger=linger,
            advice=self._advice,
            resizable=self._resizable,
            fair_after=fair_after,
            renew=options.renew,
            kind=self._reported,
            template=options.template,
        )
        self._prepare_to_enter()

    def _prepare_to_enter(self) -> None:
        """Make what remembers the leases that were entered by `with`; an election has none."""

    if not TYPE_CHECKING:  # a type checker finds these mistakes by itself

        def __getattr__(self, word: str) -> Never:
            """Raise AttributeError, which says where to find an attribute that other libraries have in a lock."""
            raise AttributeError(absent(self, word, OF_LEASES.get(word)), name=word, obj=self)

    @property
    def name(self) -> str:
        """The name of the lock, without the client's namespace."""
        return self._name

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._name!r} ttl={self._options.ttl:g}>"

    def _full(self, name: str) -> str:
        return f"{self._client.namespace}:{name}" if self._client.namespace else name

    def _named(self, name: str) -> Self:
        """Return the same lock for another name."""
        other = copy.copy(self)
        other._name = check_name(name)  # noqa: SLF001 - of the same class
        template = self._spec.template or self._name
        other._spec = replace(self._spec, name=self._full(name), title=name, template=template)  # noqa: SLF001
        return other

    def _unexplained(self) -> Self:
        """Return the same lock for a caller that catches LockTimeout: the store is not asked for the reason."""
        other = copy.copy(self)
        other._explains = False  # noqa: SLF001 - of the same class
        return other

    def _timeout(self, given: float | None) -> float | None:
        return self._options.timeout if given is UNSET else check_timeout(given)

    async def _obtain(self, session: Session, spec: LockSpec, timeout: float | None) -> F:
        """Acquire the lock, for threads or asyncio. Raises LockTimeout if it was not granted in time.

        This is `guarded` written out: every acquisition comes by here, and a coroutine more would take time.
        """
        owned: list[CoreLease] = []
        try:
            timeout = self._options.timeout if timeout is UNSET else check_timeout(timeout)
            if spec.linger and (kept := session.take_up(spec, owned)) is not None:
                return self._lease(session, kept)
            if self._plain:
                result = await session.acquire(spec, timeout, owned)
            else:
                result = await self._request(session, spec, timeout, owned)
            if not isinstance(result, CoreLease):
                await self._refuse(session, spec, result, timeout)
            return self._lease(session, result)
        except GeneratorExit:
            session.drop(owned)
            raise
        except BaseException:
            if owned:
                await session.runtime.finish(session.give_back(owned))
            raise

    async def _obtain_if_free(self, session: Session, spec: LockSpec, owned: list[CoreLease]) -> F | None:
        """Acquire the lock if it is free at once; else return None. For `guarded`."""
        core = await self._obtain_at_once(session, spec, owned)
        return None if core is None else self._lease(session, core)

    def _lease(self, session: Session, core: CoreLease) -> F:
        core.by = session.runtime.mark()
        if not (session.wait_for_release if self._wait_for_release is None else self._wait_for_release):
            core.wait_for_release = False
        lease: F = self._face(session, core, self._name)
        return self._prepared(lease) if self._prepares else lease

    def _prepared(self, lease: F) -> F:
        """Give a lease the callbacks of this lock, and return it."""
        options, told = self._options, cast("LeaseBase", lease)
        if options.on_lost is not None:
            told.on_lost(options.on_lost)
        if options.on_revoke is not None:
            told.on_revoke(options.on_revoke)
        return lease

    async def _refuse(self, session: Session, spec: LockSpec, missed: NotGranted, timeout: float | None) -> Never:
        """Raise the error of an acquisition that was not granted in time."""
        if not self._explains:
            raise LockTimeout(f"{self._name!r} was not granted within {timeout or 0:g} s.")
        raise await self._timed_out(session, spec, missed, timeout)

    async def _request(
        self, session: Session, spec: LockSpec, timeout: float | None, owned: list[CoreLease]
    ) -> CoreLease | NotGranted:
        """Acquire the lock with what its options want besides a request."""
        options = self._options
        if options.detect_deadlock:
            spec = session.actors.with_actor(spec)
        if options.max_waiters is not None and timeout != 0:
            core = await self._obtain_at_once(session, spec, owned, quiet=True)
            if core is not None:
                return core
            if refusal := self._crowded(await session.inspect(spec.name), options.max_waiters):
                if session.events is not None:
                    session.events.refused(spec, refusal)
                raise refusal
        return await session.acquire(spec, timeout, owned)

    async def _obtain_at_once(
        self, session: Session, spec: LockSpec, owned: list[CoreLease], *, quiet: bool = False
    ) -> CoreLease | None:
        """Acquire the lock if it is free at once, for threads or asyncio; else return None."""
        if self._options.detect_deadlock:
            spec = session.actors.with_actor(spec)
        result = await session.acquire(spec, 0, owned, quiet=quiet)
        return result if isinstance(result, CoreLease) else None

    def _crowded(self, view: NameView, most: int) -> LockTimeout | None:
        """Return the error if the name is held and so many wait for it already."""
        waiters = [each for each in view.waiters if each.alive]
        if len(waiters) < most or not (waiters or self._is_full(view)):
            return None
        longest = max((each.waited_for for each in waiters), default=0.0)
        hint = f", for up to {longest:.1f} s so far" if waiters else ""
        return LockTimeout(
            f"{self._name!r} is held, and {len(waiters)} wait for it already{hint}; max_waiters={most} refuses more. "
            "Try again later."
        )

    def _is_full(self, view: NameView) -> bool:
        """Return whether the holders leave no room for this lock, or a lock delay blocks the name."""
        weight = sum(holder.weight for holder in view.holders)
        return view.blocked_for > 0 or bool(
            weight and weight + self._spec.weight > (self._spec.capacity or view.capacity)
        )

    async def _timed_out(
        self, session: Session, spec: LockSpec, missed: NotGranted, timeout: float | None
    ) -> LockTimeout:
        """Return the error of an acquisition that was not granted in time, with the reason."""
        why = await session.explain(spec, missed, look=timeout != 0)
        when = "at once" if timeout == 0 else f"within {timeout or 0:g} s"
        ahead = f", {why.ahead} waited before us" if why.ahead else ""
        text = f"by now {why.text}" if why.cause is Cause.FREE else why.text
        message = f"{self._name!r} was not granted {when}: {text}{ahead}.{self._remarks(session, missed, why)}"
        return LockTimeout(f"{message} {self._advise(why, timeout)}", missed.votes, explanation=why)

    def _remarks(self, session: Session, missed: NotGranted, why: Explanation) -> str:
        """Return what this process knows of the holders and the store does not tell."""
        remarks = ""
        if why.cause in TAKEN and session.owner in [holder.owner for holder in why.holders]:
            lines = acquired(" and ".join(filter(None, map(line_of, session.entered_at(self._spec.name)))))
            remarks = (
                f" {shown(session.owner)} is this client, in this or another thread or task{lines}, or a client of the "
                f"same owner: {self._kind} {self._if_held}."
            )
        if self._options.min_hold and missed.holders and why.cause is not Cause.MIN_HOLD:
            remarks += (
                f" Its lease keeps the name until min_hold={self._options.min_hold:g} s after its grant, even if it is "
                "released before."
            )
        return remarks

    def _advise(self, why: Explanation, timeout: float | None) -> str:
        if why.cause is Cause.QUARANTINE:
            return (
                "Wait longer; or, if no earlier holder can still be at work, end the quarantine by "
                "`tenure quarantine end URL`."
            )
        return f"{TO_WAIT if timeout == 0 else 'Wait longer'}, or see {self._why()}."

    def _why(self) -> str:
        """Return the command that shows more of the name."""
        if escape(self._spec.name) != self._spec.name:  # the name cannot be typed
            return "`tenure ls` for who holds it"
        return f"`tenure why {quote(self._spec.name)}` for who holds it, who waits, and what to do"


def absent(of: object, word: str, in_lease: str | None) -> str:
    """Return the message that an object has no attribute `word`, which a lease has as `in_lease`."""
    advice = (
        "" if in_lease is None else f": it belongs to the lease that you acquired; keep that, and use its {in_lease}"
    )
    return f"{type(of).__name__!r} object has no attribute {word!r}{advice}"


class EnteredLockBase(EnteredByWith, LockBase[F]):
    """What all locks of a `Client` have in common, of one name or of several."""

    _takes: tuple[str, ...] = ("timeout", "stop")
    """The keywords that `acquire` takes."""

    def _prepare_to_enter(self) -> None:
        self._entered: Entered[Any] = Entered(threads.mark, threads.ended)

    def _acquire_or_stop(
        self, spec: LockSpec, timeout: float | None, stop: Stop | None, unknown: Mapping[str, object]
    ) -> F:
        if unknown:
            refuse_unknown("acquire", unknown, self._takes)
        if stop is None:
            return self._acquire(spec, timeout)
        with stop.watching(self._client.session(), self.name):
            return self._acquire(replace(spec, stop=stop), timeout)

    def _acquire(self, spec: LockSpec, timeout: float | None) -> F:
        return drive(self._obtain(self._client.session(), spec, timeout))

    def _try_acquire(self, spec: LockSpec) -> F | None:
        return drive(guarded(self._obtain_if_free, self._client.session(), spec))

    def __enter__(self) -> F:
        """Acquire the lock; raises as `acquire` does."""
        lease: Any = None
        try:
            lease = drive(self._obtain(self._client.session(), self._spec, UNSET))
            self._entered.push(self._name, lease)
            made: F = lease
            return made
        except BaseException:
            if lease is not None:
                self._entered.forget(lease)
                lease.release()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release the lease that this `with` entered; raises LeaseLost if it was lost.

        Any thread may leave it. Raises UsageError if nobody can tell which lease is left.
        """
        lease = None
        try:
            lease = self._entered.find(self._name)
            while not self._entered.forget(lease):  # another thread has left that one meanwhile
                lease = self._entered.find(self._name)
            lease.__exit__(kind, error, trace)
        except LeaseLost:
            raise
        except BaseException:
            lease = lease or self._entered.find(self._name)
            self._entered.forget(lease)
            lease.release()  # completes an interrupted release; after a complete one it only returns the outcome
            raise


class BlockingLockBase(EnteredLockBase[Lease], Generic[Busy_co]):
    """The base of the locks of a `Client` that have one name."""

    _face: Callable[[Session, CoreLease, str], Any] = Lease

    def acquire(self, timeout: float | None = UNSET, *, stop: Stop | None = None, **unknown: Never) -> Lease:
        """Acquire the lock, waiting up to `timeout` seconds (0: ask once; None: for ever; default: the lock's own).

        Raises LockTimeout if the lock was not granted in time, StoreError if the store did not answer, and Stopped if
        another thread sets `stop` meanwhile.
        """
        if stop is not None or unknown:
            return self._acquire_or_stop(self._spec, timeout, stop, unknown)
        return drive(self._obtain(self._client.session(), self._spec, timeout))

    def try_acquire(self) -> Lease | None:
        """Acquire the lock if it is free at once; else return None. Raises StoreError if the store did not answer."""
        return self._try_acquire(self._spec)

    def locked(self) -> bool:
        """Ask the store whether an acquisition would have to wait now, because of holders or a lock delay.

        The answer may be out of date as soon as it is returned: to take the lock if it is free, call `try_acquire`.
        """
        return self._is_full(drive(self._client.session().inspect(self._spec.name)))

    @overload
    def __call__(self: "BlockingLockBase[Literal['skip']]", function: Callable[P, R]) -> Callable[P, R | None]: ...

    @overload
    def __call__(self, function: Callable[P, R]) -> Callable[P, R]: ...

    def __call__(self, function: Callable[P, R]) -> Callable[P, R | None]:
        """Run every call of `function` under the lock, its name formatted from the call's arguments."""
        refuse_async(function)
        name_of = name_from_call(function, self._name)

        @functools.wraps(function)
        def locked(*args: P.args, **kwargs: P.kwargs) -> R:
            with self._named(name_of(*args, **kwargs)):
                return finished(function, function(*args, **kwargs))

        if self._options.busy != SKIP:
            return locked

        @functools.wraps(function)
        def locked_or_skipped(*args: P.args, **kwargs: P.kwargs) -> R | None:
            lease = self._named(name_of(*args, **kwargs)).acquire_or_skip()
            if lease is None:
                return None
            with lease:
                return finished(function, function(*args, **kwargs))

        return locked_or_skipped

    def acquire_or_skip(self) -> Lease | None:
        """Acquire the lock within its own timeout (none: at once); else return None. Internal, of busy="skip"."""
        if not self._options.timeout:
            return self.try_acquire()
        try:
            return self._unexplained().acquire()
        except LockTimeout:
            return None


class AsyncEnteredLockBase(EnteredByAsyncWith, LockBase[F]):
    """What all locks of an `AsyncClient` have in common, of one name or of several."""

    def _prepare_to_enter(self) -> None:
        self._entered: Entered[Any] = Entered(tasks.mark, tasks.ended, tasks.in_this_loop)

    async def _acquire(self, spec: LockSpec, timeout: float | None) -> F:
        return await self._obtain(self._client.session(), spec, timeout)

    async def _try_acquire(self, spec: LockSpec) -> F | None:
        return await guarded(self._obtain_if_free, self._client.session(), spec)

    async def __aenter__(self) -> F:
        """Acquire the lock; raises as `acquire` does. The body is cancelled if the lease is lost."""
        lease: Any = None
        try:
            lease = await self._obtain(self._client.session(), self._spec, UNSET)
            self._entered.push(self._name, lease)
            made: F = lease
            return made
        except GeneratorExit:
            raise
        except BaseException:
            if lease is not None:
                self._entered.forget(lease)
                await lease.release()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release the lease that this `async with` entered; raises LeaseLost if it was lost.

        Any task may leave it. Raises UsageError if nobody can tell which lease is left.
        """
        lease = self._entered.find(self._name)
        self._entered.forget(lease)
        await lease.__aexit__(kind, error, trace)


class AsyncLockBase(AsyncEnteredLockBase[AsyncLease], Generic[Busy_co]):
    """The base of the locks of an `AsyncClient` that have one name."""

    _face: Callable[[Session, CoreLease, str], Any] = AsyncLease

    def acquire(self, timeout: float | None = UNSET, **unknown: Never) -> Acquiring[AsyncLease]:
        """Acquire the lock, waiting up to `timeout` seconds (0: ask once; None: for ever; default: the lock's own).

        Await the call for the lease, or enter the lease at once: `async with lock.acquire(timeout=5) as lease`. Raises
        LockTimeout if the lock was not granted in time, StoreError if the store did not answer. A call that is
        cancelled at any point leaves no holder and no waiter behind.
        """
        if unknown:
            refuse_unknown("acquire", unknown, ("timeout",))
        return Acquiring(self._acquire(self._spec, timeout))

    async def try_acquire(self) -> AsyncLease | None:
        """Acquire the lock if it is free at once; else return None. Raises StoreError if the store did not answer."""
        return await self._try_acquire(self._spec)

    async def locked(self) -> bool:
        """Ask the store whether an acquisition would have to wait now, as `Lock.locked`."""
        return self._is_full(await self._client.session().inspect(self._spec.name))

    @overload
    def __call__(
        self: "AsyncLockBase[Literal['skip']]", function: Callable[P, Coroutine[Any, Any, R]]
    ) -> Callable[P, Coroutine[Any, Any, R | None]]: ...

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]]) -> Callable[P, Coroutine[Any, Any, R]]: ...

    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]]) -> Callable[P, Coroutine[Any, Any, R | None]]:
        """Run every call of the async `function` under the lock, its name formatted from the call's arguments."""
        refuse_sync(function)
        name_of = name_from_call(function, self._name)

        @functools.wraps(function)
        async def locked(*args: P.args, **kwargs: P.kwargs) -> R:
            async with self._named(name_of(*args, **kwargs)):
                return finished(function, await awaitable(function, function(*args, **kwargs)))

        if self._options.busy != SKIP:
            return locked

        @functools.wraps(function)
        async def locked_or_skipped(*args: P.args, **kwargs: P.kwargs) -> R | None:
            lease = await self._named(name_of(*args, **kwargs)).acquire_or_skip()
            if lease is None:
                return None
            async with lease:
                return finished(function, await awaitable(function, function(*args, **kwargs)))

        return locked_or_skipped

    async def acquire_or_skip(self) -> AsyncLease | None:
        """Acquire the lock within its own timeout (none: at once); else return None. Internal, of busy="skip"."""
        if not self._options.timeout:
            return await self.try_acquire()
        try:
            return await self._unexplained().acquire()
        except LockTimeout:
            return None
