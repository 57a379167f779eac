"""The contract of a runtime: what runs the protocol.

The protocol is written once, as `async def` code that awaits nothing but the methods of a Runtime and of a store made
for that runtime. A runtime may suspend in these methods (asyncio, simulation) or block in place (threads); the protocol
does not know which.
"""

from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

from tenure.errors import StoreUnavailable

T = TypeVar("T")


class ShuttingDown(RuntimeError):
    """The interpreter shuts down, and starts no more threads."""


class NoThreadLeft(StoreUnavailable, RuntimeError):
    """The system refuses to start a thread, because it has too many. A moment later it may start one."""


class Event(Protocol):
    """A flag that a task or thread can wait for."""

    def set(self) -> None:
        """Raise the flag and wake all waiters. Call it within the runtime, or through `Runtime.post`."""

    def clear(self) -> None:
        """Lower the flag."""

    def is_set(self) -> bool:
        """Tell whether the flag is raised."""
        ...

    async def wait(self, until: float | None) -> bool:
        """Wait for the flag until a local instant (None: for ever); return whether it is raised."""
        ...


class SpawnedTask(Protocol):
    """Work that runs beside its spawner."""

    def ended(self) -> bool:
        """Tell whether the work has ended."""
        ...

    async def join(self, until: float | None) -> bool:
        """Wait for the end of the work until a local instant; return whether it has ended."""
        ...


class Datagrams(Protocol):
    """A source of messages: what a runtime needs from a datagram socket."""

    def fileno(self) -> int:
        """Return the descriptor to wait on."""
        ...

    def recv(self, size: int, /) -> bytes:
        """Receive one message."""
        ...


class Runtime(Protocol):
    """Clocks, chance, tasks and waiting: all that the protocol knows of the world."""

    form: str
    """The name of the runtime, for error messages and reports."""

    goes_on: bool
    """Whether the work that `finish` awaits goes on if its caller is cancelled or interrupted."""

    def now(self) -> float:
        """Return local time in seconds from a clock that never steps and does not stop in a suspend."""
        ...

    def wall(self) -> int:
        """Return the wall clock in microseconds. It may be wrong, so it serves only to propose tokens."""
        ...

    def random(self) -> float:
        """Return a random number in [0, 1), to spread requests that would otherwise come at once."""
        ...

    def new_id(self) -> str:
        """Return an id that nobody else ever gets: hex digits and dashes."""
        ...

    def caller(self) -> tuple[object, str]:
        """Return the calling thread or task, and its name."""
        ...

    def mark(self) -> object:
        """Return an object that belongs to the calling thread or task alone, even after its end; None outside any."""
        ...

    def mutex(self) -> AbstractContextManager[Any]:
        """Make a mutex for a few instructions that do not await."""
        ...

    def event(self) -> Event:
        """Make a lowered flag."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait for a number of seconds."""

    def spawn(
        self, work: Callable[[], Coroutine[Any, Any, None]], name: str, *, or_here: bool = False, again: bool = False
    ) -> SpawnedTask:
        """Run `work()` beside the caller. The spawner must see to its end.

        If others cancel it, as a program that cancels all tasks of its loop does, `again` has `work()` run anew a
        moment later, unless the loop is closed then. Until its owner has called `join`, it has not `ended` by that.

        If no thread can be started, `or_here` runs the work in the calling thread, which must be able to wait for it.
        Without it, raises NoThreadLeft; ShuttingDown if the interpreter shuts down; another RuntimeError if the event
        loop is closed.
        """
        ...

    async def finish(self, work: Coroutine[Any, Any, T]) -> T:
        """Await `work`. If the caller is cancelled meanwhile, the work goes on to its end without the caller."""
        ...

    async def race(
        self,
        works: Sequence[Coroutine[Any, Any, T] | None],
        results: list[T | Exception | None],
        least: int,
        enough: Callable[[], bool],
    ) -> None:
        """Run `works` side by side until all have ended, or `least` of them have and `enough()` is true.

        The result or error of each work goes to its place in `results`. A work that has not ended goes on without the
        caller, and its result still goes to its place. Each work must end by itself. If the caller is cancelled, all
        works go on. A None in `works` leaves its place alone.
        """

    async def settle(self, until: float) -> None:
        """Wait for work that `finish` or `race` left behind, until a local instant."""

    def post(self, action: Callable[[], None]) -> bool:
        """Run `action` soon where this runtime runs its code; return False if the runtime is closed. For any thread."""
        ...

    def listen(self, source: Datagrams, receive: Callable[[bytes], None]) -> Callable[[], None]:
        """Call `receive` with every message, until somebody calls the returned function."""
        ...
