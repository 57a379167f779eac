"""The multilock: one holder has all of several names, or none of them.

The names are acquired in one order, whatever order the caller gives, so that users of overlapping names never wait for
each other in a circle. Each name is an ordinary lock: a holder of `lock()` for one of the names keeps a multilock out,
and the other way round. `core/multi_acquire.py` has the rules.
"""

import functools
import inspect
import warnings
from collections.abc import Callable, Coroutine, Iterable
from contextlib import nullcontext
from dataclasses import replace
from types import TracebackType
from typing import Any, Never, ParamSpec, Self, TypeVar

from tenure.contracts.deadlines import NEVER, micros, seconds
from tenure.contracts.limits import check_name
from tenure.core.lease import FORKED, CoreLease, LeaseState
from tenure.core.multi_acquire import LeaseGroup, Missed, acquire_all
from tenure.core.session import Session
from tenure.core.stop import Stop
from tenure.entering import EnteredByAsyncWith, EnteredByWith
from tenure.errors import ForkedLeaseError, LeaseLost, LockTimeout, UsageError
from tenure.lease import NO_TOKENS, Acquiring, AsyncLoss, Loss, raise_or_note
from tenure.outcome import Outcome
from tenure.primitives.base import UNSET, Entered, LockBase, Sessions
from tenure.primitives.decorating import refuse_generator, title_of
from tenure.primitives.options import LockOptions, refuse_unknown
from tenure.runtimes import tasks, threads
from tenure.runtimes.tasks import BodyGuard
from tenure.runtimes.threads import drive

P = ParamSpec("P")
R = TypeVar("R")

MOST_NAMES = 1000
"""The most names of one multilock."""


class _MultiLeaseBase:
    """The part of the lease of a multilock that sends no request: the same for threads and asyncio."""

    __slots__ = ("_group", "_names")

    def __init__(self, group: LeaseGroup, names: tuple[str, ...]) -> None:
        """Wrap leases that were just granted; `names` are their names without the client's namespace."""
        self._names = names
        self._group = group

    @property
    def names(self) -> tuple[str, ...]:
        """The names that are held, in the order in which they were acquired."""
        return self._names

    @property
    def tokens(self) -> dict[str, int]:
        """The fencing token of each name. Raises UsageError if the store has no fencing tokens."""
        if not self._group.session.store.capabilities.tokens:
            raise UsageError(NO_TOKENS)
        return self._numbers()

    def _numbers(self) -> dict[str, int]:
        return {name: lease.token for name, lease in zip(self._names, self._group.leases, strict=True)}

    @property
    def ttl(self) -> float:
        """For how many seconds the store keeps the leases after the last renewal."""
        return seconds(self._group.leases[0].ttl)

    @property
    def state(self) -> LeaseState:
        """HELD, AT_RISK (a renewal failed), LOST or RELEASED: the worst of all names."""
        return self._group.state()

    def remaining(self) -> float:
        """Return for how many seconds all names are certainly still held without a renewal; 0.0 once one is not."""
        return self._group.remaining()

    def check(self) -> None:
        """Raise LeaseLost unless all names are certainly still held (ForkedLeaseError in a forked child)."""
        self._group.check()

    def on_lost(self, callback: Callable[[LeaseLost], object]) -> None:
        """Call `callback(error)` once when the first of the names is lost; at once if one is lost already.

        The callback runs in the thread that notices the loss, mostly the renewer's, or soon in the event loop: it must
        not block. Its errors are logged.
        """
        self._group.when_lost(callback)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._numbers()} {self.state.value}>"

    def __del__(self) -> None:
        group = getattr(self, "_group", None)  # an object whose making was interrupted has none
        if group is None or group.let_go:
            return
        dropped = [lease for lease in group.leases if not lease.over()]
        if not dropped:
            return
        for lease in dropped:
            group.session.renewer.drop(lease)
        warnings.warn(
            f"the leases of {', '.join(map(repr, self._names))} were dropped without release; they are no longer "
            "renewed and end at their ttl. Keep the lease object for as long as you need the locks.",
            ResourceWarning,
            stacklevel=2,
            source=self,
        )

    def _is_forked(self) -> bool:
        return self._group.leases[0].lost_because == FORKED

    def _raise_if_lost(self, outcome: Outcome, error: BaseException | None) -> None:
        """Raise the error of a loss on exit, without masking the body's own error."""
        if not outcome.kept or self._group.is_lost():
            raise_or_note(self._group.loss(), error)

    def _leave_lost(self) -> None:
        """Release all leases in the background after one was lost, so that leaving the body waits for no store."""
        group = self._group
        if not group.let_go:
            group.let_go = True
            group.session.background_releases.add(group.release, ", ".join(self._names))


