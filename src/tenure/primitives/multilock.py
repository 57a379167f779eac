"""The multilock: one holder has all of several names, or none of them.

The names are acquired in one order, whatever order the caller gives, so that users of overlapping names never wait for
each other in a circle. Each name is an ordinary lock: a holder of `lock()` for one of the names keeps a multilock out,
and the other way round. `core/multi_acquire.py` has the rules.
"""

import copy
import functools
import warnings
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, Never, ParamSpec, Self, TypeVar

from tenure.callables import awaitable, finished, refuse_async, refuse_async_callback, refuse_sync
from tenure.contracts.deadlines import NEVER, micros, seconds
from tenure.contracts.limits import check_name
from tenure.core.lease import FORKED, GIVEN_UP, CoreLease, LeaseState
from tenure.core.multi_acquire import LeaseGroup, Missed, acquire_all
from tenure.core.session import Session
from tenure.core.spec import LockSpec
from tenure.core.stop import Stop
from tenure.entering import EnteredByAsyncWith, EnteredByWith, Site, site
from tenure.errors import ForkedLeaseError, LeaseLost, LockTimeout, UsageError
from tenure.keeping import NotCopied, acquired, acquired_at, line_of
from tenure.lease import NO_TOKENS, Acquiring, AsyncLoss, Loss, raise_or_note
from tenure.outcome import Outcome
from tenure.primitives.base import UNSET, AsyncEnteredLockBase, EnteredLockBase, F, LockBase, Sessions, guarded
from tenure.primitives.decorating import names_from_call
from tenure.primitives.options import LockOptions, refuse_unknown
from tenure.reentry import is_inside, marks, outside
from tenure.runtimes.tasks import BodyGuard
from tenure.runtimes.threads import drive

P = ParamSpec("P")
R = TypeVar("R")

MOST_NAMES = 1000
"""The most names of one multilock."""


class _MultiLeaseBase(NotCopied):
    """The part of the lease of a multilock that sends no request: the same for threads and asyncio."""

    __slots__ = ("_group", "_names", "_origin")
    _instead = "it is the lease of this process, and a copy would end it. Pass the object itself, or its tokens"

    def __init__(self, group: LeaseGroup, names: tuple[str, ...]) -> None:
        """Wrap leases that were just granted; `names` are their names without the client's namespace."""
        self._names = names
        self._origin = acquired_at(3)
        self._group = group  # last: `__del__` looks whether it is there

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
        not block. Its errors are logged. Raises UsageError if it is async.
        """
        refuse_async_callback(callback, "on_lost")
        self._group.when_lost(partial(outside, callback))

    def detach(self, ttl: float | None = None, *, reason: str = "") -> Never:  # noqa: ARG002 - as of any lease
        """Raise UsageError: the leases of a multilock end together, and are not handed over."""
        names = ", ".join(map(repr, self._names))
        raise UsageError(
            f"the leases of {names} are of a multilock, and not handed over: lock one name, and detach that."
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._numbers()} {self.state.value}>"

    def __del__(self) -> None:
        group = getattr(self, "_group", None)  # an object whose making was interrupted has none
        if group is None or group.release_begun:
            return
        dropped = [lease for lease in group.leases if not lease.over()]
        if not dropped:
            return
        where = line_of(self._origin)
        group.session.renewer.drop(dropped, where)
        warnings.warn(
            f"the leases of {', '.join(map(repr, self._names))} were dropped without release{acquired(where)}; they "
            "are no longer renewed and end at their ttl. Keep the lease object for as long as you need the locks.",
            ResourceWarning,
            stacklevel=2,
            source=self,
        )

    def _is_forked(self) -> bool:
        return self._group.leases[0].lost_because == FORKED

    def _refuse_given_up(self) -> None:
        """Raise LeaseLost if the names were released: the body of a `with` would run without them.

        Raises what a waiter gets if the client is closed.
        """
        if self._group.state() in GIVEN_UP:
            if self._group.session.closed:
                self._group.session.refuse_to_acquire()
            raise self._group.loss()

    def _raise_if_lost(self, outcome: Outcome, error: BaseException | None) -> None:
        """Raise the error of a loss on exit, without masking the body's own error."""
        if not outcome.kept or self._group.is_lost():
            raise_or_note(self._group.loss(), error)

    def _leave_lost(self) -> None:
        """Release all leases in the background after one was lost, so that leaving the body waits for no store."""
        group = self._group
        if not group.release_begun:
            group.release_begun = True
            add = group.session.release_later if marks.mark.inside else group.session.background_releases.add
            add(group.release, ", ".join(self._names))


