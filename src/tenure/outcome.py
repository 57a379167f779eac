"""What became of a lease: the reply to its release."""

from enum import Enum


class Outcome(Enum):
    """The reply to a release."""

    RELEASED = "released"
    """The lease lasted until the release. The name is free now, or the next waiter holds it."""

    EXPIRED = "expired"
    """The lease was lost before the release arrived. As far as the store remembers, nobody held the name since."""

    TAKEN_OVER = "taken over"
    """The lease had expired or was revoked, and the store has issued a newer token since."""

    UNKNOWN = "unknown"
    """The store did not answer; or not the first time, and then it knew neither the lease nor whether it was revoked.

    If the release did not arrive, the lease ends at its ttl. It had not run out before the release.
    """

    DETACHED = "detached"
    """The lease was detached before: its handle has it, and nothing was released."""

    @property
    def kept(self) -> bool:
        """Whether the lease lasted until the release, as far as is known."""
        return self in (Outcome.RELEASED, Outcome.UNKNOWN, Outcome.DETACHED)
