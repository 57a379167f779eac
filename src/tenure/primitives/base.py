"""The base of all locks: names, options, `with` and decorators.

A lock, a semaphore and the two sides of a reader/writer lock differ only in the capacity of the name and the weight of
a lease. A lock object keeps no state but the leases that each `with` has entered. Each acquisition returns its own
lease, so any number of threads or tasks may share one lock object.
"""

import copy
import functools
import inspect
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from shlex import quote
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Never, ParamSpec, Protocol, Self, TypeVar, cast

from tenure.contracts.deadlines import NEVER, micros, seconds
from tenure.contracts.limits import SKIP, check_name, check_timeout
from tenure.contracts.messages import NameView, NotGranted
from tenure.contracts.owner_metadata import read_metadata
from tenure.core.lease import CoreLease, LeaseState
from tenure.core.session import Session
from tenure.core.spec import LockSpec
from tenure.core.stop import Stop
from tenure.entering import EnteredByAsyncWith, EnteredByWith
from tenure.errors import LeaseLost, LockTimeout, UsageError
from tenure.escaping import escape, shown
from tenure.lease import Acquiring, AsyncLease, Lease
from tenure.primitives.decorating import name_from_call, refuse_generator, title_of
from tenure.primitives.options import LockOptions, refuse_unknown
from tenure.runtimes import tasks, threads
from tenure.runtimes.threads import drive

P = ParamSpec("P")
R = TypeVar("R")
L = TypeVar("L", Lease, AsyncLease)

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

NAMED = 5
"""The most holders that an error names."""


class Sessions(Protocol):
    """A client: the part of it that a lock uses."""

    namespace: str

    def session(self) -> Session:
        """Return the session of this process and event loop."""
        ...


E = TypeVar("E", bound="Entering")


class Entering(Protocol):
    """A lease: the part of it that a `with` uses."""

    @property
    def state(self) -> LeaseState:
        """The state of the lease."""
        ...


_Stack = tuple[E, "_Stack[E] | None"]
"""The lease that was entered last, and the leases before it."""


class Entered(Generic[E]):
    """The leases of a lock that were entered by `with`: by thread or task, and by name."""

    __slots__ = ("_here", "_leases")

    def __init__(self, here: Callable[[], object]) -> None:
        """Start without leases; `here` identifies the calling thread or task."""
        self._here = here
        self._leases: dict[tuple[object, str], _Stack[E]] = {}

    def push(self, name: str, lease: E) -> None:
        """Note that the calling thread or task has entered a lease."""
        where = self._here(), name
        self._leases[where] = lease, self._leases.get(where)

    def last(self, name: str) -> E:
        """Return the lease that the calling thread or task entered last. Raises UsageError if there is none."""
        leases = self._leases.get((self._here(), name))
        if leases is None:
            message = (
                f"the lock {name!r} was not entered by this thread or task: enter and leave a `with` in the same one"
            )
            raise UsageError(message)
        return leases[0]

    def forget(self, name: str, lease: E) -> None:
        """Remove a lease, if it is the one that the calling thread or task entered last."""
        where = self._here(), name
        leases = self._leases.get(where)
        if leases is None or leases[0] is not lease:
            return
        if leases[1] is None:
            del self._leases[where]
        else:
            self._leases[where] = leases[1]

    def lease(self, name: str) -> E | None:
        """Return a lease that the calling thread or task entered and still holds, if there is one."""
        leases = self._leases.get((self._here(), name))
        while leases is not None:
            lease, leases = leases
            if lease.state in (LeaseState.HELD, LeaseState.AT_RISK):
                return lease
        return None


