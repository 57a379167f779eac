"""A holder of a lock that writes to a database, in a thread and over a connection of its own.

Each writer takes the lock in a store of its own, so that all of them trust their leases at the same time: the case for
which there are fences. A writer that acquires later has a greater token.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self, TypeVar
from uuid import uuid4

import tenure
from tests.fencing.kinds import Kind, finished

T = TypeVar("T")
TEST_TIMEOUT = 60.0

READ = "SELECT value FROM accounts WHERE name = {name}"
WRITE = "UPDATE accounts SET value = {value} WHERE name = {name}"

Guard = Callable[[Any, Any, Kind], Awaitable[None]]


async def guard_first(lease: Any, connection: Any, _kind: Kind) -> None:  # noqa: ANN401 - of any form and driver
    """Guard the transaction of a connection, as a user does."""
    await finished(lease.guard(connection))


class Writer:
    """A holder of a lock. `with` opens its connection, takes the lock, and closes both in the end."""

    def __init__(self, kind: Kind, name: str, *, url: str = "", guard: Guard = guard_first) -> None:
        """Prepare a writer to the account `name` under the lock `name`, which may live in the store at `url`."""
        self.kind = kind
        self.name = name
        self.token = 0
        self._url = url or f"memory://{uuid4().hex}"
        self._guard = guard
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._blocking = None if self.kind.is_async else tenure.Client(self._url)
        self._lease = None if self._blocking is None else self._blocking.lock(self.name, ttl=120).acquire(timeout=0)
        self._run(self._begin())
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._run(self._end())
        if self._blocking is not None:
            self._blocking.close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _begin(self) -> None:
        self.connection = await self.kind.open()
        if self._lease is None:
            self._client = tenure.AsyncClient(self._url)
            self.lease: Any = await self._client.lock(self.name, ttl=120).acquire(timeout=0)
        else:
            self.lease = self._lease
        self.token = self.lease.token

    async def _end(self) -> None:
        await self.kind.close(self.connection)
        if self._lease is None:
            await self._client.close()

    def _start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._start(work).result(TEST_TIMEOUT)

    def starts_to_guard(self) -> Future[None]:
        """Begin to guard the transaction; the result comes when that is done."""
        return self._start(self._guarded())

    async def _guarded(self) -> None:
        await self._guard(self.lease, self.connection, self.kind)

    def guard(self) -> None:
        """Guard the transaction."""
        self.starts_to_guard().result(TEST_TIMEOUT)

    def starts_to_execute(self, sql: str, **values: object) -> Future[Any]:
        """Begin to execute a statement; the first value of its first row comes when that is done."""
        return self._start(self.kind.execute(self.connection, sql, values))

    def execute(self, sql: str, **values: object) -> Any:  # noqa: ANN401 - a value of a database
        """Execute a statement; return the first value of its first row."""
        return self.starts_to_execute(sql, **values).result(TEST_TIMEOUT)

    def read(self) -> int:
        """Return what is on the account, in the transaction."""
        return int(self.execute(READ, name=self.name))

    def write(self, value: int) -> None:
        """Set the account, in the transaction."""
        self.execute(WRITE, name=self.name, value=value)

    def starts_to_commit(self) -> Future[None]:
        """Begin to commit the transaction."""
        return self._start(self._committed())

    def commit(self) -> None:
        """Commit the transaction."""
        self.starts_to_commit().result(TEST_TIMEOUT)

    def starts_to_roll_back(self) -> Future[None]:
        """Begin to roll the transaction back."""
        return self._start(self._rolled_back())

    def rollback(self) -> None:
        """Roll the transaction back."""
        self.starts_to_roll_back().result(TEST_TIMEOUT)

    async def _committed(self) -> None:
        await finished(self.connection.commit())

    async def _rolled_back(self) -> None:
        await finished(self.connection.rollback())

    def raises_fence(self, value: int) -> None:
        """Guard, write and commit one transaction."""
        self.guard()
        self.write(value)
        self.commit()
