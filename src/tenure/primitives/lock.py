"""The lock, which has one holder at a time."""

from tenure.lease import AsyncLease, Lease
from tenure.primitives.base import AsyncLockBase, BlockingLockBase, F, LockBase, Sessions
from tenure.primitives.options import Busy_co, PlainLockOptions


class _PlainLockBase(LockBase[F]):
    def __init__(self, client: Sessions, name: str, options: PlainLockOptions) -> None:
        super().__init__(client, name, options, linger=options.linger, fair_after=options.bound())


class Lock(_PlainLockBase[Lease], BlockingLockBase[Busy_co]):
    """A lock of a `Client`: use it with `with`, as a decorator, or by calling `acquire`. Made by `Client.lock`."""


class AsyncLock(_PlainLockBase[AsyncLease], AsyncLockBase[Busy_co]):
    """A lock of an `AsyncClient`: use it with `async with`, as a decorator, or by calling `acquire`.

    Made by `AsyncClient.lock`.
    """