class LockBase:
    """The part of a lock that is the same for threads and asyncio."""

    _kind = "a lock"
    """The kind of primitive, for errors."""
    _if_held = "is not reentrant"
    """What a LockTimeout says of the kind if the client may hold the name itself."""
    _advice = "Make the lock with reentrant=True to acquire it again, or release it first, or give a timeout."
    """The advice of a SelfDeadlock."""

    def __init__(
        self, client: Sessions, name: str, options: LockOptions, *, capacity: int = 1, weight: int = 1
    ) -> None:
        """Make the lock; nothing is acquired yet."""
        self._client = client
        self._name = check_name(name)
        self._options = options
        self._plain = not (options.detect_deadlock or options.max_waiters is not None)
        """Whether an acquisition is a request and nothing more."""
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
            advice=self._advice,
        )

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
        other._spec = replace(self._spec, name=self._full(name), title=name)  # noqa: SLF001
        return other

    def _timeout(self, given: float | None) -> float | None:
        return self._options.timeout if given is UNSET else check_timeout(given)

    async def _obtain(
        self, session: Session, spec: LockSpec, timeout: float | None, owned: list[CoreLease]
    ) -> CoreLease:
        """Acquire the lock, for threads or asyncio. Raises LockTimeout if it was not granted in time.

        The lease is in `owned` before it is returned: a caller that is interrupted gives back the leases in `owned`.
        """
        timeout = self._timeout(timeout)
        result = await self._request(session, spec, timeout, owned)
        return result if isinstance(result, CoreLease) else await self._refuse(session, result, timeout)

    async def _refuse(self, session: Session, not_granted: NotGranted, timeout: float | None) -> Never:
        """Raise the error of an acquisition that was not granted in time."""
        raise self._timed_out(await session.explain(self._spec.name, not_granted), timeout, session.owner)

    def _request(
        self, session: Session, spec: LockSpec, timeout: float | None, owned: list[CoreLease]
    ) -> Coroutine[Any, Any, CoreLease | NotGranted]:
        """Return what acquires the lock, for threads or asyncio."""
        if self._plain:
            return session.acquire(spec, timeout, owned)
        return self._request_with_options(session, spec, timeout, owned)

    async def _request_with_options(
        self, session: Session, spec: LockSpec, timeout: float | None, owned: list[CoreLease]
    ) -> CoreLease | NotGranted:
        options = self._options
        if spec.linger and (kept := session.take_up(spec, owned)) is not None:
            return kept
        if options.detect_deadlock:
            spec = session.actors.speak_for(spec)
        if options.max_waiters is not None and timeout != 0:
            core = await self._obtain_at_once(session, spec, owned)
            if core is not None:
                return core
            self._refuse_if_crowded(await session.inspect(spec.name), options.max_waiters)
        return await session.acquire(spec, timeout, owned)

    async def _obtain_at_once(self, session: Session, spec: LockSpec, owned: list[CoreLease]) -> CoreLease | None:
        """Acquire the lock if it is free at once, for threads or asyncio; else return None."""
        if self._options.detect_deadlock:
            spec = session.actors.speak_for(spec)
        result = await session.acquire(spec, 0, owned)
        return result if isinstance(result, CoreLease) else None

    def _refuse_if_crowded(self, view: NameView, most: int) -> None:
        """Raise LockTimeout if the name is held and so many wait for it already."""
        waiters = [each for each in view.waiters if each.alive]
        if len(waiters) < most or not (waiters or self._is_full(view)):
            return
        longest = max((each.waited_for for each in waiters), default=0.0)
        hint = f", for up to {longest:.1f} s so far" if waiters else ""
        raise LockTimeout(
            f"{self._name!r} is held, and {len(waiters)} wait for it already{hint}; max_waiters={most} refuses more. "
            "Try again later."
        )

    def _is_full(self, view: NameView) -> bool:
        """Return whether the holders leave no room for this lock, or a lock delay blocks the name."""
        weight = sum(holder.weight for holder in view.holders)
        return view.blocked_for > 0 or bool(weight and weight + self._spec.weight > self._spec.capacity)

    def _timed_out(self, not_granted: NotGranted, timeout: float | None, owner: str) -> LockTimeout:
        if not_granted.quarantine:
            return LockTimeout(
                f"{self._name!r} was not granted within {timeout or 0:g} s: the store restarted, failed over or is "
                "new, and may have forgotten leases. It is quarantined: it grants nothing for another "
                f"{seconds(not_granted.quarantine):.1f} s, until the oldest lease has run out. Wait longer; or, if no "
                "earlier holder can still be at work, end the quarantine by `tenure quarantine end URL`.",
                not_granted.votes,
            )
        if not_granted.blocked:
            return LockTimeout(
                f"{self._name!r} was not granted within {timeout or 0:g} s: a lease of it ran out or was revoked, and "
                f"its lock_delay keeps the name from everybody for another {seconds(not_granted.blocked):.1f} s. "
                "Wait longer.",
                not_granted.votes,
            )
        owners = [read_metadata(holder).owner for holder in not_granted.holders]
        holders = _list(owners)
        if owner in owners:
            holders += f" (which is this client, or one of the same owner: {self._kind} {self._if_held})"
        if self._options.min_hold and owners:
            holders += (
                f" (whose lease keeps the name until min_hold={self._options.min_hold:g} s after its grant, even if it "
                "is released before)"
            )
        ahead = f", {not_granted.ahead} waited before us" if not_granted.ahead else ""
        if timeout == 0:
            return LockTimeout(
                f"{self._name!r} is held by {holders}. {TO_WAIT}, or see {self._show()}.", not_granted.votes
            )
        return LockTimeout(
            f"{self._name!r} was not granted within {timeout or 0:g} s: it was held by {holders}{ahead}. Wait "
            f"longer, or see {self._show()}.",
            not_granted.votes,
        )

    def _show(self) -> str:
        """Return the command that shows more of the name."""
        if escape(self._spec.name) != self._spec.name:  # the name cannot be typed
            return "`tenure ls` for how long it will still be held"
        return f"`tenure show {quote(self._spec.name)}` for how long it will still be held, and who waits"


