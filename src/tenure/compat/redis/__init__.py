"""The Lock of redis-py over Tenure: the same signatures, results and errors. docs/coming-from-redis-py.md has the rest.

A lock with a `timeout` is a lease with `renew=False`; one without is renewed for as long as its process lives.
"""

import logging
import threading
from collections.abc import Generator
from contextlib import contextmanager
from types import SimpleNamespace, TracebackType
from typing import Any, Final, Generic, Literal, Self, TypeVar
from weakref import WeakKeyDictionary, finalize

from tenure.client import AsyncClient, Client
from tenure.contracts.limits import MAX_TTL
from tenure.contracts.store import StoreSource
from tenure.errors import ForkedLeaseError, LeaseLost, LockTimeout, OutcomeUnknown, StoreError, UsageError
from tenure.lease import AsyncLease, Lease
from tenure.outcome import Outcome
from tenure.stores.extras import needed_by

with needed_by("tenure.compat.redis", "redis-py", "redis", "redis"):
    from redis.exceptions import ConnectionError as RedisConnectionError
    from redis.exceptions import LockError, LockNotOwnedError
    from redis.exceptions import TimeoutError as RedisTimeoutError

    from tenure.stores.redis import redis_source
    from tenure.stores.redis.beside_redis_py import MINE

__all__ = ["Lock"]

log = logging.getLogger("tenure")

REDIS_PY: Final = "redis-py"

C = TypeVar("C", Client, AsyncClient)
L = TypeVar("L", Lease, AsyncLease)


class _ThreadLocal(threading.local):
    """What each thread keeps of its own acquisition."""

    token: bytes | None = None
    lease: Any = None


class RedisPyLockBase(Generic[L]):
    """The part of a lock that is the same for threads and asyncio."""

    def __init__(
        self,
        redis: Any,  # noqa: ANN401 - any client of redis-py
        name: str | bytes | memoryview,
        timeout: float | None = None,
        sleep: float = 0.1,
        blocking: bool = True,  # noqa: FBT001, FBT002 - the signature of redis-py
        blocking_timeout: float | None = None,
        thread_local: bool = True,  # noqa: FBT001, FBT002
        raise_on_release_error: bool = True,  # noqa: FBT001, FBT002
        *,
        also: Literal["redis-py"] | None = REDIS_PY,
        guard: str = "observed",
    ) -> None:
        """Make a lock on the server of a redis-py client; nothing is sent.

        Args:
            redis: the client, whose server and login are used, but not its connections.
            name: the name, as str or UTF-8.
            timeout: for how many seconds the lock lasts unless it is extended; None: renewed while the process lives.
            sleep: has no effect: a waiter is notified, or looks at a key of redis-py 20 times a second.
            blocking: whether `acquire` waits.
            blocking_timeout: for how many seconds it waits; None: for ever.
            thread_local: whether only the thread that acquired the lock may release it.
            raise_on_release_error: whether a `with` raises LockError if the lock was lost; else it is logged.
            also: "redis-py" excludes programs with redis-py's own Lock; None is faster, when no such program is left.
            guard: as in a Redis URL: "off" grants at once after a restart in which the server may have forgotten locks.

        Raises ValueError if a value is not allowed.
        """
        self.redis = redis
        self.name = name
        self.timeout = timeout
        self.sleep = sleep
        self.blocking = blocking
        self.blocking_timeout = blocking_timeout
        self.thread_local = bool(thread_local)
        self.raise_on_release_error = raise_on_release_error
        self.local: Any = _ThreadLocal() if thread_local else SimpleNamespace(token=None, lease=None)
        self._name = name if isinstance(name, str) else bytes(name).decode()
        self._options: dict[str, Any] = {"ttl": timeout, "renew": False} if timeout else {}
        self._source: StoreSource = redis_source(
            redis, also=also, guard=guard, max_ttl=max(MAX_TTL, 2 * (timeout or 0.0))
        )
        self._pool: Any = getattr(redis, "connection_pool", None) or redis.nodes_manager
        self._kind = (also, guard, self._source.capabilities.max_ttl)

    __init__.__qualname__ = "Lock.__init__"  # as the error of a wrong argument names it

    def _took(self, lease: L) -> Literal[True]:
        self.local.lease = lease
        self.local.token = (MINE + lease._core.grant.request_id).encode()  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
        return True

    def _wait(self, blocking: object, blocking_timeout: float | None, token: object) -> float | None:
        """Return for how many seconds to wait."""
        if token is not None:
            raise LockError(
                f"acquire(token=...) is not available for {self._name!r}: the value of a key is that of one lease, so "
                "that no other can release it. To release in another process, use lease.detach() and client.adopt().",
                self._name,
            )
        if not (self.blocking if blocking is None else blocking):
            return 0.0
        timeout = self.blocking_timeout if blocking_timeout is None else blocking_timeout
        return None if timeout is None else max(0.0, timeout)

    def _mine(self, doing: str, *, timed: bool = False) -> L:
        """Return the lease of this thread. Raises LockError if there is none, or if it must have a timeout."""
        lease: L | None = self.local.lease
        if lease is None:
            raise LockError(
                f"cannot {doing} {self._name!r}: this lock is not acquired, or in another thread", self._name
            )
        if timed and not self.timeout:
            raise LockError(f"cannot {doing} {self._name!r}: it has no timeout, and is renewed by itself", self._name)
        return lease

    def _ttl(self, seconds: float) -> float:
        """Return for how long `extend` lets the lock last. Raises LockError if the server may grant no such lock."""
        if seconds > (most := self._source.capabilities.max_ttl):
            raise LockError(
                f"{self._name!r} cannot last for {seconds:g} s, but for {most:g} s: make the lock with a `timeout` of "
                f'{-(-seconds // 2):g} s or more, or with guard="off" (a restarted server may then grant it twice)',
                self._name,
            )
        return seconds

    def _forget(self) -> None:
        self.local.token = self.local.lease = None

    def _judge(self, outcome: Outcome) -> None:
        """Raise what redis-py raises of a release that did not release the lock."""
        if outcome is Outcome.UNKNOWN:
            raise RedisTimeoutError(
                f"the server did not say whether {self._name!r} was released; the release is repeated until it answers"
            )
        if outcome is not Outcome.RELEASED:
            raise LockNotOwnedError(f"{self._name!r} was not held any more when it was released", self._name)

    def _leave(self, error: LockError) -> None:
        """Raise or log that the lock was lost inside a `with`."""
        if self.raise_on_release_error:
            raise error
        log.warning("%s", error)

    def _not_acquired(self) -> LockError:
        return LockError(f"{self._name!r} was not acquired within blocking_timeout, or at once", self._name)

    @contextmanager
    def _errors(self) -> Generator[None]:
        """Raise the errors that redis-py raises instead of those of Tenure."""
        try:
            yield
        except (LeaseLost, ForkedLeaseError) as error:
            raise LockNotOwnedError(str(error), self._name) from error
        except UsageError as error:
            raise LockError(str(error), self._name) from error
        except OutcomeUnknown as error:
            raise RedisTimeoutError(str(error)) from error
        except StoreError as error:
            raise RedisConnectionError(str(error)) from error

    def _owned(self) -> bool:
        return self.local.lease is not None and self.local.lease.remaining() > 0


