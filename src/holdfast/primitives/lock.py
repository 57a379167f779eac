"""The lock: a name that one holder has at a time."""

from holdfast.primitives.base import AsyncLockBase, BlockingLockBase


class Lock(BlockingLockBase):
    """A lock of a `Client`: use it with `with`, as a decorator, or by calling `acquire`. Made by `Client.lock`."""


class AsyncLock(AsyncLockBase):
    """A lock of an `AsyncClient`: use it with `async with`, as a decorator, or by calling `acquire`.

    Made by `AsyncClient.lock`.
    """
