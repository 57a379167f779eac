"""Guards of each kind behind one face, for promises that all of them make."""

# ruff: noqa: D102 - Guarded says what each method does

import asyncio
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Protocol

from redis.asyncio import Redis as AsyncRedis
from redis.client import Redis

from tenure.fencing import (
    AsyncObjectGuard,
    AsyncRedisGuard,
    FileGuard,
    MemoryGuard,
    ObjectGuard,
    RedisGuard,
    StoredObject,
)
from tenure.fencing.holders import Holder


class Guarded(Protocol):
    """A guarded text."""

    def touch(self, holder: Holder) -> None:
        """Raise the fence."""

    def read(self, holder: Holder) -> str:
        """Return the text, "" at first."""
        ...

    def write(self, holder: Holder, text: str, /) -> None:
        """Replace the text."""

    def now(self) -> str:
        """Return the text without a guard."""
        ...


class GuardedValue:
    """In memory."""

    def __init__(self) -> None:
        self.guard = MemoryGuard("", title="a value")
        self.touch, self.read, self.write = self.guard.touch, self.guard.read, self.guard.write

    def now(self) -> str:
        return self.guard._value


class GuardedFile:
    """In a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.guard = FileGuard(path)
        self.touch = self.guard.touch

    def read(self, holder: Holder) -> str:
        return (self.guard.read(holder) or b"").decode()

    def write(self, holder: Holder, text: str) -> None:
        self.guard.write(holder, text.encode())

    def now(self) -> str:
        return self.path.read_text() if self.path.exists() else ""


class Bucket:
    """An object store with one object and a conditional put."""

    def __init__(self) -> None:
        self.stored: StoredObject[str] = StoredObject("", 0, "")
        self.puts = 0
        self.before_put: list[Callable[[], object]] = []
        """What happens before the next puts, one each."""

    def read(self) -> StoredObject[str]:
        return self.stored

    def write(self, value: str, token: int, version: str) -> bool:
        if self.before_put:
            self.before_put.pop(0)()
        if version != self.stored.version:
            return False
        self.puts += 1
        self.stored = StoredObject(value, token, f"v{self.puts}")
        return True

    async def read_later(self) -> StoredObject[str]:
        await asyncio.sleep(0)
        return self.read()

    async def write_later(self, value: str, token: int, version: str) -> bool:
        await asyncio.sleep(0)
        return self.write(value, token, version)


class GuardedObject:
    """In an object store."""

    def __init__(self) -> None:
        self.bucket = Bucket()
        self.guard = ObjectGuard(self.bucket.read, self.bucket.write, title="an object")
        self.touch, self.read, self.write = self.guard.touch, self.guard.read, self.guard.write

    def now(self) -> str:
        return self.bucket.stored.value


class AsyncGuardedObject:
    """In an object store, by asyncio."""

    def __init__(self) -> None:
        self.bucket = Bucket()
        self.guard = AsyncObjectGuard(self.bucket.read_later, self.bucket.write_later, title="an object")

    def touch(self, holder: Holder) -> None:
        asyncio.run(self.guard.touch(holder))

    def read(self, holder: Holder) -> str:
        return asyncio.run(self.guard.read(holder))

    def write(self, holder: Holder, text: str) -> None:
        asyncio.run(self.guard.write(holder, text))

    def now(self) -> str:
        return self.bucket.stored.value


class GuardedKey:
    """In Redis."""

    def __init__(self, client: Redis, key: str) -> None:
        self.client = client
        self.key = key
        self.guard = RedisGuard(client)

    def touch(self, holder: Holder) -> None:
        self.guard.touch(holder, self.key)

    def read(self, holder: Holder) -> str:
        return (self.guard.get(holder, self.key) or b"").decode()

    def write(self, holder: Holder, text: str) -> None:
        self.guard.set(holder, self.key, text)

    def now(self) -> str:
        found = self.client.get(self.key)
        assert found is None or isinstance(found, bytes)
        return (found or b"").decode()


class AsyncGuardedKey:
    """In Redis, by asyncio."""

    def __init__(self, port: int, client: Redis, key: str) -> None:
        self._port = port
        self._plain = GuardedKey(client, key)
        self.key = key

    def touch(self, holder: Holder) -> None:
        self._run(lambda guard: guard.touch(holder, self.key))

    def read(self, holder: Holder) -> str:
        found = self._run(lambda guard: guard.get(holder, self.key))
        assert found is None or isinstance(found, bytes)
        return (found or b"").decode()

    def write(self, holder: Holder, text: str) -> None:
        self._run(lambda guard: guard.set(holder, self.key, text))

    def now(self) -> str:
        return self._plain.now()

    def _run(self, work: Callable[[AsyncRedisGuard], object]) -> object:
        async def main() -> object:
            client = AsyncRedis(host="127.0.0.1", port=self._port)
            try:
                return await work(AsyncRedisGuard(client))  # type: ignore[misc]
            finally:
                await client.aclose()

        return asyncio.run(main())


@contextmanager
def redis_client(port: int) -> Generator[Redis]:
    """Connect, and disconnect at the end."""
    with closing(Redis(host="127.0.0.1", port=port)) as client:
        yield client
