"""What became of a lease when its holder let go of it."""

from enum import Enum


class Outcome(Enum):
    """The answer to a release."""

    RELEASED = "released"
    """It was ours to the end, and is free now or already passed to the next waiter."""

    EXPIRED = "expired"
    """It had run out before the release arrived; as far as the store remembers, nobody took it since."""

    TAKEN_OVER = "taken over"
    """It had run out, or was taken by force, and the store has since given out a newer token."""

    UNKNOWN = "unknown"
    """The store did not answer. If the release did not arrive, the lease ends at its ttl."""

    @property
    def kept(self) -> bool:
        """Whether nothing speaks against the lease having been ours until the release."""
        return self in (Outcome.RELEASED, Outcome.UNKNOWN)
