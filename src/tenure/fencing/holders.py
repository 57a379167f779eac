"""Who shows a token to a guard, and how the guard refuses it."""

from typing import Protocol

from tenure.errors import StaleTokenError, UsageError
from tenure.escaping import shown


class Tokened(Protocol):
    """A lease, as far as a guard needs it."""

    @property
    def name(self) -> str:
        """The name that is held."""
        ...

    @property
    def owner(self) -> str:
        """The owner that others see."""
        ...

    @property
    def token(self) -> int:
        """The fencing token."""
        ...


Holder = Tokened | int
"""A lease, or the token of one."""


def token_of(holder: Holder) -> int:
    """Return the token of a holder. Raises UsageError if it is none, or if the store of the lease has no tokens."""
    token = holder if isinstance(holder, int) else holder.token
    if isinstance(token, bool) or token < 1:
        raise UsageError(f"a guard needs a lease or its fencing token, which is a number above 0, not {holder!r}")
    return token


def refusal(resource: str, holder: Holder, seen: int) -> StaleTokenError:
    """Return the error of a holder that comes late: `resource` has seen the token `seen`."""
    who = f"token {holder}" if isinstance(holder, int) else _title(holder)
    return StaleTokenError(
        f"{who} is stale: {shown(resource)} has seen token {seen}, of a later holder. Nothing was read or written."
    )


def _title(lease: Tokened) -> str:
    owner = f" ({shown(lease.owner)})" if lease.owner else ""
    return f"token {lease.token} of {shown(lease.name)}{owner}"
