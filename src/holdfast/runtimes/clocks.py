"""The clocks of this machine.

Python's time.monotonic() stands still while a machine is suspended: a holder that wakes up an hour later would
believe that no time went by. CLOCK_BOOTTIME counts that hour (Linux); CLOCK_MONOTONIC_RAW does so on macOS.
"""

import sys
import time
from collections.abc import Callable
from functools import partial

if sys.platform == "linux":
    STEADY = time.CLOCK_BOOTTIME
elif sys.platform == "darwin":
    STEADY = time.CLOCK_MONOTONIC_RAW
else:
    STEADY = time.CLOCK_MONOTONIC


steady: Callable[[], float] = partial(time.clock_gettime, STEADY)
"""Return seconds from a clock that never steps and counts time spent suspended."""


def steady_micros() -> int:
    """Return the steady clock in whole microseconds."""
    return time.clock_gettime_ns(STEADY) // 1000


def wall_micros() -> int:
    """Return the wall clock in whole microseconds. It steps, and may be wrong."""
    return time.time_ns() // 1000
