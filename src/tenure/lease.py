"""The public lease objects, sync and async. `CoreLease` has the rules; these classes only drive it or await it.

A lease is trusted until its local deadline. The deadline is counted from before the acquire request was sent, so the
lease always ends here before it ends in the store. Check the lease before every effect that must not happen twice, and
give its `token` to each resource that can compare tokens.
"""

import warnings
import weakref
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Never, Protocol, Self, TypeVar, cast, overload

from tenure.callables import refuse_async_callback
from tenure.contracts.deadlines import seconds
from tenure.contracts.handles import check_reason
from tenure.contracts.owner_metadata import read_metadata
from tenure.contracts.runtime import Runtime
from tenure.core.handover import detach
from tenure.core.lease import FORKED, GIVEN_UP, OVER, CoreLease, LeaseState
from tenure.core.session import Session
from tenure.entering import Enterable, EnteredByAsyncWith, EnteredByWith, Site, site
from tenure.errors import ForkedLeaseError, LeaseLost, UsageError
from tenure.fence import FENCES
from tenure.guard import Guard, Guarding
from tenure.keeping import NotCopied, acquired, acquired_at, line_of
from tenure.outcome import Outcome
from tenure.reentry import is_inside, marks, outside
from tenure.runtimes.tasks import BodyGuard
from tenure.runtimes.threads import drive

if TYPE_CHECKING:
    from tenure.fencing.users import AsyncSqlConnection, SqlConnection

NO_CONNECTION: Final = cast("Any", object())
"""The default of an argument whose absence differs from None."""


class Losable(Protocol):
    """A lease or a lease group, as far as `lease.lost` needs it."""

    runtime: Runtime

    def is_lost(self) -> bool:
        """Return whether the lease is lost."""
        ...

    async def wait_lost(self, until: float | None) -> bool:
        """Wait until the lease is lost or released, or until a local instant; return whether the lease is lost."""
        ...


class _LossBase(NotCopied):
    __slots__ = ("_core", "_name")

    def __init__(self, held: Losable, name: str) -> None:
        self._core = held
        self._name = name

    def is_set(self) -> bool:
        """Return whether the lease is lost: true from the very moment of its local deadline. Sends no request."""
        return self._core.is_lost()

    def __bool__(self) -> bool:
        return self.is_set()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._name!r}: {'set' if self else 'not set'}>"

    def _until(self, timeout: float | None) -> float | None:
        return None if timeout is None else self._core.runtime.now() + timeout


class Loss(_LossBase):
    """The event that is set when a lease is lost, for threads."""

    __slots__ = ()

    def wait(self, timeout: float | None = None) -> bool:
        """Block until the lease is lost (or released), or for `timeout` seconds; return whether it is lost."""
        return drive(self._core.wait_lost(self._until(timeout)))


class AsyncLoss(_LossBase):
    """The event that is set when a lease is lost, for tasks."""

    __slots__ = ()

    async def wait(self, timeout: float | None = None) -> bool:
        """Wait until the lease is lost (or released), or for `timeout` seconds; return whether it is lost."""
        return await self._core.wait_lost(self._until(timeout))


def raise_or_note(loss: Exception, error: BaseException | None) -> None:
    """Raise the error of a loss that was found on exit; if the body raised an error itself, add a note to that."""
    if error is None:
        raise loss
    if not (isinstance(error, LeaseLost) and str(error) == str(loss)):  # else it is the error of a check() in the body
        error.add_note(str(loss))


NO_TOKENS = (
    "this store has no fencing tokens. Leave ?mode= out of the URL, so that the store keeps its locks in a table; or, "
    "in PostgreSQL, run `CREATE SEQUENCE tenure_tokens` and make a new client."
)


