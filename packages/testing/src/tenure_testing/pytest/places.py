"""Places in the source code: where a test lost a lease, and where the code under test wrote."""

import linecache
import os
import sys
import sysconfig
from types import CodeType, FrameType

import tenure
import tenure_testing

TENURE = tuple(folder + os.sep for folder in (*tenure.__path__, *tenure_testing.__path__))
LIBRARY = tuple({sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib")})
INSTALLED = tuple({sysconfig.get_path(name) + os.sep for name in ("purelib", "platlib")})

USERS = 2
"""The rank of a file of the user."""

RUNNERS: set[CodeType] = set()
"""The methods that run a task. Their `begun_at`, where the task was started, replaces the event loop's calls."""


def is_called_by_tenure() -> bool:
    """Tell whether Tenure itself has called the calling function."""
    frame = sys._getframe(2)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - as below
    return frame.f_code.co_filename.startswith(TENURE)


def caller(what: str = "what") -> str:
    """Return the innermost place in the user's code among the calls of this task, or else of this thread.

    If there is none, as in a thread that runs only `what`, return a text that says so.
    """
    calls: list[tuple[CodeType, int]] = []
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - quick
    while frame is not None:
        calls.append((frame.f_code, frame.f_lineno))
        if frame.f_code in RUNNERS and not any(_nearness(code.co_filename) == USERS for code, _ in calls):
            begun_at: str = frame.f_locals["self"].begun_at
            return begun_at
        frame = frame.f_back
    return _of_user(calls) or f"{what}, called directly by a thread"


def suspended(awaitable: object, begun_at: str) -> str:
    """Return the innermost place in the user's code at which a suspended coroutine awaits, or else `begun_at`."""
    calls: list[tuple[CodeType, int]] = []
    while awaitable is not None:
        frame, inner = _look_into(awaitable)
        if frame is not None:
            calls.insert(0, (frame.f_code, frame.f_lineno))
        awaitable = inner
    return _of_user(calls) or begun_at


def _look_into(awaitable: object) -> tuple[FrameType | None, object]:
    """Return the frame of a coroutine or generator, and what it awaits."""
    for frame, inner in (("cr_frame", "cr_await"), ("gi_frame", "gi_yieldfrom"), ("ag_frame", "ag_await")):
        if hasattr(awaitable, inner):
            return getattr(awaitable, frame), getattr(awaitable, inner)
    return None, None


def _of_user(calls: list[tuple[CodeType, int]]) -> str:
    """Describe the innermost of the calls, given innermost first, that is the user's own, as far as that is known."""
    code, line = max(calls, key=lambda call: _nearness(call[0].co_filename), default=(None, 0))
    if code is None or not _nearness(code.co_filename):
        return ""
    return f"{_short(code.co_filename)}:{line} in {code.co_name}: {linecache.getline(code.co_filename, line).strip()}"


def _nearness(path: str) -> int:
    """Rank a file: the user's own code, an installed package, the standard library or Tenure."""
    if path.startswith((*TENURE, "<")):
        return 0
    if path.startswith(INSTALLED):
        return 1
    return 0 if path.startswith(LIBRARY) else USERS


def _short(path: str) -> str:
    """Return a path relative to the working directory if it lies below that."""
    try:
        below = os.path.relpath(path)
    except OSError:  # the working directory was removed
        return path
    return path if below.startswith(os.pardir) else below
