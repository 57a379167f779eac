"""What may be said of a lock when it is made, and what is allowed."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypedDict

from holdfast.core.limits import check_duration, check_timeout
from holdfast.errors import LeaseLost, UsageError


class Options(TypedDict, total=False):
    """The options of everything that can be locked. `Client.lock` says what they mean."""

    lock_delay: float
    max_hold: float | None
    on_lost: Callable[[LeaseLost], object] | None
    detect_deadlock: bool


@dataclass(slots=True, frozen=True, kw_only=True)
class LockOptions:
    """How a lock is to be acquired and kept. Seconds."""

    ttl: float
    timeout: float | None
    lock_delay: float = 0.0
    max_hold: float | None = None
    on_lost: Callable[[LeaseLost], object] | None = None
    detect_deadlock: bool = False

    def check(self, min_ttl: float, max_ttl: float) -> "LockOptions":
        """Return self if every value is allowed; else raise UsageError."""
        check_duration(self.ttl, "ttl", min_ttl)
        if self.ttl > max_ttl:
            raise UsageError(
                f"ttl={self.ttl:g} is longer than this store's max_ttl of {max_ttl:g} s, for which it grants nothing "
                "after a restart. Take a shorter ttl (a lease is renewed for as long as it is held), or give the store "
                f"a longer max_ttl, as in redis://host?max_ttl={self.ttl:g}."
            )
        check_timeout(self.timeout)
        check_duration(self.lock_delay, "lock_delay")
        if self.max_hold is not None:
            check_duration(self.max_hold, "max_hold (or None, for no limit)", min_ttl)
        return self
