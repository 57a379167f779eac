"""The shape of a loss, for both colours; see `faces.py`."""

from typing import Protocol

from holdfast.lease import Loss


class AnyLoss(Protocol):
    """The event of a lease's loss."""

    def is_set(self) -> bool:
        """Tell whether the lease is lost."""
        ...

    async def wait(self, timeout: float | None = None) -> bool:
        """Wait for the loss."""
        ...


class BlockingLoss:
    """`Loss` in the shape of `AsyncLoss`."""

    def __init__(self, loss: Loss) -> None:
        """Wrap it."""
        self._loss = loss

    def is_set(self) -> bool:
        """Tell whether the lease is lost."""
        return self._loss.is_set()

    async def wait(self, timeout: float | None = None) -> bool:
        """Block until the loss."""
        return self._loss.wait(timeout)