def absent(of: object, word: str, in_lease: str | None) -> str:
    """Return the message that an object has no attribute `word`, which a lease has as `in_lease`."""
    advice = (
        "" if in_lease is None else f": it belongs to the lease that you acquired; keep that, and use its {in_lease}"
    )
    return f"{type(of).__name__!r} object has no attribute {word!r}{advice}"


def _list(owners: Sequence[str]) -> str:
    """Return the names of holders as text: each once, and the first NAMED of them."""
    names = list(dict.fromkeys(map(shown, owners)))
    if len(names) > NAMED:
        names[NAMED:] = [f"{len(names) - NAMED} others"]
    return " and ".join(names) or "nobody by now"


class BlockingLockBase(EnteredByWith, LockBase):
    """The base of all locks of a `Client`."""

    _takes: tuple[str, ...] = ("timeout", "stop")
    """The keywords that `acquire` takes."""

    def __init__(
        self, client: Sessions, name: str, options: LockOptions, *, capacity: int = 1, weight: int = 1
    ) -> None:
        """Make the lock; nothing is acquired yet."""
        super().__init__(client, name, options, capacity=capacity, weight=weight)
        self._entered = Entered[Lease](threads.here)
        self._face: type[Lease] = Lease

    def acquire(self, timeout: float | None = UNSET, *, stop: Stop | None = None, **unknown: Never) -> Lease:
        """Acquire the lock, waiting up to `timeout` seconds (0: ask once; None: for ever; default: the lock's own).

        Raises LockTimeout if the lock was not granted in time, StoreError if the store did not answer, and Stopped if
        another thread sets `stop` meanwhile.
        """
        if stop is not None or unknown:
            return self._acquire_or_stop(self._spec, timeout, stop, unknown)
        return self._acquire(self._spec, timeout)

    def try_acquire(self) -> Lease | None:
        """Acquire the lock if it is free at once; else return None. Raises StoreError if the store did not answer."""
        return self._try_acquire(self._spec)

    def locked(self) -> bool:
        """Ask the store whether an acquisition would have to wait now, because of holders or a lock delay.

        The answer may be out of date as soon as it is returned: to take the lock if it is free, call `try_acquire`.
        """
        return self._is_full(drive(self._client.session().inspect(self._spec.name)))

    def _acquire_or_stop(
        self, spec: LockSpec, timeout: float | None, stop: Stop | None, unknown: Mapping[str, object]
    ) -> Lease:
        if unknown:
            refuse_unknown("acquire", unknown, self._takes)
        if stop is None:
            return self._acquire(spec, timeout)
        with stop.watching(self._client.session(), self._name):
            return self._acquire(replace(spec, stop=stop), timeout)

    def _acquire(self, spec: LockSpec, timeout: float | None) -> Lease:
        session = self._client.session()
        owned: list[CoreLease] = []  # a granted lease is put in here first, so that an interrupt cannot lose it
        try:
            timeout = self._options.timeout if timeout is UNSET else check_timeout(timeout)
            result = drive(self._request(session, spec, timeout, owned))
            granted = result if isinstance(result, CoreLease) else drive(self._refuse(session, result, timeout))
            return self._lease(session, granted)
        except BaseException:
            drive(session.give_back(owned))
            raise

    def _try_acquire(self, spec: LockSpec) -> Lease | None:
        session = self._client.session()
        owned: list[CoreLease] = []
        try:
            core = drive(self._obtain_at_once(session, spec, owned))
            return None if core is None else self._lease(session, core)
        except BaseException:
            drive(session.give_back(owned))
            raise

    def _lease(self, session: Session, core: CoreLease) -> Lease:
        core.by = threads.marks.mark
        lease = self._face(session, core, self._name)
        if self._options.on_lost is not None:
            lease.on_lost(self._options.on_lost)
        if self._options.on_revoke is not None:
            lease.on_revoke(self._options.on_revoke)
        return lease

    def __enter__(self) -> Lease:
        """Acquire the lock; raises as `acquire` does."""
        lease = None
        try:
            lease = self._acquire(self._spec, UNSET)
            self._entered.push(self._name, lease)
            return lease
        except BaseException:
            if lease is not None:
                self._entered.forget(self._name, lease)
                lease.release()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release the lease that this thread entered last; raises LeaseLost if it was lost."""
        lease = None
        try:
            lease = self._entered.last(self._name)
            self._entered.forget(self._name, lease)
            lease.__exit__(kind, error, trace)
        except LeaseLost:
            raise
        except BaseException:
            lease = lease or self._entered.last(self._name)
            self._entered.forget(self._name, lease)
            lease.release()  # completes an interrupted release; after a complete one it only returns the outcome
            raise

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Run every call of `function` under the lock, its name formatted from the call's arguments."""
        refuse_generator(function, "with")
        if inspect.iscoroutinefunction(function):
            message = f"{title_of(function)} is async: decorate it with a lock of an AsyncClient"
            raise UsageError(message)
        name_of = name_from_call(function, self._name)

        @functools.wraps(function)
        def locked(*args: P.args, **kwargs: P.kwargs) -> R:
            with self._named(name_of(*args, **kwargs)):
                return function(*args, **kwargs)

        if self._options.busy != SKIP:
            return locked

        @functools.wraps(function)
        def locked_or_skipped(*args: P.args, **kwargs: P.kwargs) -> R:
            lease = self._named(name_of(*args, **kwargs)).try_acquire()
            if lease is None:
                return cast("R", None)
            with lease:
                return function(*args, **kwargs)

        return locked_or_skipped


