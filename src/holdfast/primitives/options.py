"""What may be said of a lock when it is made, and what is allowed."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypedDict

from holdfast.core.limits import check_duration, check_timeout, check_ttl
from holdfast.errors import LeaseLost, UsageError
from holdfast.stores.store import Capabilities


class Options(TypedDict, total=False):
    """The options of everything that can be locked. `Client.lock` says what they mean."""

    lock_delay: float
    max_hold: float | None
    min_hold: float
    on_lost: Callable[[LeaseLost], object] | None
    on_revoke: Callable[[Any], object] | None
    detect_deadlock: bool


class PlainOptions(Options, total=False):
    """The options of a lock that one holder has at a time."""

    linger: float
    reentrant: bool


@dataclass(slots=True, frozen=True, kw_only=True)
class LockOptions:
    """How a lock is to be acquired and kept. Seconds."""

    ttl: float
    timeout: float | None
    lock_delay: float = 0.0
    max_hold: float | None = None
    min_hold: float = 0.0
    on_lost: Callable[[LeaseLost], object] | None = None
    on_revoke: Callable[[Any], object] | None = None
    detect_deadlock: bool = False

    def check(self, able: Capabilities) -> "LockOptions":
        """Return self if a store with these capabilities allows every value; else raise UsageError."""
        check_ttl(self.ttl, able)
        check_timeout(self.timeout)
        check_duration(self.lock_delay, "lock_delay")
        if self.max_hold is not None:
            check_duration(self.max_hold, "max_hold (or None, for no limit)", able.min_ttl)
        self._check_min_hold()
        return self

    def _check_min_hold(self) -> None:
        check_duration(self.min_hold, "min_hold")
        if self.min_hold > self.ttl:
            raise UsageError(
                f"min_hold={self.min_hold:g} is longer than the ttl of {self.ttl:g} s: a holder that dies would be "
                "forgotten before. Take a longer ttl, or a shorter min_hold."
            )
        if self.max_hold is not None and self.min_hold > self.max_hold:
            raise UsageError(
                f"min_hold={self.min_hold:g} is longer than max_hold={self.max_hold:g}, after which the lease is lost."
            )


@dataclass(slots=True, frozen=True, kw_only=True)
class PlainLockOptions(LockOptions):
    """How a lock that one holder has at a time is to be acquired and kept."""

    linger: float = 0.0
    reentrant: bool = False

    def check(self, able: Capabilities) -> "PlainLockOptions":
        """Return self if a store with these capabilities allows every value; else raise UsageError."""
        LockOptions.check(self, able)
        check_duration(self.linger, "linger")
        if self.linger and self.min_hold:
            message = "linger and min_hold exclude each other: what is kept for others to stay away is not kept for us"
            raise UsageError(message)
        if self.linger and self.detect_deadlock:
            message = "linger and detect_deadlock exclude each other: what is looked at for deadlocks is never kept"
            raise UsageError(message)
        return self