class LeaseBase(NotCopied):
    """The part of a lease that sends no request: the same for threads and asyncio."""

    __slots__ = ("_core", "_name", "_origin", "_session")
    _depth = 5
    """How many calls lead from the user's code to `acquired_at`, at least."""

    def __init__(self, session: Session, held: CoreLease, name: str) -> None:
        self._session = session
        self._name = name
        self._origin = acquired_at(self._depth)
        self._core = held  # last: `__del__` looks whether it is there

    @property
    def name(self) -> str:
        """The name that is held, without the client's namespace."""
        return self._name

    @property
    def owner(self) -> str:
        """The owner that others see, as in `Client(owner=...)`."""
        return read_metadata(self._core.grant.request.owner).owner

    @property
    def token(self) -> int:
        """The fencing token: larger than that of every earlier lease of this name, below 2**53.

        Raises UsageError if the store has no fencing tokens.
        """
        if not self._session.store.capabilities.tokens:
            raise UsageError(NO_TOKENS)
        return self._core.token

    @property
    def ttl(self) -> float:
        """For how many seconds the store keeps the lease after the last renewal."""
        return seconds(self._core.ttl)

    @property
    def state(self) -> LeaseState:
        """HELD, AT_RISK (the last renewal failed), LOST, RELEASED or DETACHED."""
        return self._core.state()

    def remaining(self) -> float:
        """Return for how many seconds the lease is certainly still held without another renewal; 0.0 once it is not."""
        return self._core.remaining()

    def check(self) -> None:
        """Raise LeaseLost unless the lease is certainly still held (ForkedLeaseError in a forked child)."""
        self._core.check()

    def _etcd_guard(self) -> Guard:
        """Return the condition for transactions in etcd. Raises UsageError with a store other than etcd."""
        held, store = self._core, self._session.store
        held.check()
        found = store.guard(held.grant.name, held.grant.request_id, held.token) if isinstance(store, Guarding) else None
        if found is None:
            raise UsageError(
                f"the lease of {self._name!r} has no guard of its own: only leases in etcd have one, for transactions "
                "in the same etcd. In a SQL database, give guard() the connection whose transaction it guards. For "
                "anything else, give the token of the lease to the protected resource, and have that refuse smaller "
                "tokens (see Fence)."
            )
        held.begin_guard()
        return found

    async def _raise_fence(self, connection: object, form: str, table: str) -> None:
        """Raise the fence of the name in the transaction of a connection of the user."""
        held = self._core
        held.check()
        if not getattr(self._session.store.capabilities, "tokens", True):
            raise UsageError(
                f"the lease of {self._name!r} has no fencing token, for its store issues none: take the lock in "
                "another store if its data need a guard."
            )
        from tenure.fencing.sql import raise_fence

        await raise_fence(connection, form, held.grant.name, held.token, table)

    def on_lost(self, callback: Callable[[LeaseLost], object]) -> None:
        """Call `callback(error)` once when the lease is lost; at once if the lease is lost already.

        The callback runs in the thread that notices the loss, mostly the renewer's, or soon in the event loop: it must
        not block. Its errors are logged. Raises UsageError if it is async.
        """
        refuse_async_callback(callback, "on_lost")
        held = self._core

        def tell(_reason: str) -> None:
            error = held.loss()
            if isinstance(error, LeaseLost):
                outside(callback, error)

        held.when_lost(tell)

    @property
    def revoking(self) -> bool:
        """Whether a revocation request has come, from `client.revoke` or `client.drain`: release the lease soon."""
        return self._core.revocation_requested

    def on_revoke(self, callback: Callable[[Self], object]) -> None:
        """Call `callback(lease)` once when a revocation request comes; at once if one has come already.

        The callback runs in the thread that hears of the request, mostly the notification channel's, or in the event
        loop: it must not block. Its errors are logged. Raises UsageError if it is async.
        """
        refuse_async_callback(callback, "on_revoke")
        known = weakref.ref(self)

        def tell() -> None:
            lease = known()
            if lease is not None:
                outside(callback, lease)

        self._core.when_revocation_requested(tell)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._name!r} token={self._core.token} {self.state.value}>"

    def __del__(self) -> None:
        # A lease object whose making was interrupted has no `_core`: the acquisition gives the lease back.
        held = getattr(self, "_core", None)
        if held is None or held.current in OVER or held.deferred or not held.renews:
            return
        where = line_of(self._origin)
        self._session.renewer.drop((held,), where)
        warnings.warn(
            f"the lease of {self._name!r} (token {held.token}) was dropped without release{acquired(where)}; it is no "
            "longer renewed and ends at its ttl. Keep the lease object for as long as you need the lock.",
            ResourceWarning,
            stacklevel=2,
            source=self,
        )

    def _refuse_given_up(self) -> None:
        """Raise LeaseLost if the lease was released or detached: the body of a `with` would run without it.

        Raises what a waiter gets if the client is closed.
        """
        if self._core.current in GIVEN_UP:
            if self._session.closed:
                self._session.refuse_to_acquire()
            raise self._core.loss()

    def _raise_if_lost(self, outcome: Outcome, error: BaseException | None) -> None:
        """Raise the error of a loss on exit, without masking the body's own error."""
        if not outcome.kept or self._core.lost_because:
            raise_or_note(self._core.loss(), error)

    async def _detach(self, ttl: float | None, reason: str) -> str:
        return (await detach(self._session, self._core, ttl, check_reason(reason))).text()

    def _leave_lost(self) -> None:
        """Release a lost lease in the background, so that leaving the body waits for no store."""
        held = self._core
        if held.outcome is None and held.lost_because != FORKED:
            add = self._session.release_later if marks.mark.inside else self._session.background_releases.add
            add(partial(self._session.release, held), held.grant.name)


