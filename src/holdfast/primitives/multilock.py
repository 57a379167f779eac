"""The multilock: several names that one holder has at a time, all of them or none.

The names are taken in one order, whatever order they are given in, so that users of overlapping names never wait for
each other in a circle. Each is an ordinary lock: who holds one of them by `lock()` keeps a multilock out, and the other
way round. `core/together.py` has the rules.
"""

import functools
import inspect
import warnings
from collections.abc import Callable, Coroutine, Iterable
from contextlib import nullcontext
from dataclasses import replace
from types import TracebackType
from typing import Any, Never, ParamSpec, Self, TypeVar

from holdfast.contracts.deadlines import NEVER, micros, seconds
from holdfast.contracts.limits import check_name
from holdfast.core.lease import FORKED, CoreLease, LeaseState
from holdfast.core.multi_acquire import LeaseGroup, Missed, acquire_all
from holdfast.core.session import Session
from holdfast.core.stop import Stop
from holdfast.errors import ForkedLeaseError, LeaseLost, LockTimeout, UsageError
from holdfast.lease import Acquiring, AsyncLoss, Loss, raise_or_note
from holdfast.outcome import Outcome
from holdfast.primitives.base import UNSET, Entered, LockBase, Sessions
from holdfast.primitives.decorating import refuse_generator, title_of
from holdfast.primitives.options import LockOptions, refuse_unknown
from holdfast.runtimes import aio, threads
from holdfast.runtimes.aio import BodyGuard
from holdfast.runtimes.threads import drive

P = ParamSpec("P")
R = TypeVar("R")

MOST_NAMES = 1000
"""How many names one multilock may have."""


class _MultiLeaseBase:
    """All of the lease of a multilock that needs no store."""

    __slots__ = ("_group", "_names")

    def __init__(self, group: LeaseGroup, names: tuple[str, ...]) -> None:
        """Wrap leases that were just won; `names` are what their users call them."""
        self._names = names
        self._group = group

    @property
    def names(self) -> tuple[str, ...]:
        """What is held, in the order in which it was taken."""
        return self._names

    @property
    def tokens(self) -> dict[str, int]:
        """The fencing token of each name."""
        return {name: lease.token for name, lease in zip(self._names, self._group.leases, strict=True)}

    @property
    def ttl(self) -> float:
        """How long, in seconds, the store keeps the leases after the holder was last heard."""
        return seconds(self._group.leases[0].ttl)

    @property
    def state(self) -> LeaseState:
        """HELD, AT_RISK (a renewal failed), LOST or RELEASED: the worst of all names."""
        return self._group.state()

    def remaining(self) -> float:
        """Return for how many seconds all names are certainly still ours, renewals aside; 0.0 once one is not."""
        return self._group.remaining()

    def check(self) -> None:
        """Raise LeaseLost unless all names are certainly still ours (ForkedLeaseError in a forked child)."""
        self._group.check()

    def on_lost(self, callback: Callable[[LeaseLost], object]) -> None:
        """Have `callback(error)` called once when the first of the names is lost; at once if one is lost already.

        It runs in the thread that notices, mostly the renewer's, or soon in the event loop: it must not block. Its
        errors are logged.
        """
        self._group.when_lost(callback)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.tokens} {self.state.value}>"

    def __del__(self) -> None:
        group = getattr(self, "_group", None)  # none if it was interrupted when it was made
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
        """On exit: tell of a loss, without masking the body's own error."""
        if not outcome.kept or self._group.is_lost():
            raise_or_note(self._group.loss(), error)

    def _leave_lost(self) -> None:
        """Have all released in the background, once one was lost. See `Lease`."""
        group = self._group
        if not group.let_go:
            group.let_go = True
            group.session.background_releases.add(group.release, ", ".join(self._names))


