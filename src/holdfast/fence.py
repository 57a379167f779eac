"""The other half of a fencing token: what a protected resource does with it.

A lease can end while its holder is paused, and a paused holder cannot know. So the resource itself must refuse
whoever comes late. Checking writes alone is not enough: the rule is to raise the fence at the *first touch*, before
anything is read. Else an old holder can still write between a new holder's read and its write, and that update is
lost (models/fence.pml finds it at once).

In a database the fence is a column, raised in the same transaction as the read::

    UPDATE record SET fence = :token WHERE id = :id AND fence <= :token   -- no row: StaleTokenError
    SELECT ... ; UPDATE record SET ... WHERE id = :id AND fence = :token  -- no row: StaleTokenError

`Fence` is the same rule for a resource that lives in the memory of one process.
"""

from holdfast.errors import StaleTokenError


class Fence:
    """The highest fencing token that a resource has seen. Guard it by the resource's own mutex."""

    __slots__ = ("_highest",)

    def __init__(self, highest: int = 0) -> None:
        """Start with the highest token that is already known."""
        self._highest = highest

    @property
    def highest(self) -> int:
        """The highest token seen."""
        return self._highest

    def touch(self, token: int) -> None:
        """Let in the holder of `token`, for reading or writing, and shut out all older ones.

        An equal token is let in: one holder touches more than once. Raises StaleTokenError for a smaller one.
        """
        if token < self._highest:
            message = (
                f"token {token} is stale: a holder with token {self._highest} has been here. The lease that came "
                "with it has ended; nothing was read or written."
            )
            raise StaleTokenError(message)
        self._highest = token
