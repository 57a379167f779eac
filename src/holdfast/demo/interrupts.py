"""Signals that end the demo early: Ctrl-C, SIGTERM, SIGHUP. No process and no folder stays behind.

An exception out of a signal handler may strike anywhere, also between the start of a process and the note that it
was started. So they are put off while workers are being started or ended.
"""

import contextlib
import signal
from collections.abc import Generator
from types import FrameType

SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))

SIGNALLED = 128
"""The status to exit with is this, plus the number of the signal."""


@contextlib.contextmanager
def heeded() -> Generator[None, None, None]:
    """Turn signals into SystemExit with status 128+N; the first one only, and none that is ignored."""
    before = {number: signal.signal(number, _heed) for number in SIGNALS if signal.getsignal(number) != signal.SIG_IGN}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def put_off() -> Generator[None, None, None]:
    """Let no signal strike in here, but right after."""
    came: list[int] = []
    heeded_here = [number for number in SIGNALS if signal.getsignal(number) is _heed]
    for each in heeded_here:
        signal.signal(each, lambda number, _frame: came.append(number))
    try:
        yield
    finally:
        for each in heeded_here:
            signal.signal(each, _heed)
    if came:
        _heed(came[0])


def _heed(number: int, _frame: FrameType | None = None) -> None:
    for each in SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    raise SystemExit(SIGNALLED + number)
