"""What is said of objects that must be kept: where a lease was acquired that is dropped, and why none is copied."""

import contextlib
import os
import sys
from types import CodeType
from typing import Never, SupportsIndex

OURS = (os.path.dirname(__file__) + os.sep, contextlib.__file__)  # noqa: PTH120 - pathlib takes longer to import
"""Where the code begins that acquires for somebody else: this package, and an `ExitStack` that enters a lock."""

Origin = tuple[CodeType, int] | None
"""The code that acquired a lease, and its instruction; None if it is unknown."""


def acquired_at(depth: int) -> Origin:
    """Return the code that called this package: that `depth` frames up, or a caller of it.

    Every acquisition calls it, so it neither makes text nor keeps a frame, and skips the frames that it knows.
    """
    try:
        frame = sys._getframe(depth)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - as logging does
    except ValueError:  # a thread began with the acquisition
        return None
    while (code := frame.f_code).co_filename.startswith(OURS):
        back = frame.f_back
        if back is None:
            return None
        frame = back
    return code, frame.f_lasti


def line_of(origin: Origin) -> str:
    """Return file and line of an origin; "" if a task or thread began with the acquisition."""
    if origin is None or os.path.dirname(origin[0].co_filename).endswith("asyncio"):  # noqa: PTH120
        return ""
    code, at = origin
    line = next((line for start, end, line in code.co_lines() if start <= at < end), None)
    return f"{code.co_filename}:{line or code.co_firstlineno}"


def acquired(where: str) -> str:
    """Return a remark on the line that acquired a lease, for a sentence about the lease."""
    return f" (acquired at {where})" if where else ""


class NotCopied:
    """Refuses copies and pickles. `_instead` says what to do instead."""

    __slots__ = ()
    _instead = "it is one lease of this process, and a copy would end it. Pass the object itself, or its token"

    def __reduce_ex__(self, protocol: SupportsIndex, /) -> Never:
        """Raise TypeError, which `copy` and `pickle` pass on."""
        raise TypeError(f"a {type(self).__name__} can be neither copied nor pickled: {self._instead}.")
