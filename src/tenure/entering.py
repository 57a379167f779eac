"""How a `with` finds the lease that it entered, and the errors of the wrong `with`.

A lock object may be entered many times at once: by threads, tasks, generators and exit stacks. Python tells `__exit__`
nothing of the `__enter__` that belongs to it. But a `with` statement enters and leaves in one frame, in a generator or
coroutine too, whichever thread or task runs it then. So a lease that a `with` statement entered is left by its frame
alone. What a call of `__enter__` entered, as those of an exit stack do, may be left from anywhere.
"""

import logging
import sys
from collections.abc import Callable
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR, CO_OPTIMIZED
from opcode import opmap
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Final, Generic, Never, Protocol, TypeVar

from tenure.errors import UsageError

log = logging.getLogger("tenure")

Site = tuple[int, CodeType, int]
"""The place that entered a lease: the id of the frame, its code, and the instruction. A site keeps no frame alive."""

FRAME_ABOVE: Final = sys._getframe  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - documented by this name

MOVES: Final = CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR
"""The flags of code whose frame may be run by one thread or task after another."""

BEFORE_WITH: Final = opmap.get("BEFORE_WITH", -1)
LOAD_SPECIAL: Final = opmap.get("LOAD_SPECIAL", -1)
"""The instruction before the call of `__enter__` in a `with`, since Python 3.14; before, that is BEFORE_WITH."""
BACK: Final = 2
"""How far LOAD_SPECIAL stands before that call."""
AWAITS_AENTER: Final = bytes((opmap["GET_AWAITABLE"], 1))
"""The instruction of an `async with` that awaits what `__aenter__` has returned."""

NOWHERE: Final[Site] = 0, compile("", "<no caller>", "exec"), 0

SNAPSHOT: Final = sys.version_info < (3, 13)
"""Whether `f_locals` of a function is a copy that the frame keeps."""


def site(depth: int) -> Site:
    """Return where the frame is that stands `depth` calls above the function that calls this one."""
    try:
        frame = FRAME_ABOVE(depth + 1)
    except ValueError:  # a caller that is written in C, as atexit is
        return NOWHERE
    return id(frame), frame.f_code, frame.f_lasti


def is_of_with(where: Site) -> bool:
    """Return whether a `with` or `async with` statement is at a site, rather than a call of `__enter__`."""
    _, code, at = where
    units = code.co_code  # each instruction is an opcode and its argument; `at` is even
    if units[at] == BEFORE_WITH or (at >= BACK and units[at - BACK] == LOAD_SPECIAL):
        return True
    return AWAITS_AENTER in (units[at - 4 : at - 2], units[at - 6 : at - 4])  # a LOAD_CONST, a SEND and maybe its cache


def running_frame(where: Site) -> FrameType | None:
    """Return the frame of a site if it waits for the caller; None if it does not."""
    frame: FrameType | None = FRAME_ABOVE(1)
    while frame is not None and (id(frame) != where[0] or frame.f_code is not where[1]):
        frame = frame.f_back
    return frame


def _references(lease_of: Callable[[], object]) -> int:
    lease = lease_of()
    return sys.getrefcount(lease)


_one = [object()]
_ALONE: Final = _references(lambda: _one[0])
"""What `_references` counts if there is one reference besides its own."""


def is_alone(lease_of: Callable[[], object], frame: FrameType) -> bool:
    """Return whether only a `with` in `frame`, and plain variables of that function, refer to a lease object.

    Nobody else can release the lease then. `lease_of` returns the lease object, and keeps none: a weak reference.
    """
    if lease_of() is None:
        return False
    if _references(lease_of) <= _ALONE:
        return True
    code = frame.f_code
    if not code.co_flags & CO_OPTIMIZED:  # a module: its variables are everybody's
        return False
    cells = code.co_cellvars + code.co_freevars  # an inner function may have them anywhere
    mine = sum(value is lease_of() for name, value in frame.f_locals.items() if name not in cells)
    return _references(lease_of) <= _ALONE + mine * (2 if SNAPSHOT else 1)


class Enterable(Protocol):
    """A lease that a lock's `with` can enter."""

    def _enter_at(self, where: Site) -> None:
        """Note where the lease was entered."""


E = TypeVar("E", bound=Enterable)

_Entry = tuple[E, str, Site, object]
"""A lease, its name, where it was entered, and the mark of the thread or task that entered it."""


