"""The clocks of this machine.

Python's time.monotonic() stands still while a machine is suspended: a holder that wakes up an hour later would
believe that no time went by. CLOCK_BOOTTIME counts that hour (Linux); CLOCK_MONOTONIC_RAW does so on macOS.
"""

import sys
import time

if sys.platform == "linux":
    _STEADY = time.CLOCK_BOOTTIME
elif sys.platform == "darwin":
    _STEADY = time.CLOCK_MONOTONIC_RAW
else:
    _STEADY = time.CLOCK_MONOTONIC


def steady() -> float:
    """Return seconds from a clock that never steps and counts time spent suspended."""
    return time.clock_gettime(_STEADY)


def steady_micros() -> int:
    """Return the steady clock in whole microseconds."""
    return time.clock_gettime_ns(_STEADY) // 1000


def wall_micros() -> int:
    """Return the wall clock in whole microseconds. It steps, and may be wrong."""
    return time.time_ns() // 1000
