"""The asyncio Lock of redis-py over Tenure; see `tenure.compat.redis`."""

import asyncio
from types import TracebackType
from typing import Any, Literal, Self

from redis.exceptions import LockError, LockNotOwnedError

from tenure.client import AsyncClient
from tenure.compat.redis import RedisPyClients, RedisPyLockBase
from tenure.errors import LockTimeout
from tenure.lease import AsyncLease

__all__ = ["Lock"]

_clients: RedisPyClients[AsyncClient] = RedisPyClients()
_closing: set[asyncio.Task[None]] = set()


def _begin_to_close(client: AsyncClient) -> None:
    task = asyncio.ensure_future(client.close())
    _closing.add(task)  # the loop keeps only weak references
    task.add_done_callback(_closing.discard)


class AsyncRedisPyLock(RedisPyLockBase[AsyncLease]):
    """redis-py's Lock for asyncio: `from tenure.compat.redis.asyncio import Lock`, not `from redis.asyncio.lock`."""

    def _lock(self) -> Any:  # noqa: ANN401
        loop = asyncio.get_running_loop()

        def close(client: AsyncClient) -> None:
            """Close a client in the event loop that made it, unless that has closed it by its own end."""
            if not loop.is_closed():
                loop.call_soon_threadsafe(_begin_to_close, client)

        client = _clients.get(self._pool, self._kind, self._source, AsyncClient, close)
        return client.lock(self._name, **self._options)

    async def acquire(
        self,
        blocking: bool | None = None,  # noqa: FBT001 - the signature of redis-py
        blocking_timeout: float | None = None,
        token: str | bytes | None = None,
    ) -> bool:
        """Acquire the lock; return whether it was granted in time. Raises ConnectionError if the server is away."""
        with self._errors():
            try:
                lease = await self._lock().acquire(timeout=self._wait(blocking, blocking_timeout, token))
            except LockTimeout:
                return False
            return self._took(lease)

    async def locked(self) -> bool:
        """Ask the server whether anybody holds the name."""
        with self._errors():
            return bool(await self._lock().locked())

    async def owned(self) -> bool:
        """Return whether this lock still holds the name, by the local clock and all that the server has told."""
        return self._owned()

    async def release(self) -> None:
        """Release the lock. Raises LockError if it is not acquired, LockNotOwnedError if it was lost before.

        If it is cancelled, it is carried out all the same.
        """
        lease = self._mine("release")
        try:
            with self._errors():
                self._judge(await lease.release())
        except LockNotOwnedError:
            self._forget()
            raise
        self._forget()

    async def extend(self, additional_time: float, replace_ttl: bool = False) -> Literal[True]:  # noqa: FBT001, FBT002
        """Add seconds to the time that is left, or replace that. Raises LockNotOwnedError if the lock was lost."""
        lease = self._mine("extend", timed=True)
        with self._errors():
            lease.check()
            await lease.extend(self._ttl(additional_time + (0 if replace_ttl else lease.remaining())))
        return True

    async def reacquire(self) -> Literal[True]:
        """Let the lock last for `timeout` seconds from now on. Raises LockNotOwnedError if it was lost."""
        lease = self._mine("reacquire", timed=True)
        with self._errors():
            await lease.extend(self.timeout)
        return True

    async def __aenter__(self) -> Self:
        if not await self.acquire():
            raise self._not_acquired()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.release()
        except LockError as lost:
            self._leave(lost)


Lock = AsyncRedisPyLock
