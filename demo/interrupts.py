"""The signals that end the demo early: SIGINT (Ctrl-C), SIGTERM and SIGHUP. They leave no process and no folder behind.

A signal handler may raise its exception at any point, also between the start of a process and the record of it. So the
signals are deferred while workers are started or ended.
"""

import contextlib
import signal
from collections.abc import Generator
from types import FrameType

SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))

SIGNALLED = 128
"""Add the number of the signal to get the exit status."""


@contextlib.contextmanager
def handled() -> Generator[None, None, None]:
    """Turn the first signal into SystemExit with status 128+N. Signals that are ignored stay ignored."""
    before = {number: signal.signal(number, _exit) for number in SIGNALS if signal.getsignal(number) != signal.SIG_IGN}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def deferred() -> Generator[None, None, None]:
    """Defer signals to the end of the `with`."""
    received: list[int] = []
    handled_here = [number for number in SIGNALS if signal.getsignal(number) is _exit]
    for each in handled_here:
        signal.signal(each, lambda number, _frame: received.append(number))
    try:
        yield
    finally:
        for each in handled_here:
            signal.signal(each, _exit)
    if received:
        _exit(received[0])


def _exit(number: int, _frame: FrameType | None = None) -> None:
    for each in SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    raise SystemExit(SIGNALLED + number)
