"""What ends the demo early: Ctrl-C, SIGTERM, SIGHUP. Each ends it in order: no process and no folder stays.

An exception out of a signal handler may strike anywhere, also between the start of a process and the note that it
was started. So it is put off while workers are being started or ended.
"""

import contextlib
import signal
from collections.abc import Generator
from types import FrameType

from holdfast.cli.say import Status

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_putting_off = False
_came = 0


@contextlib.contextmanager
def heeded() -> Generator[None, None, None]:
    """Turn signals into SystemExit with status 128+N; the first one only, and none that is ignored."""
    before = {number: signal.signal(number, _heed) for number in ENDING if signal.getsignal(number) != signal.SIG_IGN}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def put_off() -> Generator[None, None, None]:
    """Let no signal strike in here, but right after."""
    global _putting_off, _came  # noqa: PLW0603 - signals are the process's own
    _putting_off = True
    try:
        yield
    finally:
        _putting_off = False
    number, _came = _came, 0
    if number:
        raise SystemExit(Status.SIGNALLED + number)


def _heed(number: int, _frame: FrameType | None) -> None:
    global _came  # noqa: PLW0603 - signals are the process's own
    for each in ENDING:
        signal.signal(each, signal.SIG_IGN)
    if not _putting_off:
        raise SystemExit(Status.SIGNALLED + number)
    _came = number
