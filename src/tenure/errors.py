"""Every exception that Tenure raises, in one tree.

The rule of this file: a message is a sentence that says what happened and what to do. It never contains a secret of a
URL, and text that others chose is escaped. A traceback ends with the address of the section of docs/errors.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from tenure.escaping import STORE_ERROR, shown
from tenure.explanation import Explanation

DOCS = "https://tenure.readthedocs.io/page/"
"""Where the site of the documentation is, in its latest release."""


class TenureError(Exception):
    """Base of every error that Tenure raises. Its note is the address of what the documentation says of the error."""

    _address: ClassVar = f"{DOCS}errors.html#tenureerror"

    def __init_subclass__(cls) -> None:
        if cls.__module__ == __name__:  # an error of a store's own has the section of the public class that it is
            cls._address = f"{DOCS}errors.html#{cls.__name__.lower()}"

    def __init__(self, *args: object) -> None:
        """Take the message."""
        super().__init__(*args)
        self.add_note(self._address)


class BlockedEventLoop(RuntimeWarning):
    """A blocking `Client` is used in a thread that runs an event loop. Filter this warning if you mean it."""


class UsageError(TenureError, ValueError):
    """The call is wrong, whatever the state of the store; the message says what is allowed."""


class UnknownArgument(UsageError, TypeError):
    """The call does not take this keyword; the message names the keyword that was probably meant."""


class SelfDeadlock(UsageError):
    """A thread or task asked for a lock that its own `with` holds, and would wait for ever. It is in no queue.

    It is not raised where another thread or task may release the lease, and never by a semaphore.
    """

    def __init__(self, name: str, token: int, advice: str) -> None:
        """Name the lock, the token of its present lease, and what to do instead."""
        super().__init__(
            f"this thread or task already holds {name!r} (token {token}), and would wait for itself for ever. {advice}"
        )


@dataclass(slots=True, frozen=True)
class Vote:
    """The reply of one node of a quorum."""

    node: str
    """The node, without secrets."""
    said: str
    """That the node granted, who holds the name there, how long the node gives no vote, or what went wrong."""


class LockTimeout(TenureError, TimeoutError):
    """The lock was not granted within the timeout. Nothing is held, and the request has left the queue."""

    def __init__(
        self,
        message: str,
        votes: Sequence[Vote] = (),
        *,
        wait: float | None = None,
        explanation: Explanation | None = None,
    ) -> None:
        """Say what happened; on a quorum also the reply of each node."""
        super().__init__(message + _text_of(votes))
        self.explanation = explanation
        """Of a lock of any kind: why it was not granted, who holds it and who waits. None: not known."""
        self.votes = tuple(votes)
        self.wait = wait
        """Of a limit: how many seconds the wait would have been; None: unknown."""


def _text_of(votes: Sequence[Vote]) -> str:
    """Return the replies of a quorum's nodes as text, to append to a message."""
    return f" ({'; '.join(f'{vote.node}: {vote.said}' for vote in votes)})" if votes else ""


@dataclass(slots=True, frozen=True)
class Wait:
    """One waiter, and the holder that it waits for."""

    waiter: str
    """The owner of the waiter."""
    name: str
    holder: str
    """The owner of the lease."""
    waiting: str
    """The thread or task that waits: an id, a space, and its name."""
    holding: str
    """The thread or task that holds, in the same form."""

    def __str__(self) -> str:
        waiting, holding = self.waiting.partition(" ")[2], self.holding.partition(" ")[2]
        return (
            f"{shown(self.waiter)} ({shown(waiting)}) waits for {self.name!r}, "
            f"which {shown(self.holder)} ({shown(holding)}) holds"
        )


class DeadlockDetected(TenureError):
    """Several threads or tasks wait for each other in a circle; this one was chosen to give up.

    It has left the queue. Release the leases of this thread or task, and acquire them again.
    """

    def __init__(self, waits: Sequence[Wait]) -> None:
        """Name every wait of the circle; the first is that of the thread or task that gets this error."""
        self.waits = tuple(waits)
        circle = "; ".join(map(str, waits))
        super().__init__(
            f"a deadlock was found: {circle}. Release your leases and try again. To avoid deadlocks, acquire these "
            "locks in the same order everywhere, or all at once with a multilock."
        )


class JobNotDone(TenureError):
    """A job that runs once is not done: its attempts have failed, another node runs it, or its window is over."""


class FingerprintMismatch(UsageError):
    """The key of a job came before with another fingerprint: nothing was run. A web handler answers 422."""


class ResultNotKept(UsageError):
    """A job is done, and does not run again, but its result could not be kept: every caller gets this error."""

    def __init__(self, message: str, value: object = None) -> None:
        """Say why the result was not kept, and what to return instead."""
        super().__init__(message)
        self.value = value
        """What the function returned, in the call that ran it; else None."""


class Stopped(TenureError):
    """The wait for a lock was stopped, or not begun: by a `Stop`, or because the client is being drained.

    Nothing is held, and the request has left the queue.
    """


class LeaseLost(TenureError):
    """The lease has ended, or may have: another holder may be at work. Stop, and do not write."""


class ForkedLeaseError(UsageError):
    """A lease was used in a child process of the process that acquired it. Acquire one in the child."""


class StaleTokenError(TenureError):
    """A protected resource refused a fencing token because it has seen a newer one."""


class StoreError(TenureError):
    """The store could not carry out a request; the error of the store's client library is the cause."""

    def __init__(self, message: str) -> None:
        """Say what happened. The message may quote a server, so it is escaped, and cut if it is too long."""
        super().__init__(shown(message, STORE_ERROR))


class StoreUnavailable(StoreError):
    """The store did not answer in time. Trying again later may succeed."""

    def __init__(self, message: str, votes: Sequence[Vote] = ()) -> None:
        """Say what happened."""
        super().__init__(message)
        self.votes = tuple(votes)
        """On a quorum: the reply of each node."""


class OutcomeUnknown(StoreUnavailable):
    """The store did not answer in time, and may or may not have carried out the request."""