class MultiLease(_MultiLeaseBase):
    """One holding of all names of a `MultiLock`. Use it with `with`, or call `release()`."""

    __slots__ = ("__weakref__",)

    @property
    def lost(self) -> Loss:
        """The event that is set the moment any of the names can no longer be trusted: then none of them can."""
        return Loss(self._group, ", ".join(self._names))

    def release(self) -> Outcome:
        """Let go of all names; return the worst of their outcomes. Never raises because of the store.

        Called again, it answers the same. Raises ForkedLeaseError in a forked child.
        """
        try:
            return drive(self._group.release())
        except ForkedLeaseError:
            raise
        except BaseException:  # an interrupt: what was let go already stays so, and answers the same
            drive(self._group.release())
            raise

    def extend(self, ttl: float | None = None) -> float:
        """Renew all names now, for `ttl` seconds if given; return the seconds that remain. See `Lease.extend`.

        Raises LeaseLost if one is lost, StoreError if the store did not answer (then nothing is known to be changed),
        UsageError if the store grants no lease for this ttl.
        """
        drive(self._group.extend(ttl))
        return self.remaining()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release. Raises LeaseLost if a name was lost and the body raised nothing itself."""
        if self._is_forked():
            return
        if self._group.is_lost():
            self._leave_lost()
            raise_or_note(self._group.loss(), error)
            return
        try:
            outcome = self.release()
        except BaseException:  # it was interrupted, maybe before it began
            self.release()
            raise
        self._raise_if_lost(outcome, error)


class AsyncMultiLease(_MultiLeaseBase):
    """One holding of all names of an `AsyncMultiLock`. Use it with `async with`, or await `release()`."""

    __slots__ = ("__weakref__", "_guard")

    def __init__(self, group: LeaseGroup, names: tuple[str, ...]) -> None:
        """Wrap leases that were just won."""
        super().__init__(group, names)
        self._guard: BodyGuard | None = None

    @property
    def lost(self) -> AsyncLoss:
        """The event that is set the moment any of the names can no longer be trusted: then none of them can."""
        return AsyncLoss(self._group, ", ".join(self._names))

    async def release(self) -> Outcome:
        """Let go of all names; return the worst of their outcomes. Never raises because of the store.

        Called again, it answers the same. Cancelled, it is carried out all the same.
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
        """Release. Raises LeaseLost if a name was lost and the body raised nothing itself."""
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
    """All of a multilock that needs no store."""

    _kind = "a multilock"
    _advice = "Take all names at once, by one multilock; or release the other first, or give a timeout."

    def __init__(self, client: Sessions, names: Iterable[str], options: LockOptions) -> None:
        """Make it; nothing is acquired yet."""
        self._names = _in_order(names)
        super().__init__(client, self._names[0], options)
        max_hold = options.max_hold
        ttl = options.ttl if max_hold is None else min(options.ttl, max_hold)  # so that nothing outlives max_hold
        # max_hold counts from when all are held, so it is none of the single names'.
        common = replace(self._spec, ttl=micros(ttl), max_hold=NEVER)
        self._specs = [replace(common, name=self._full(name), title=name) for name in self._names]
        self._max_hold = NEVER if max_hold is None else max_hold

    @property
    def name(self) -> str:
        """What is locked, for people to read."""
        return ", ".join(self._names)

    @property
    def names(self) -> tuple[str, ...]:
        """What is locked, in the order in which it is taken."""
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
        error = self._named(self._names[missed.place])._timed_out(missed.not_granted, timeout, owner)  # noqa: SLF001 - of us
        return LockTimeout(f"{error} Of {', '.join(map(repr, self._names))}, none is held now.")

    def _group(self, session: Session, result: list[CoreLease]) -> LeaseGroup:
        group = LeaseGroup(session, result)
        if self._options.on_lost is not None:
            group.when_lost(self._options.on_lost)
        return group


def _in_order(names: Iterable[str]) -> tuple[str, ...]:
    """Return names in the order in which everybody takes them. Raises UsageError if they can't be locked together."""
    if isinstance(names, str):
        raise UsageError(f"a multilock takes a list of names, not one str; write [{names!r}]")
    given = [check_name(name) for name in names]
    if not 1 <= len(given) <= MOST_NAMES:
        raise UsageError(f"a multilock takes from 1 to {MOST_NAMES} names, not {len(given)}")
    twice = sorted({name for name in given if given.count(name) > 1}) if len(set(given)) < len(given) else []
    if twice:
        raise UsageError(f"{', '.join(map(repr, twice))} is named twice: a multilock would wait for itself")
    return tuple(sorted(given, key=str.encode))