class MultiLease(EnteredByWith, _MultiLeaseBase):
    """The lease of all names of a `MultiLock`. Use it with `with`, or call `release()`."""

    __slots__ = ("__weakref__",)

    @property
    def lost(self) -> Loss:
        """The event that is set the moment the lease of any name can no longer be trusted, and so none of them."""
        return Loss(self._group, ", ".join(self._names))

    def release(self) -> Outcome:
        """Release all names; return the worst of their outcomes. Never raises because of the store.

        Called again, it returns the same outcome. Raises ForkedLeaseError in a forked child.
        """
        try:
            return drive(self._group.release())
        except ForkedLeaseError:
            raise
        except BaseException:  # an interrupt: to release the same leases again does no harm
            drive(self._group.release())
            raise

    def extend(self, ttl: float | None = None) -> float:
        """Renew all names now, for `ttl` seconds if given; return the seconds that remain. See `Lease.extend`.

        Raises LeaseLost if a name is lost, StoreError if the store did not answer (then the local deadlines stay as
        they were), UsageError if the store grants no lease for this ttl.
        """
        drive(self._group.extend(ttl))
        return self.remaining()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release all names. Raises LeaseLost if a name was lost and the body raised no error itself."""
        if self._is_forked():
            return
        if self._group.is_lost():
            self._leave_lost()
            raise_or_note(self._group.loss(), error)
            return
        try:
            outcome = self.release()
        except BaseException:  # an interrupt, maybe before the release began
            self.release()
            raise
        self._raise_if_lost(outcome, error)


class AsyncMultiLease(EnteredByAsyncWith, _MultiLeaseBase):
    """The lease of all names of an `AsyncMultiLock`. Use it with `async with`, or await `release()`."""

    __slots__ = ("__weakref__", "_guard")

    def __init__(self, group: LeaseGroup, names: tuple[str, ...]) -> None:
        """Wrap leases that were just granted."""
        super().__init__(group, names)
        self._guard: BodyGuard | None = None

    @property
    def lost(self) -> AsyncLoss:
        """The event that is set the moment the lease of any name can no longer be trusted, and so none of them."""
        return AsyncLoss(self._group, ", ".join(self._names))

    async def release(self) -> Outcome:
        """Release all names; return the worst of their outcomes. Never raises because of the store.

        Called again, it returns the same outcome. If it is cancelled, it is carried out all the same.
        """
        return await self._group.release()

    async def extend(self, ttl: float | None = None) -> float:
        """Renew all names now, as `MultiLease.extend`."""
        await self._group.extend(ttl)
        return self.remaining()

    async def __aenter__(self) -> Self:
        """Enter a body that is cancelled if a name is lost."""
        guard = self._guard = BodyGuard()
        self._group.when_lost(lambda _error: guard.fire())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release all names. Raises LeaseLost if a name was lost and the body raised no error itself."""
        guard, self._guard = self._guard, None
        if guard is not None:
            guard.disarm()
        if self._is_forked():
            return
        if self._group.is_lost():
            self._leave_lost()
            raise_or_note(self._group.loss(), None if guard is not None and guard.was_mine(error) else error)
            return
        try:
            outcome = await self.release()
        finally:
            cancelled_by_us = guard is not None and guard.was_mine(error)
        self._raise_if_lost(outcome, None if cancelled_by_us else error)