class AsyncEnterable(Enterable, Protocol):
    """A lease that `async with` can enter, into a body that is cancelled if the lease is lost."""

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release the lease."""


E_co = TypeVar("E_co", bound=AsyncEnterable, covariant=True)


class Acquiring(EnteredByAsyncWith, Coroutine[Any, Any, E_co]):
    """An acquisition in asyncio: await it for the lease, or enter the lease at once by `async with`."""

    __slots__ = ("_acquisition", "_lease")

    def __init__(self, acquisition: Coroutine[Any, Any, E_co]) -> None:
        """Wrap the coroutine that acquires."""
        self._acquisition = acquisition

    if not TYPE_CHECKING:  # a type checker finds this mistake by itself

        def __getattr__(self, word: str) -> Never:
            """Raise AttributeError, which says that the acquisition must be awaited before it is used as a lease."""
            advice = ": await it first, as in `lease = await lock.acquire()`" if hasattr(AsyncLease, word) else ""
            raise AttributeError(f"an acquisition has no attribute {word!r}{advice}", name=word, obj=self)

    def __await__(self) -> Generator[Any, Any, E_co]:
        return self._acquisition.__await__()

    def send(self, value: Any, /) -> Any:  # noqa: ANN401 - as of any coroutine
        """Resume the coroutine."""
        return self._acquisition.send(value)

    def throw(self, *error: Any) -> Any:  # noqa: ANN401 - as of any coroutine
        """Raise an error in the coroutine."""
        return self._acquisition.throw(*error)

    def close(self) -> None:
        """Close the coroutine."""
        self._acquisition.close()

    async def __aenter__(self) -> E_co:
        lease = self._lease = await self._acquisition
        lease._enter_at(site(1))  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - of this module
        return lease

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._lease.__aexit__(kind, error, trace)


class Lease(EnteredByWith, LeaseBase):
    """A lease of a lock of a `Client`. Use it with `with`, or call `release()`."""

    __slots__ = ("__weakref__",)

    @property
    def lost(self) -> Loss:
        """The event that is set the moment the lease can no longer be trusted."""
        return Loss(self._core, self._core.grant.name)

    def release(self) -> Outcome:
        """Release the lease, and hand the name to the next waiter in the same step. Never raises because of the store.

        Called again, it returns the same outcome. A signal handler or a finalizer may call it in the middle of another
        call of Tenure: then the lease is released in the background, and the outcome is UNKNOWN, until a later call
        finds it. Raises ForkedLeaseError in a forked child.
        """
        held = self._core
        try:
            if is_inside(self._session.mutex):
                return self._release_later()
            if (queue := held.local_queue) is not None and queue.linger and self._session.local_queues.linger_on(held):
                return Outcome.RELEASED
            return drive(self._session.release(held))
        except ForkedLeaseError:
            raise
        except BaseException as error:  # an interrupt
            if is_inside(self._session.mutex):
                self._release_later()
            elif held.outcome is None or self._session.events is not None:
                drive(self._session.releases.complete(held, error))
            raise

    def _release_later(self) -> Outcome:
        """Have the lease released in the background; return the outcome if it was released before."""
        held = self._core
        if held.lost_because == FORKED:
            raise held.loss()
        if held.outcome is None and not held.deferred:
            self._session.release_later(partial(self._session.release, held), held.grant.name)
            held.body = None
            held.deferred = True  # last: after an interrupt it is released twice, which does no harm
        return held.outcome or Outcome.UNKNOWN

    def extend(self, ttl: float | None = None) -> float:
        """Renew now, for `ttl` seconds if given, also in later renewals; return the seconds that remain.

        The deadline never moves back: with a smaller ttl, the remaining time first runs down to that ttl. With
        `renew=False` it moves to `ttl` seconds from now, be that earlier: then the lease ends here, and is released.
        (If the process dies before, the store keeps the name for as long as before.) The deadline
        never moves beyond `max_hold`: if that shortens the extension, it is logged, and the returned time is shorter.

        Raises LeaseLost if the lease is lost, StoreError if the store did not answer (then nothing changed), UsageError
        if the store grants no lease for this ttl.
        """
        drive(self._session.extend(self._core, ttl))
        return self._core.remaining()

    def detach(self, ttl: float | None = None, *, reason: str = "") -> str:
        """End the lease here, and return its handle, by which another client goes on with it: `client.adopt(handle)`.

        The name stays held without a gap: for `ttl` seconds from now on (None: the ttl of the lease) if nobody adopts
        or renews it. From then on this object is DETACHED: it is not renewed, `check()` raises LeaseLost, `release()`
        returns Outcome.DETACHED, and leaving its `with` releases nothing. The handle is one line of printable text
        without secrets. `tenure show` shows the reason.

        Raises LeaseLost if the lease is lost; UsageError if it cannot be handed over: not in this store, or because it
        has max_hold, min_hold or a guard, or is reentrant, of a multilock or of an election; StoreError if the store
        did not answer: then the lease is held as before, or lost if the store may have detached it.
        """
        return drive(self._detach(ttl, reason))

    @overload
    def guard(self) -> Guard: ...

    @overload
    def guard(self, connection: "SqlConnection", *, table: str = FENCES) -> None: ...

    def guard(self, connection: "SqlConnection" = NO_CONNECTION, *, table: str = FENCES) -> Guard | None:
        """Let the transaction of `connection` commit only what a holder writes that is not late.

        Call it as the first statement of your transaction in PostgreSQL, MySQL, MariaDB or SQLite, before you read
        anything. The transaction waits for one that has guarded the same name, and keeps the name's row in `table`
        until it ends. The locks may live in another store. `tenure schema` prints the statement that makes the table.

        Raises StaleTokenError if a later holder has guarded a transaction, LeaseLost if the lease is over already,
        UsageError if the connection cannot be guarded, and the errors of your driver. Let the error roll the
        transaction back.

        Without a connection, return a condition for your own transactions in the etcd that has the lease: with it they
        do nothing once the lease is over. Raises UsageError with another store.
        """
        if connection is NO_CONNECTION:
            return self._etcd_guard()
        from tenure.fencing.users import SYNC

        return drive(self._raise_fence(connection, SYNC, table))

    def _enter_at(self, where: Site) -> None:
        self._core.body = where, weakref.ref(self)
        self._refuse_given_up()  # last: a client that is closed meanwhile has seen a body, or this sees the release

    def __enter__(self) -> Self:
        """Enter a body at whose end the lease is released. Raises LeaseLost if it was released or detached before.

        Raises UsageError if the client is closed, Stopped if it was drained.
        """
        self._core.by = self._core.runtime.mark()
        self._enter_at(site(1))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release the lease. Raises LeaseLost if the lease was lost and the body raised no error itself.

        A lost lease is released in the background.
        """
        held = self._core
        if held.lost_because == FORKED:
            return
        if held.lost_because:
            self._leave_lost()
            raise_or_note(held.loss(), error)
            return
        held.awaited = held.wait_for_release
        try:
            outcome = self.release()
        except BaseException:  # an interrupt, maybe before the release began
            self.release()
            raise
        if outcome is not Outcome.RELEASED or held.lost_because:
            self._raise_if_lost(outcome, error)


