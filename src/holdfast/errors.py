"""Every exception that Holdfast raises, in one tree.

The rule of this file: a message is a sentence that says what happened and what to do about it, and it never
contains a secret of a URL.
"""


class HoldfastError(Exception):
    """Base of every error that Holdfast raises."""


class UsageError(HoldfastError, ValueError):
    """The call cannot be right, whatever the store says; the message tells what is allowed."""


class LockTimeout(HoldfastError, TimeoutError):
    """The lock was not granted within the timeout. Nothing is held and no place in the queue is kept."""


class LeaseLost(HoldfastError):
    """The lease can no longer be trusted: another holder may be at work. Stop, and do not write."""


class ForkedLeaseError(UsageError):
    """A lease was used in a child process of the process that acquired it. Acquire one in the child."""


class StaleTokenError(HoldfastError):
    """A protected resource has seen a newer fencing token than this one, and refused it."""


class StoreError(HoldfastError):
    """The store could not do what was asked; the error of the store's own client is the cause."""


class StoreUnavailable(StoreError):
    """The store did not answer, or not in time. Asking again later may succeed."""


class OutcomeUnknown(StoreUnavailable):
    """The store did not answer, and the request may or may not have been carried out."""