class _MultiLockBase(LockBase):
    """The part of a multilock that is the same for threads and asyncio."""

    _kind = "a multilock"
    _advice = "Acquire all names at once, by one multilock; or release the other lease first, or give a timeout."

    def __init__(self, client: Sessions, names: Iterable[str], options: LockOptions) -> None:
        """Make the multilock; nothing is acquired yet."""
        self._names = _in_order(names)
        super().__init__(client, self._names[0], options)
        max_hold = options.max_hold
        ttl = options.ttl if max_hold is None else min(options.ttl, max_hold)  # no lease is to outlive max_hold
        # max_hold counts from when all names are held, so the specs of the single names have none.
        common = replace(self._spec, ttl=micros(ttl), max_hold=NEVER)
        self._specs = [replace(common, name=self._full(name), title=name) for name in self._names]
        self._max_hold = NEVER if max_hold is None else max_hold

    @property
    def name(self) -> str:
        """All names as one text, for people to read."""
        return ", ".join(self._names)

    @property
    def names(self) -> tuple[str, ...]:
        """The names, in the order in which they are acquired."""
        return self._names

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {list(self._names)!r} ttl={self._options.ttl:g}>"

    async def _acquire_all(
        self, session: Session, timeout: float | None, owned: list[CoreLease], stop: Stop | None = None
    ) -> list[CoreLease] | Missed:
        specs = self._specs if stop is None else [replace(spec, stop=stop) for spec in self._specs]
        detect = self._options.detect_deadlock
        return await acquire_all(session, specs, timeout, self._max_hold, owned, detect_deadlock=detect)

    async def _acquire_or_miss(
        self, session: Session, timeout: float | None, owned: list[CoreLease], stop: Stop | None = None
    ) -> list[CoreLease]:
        with nullcontext() if stop is None else stop.watching(session, self.name):
            result = await self._acquire_all(session, timeout, owned, stop)
        if isinstance(result, Missed):
            not_granted = await session.explain(self._specs[result.place].name, result.not_granted)
            raise self._missed(replace(result, not_granted=not_granted), timeout, session.owner)
        return result

    def _missed(self, missed: Missed, timeout: float | None, owner: str) -> LockTimeout:
        lock = self._named(self._names[missed.place])
        error = lock._timed_out(missed.not_granted, timeout, owner)  # noqa: SLF001 - of the same class
        return LockTimeout(f"{error} Of {', '.join(map(repr, self._names))}, none is held now.")

    def _group(self, session: Session, result: list[CoreLease]) -> LeaseGroup:
        group = LeaseGroup(session, result)
        if self._options.on_lost is not None:
            group.when_lost(self._options.on_lost)
        return group


def _in_order(names: Iterable[str]) -> tuple[str, ...]:
    """Return names in the order in which all multilocks acquire them.

    Raises UsageError if the names cannot be locked together.
    """
    if isinstance(names, str):
        raise UsageError(f"a multilock takes a list of names, not one str: write [{names!r}]")
    given = [check_name(name) for name in names]
    if not 1 <= len(given) <= MOST_NAMES:
        raise UsageError(f"a multilock takes from 1 to {MOST_NAMES} names, not {len(given)}")
    twice = sorted({name for name in given if given.count(name) > 1}) if len(set(given)) < len(given) else []
    if twice:
        raise UsageError(
            f"a multilock with equal names would wait for itself: give {', '.join(map(repr, twice))} only once"
        )
    return tuple(sorted(given, key=str.encode))