class Entered(Generic[E]):
    """The leases of one lock object that were entered and not yet left.

    It has no mutex: the garbage collector may close a generator, and so leave a `with`, at any point. Each change of a
    dict is atomic, in Python without a GIL too.
    """

    __slots__ = ("_ended", "_entries", "_here", "_latest", "_reachable")

    def __init__(
        self,
        here: Callable[[], object],
        ended: Callable[[object], bool],
        reachable: Callable[[E], bool] = lambda _lease: True,
    ) -> None:
        """Start without leases.

        `here` returns the mark of the calling thread or task; `ended` tells of a mark whether that has ended;
        `reachable` of a lease whether the caller can release it: not if it is of another event loop.
        """
        self._here = here
        self._ended = ended
        self._reachable = reachable
        self._entries: dict[int, _Entry[E]] = {}
        """All leases that were entered, by the id of the lease object, in the order in which they were entered."""
        self._latest: dict[tuple[int, str], _Entry[E]] = {}
        """The last of them by frame and name, to find it quickly. The frame may have ended since."""

    def push(self, name: str, lease: E) -> None:
        """Enter a lease for the caller's caller."""
        where = site(2)
        entry = lease, name, where, self._here()
        self._entries[id(lease)] = entry
        self._latest[where[0], name] = entry
        lease._enter_at(where)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - not for users

    def forget(self, lease: E) -> bool:
        """Remove a lease; return False if it was left before."""
        entry = self._entries.get(id(lease))
        if entry is None:
            return False
        key = entry[2][0], entry[1]
        if self._latest.get(key) is entry:
            self._latest.pop(key, None)
        return self._entries.pop(id(lease), None) is not None  # last, so that it can be repeated after an interrupt

    def find(self, name: str) -> E:
        """Return the lease that the caller's caller leaves.

        Raises UsageError if it has entered none, or if nobody can tell which it leaves.
        """
        where = site(2)
        entry = self._latest.get((where[0], name))
        if entry is not None and self._is_of(entry, where) and id(entry[0]) in self._entries:
            return entry[0]
        return self._search(name, where)[0]

    def _is_of(self, entry: _Entry[E], where: Site) -> bool:
        """Return whether this frame has entered the lease, rather than one that stood at the same address before."""
        identity, code, _ = entry[2]
        if identity != where[0] or code is not where[1]:
            return False
        return bool(code.co_flags & MOVES) or entry[3] is self._here()

    def _search(self, name: str, where: Site) -> _Entry[E]:
        found = self._entries.copy().values()
        entries = [entry for entry in found if entry[1] == name and self._reachable(entry[0])]
        for entry in reversed(entries):
            if self._is_of(entry, where):
                return entry
        by_call = [entry for entry in entries if not is_of_with(entry[2])]  # the others are left by their own frames
        if len(by_call) == 1:
            return by_call[0]
        here = self._here()
        for entry in reversed(by_call):
            if entry[3] is here:
                return entry
        if not by_call:
            raise UsageError(
                f"the lock {name!r} was not entered here, or was left before: leave each `with` once, and by the lock "
                "object that entered it"
            )
        for entry in by_call:
            if self._ended(entry[3]):
                log.warning(
                    "%r was entered %d times, and is left in a thread or task that has not entered it: the first lease "
                    "whose thread or task has ended is released. To be sure which, keep the lease that acquire() "
                    "returns, and enter or release that.",
                    name,
                    len(by_call),
                )
                return entry
        raise UsageError(
            f"{name!r} was entered {len(by_call)} times, by other threads or tasks, and nobody can tell which lease is "
            "left here: keep the lease that acquire() returns, and enter or release that"
        )


class EnteredByWith:
    """Refuses `async with`."""

    __slots__ = ()

    if not TYPE_CHECKING:  # a type checker finds these mistakes by itself

        def __aenter__(self) -> Never:
            """Raise TypeError, which names the right statement."""
            raise TypeError(_is_entered(self, "`with`, not by `async with`; for asyncio, use AsyncClient"))

        __aexit__ = __aenter__


class EnteredByAsyncWith:
    """Refuses `with`."""

    __slots__ = ()

    if not TYPE_CHECKING:

        def __enter__(self) -> Never:
            """Raise TypeError, which names the right statement."""
            raise TypeError(_is_entered(self, "`async with`, not by `with`; for threads, use Client"))

        __exit__ = __enter__


class NeverEntered:
    """Refuses both. `_enter_instead` says what to enter."""

    __slots__ = ()
    _enter_instead = ""

    if not TYPE_CHECKING:

        def __enter__(self) -> Never:
            """Raise TypeError, which says what to enter."""
            raise TypeError(f"no `with` enters {_article(self)}: enter its {self._enter_instead}")

        __exit__ = __aenter__ = __aexit__ = __enter__


def _is_entered(wrong: object, how: str) -> str:
    return f"{_article(wrong)} is entered by {how}"


def _article(wrong: object) -> str:
    name = type(wrong).__name__
    return f"{'an' if name[0] in 'AEIO' else 'a'} {name}"
