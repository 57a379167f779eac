"""The clocks of this machine.

Python's time.monotonic() stands still while a Linux machine or a Mac is suspended: a holder that wakes up an hour later
would still trust its lease. CLOCK_BOOTTIME counts that hour on Linux, CLOCK_MONOTONIC_RAW on macOS. Windows has
neither; its performance counter counts that hour, too.
"""

import sys
import time
from collections.abc import Callable
from functools import partial

NAMES = {"linux": "CLOCK_BOOTTIME", "darwin": "CLOCK_MONOTONIC_RAW"}

steady: Callable[[], float] = time.perf_counter
"""Return seconds of a clock that never steps, and that counts the time that the machine is suspended."""

_steady_nanos: Callable[[], int] = time.perf_counter_ns

if hasattr(time, "clock_gettime"):
    _clock: int = getattr(time, NAMES.get(sys.platform, "CLOCK_MONOTONIC"))
    steady = partial(time.clock_gettime, _clock)
    _steady_nanos = partial(time.clock_gettime_ns, _clock)


def steady_micros() -> int:
    """Return the steady clock in whole microseconds."""
    return _steady_nanos() // 1000


def wall_micros() -> int:
    """Return the wall clock in whole microseconds. It may step, and may be wrong."""
    return time.time_ns() // 1000