class MultiLock(EnteredByWith, _MultiLockBase):
    """A multilock of a `Client`: use it with `with`, as a decorator, or by calling `acquire`.

    Made by `Client.multilock`.
    """

    def __init__(self, client: Sessions, names: Iterable[str], options: LockOptions) -> None:
        """Make the multilock; nothing is acquired yet."""
        super().__init__(client, names, options)
        self._entered = Entered[MultiLease](threads.here)

    def acquire(self, timeout: float | None = UNSET, *, stop: Stop | None = None, **unknown: Never) -> MultiLease:
        """Acquire all names, waiting up to `timeout` seconds for all of them (0: ask once; None: for ever).

        Raises LockTimeout, which says which name was not granted in time, StoreError if the store did not answer, or
        Stopped if another thread sets `stop` meanwhile: then none of the names is held.
        """
        if unknown:
            refuse_unknown("acquire", unknown, ("timeout", "stop"))
        timeout = self._timeout(timeout)
        session = self._client.session()
        owned: list[CoreLease] = []  # granted leases are put in here first, so that an interrupt cannot lose them
        try:
            result = drive(self._acquire_or_miss(session, timeout, owned, stop))
            return MultiLease(self._group(session, result), self._names)
        except BaseException:
            drive(session.give_back(owned))
            raise

    def try_acquire(self) -> MultiLease | None:
        """Acquire all names if they are free at once; else return None. Raises StoreError as `acquire` does."""
        session = self._client.session()
        owned: list[CoreLease] = []
        try:
            result = drive(self._acquire_all(session, 0, owned))
            return None if isinstance(result, Missed) else MultiLease(self._group(session, result), self._names)
        except BaseException:
            drive(session.give_back(owned))
            raise

    def locked(self) -> bool:
        """Ask the store whether any of the names is held or blocked by a lock delay.

        The answer may be out of date as soon as it is returned.
        """
        session = self._client.session()
        return any(self._is_full(drive(session.inspect(spec.name))) for spec in self._specs)

    def __enter__(self) -> MultiLease:
        """Acquire all names; raises as `acquire` does."""
        lease = None
        try:
            lease = self.acquire()
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
        """Run every call of `function` under all names, which are not formatted from the call's arguments."""
        refuse_generator(function, "with")
        if inspect.iscoroutinefunction(function):
            message = f"{title_of(function)} is async: decorate it with a multilock of an AsyncClient"
            raise UsageError(message)

        @functools.wraps(function)
        def locked(*args: P.args, **kwargs: P.kwargs) -> R:
            with self.acquire():
                return function(*args, **kwargs)

        return locked


class AsyncMultiLock(EnteredByAsyncWith, _MultiLockBase):
    """A multilock of an `AsyncClient`: use it with `async with`, as a decorator, or by calling `acquire`.

    Made by `AsyncClient.multilock`.
    """

    def __init__(self, client: Sessions, names: Iterable[str], options: LockOptions) -> None:
        """Make the multilock; nothing is acquired yet."""
        super().__init__(client, names, options)
        self._entered = Entered[AsyncMultiLease](tasks.here)

    def acquire(self, timeout: float | None = UNSET, **unknown: Never) -> Acquiring[AsyncMultiLease]:
        """Acquire all names, as `MultiLock.acquire`: await the call, or enter it by `async with`.

        A call that is cancelled at any point leaves no holder and no waiter behind.
        """
        if unknown:
            refuse_unknown("acquire", unknown, ("timeout",))
        return Acquiring(self._acquire(timeout))

    async def _acquire(self, timeout: float | None) -> AsyncMultiLease:
        timeout = self._timeout(timeout)
        session = self._client.session()
        owned: list[CoreLease] = []  # granted leases are put in here first, so that an interrupt cannot lose them
        try:
            result = await self._acquire_or_miss(session, timeout, owned)
            return AsyncMultiLease(self._group(session, result), self._names)
        except GeneratorExit:
            session.drop(owned)
            raise
        except BaseException:
            await session.runtime.finish(session.give_back(owned))
            raise

    async def try_acquire(self) -> AsyncMultiLease | None:
        """Acquire all names if they are free at once; else return None. Raises StoreError as `acquire` does."""
        session = self._client.session()
        owned: list[CoreLease] = []
        try:
            result = await self._acquire_all(session, 0, owned)
            return None if isinstance(result, Missed) else AsyncMultiLease(self._group(session, result), self._names)
        except GeneratorExit:
            session.drop(owned)
            raise
        except BaseException:
            await session.runtime.finish(session.give_back(owned))
            raise

    async def locked(self) -> bool:
        """Ask the store whether any of the names is held or blocked, as `MultiLock.locked`."""
        session = self._client.session()
        for spec in self._specs:
            if self._is_full(await session.inspect(spec.name)):
                return True
        return False

    async def __aenter__(self) -> AsyncMultiLease:
        """Acquire all names; raises as `acquire` does. The body is cancelled if a name is lost."""
        lease = None
        try:
            lease = await self._acquire(UNSET)
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
        """Run every call of the async `function` under all names, as `MultiLock` does."""
        refuse_generator(function, "async with")
        if not inspect.iscoroutinefunction(function):
            message = f"{title_of(function)} is not async: decorate it with a multilock of a Client"
            raise UsageError(message)

        @functools.wraps(function)
        async def locked(*args: P.args, **kwargs: P.kwargs) -> R:
            async with await self._acquire(UNSET):
                return await function(*args, **kwargs)

        return locked
