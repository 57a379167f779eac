"""A guard for an object in an object store that has a conditional put, which the user makes: S3, GCS, Azure Blobs.

The token stands in the object or in its metadata, so that one put writes both. The put succeeds only if nobody has
written since the object was read. So the check and the write are one step, although they are two requests.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from tenure.callables import finished
from tenure.errors import StoreUnavailable
from tenure.escaping import shown
from tenure.fencing.holders import Holder, refusal, token_of

T = TypeVar("T")

TRIES = 100
"""How often a call begins again because another client has written, before it gives up."""


@dataclass(slots=True, frozen=True)
class StoredObject(Generic[T]):
    """An object as it was read."""

    value: T
    """What the user stores."""
    token: int
    """The token that was stored with it; 0: none yet."""
    version: str
    """What a put compares: the ETag, or the generation. "" if there is no object yet."""


class _ObjectGuardBase:
    def __init__(self, title: str) -> None:
        self._title = title

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._title!r}>"

    def _check(self, holder: Holder, stored: StoredObject[T]) -> int:
        """Return the token of a holder. Raises StaleTokenError if the object has seen a greater one."""
        token = token_of(holder)
        if token < stored.token:
            raise refusal(self._title, holder, stored.token)
        return token

    def _gave_up(self) -> StoreUnavailable:
        return StoreUnavailable(
            f"{shown(self._title)} was not written: others have written it {TRIES} times meanwhile. Try again"
        )


class ObjectGuard(_ObjectGuardBase, Generic[T]):
    """An object that only holders of a lock read and write, and none that comes late.

    `read` returns the object, with version "" if there is none. `write(value, token, version)` puts both the value and
    the token, on the condition that the object still has this version (`If-Match`; for version "" that there is none:
    `If-None-Match: *`); it returns False if the condition failed, and raises if anything else did.

    Each call raises the fence to the token of its holder first, and an equal token is accepted. Raises StaleTokenError
    for a smaller token, StoreUnavailable if others write all the time, and what `read` and `write` raise. If `write`
    raises, the object may be written: the same call may be repeated.
    """

    def __init__(
        self,
        read: Callable[[], StoredObject[T]],
        write: Callable[[T, int, str], bool],
        *,
        title: str = "the object",
    ) -> None:
        """Guard an object. `title` stands in errors."""
        super().__init__(title)
        self._read = read
        self._write = write

    def touch(self, holder: Holder) -> None:
        """Refuse all older holders from now on."""
        self.read(holder)

    def read(self, holder: Holder) -> T:
        """Return the value, after the fence is raised. It costs a put if this is the first touch of a token."""
        for _ in range(TRIES):
            stored = self._read()
            token = self._check(holder, stored)
            if token == stored.token or self._write(stored.value, token, stored.version):
                return stored.value
        raise self._gave_up()

    def write(self, holder: Holder, value: T) -> None:
        """Replace the value."""
        self.update(holder, lambda _: value)

    def update(self, holder: Holder, change: Callable[[T], T]) -> T:
        """Replace the value by what `change` makes of it, which may be called again; return the new value."""
        for _ in range(TRIES):
            stored = self._read()
            token = self._check(holder, stored)
            value = finished(change, change(stored.value))
            if self._write(value, token, stored.version):
                return value
        raise self._gave_up()


class AsyncObjectGuard(_ObjectGuardBase, Generic[T]):
    """The same for asyncio, with a `read` and a `write` that are awaited. See `ObjectGuard`."""

    def __init__(
        self,
        read: Callable[[], Awaitable[StoredObject[T]]],
        write: Callable[[T, int, str], Awaitable[bool]],
        *,
        title: str = "the object",
    ) -> None:
        """Guard an object. `title` stands in errors."""
        super().__init__(title)
        self._read = read
        self._write = write

    async def touch(self, holder: Holder) -> None:
        """Refuse all older holders from now on."""
        await self.read(holder)

    async def read(self, holder: Holder) -> T:
        """Return the value, after the fence is raised."""
        for _ in range(TRIES):
            stored = await self._read()
            token = self._check(holder, stored)
            if token == stored.token or await self._write(stored.value, token, stored.version):
                return stored.value
        raise self._gave_up()

    async def write(self, holder: Holder, value: T) -> None:
        """Replace the value."""
        await self.update(holder, lambda _: value)

    async def update(self, holder: Holder, change: Callable[[T], T]) -> T:
        """Replace the value by what `change` makes of it; return the new value."""
        for _ in range(TRIES):
            stored = await self._read()
            token = self._check(holder, stored)
            value = finished(change, change(stored.value))
            if await self._write(value, token, stored.version):
                return value
        raise self._gave_up()
