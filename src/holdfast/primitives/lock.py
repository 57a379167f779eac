"""The lock: a name that one holder has at a time.

A lock keeps no state of its own: each acquisition is a lease of its own, so one lock object may be shared by any
number of threads or tasks. It can be used with `with`, as a decorator, or by calling `acquire`.
"""

import functools
import inspect
import string
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from types import TracebackType
from typing import Any, ParamSpec, Protocol, TypeVar

from holdfast.core.attempt import Want
from holdfast.core.deadlines import micros, seconds
from holdfast.core.held import NEVER, HeldLease
from holdfast.core.limits import check_duration, check_name, check_timeout
from holdfast.core.messages import Left
from holdfast.core.session import Session
from holdfast.errors import LeaseLost, LockTimeout, UsageError
from holdfast.lease import AsyncLease, Lease
from holdfast.runtimes import aio, threads
from holdfast.runtimes.threads import drive

P = ParamSpec("P")
R = TypeVar("R")

UNSET = -1.0
"""The timeout of a call that leaves it to the lock's own."""


class Sessions(Protocol):
    """A client, as far as a lock needs it."""

    namespace: str

    def session(self) -> Session:
        """Return the session of this process and event loop."""
        ...


@dataclass(slots=True, frozen=True)
class LockOptions:
    """How a lock is to be acquired and kept. Seconds."""

    ttl: float
    timeout: float | None
    lock_delay: float
    max_hold: float | None
    on_lost: Callable[[LeaseLost], object] | None

    def check(self, min_ttl: float, max_ttl: float) -> "LockOptions":
        """Return self if every value is allowed; else raise UsageError."""
        check_duration(self.ttl, "ttl", min_ttl)
        if self.ttl > max_ttl:
            raise UsageError(
                f"ttl={self.ttl:g} is longer than this store's max_ttl of {max_ttl:g} s, for which it grants nothing "
                "after a restart. Take a shorter ttl (a lease is renewed for as long as it is held), or give the store "
                f"a longer max_ttl, as in redis://host?max_ttl={self.ttl:g}."
            )
        check_timeout(self.timeout)
        check_duration(self.lock_delay, "lock_delay")
        if self.max_hold is not None:
            check_duration(self.max_hold, "max_hold (or None, for no limit)", min_ttl)
        return self


class _LockBase:
    """All of a lock that needs no store."""

    def __init__(self, client: Sessions, name: str, options: LockOptions) -> None:
        self._client = client
        self._name = check_name(name)
        self._options = options
        full_name = f"{client.namespace}:{name}" if client.namespace else name
        max_hold = NEVER if options.max_hold is None else options.max_hold
        self._want = Want(full_name, micros(options.ttl), micros(options.lock_delay), max_hold)

    @property
    def name(self) -> str:
        """What is locked."""
        return self._name

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._name!r} ttl={self._options.ttl:g}>"

    def _timeout(self, given: float | None) -> float | None:
        return self._options.timeout if given is UNSET else check_timeout(given)

    def _timed_out(self, left: Left, timeout: float | None, owner: str) -> LockTimeout:
        if left.quarantine:
            return LockTimeout(
                f"{self._name!r} was not granted within {timeout or 0:g} s: the store restarted or failed over, and "
                f"may have forgotten who holds what. It grants nothing for another {seconds(left.quarantine):.1f} s, "
                "until the oldest lease has run out. Wait longer."
            )
        holders = " and ".join(left.holders) or "nobody by now"
        if owner in left.holders:
            holders += " (which is this client, or one of the same owner: a lock is not reentrant)"
        ahead = f", {left.ahead} waited before us" if left.ahead else ""
        if timeout == 0:
            return LockTimeout(f"{self._name!r} is held by {holders}. Give a timeout to wait for it.")
        return LockTimeout(
            f"{self._name!r} was not granted within {timeout or 0:g} s: it was held by {holders}{ahead}. Wait "
            f"longer, or see `holdfast show` for how long it will still be held."
        )


class Lock(_LockBase):
    """A lock of a `Client`."""

    def __init__(self, client: Sessions, name: str, options: LockOptions) -> None:
        """Make a lock; nothing is acquired yet. Use `Client.lock`."""
        super().__init__(client, name, options)
        self._entered: dict[object, list[Lease]] = {}

    def acquire(self, timeout: float | None = UNSET) -> Lease:
        """Acquire, waiting up to `timeout` seconds (0: ask once; None: for ever; default: the lock's own).

        Raises LockTimeout if it was not granted in time, StoreError if the store did not answer.
        """
        timeout = self._timeout(timeout)
        session = self._client.session()
        won = drive(session.acquire(self._want, timeout))
        if isinstance(won, Left):
            raise self._timed_out(won, timeout, session.owner)
        return self._lease(session, won)

    def try_acquire(self) -> Lease | None:
        """Acquire if it is free at once; else return None. Raises StoreError if the store did not answer."""
        session = self._client.session()
        won = drive(session.acquire(self._want, 0))
        return None if isinstance(won, Left) else self._lease(session, won)

    def _lease(self, session: Session, held: HeldLease) -> Lease:
        lease = Lease(session, held, self._name)
        if self._options.on_lost is not None:
            lease.on_lost(self._options.on_lost)
        return lease

    def __enter__(self) -> Lease:
        """Acquire; raises as `acquire` does."""
        lease = self.acquire()
        self._entered.setdefault(threads.here(), []).append(lease)
        return lease

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release the lease that this thread entered last; raises LeaseLost if it was lost."""
        lease = _pop(self._entered, threads.here())
        lease.__exit__(kind, error, trace)

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Run every call of `function` under the lock, its name formatted from the call's arguments."""
        _refuse_generator(function, "with")
        if inspect.iscoroutinefunction(function):
            message = f"{_label(function)} is async: decorate it with a lock of an AsyncClient"
            raise UsageError(message)
        name_of = _name_from_call(function, self._name)

        @functools.wraps(function)
        def locked(*args: P.args, **kwargs: P.kwargs) -> R:
            lock = Lock(self._client, name_of(*args, **kwargs), self._options)
            with lock.acquire():
                return function(*args, **kwargs)

        return locked


