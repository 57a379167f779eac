"""The lock, which has one holder at a time."""

from dataclasses import replace

from tenure.primitives.base import AsyncLockBase, BlockingLockBase, Sessions
from tenure.primitives.options import PlainLockOptions


class Lock(BlockingLockBase):
    """A lock of a `Client`: use it with `with`, as a decorator, or by calling `acquire`. Made by `Client.lock`."""

    def __init__(self, client: Sessions, name: str, options: PlainLockOptions) -> None:
        """Make a lock; nothing is acquired yet."""
        super().__init__(client, name, options)
        self._spec = replace(self._spec, linger=options.linger, fair_after=options.bound())
        self._plain = self._plain and not options.linger


class AsyncLock(AsyncLockBase):
    """A lock of an `AsyncClient`: use it with `async with`, as a decorator, or by calling `acquire`.

    Made by `AsyncClient.lock`.
    """

    def __init__(self, client: Sessions, name: str, options: PlainLockOptions) -> None:
        """Make a lock; nothing is acquired yet."""
        super().__init__(client, name, options)
        self._spec = replace(self._spec, linger=options.linger, fair_after=options.bound())
        self._plain = self._plain and not options.linger