class MultiLease(EnteredByWith, _MultiLeaseBase):
    """The lease of all names of a `MultiLock`. Use it with `with`, or call `release()`."""

    __slots__ = ("__weakref__",)

    @property
    def lost(self) -> Loss:
        """The event that is set the moment the lease of any name can no longer be trusted, and so none of them."""
        return Loss(self._group, ", ".join(self._names))

    def release(self) -> Outcome:
        """Release all names; return the worst of their outcomes. Never raises because of the store.

        Called again, it returns the same outcome. Within another call of Tenure the names are released in the
        background, as by `Lease.release`. Raises ForkedLeaseError in a forked child.
        """
        try:
            if is_inside(self._group.session.mutex):
                return self._release_later()
            return drive(self._group.release())
        except ForkedLeaseError:
            raise
        except BaseException:  # an interrupt: to release the same leases again does no harm
            if is_inside(self._group.session.mutex):
                self._release_later()
            else:
                drive(self._group.release())
            raise

    def _release_later(self) -> Outcome:
        """Have all names released in the background; return the outcome if they were released before."""
        if self._is_forked():
            raise self._group.loss()
        group = self._group
        if not group.release_begun:
            group.session.release_later(group.release, ", ".join(self._names))
            group.release_begun = True
        return group.outcome() or Outcome.UNKNOWN

    def extend(self, ttl: float | None = None) -> float:
        """Renew all names now, for `ttl` seconds if given; return the seconds that remain. See `Lease.extend`.

        Raises LeaseLost if a name is lost, StoreError if the store did not answer (then the local deadlines stay as
        they were), UsageError if the store grants no lease for this ttl.
        """
        drive(self._group.extend(ttl))
        return self.remaining()

    def _enter_at(self, where: Site) -> None:
        self._group.enter_at(where, self)
        self._refuse_given_up()

    def __enter__(self) -> Self:
        """Enter a body at whose end all names are released. Raises LeaseLost if they were released before."""
        self._enter_at(site(1))
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

    def _enter_at(self, where: Site) -> None:
        self._group.enter_at(where, self)
        self._refuse_given_up()
        guard = self._guard = BodyGuard()
        self._group.when_lost(lambda _error: guard.fire())

    async def __aenter__(self) -> Self:
        """Enter a body that is cancelled if a name is lost. Raises LeaseLost if the names were released before."""
        self._enter_at(site(1))
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


class _MultiLockBase(LockBase[F]):
    """The part of a multilock that is the same for threads and asyncio."""

    _kind = "a multilock"
    _reported = "multilock"
    _advice = "Acquire all names at once, by one multilock; or release the other lease first, or give a timeout."
    _of_all: Callable[[LeaseGroup, tuple[str, ...]], F]
    """Makes the lease that a caller gets."""

    def __init__(self, client: Sessions, names: Iterable[str], options: LockOptions) -> None:
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

    def _of_call(self, filled: list[str]) -> Self:
        """Return the same multilock for the names of a call, in whose events each name has its template.

        Two names that are equal once they are filled are one: a transfer from an account to itself locks it once.
        """
        specs = {
            name: replace(spec, name=self._full(name), title=name, template=spec.template or spec.title)
            for name, spec in zip(filled, self._specs, strict=True)
        }
        other = copy.copy(self)
        other._names = _in_order(specs)  # noqa: SLF001 - of the same class
        other._specs = [specs[name] for name in other._names]  # noqa: SLF001
        return other

    async def _obtain(self, session: Session, spec: LockSpec, timeout: float | None) -> F:
        return await guarded(self._obtain_all, session, spec, self._timeout(timeout))

    async def _obtain_all(self, session: Session, spec: LockSpec, timeout: float | None, owned: list[CoreLease]) -> F:
        result = await self._acquire_all(session, spec.stop, timeout, owned)
        if isinstance(result, Missed):
            raise await self._missed(session, result, timeout)
        return self._all(session, result)

    async def _obtain_if_free(self, session: Session, spec: LockSpec, owned: list[CoreLease]) -> F | None:
        result = await self._acquire_all(session, spec.stop, 0, owned)
        return None if isinstance(result, Missed) else self._all(session, result)

    async def _acquire_all(
        self, session: Session, stop: Stop | None, timeout: float | None, owned: list[CoreLease]
    ) -> list[CoreLease] | Missed:
        specs = self._specs if stop is None else [replace(spec, stop=stop) for spec in self._specs]
        detect = self._options.detect_deadlock
        return await acquire_all(session, specs, timeout, self._max_hold, owned, detect_deadlock=detect)

    async def _missed(self, session: Session, missed: Missed, timeout: float | None) -> LockTimeout:
        lock = self._named(self._names[missed.place])
        error = await lock._timed_out(session, lock._spec, missed.not_granted, timeout)  # noqa: SLF001 - of the same class
        names = ", ".join(map(repr, self._names))
        return LockTimeout(f"{error} Of {names}, none is held now.", explanation=error.explanation)

    def _all(self, session: Session, result: list[CoreLease]) -> F:
        group = LeaseGroup(session, result)
        if self._options.on_lost is not None:
            group.when_lost(partial(outside, self._options.on_lost))
        return self._of_all(group, self._names)


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


