"""A guard for a value in the memory of one process, such as a service that many nodes write to."""

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from tenure.callables import finished
from tenure.errors import StaleTokenError
from tenure.fence import Fence
from tenure.fencing.holders import Holder, refusal, token_of

T = TypeVar("T")


class MemoryGuard(Generic[T]):
    """A value that only holders of a lock read and write, and none that comes late. Safe for threads and asyncio.

    Each call raises the fence to the token of its holder first: from then on smaller tokens are refused. An equal token
    is accepted, for one holder does several things. Raises StaleTokenError for a smaller token; then nothing was read
    or written.
    """

    def __init__(self, value: T, *, title: str = "the value", highest: int = 0) -> None:
        """Guard a value. `title` stands in errors; `highest` is the greatest token that was seen before."""
        self._value = value
        self._title = title
        self._fence = Fence(highest)
        self._mutex = threading.Lock()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._title!r} token {self._fence.highest}>"

    @property
    def highest(self) -> int:
        """The greatest token that was seen."""
        return self._fence.highest

    def touch(self, holder: Holder) -> None:
        """Refuse all older holders from now on."""
        with self._mutex:
            self._touch(holder)

    def read(self, holder: Holder) -> T:
        """Return the value."""
        with self._mutex:
            self._touch(holder)
            return self._value

    def write(self, holder: Holder, value: T) -> None:
        """Replace the value."""
        with self._mutex:
            self._touch(holder)
            self._value = value

    def update(self, holder: Holder, change: Callable[[T], T]) -> T:
        """Replace the value by what `change` makes of it, in one step; return the new value. `change` must be brief."""
        with self._mutex:
            self._touch(holder)
            self._value = finished(change, change(self._value))
            return self._value

    def _touch(self, holder: Holder) -> None:
        try:
            self._fence.touch(token_of(holder))
        except StaleTokenError:
            raise refusal(self._title, holder, self._fence.highest) from None
