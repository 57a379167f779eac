"""Every exception that Holdfast raises, in one tree.

The rule of this file: a message is a sentence that says what happened and what to do about it, and it never
contains a secret of a URL, nor text from others that is not escaped.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.escaping import STORE_ERROR, shown


class HoldfastError(Exception):
    """Base of every error that Holdfast raises."""


class BlockedEventLoop(RuntimeWarning):
    """A blocking `Client` is used in a thread that runs an event loop. A warning: filter it if that is meant."""


class UsageError(HoldfastError, ValueError):
    """The call cannot be right, whatever the store says; the message tells what is allowed."""


class UnknownArgument(UsageError, TypeError):
    """A keyword that a call does not take; the message tells what was meant."""


class SelfDeadlock(UsageError):
    """A thread or task that holds a lock would wait for itself, for ever. It does not, and stands in no queue."""

    def __init__(self, name: str, token: int, advice: str) -> None:
        """Name the lock, the token of the lease that is held, and what to do instead."""
        super().__init__(
            f"this thread or task holds {name!r} already (token {token}), and would wait for itself for ever. {advice}"
        )


@dataclass(slots=True, frozen=True)
class Vote:
    """What one of the nodes of a quorum said."""

    node: str
    """Which node, without secrets."""
    said: str
    """That it granted, by whom the name is held there, for how long it gives no vote, or what went wrong."""


class LockTimeout(HoldfastError, TimeoutError):
    """The lock was not granted within the timeout. Nothing is held and no place in the queue is kept."""

    def __init__(self, message: str, votes: Sequence[Vote] = ()) -> None:
        """Say what happened; on a quorum also what each node said."""
        super().__init__(message + tell(votes))
        self.votes = tuple(votes)


def tell(votes: Sequence[Vote]) -> str:
    """Tell what the nodes of a quorum said, to be added to what happened."""
    return f" ({'; '.join(f'{vote.node}: {vote.said}' for vote in votes)})" if votes else ""


@dataclass(slots=True, frozen=True)
class Wait:
    """One who waits for a name that another holds."""

    waiter: str
    """The owner that waits."""
    name: str
    holder: str
    """The owner that holds."""
    waiting: str
    """Which thread or task of the owner: an id, a space, and what it is called."""
    holding: str
    """The same of the holder."""

    def __str__(self) -> str:
        waiting, holding = self.waiting.partition(" ")[2], self.holding.partition(" ")[2]
        return (
            f"{shown(self.waiter)} ({shown(waiting)}) waits for {self.name!r}, "
            f"which {shown(self.holder)} ({shown(holding)}) holds"
        )


class DeadlockDetected(HoldfastError):
    """Several wait for each other in a circle, and none would ever be granted. This one was told to give up.

    It stands in no queue any more. Release what this thread or task holds, and begin again.
    """

    def __init__(self, waits: Sequence[Wait]) -> None:
        """Name every edge of the circle; the first is that of who is told."""
        self.waits = tuple(waits)
        told = "; ".join(map(str, waits))
        super().__init__(
            f"a deadlock: {told}. Release what you hold and begin again; and take these locks in the same order "
            "everywhere, or all at once."
        )


class Stopped(HoldfastError):
    """A thread was told to wait no more, by the `Stop` that it was given. Nothing is held or left behind."""


class LeaseLost(HoldfastError):
    """The lease can no longer be trusted: another holder may be at work. Stop, and do not write."""


class ForkedLeaseError(UsageError):
    """A lease was used in a child process of the process that acquired it. Acquire one in the child."""


class StaleTokenError(HoldfastError):
    """A protected resource has seen a newer fencing token than this one, and refused it."""


class StoreError(HoldfastError):
    """The store could not do what was asked; the error of the store's own client is the cause."""

    def __init__(self, message: str) -> None:
        """Say what happened. Part of it may be a server's own text: it is escaped, and what is too long is cut."""
        super().__init__(shown(message, STORE_ERROR))


class StoreUnavailable(StoreError):
    """The store did not answer, or not in time. Asking again later may succeed."""

    def __init__(self, message: str, votes: Sequence[Vote] = ()) -> None:
        """Say what happened."""
        super().__init__(message)
        self.votes = tuple(votes)
        """On a quorum: what each node said."""


class OutcomeUnknown(StoreUnavailable):
    """The store did not answer, and the request may or may not have been carried out."""