class RedisPyClients(Generic[C]):
    """One client for each connection pool and set of options, for as long as the pool lives."""

    def __init__(self) -> None:
        """Begin without clients."""
        self._of: WeakKeyDictionary[Any, dict[object, C]] = WeakKeyDictionary()

    def get(self, pool: object, kind: object, source: StoreSource, make: Any, close: Any) -> C:  # noqa: ANN401
        """Return the client, made by `make(store=source)`; `close(client)` ends it when the pool is gone."""
        clients = self._of.setdefault(pool, {})
        client: C | None = clients.get(kind)
        if client is None:
            client = clients.setdefault(kind, make(store=source))
            finalize(pool, close, client).atexit = False
        return client


_clients: RedisPyClients[Client] = RedisPyClients()


def _close(client: Client) -> None:
    """Close a client in a thread of its own: the garbage collector may call this anywhere."""
    threading.Thread(target=client.close, name="tenure-close", daemon=True).start()


class RedisPyLock(RedisPyLockBase[Lease]):
    """redis-py's Lock for threads: `from tenure.compat.redis import Lock` instead of `from redis.lock import Lock`."""

    def _lock(self) -> Any:  # noqa: ANN401
        client = _clients.get(self._pool, self._kind, self._source, Client, _close)
        return client.lock(self._name, **self._options)

    def acquire(
        self,
        sleep: float | None = None,  # noqa: ARG002 - the signature of redis-py
        blocking: bool | None = None,  # noqa: FBT001 - the signature of redis-py
        blocking_timeout: float | None = None,
        token: str | bytes | None = None,
    ) -> bool:
        """Acquire the lock; return whether it was granted in time. Raises ConnectionError if the server is away."""
        with self._errors():
            try:
                lease = self._lock().acquire(timeout=self._wait(blocking, blocking_timeout, token))
            except LockTimeout:
                return False
            return self._took(lease)

    def locked(self) -> bool:
        """Ask the server whether anybody holds the name."""
        with self._errors():
            return bool(self._lock().locked())

    def owned(self) -> bool:
        """Return whether this lock still holds the name, by the local clock and all that the server has told."""
        return self._owned()

    def release(self) -> None:
        """Release the lock. Raises LockError if it is not acquired, LockNotOwnedError if it was lost before."""
        lease = self._mine("release")
        self._forget()
        with self._errors():
            self._judge(lease.release())

    def extend(self, additional_time: float, replace_ttl: bool = False) -> Literal[True]:  # noqa: FBT001, FBT002
        """Add seconds to the time that is left, or replace that. Raises LockNotOwnedError if the lock was lost."""
        lease = self._mine("extend", timed=True)
        with self._errors():
            lease.check()
            lease.extend(self._ttl(additional_time + (0 if replace_ttl else lease.remaining())))
        return True

    def reacquire(self) -> Literal[True]:
        """Let the lock last for `timeout` seconds from now on. Raises LockNotOwnedError if it was lost."""
        lease = self._mine("reacquire", timed=True)
        with self._errors():
            lease.extend(self.timeout)
        return True

    def __enter__(self) -> Self:
        if not self.acquire():
            raise self._not_acquired()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.release()
        except LockError as lost:
            self._leave(lost)


Lock = RedisPyLock
