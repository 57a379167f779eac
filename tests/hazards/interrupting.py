"""Interrupt a piece of work wherever Python may run a signal handler that raises.

CPython runs handlers when a function begins, after a call of a function that is written in C (`sys.setprofile` reports
both), and during a wait. It runs none between any other two bytecodes: else no `with mutex` of Python would be safe.
"""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

TESTS = str(Path(__file__).parent)


WAITING = ("acquire", "sleep", "poll", "recv", "recv_into", "select", "sendall")
"""Functions that run handlers while they wait, and raise what these raise without having done anything."""


class Interrupt(BaseException):
    """What the signal handler raises."""


def interrupt(work: Callable[[], object], at: int) -> str | None:
    """Run `work`, raising Interrupt at place number `at`; return where that is, None if it ended before.

    Places are where code other than the tests' is run. What `work` raises by itself is raised.
    """
    left = at
    where = None

    def look(frame: FrameType, event: str, argument: Any) -> None:  # noqa: ANN401 - as sys.setprofile has it
        nonlocal left, where
        if where is not None or frame.f_code.co_filename.startswith(TESTS):
            return
        if event not in ("call", "c_return") and not (event == "c_call" and argument.__name__ in WAITING):
            return
        if any(each.f_code.co_name == "__del__" for each in _stack(frame)):
            return  # Python swallows whatever is raised there
        left -= 1
        if left < 0:
            called = f" {argument.__name__}" if event != "call" else ""
            where = f"{frame.f_code.co_qualname}, line {frame.f_lineno}: {event}{called}"
            raise Interrupt

    before = sys.getprofile()
    sys.setprofile(look)
    try:
        work()
    except Interrupt:
        pass
    except RuntimeError as error:  # CPython's Condition replaces what is raised while it reacquires its lock
        if not isinstance(error.__context__, Interrupt):
            raise
    finally:
        sys.setprofile(before)
    return where


def sweep(work: Callable[[int], Callable[[], object]], *, stride: int = 1, first: int = 0) -> Iterator[tuple[int, str]]:
    """Interrupt `work(number)()` at one place after the other, `stride` apart; yield the number and where it is."""
    at = first
    while (where := interrupt(work(at), at)) is not None:
        yield at, where
        at += stride


def before_the_release(where: str) -> bool:
    """Tell whether the release did not even begin: the holder still has its lease then."""
    function, _, event = where.partition(", line ")
    return event.endswith(": call") and function.split(".")[-1] in ("release", "__exit__")


def _stack(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back
