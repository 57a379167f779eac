"""How a protected resource uses fencing tokens.

A lease can end while its holder is paused, and the holder cannot notice. So the resource itself must refuse a holder
that comes late. Checking writes alone is not enough: the resource must raise the fence at the *first touch*, before the
holder reads anything. Otherwise an old holder can still write between a new holder's read and its write, and one update
is lost (models/fence.pml finds this at once).

In a database the fence is a column, raised in the same transaction as the read::

    UPDATE record SET fence = :token WHERE id = :id AND fence <= :token   -- no row: StaleTokenError
    SELECT ... ; UPDATE record SET ... WHERE id = :id AND fence = :token  -- no row: StaleTokenError

`Fence` is the same rule for a resource in the memory of one process.
"""

from tenure.errors import StaleTokenError

FENCES = "tenure_fences"
"""The table of fences in a database that a guard uses if the caller names none."""


class Fence:
    """The highest fencing token that a resource has seen. Protect it by the mutex of the resource."""

    __slots__ = ("_highest",)

    def __init__(self, highest: int = 0) -> None:
        """Start with the highest token seen so far."""
        self._highest = highest

    @property
    def highest(self) -> int:
        """The highest token seen."""
        return self._highest

    def touch(self, token: int) -> None:
        """Let the holder of `token` read and write, and refuse all older tokens from now on.

        An equal token is accepted, for one holder touches more than once. Raises StaleTokenError for a smaller token.
        """
        if token < self._highest:
            message = (
                f"token {token} is stale: a holder with token {self._highest} has used this resource. The lease of "
                f"token {token} has ended; nothing was read or written."
            )
            raise StaleTokenError(message)
        self._highest = token