class MultiLock(_MultiLockBase[MultiLease], EnteredLockBase[MultiLease]):
    """A multilock of a `Client`: use it with `with`, as a decorator, or by calling `acquire`.

    Made by `Client.multilock`.
    """

    _of_all = MultiLease

    def acquire(self, timeout: float | None = UNSET, *, stop: Stop | None = None, **unknown: Never) -> MultiLease:
        """Acquire all names, waiting up to `timeout` seconds for all of them (0: ask once; None: for ever).

        Raises LockTimeout, which says which name was not granted in time, StoreError if the store did not answer, or
        Stopped if another thread sets `stop` meanwhile: then none of the names is held.
        """
        return self._acquire_or_stop(self._spec, timeout, stop, unknown)

    def try_acquire(self) -> MultiLease | None:
        """Acquire all names if they are free at once; else return None. Raises StoreError as `acquire` does."""
        return self._try_acquire(self._spec)

    def locked(self) -> bool:
        """Ask the store whether any of the names is held or blocked by a lock delay.

        The answer may be out of date as soon as it is returned.
        """
        session = self._client.session()
        return any(self._is_full(drive(session.inspect(spec.name))) for spec in self._specs)

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Run every call of `function` under all names, formatted from the call's arguments."""
        refuse_async(function, "multilock")
        names_of = names_from_call(function, self._names)

        @functools.wraps(function)
        def locked(*args: P.args, **kwargs: P.kwargs) -> R:
            with self._of_call(names_of(*args, **kwargs)).acquire():
                return finished(function, function(*args, **kwargs))

        return locked


class AsyncMultiLock(_MultiLockBase[AsyncMultiLease], AsyncEnteredLockBase[AsyncMultiLease]):
    """A multilock of an `AsyncClient`: use it with `async with`, as a decorator, or by calling `acquire`.

    Made by `AsyncClient.multilock`.
    """

    _of_all = AsyncMultiLease

    def acquire(self, timeout: float | None = UNSET, **unknown: Never) -> Acquiring[AsyncMultiLease]:
        """Acquire all names, as `MultiLock.acquire`: await the call, or enter it by `async with`.

        A call that is cancelled at any point leaves no holder and no waiter behind.
        """
        if unknown:
            refuse_unknown("acquire", unknown, ("timeout",))
        return Acquiring(self._acquire(self._spec, timeout))

    async def try_acquire(self) -> AsyncMultiLease | None:
        """Acquire all names if they are free at once; else return None. Raises StoreError as `acquire` does."""
        return await self._try_acquire(self._spec)

    async def locked(self) -> bool:
        """Ask the store whether any of the names is held or blocked, as `MultiLock.locked`."""
        session = self._client.session()
        for spec in self._specs:
            if self._is_full(await session.inspect(spec.name)):
                return True
        return False

    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]]) -> Callable[P, Coroutine[Any, Any, R]]:
        """Run every call of the async `function` under all names, as `MultiLock` does."""
        refuse_sync(function, "multilock")
        names_of = names_from_call(function, self._names)

        @functools.wraps(function)
        async def locked(*args: P.args, **kwargs: P.kwargs) -> R:
            async with self._of_call(names_of(*args, **kwargs)).acquire():
                return finished(function, await awaitable(function, function(*args, **kwargs)))

        return locked