class AsyncLockBase(EnteredByAsyncWith, LockBase):
    """The base of all locks of an `AsyncClient`."""

    def __init__(
        self, client: Sessions, name: str, options: LockOptions, *, capacity: int = 1, weight: int = 1
    ) -> None:
        """Make the lock; nothing is acquired yet."""
        super().__init__(client, name, options, capacity=capacity, weight=weight)
        self._entered = Entered[AsyncLease](tasks.here)
        self._face: type[AsyncLease] = AsyncLease

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

    async def _acquire(self, spec: LockSpec, timeout: float | None) -> AsyncLease:
        session = self._client.session()
        owned: list[CoreLease] = []  # a granted lease is put in here first, so that an interrupt cannot lose it
        try:
            timeout = self._options.timeout if timeout is UNSET else check_timeout(timeout)
            result = await self._request(session, spec, timeout, owned)
            granted = result if isinstance(result, CoreLease) else await self._refuse(session, result, timeout)
            return self._lease(session, granted)
        except GeneratorExit:
            session.drop(owned)
            raise
        except BaseException:
            await session.runtime.finish(session.give_back(owned))
            raise

    async def _try_acquire(self, spec: LockSpec) -> AsyncLease | None:
        session = self._client.session()
        owned: list[CoreLease] = []
        try:
            core = await self._obtain_at_once(session, spec, owned)
            return None if core is None else self._lease(session, core)
        except GeneratorExit:
            session.drop(owned)
            raise
        except BaseException:
            await session.runtime.finish(session.give_back(owned))
            raise

    def _lease(self, session: Session, core: CoreLease) -> AsyncLease:
        core.by = core.runtime.mark()
        lease = self._face(session, core, self._name)
        if self._options.on_lost is not None:
            lease.on_lost(self._options.on_lost)
        if self._options.on_revoke is not None:
            lease.on_revoke(self._options.on_revoke)
        return lease

    async def __aenter__(self) -> AsyncLease:
        """Acquire the lock; raises as `acquire` does. The body is cancelled if the lease is lost."""
        lease = None
        try:
            lease = await self._acquire(self._spec, UNSET)
            self._entered.push(self._name, lease)
            return await lease.__aenter__()
        except GeneratorExit:
            raise
        except BaseException:
            if lease is not None:
                self._entered.forget(self._name, lease)
                await lease.release()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release the lease that this task entered last; raises LeaseLost if it was lost."""
        lease = self._entered.last(self._name)
        self._entered.forget(self._name, lease)
        await lease.__aexit__(kind, error, trace)

    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]]) -> Callable[P, Coroutine[Any, Any, R]]:
        """Run every call of the async `function` under the lock, its name formatted from the call's arguments."""
        refuse_generator(function, "async with")
        if not inspect.iscoroutinefunction(function):
            message = f"{title_of(function)} is not async: decorate it with a lock of a Client"
            raise UsageError(message)
        name_of = name_from_call(function, self._name)

        @functools.wraps(function)
        async def locked(*args: P.args, **kwargs: P.kwargs) -> R:
            async with self._named(name_of(*args, **kwargs)):
                return await function(*args, **kwargs)

        if self._options.busy != SKIP:
            return locked

        @functools.wraps(function)
        async def locked_or_skipped(*args: P.args, **kwargs: P.kwargs) -> R:
            lease = await self._named(name_of(*args, **kwargs)).try_acquire()
            if lease is None:
                return cast("R", None)
            async with lease:
                return await function(*args, **kwargs)

        return locked_or_skipped