class MultiLock(_MultiLockBase):
    """A multilock of a `Client`: use it with `with`, as a decorator, or by calling `acquire`.

    Made by `Client.multilock`.
    """

    def __init__(self, client: Sessions, names: Iterable[str], options: LockOptions) -> None:
        """Make it; nothing is acquired yet."""
        super().__init__(client, names, options)
        self._entered = Entered[MultiLease](threads.here)

    def acquire(self, timeout: float | None = UNSET, *, stop: Stop | None = None, **unknown: Never) -> MultiLease:
        """Acquire all names, waiting up to `timeout` seconds for all of them (0: ask once; None: for ever).

        Raises LockTimeout, which says which name was not to be had, StoreError if the store did not answer, or Stopped
        if `stop` is set meanwhile, by another thread: then none of them is held.
        """
        if unknown:
            refuse_unknown("acquire", unknown, ("timeout", "stop"))
        timeout = self._timeout(timeout)
        session = self._client.session()
        owned: list[CoreLease] = []  # what is granted is here before it is anywhere else
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
        """Ask the store whether any of the names is held. It may be untrue as soon as it is said."""
        session = self._client.session()
        return any(self._is_full(drive(session.inspect(spec.name))) for spec in self._specs)

    def __enter__(self) -> MultiLease:
        """Acquire; raises as `acquire` does."""
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
        """Release what this thread entered last; raises LeaseLost if it was lost."""
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
            lease.release()  # it was interrupted; one that is released already only answers
            raise

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Run every call of `function` under all the names, which are taken as they stand."""
        refuse_generator(function, "with")
        if inspect.iscoroutinefunction(function):
            message = f"{title_of(function)} is async: decorate it with a multilock of an AsyncClient"
            raise UsageError(message)

        @functools.wraps(function)
        def locked(*args: P.args, **kwargs: P.kwargs) -> R:
            with self.acquire():
                return function(*args, **kwargs)

        return locked


class AsyncMultiLock(_MultiLockBase):
    """A multilock of an `AsyncClient`: use it with `async with`, as a decorator, or by calling `acquire`.

    Made by `AsyncClient.multilock`.
    """

    def __init__(self, client: Sessions, names: Iterable[str], options: LockOptions) -> None:
        """Make it; nothing is acquired yet."""
        super().__init__(client, names, options)
        self._entered = Entered[AsyncMultiLease](aio.here)

    def acquire(self, timeout: float | None = UNSET, **unknown: Never) -> Acquiring[AsyncMultiLease]:
        """Acquire all names, as `MultiLock.acquire`: await it, or enter it by `async with`.

        Cancelled at any point, it leaves nothing behind.
        """
        if unknown:
            refuse_unknown("acquire", unknown, ("timeout",))
        return Acquiring(self._acquire(timeout))

    async def _acquire(self, timeout: float | None) -> AsyncMultiLease:
        timeout = self._timeout(timeout)
        session = self._client.session()
        owned: list[CoreLease] = []  # what is granted is here before it is anywhere else
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
        """Ask the store whether any of the names is held, as `MultiLock.locked`."""
        session = self._client.session()
        for spec in self._specs:
            if self._is_full(await session.inspect(spec.name)):
                return True
        return False

    async def __aenter__(self) -> AsyncMultiLease:
        """Acquire; raises as `acquire` does. The body is cancelled if a name is lost."""
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
        """Release what this task entered last; raises LeaseLost if it was lost."""
        lease = self._entered.last(self._name)
        self._entered.forget(self._name, lease)
        await lease.__aexit__(kind, error, trace)

    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]]) -> Callable[P, Coroutine[Any, Any, R]]:
        """Run every call of the async `function` under all the names, which are taken as they stand."""
        refuse_generator(function, "async with")
        if not inspect.iscoroutinefunction(function):
            message = f"{title_of(function)} is not async: decorate it with a multilock of a Client"
            raise UsageError(message)

        @functools.wraps(function)
        async def locked(*args: P.args, **kwargs: P.kwargs) -> R:
            async with await self._acquire(UNSET):
                return await function(*args, **kwargs)

        return locked