class AsyncLease(EnteredByAsyncWith, LeaseBase):
    """A lease of a lock of an `AsyncClient`. Use it with `async with`, or await `release()`."""

    __slots__ = ("__weakref__", "_guard")

    def __init__(self, session: Session, held: CoreLease, name: str) -> None:
        """Wrap a lease that was just granted."""
        super().__init__(session, held, name)
        self._guard: BodyGuard | None = None

    @property
    def lost(self) -> AsyncLoss:
        """The event that is set the moment the lease can no longer be trusted."""
        return AsyncLoss(self._core, self._core.grant.name)

    async def release(self) -> Outcome:
        """Release the lease, and hand the name to the next waiter in the same step. Never raises because of the store.

        Called again, it returns the same outcome. If it is cancelled, it is carried out all the same.
        """
        return await self._session.release(self._core)

    async def extend(self, ttl: float | None = None) -> float:
        """Renew now, for `ttl` seconds if given; return the seconds that remain, as `Lease.extend`."""
        await self._session.extend(self._core, ttl)
        return self._core.remaining()

    async def detach(self, ttl: float | None = None, *, reason: str = "") -> str:
        """End the lease here, and return its handle, as `Lease.detach`.

        If it is cancelled, the lease is held as before, or lost and released if the store may have detached it.
        """
        return await self._detach(ttl, reason)

    @overload
    def guard(self) -> Guard: ...

    @overload
    def guard(self, connection: "AsyncSqlConnection", *, table: str = FENCES) -> Coroutine[Any, Any, None]: ...

    def guard(
        self, connection: "AsyncSqlConnection" = NO_CONNECTION, *, table: str = FENCES
    ) -> Guard | Coroutine[Any, Any, None]:
        """Let the transaction of `connection` commit only what a holder writes that is not late, as `Lease.guard`.

        Await it; without a connection, it returns a condition for transactions in etcd at once.
        """
        if connection is NO_CONNECTION:
            return self._etcd_guard()
        from tenure.fencing.users import ASYNC

        return self._raise_fence(connection, ASYNC, table)

    def _enter_at(self, where: Site) -> None:
        core = self._core
        core.body = where, weakref.ref(self)
        self._refuse_given_up()
        guard = self._guard = BodyGuard()
        core.when_lost(lambda _reason: guard.fire())

    async def __aenter__(self) -> Self:
        """Enter a body that is cancelled if the lease is lost. Raises as the `with` of a `Lease`."""
        self._core.by = self._core.runtime.mark()
        self._enter_at(site(1))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release the lease. Raises LeaseLost if the lease was lost and the body raised no error itself.

        A lost lease is released in the background.
        """
        guard, self._guard = self._guard, None
        if guard is not None:
            guard.disarm()
        held = self._core
        if held.lost_because == FORKED:
            return
        if held.lost_because:
            self._leave_lost()
            raise_or_note(held.loss(), None if guard is not None and guard.was_mine(error) else error)
            return
        held.awaited = held.wait_for_release
        try:
            outcome = await self.release()
        finally:
            cancelled_by_us = guard is not None and guard.was_mine(error)
        self._raise_if_lost(outcome, None if cancelled_by_us else error)