class AsyncLock(_LockBase):
    """A lock of an `AsyncClient`."""

    def __init__(self, client: Sessions, name: str, options: LockOptions) -> None:
        """Make a lock; nothing is acquired yet. Use `AsyncClient.lock`."""
        super().__init__(client, name, options)
        self._entered: dict[object, list[AsyncLease]] = {}

    async def acquire(self, timeout: float | None = UNSET) -> AsyncLease:
        """Acquire, waiting up to `timeout` seconds (0: ask once; None: for ever; default: the lock's own).

        Raises LockTimeout if it was not granted in time, StoreError if the store did not answer. Cancelled at any
        point, it leaves no holder and no waiter behind.
        """
        timeout = self._timeout(timeout)
        session = self._client.session()
        won = await session.acquire(self._want, timeout)
        if isinstance(won, Left):
            raise self._timed_out(won, timeout, session.owner)
        return self._lease(session, won)

    async def try_acquire(self) -> AsyncLease | None:
        """Acquire if it is free at once; else return None. Raises StoreError if the store did not answer."""
        session = self._client.session()
        won = await session.acquire(self._want, 0)
        return None if isinstance(won, Left) else self._lease(session, won)

    def _lease(self, session: Session, held: HeldLease) -> AsyncLease:
        lease = AsyncLease(session, held, self._name)
        if self._options.on_lost is not None:
            lease.on_lost(self._options.on_lost)
        return lease

    async def __aenter__(self) -> AsyncLease:
        """Acquire; raises as `acquire` does. The body is cancelled if the lease is lost."""
        lease = await self.acquire()
        self._entered.setdefault(aio.here(), []).append(lease)
        return await lease.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release the lease that this task entered last; raises LeaseLost if it was lost."""
        lease = _pop(self._entered, aio.here())
        await lease.__aexit__(kind, error, trace)

    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]]) -> Callable[P, Coroutine[Any, Any, R]]:
        """Run every call of the async `function` under the lock, its name formatted from the call's arguments."""
        _refuse_generator(function, "async with")
        if not inspect.iscoroutinefunction(function):
            message = f"{_label(function)} is not async: decorate it with a lock of a Client"
            raise UsageError(message)
        name_of = _name_from_call(function, self._name)

        @functools.wraps(function)
        async def locked(*args: P.args, **kwargs: P.kwargs) -> R:
            lock = AsyncLock(self._client, name_of(*args, **kwargs), self._options)
            async with await lock.acquire():
                return await function(*args, **kwargs)

        return locked


L = TypeVar("L")


def _pop(entered: dict[object, list[L]], here: object) -> L:
    leases = entered.get(here)
    if not leases:
        message = "this lock was not entered by this thread or task; enter and leave a `with` in the same one"
        raise UsageError(message)
    lease = leases.pop()
    if not leases:
        del entered[here]
    return lease


def _label(function: object) -> str:
    return str(getattr(function, "__qualname__", function))


def _refuse_generator(function: object, entry: str) -> None:
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        message = f"{_label(function)} is a generator: take the lock inside it, with `{entry}`"
        raise UsageError(message)


def _name_from_call(function: Callable[P, object], template: str) -> Callable[P, str]:
    """Return what formats `template` from the arguments of a call of `function`."""
    signature = inspect.signature(function)
    try:
        fields = [field for _, field, _, _ in string.Formatter().parse(template) if field is not None]
    except ValueError as error:
        message = f"the name {template!r} is no format string ({error}); write {{{{ and }}}} for braces"
        raise UsageError(message) from None
    for field in fields:
        root = field.partition(".")[0].partition("[")[0]
        if root not in signature.parameters:
            known = ", ".join(signature.parameters) or "none"
            message = (
                f"the name {template!r} uses {{{root}}}, but {_label(function)} has no such parameter; it has: {known}"
            )
            raise UsageError(message)

    def name_of(*args: P.args, **kwargs: P.kwargs) -> str:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return template.format(**bound.arguments)

    return name_of
