"""The contract between the protocol and whatever runs it.

The protocol is written once, as `async def` code that awaits nothing but the methods of a Runtime and of a store
made for that runtime. A runtime may suspend in these methods (asyncio, simulation) or block in place (threads);
the protocol cannot tell.
"""

from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Event(Protocol):
    """A flag that can be waited for."""

    def set(self) -> None:
        """Raise the flag and wake who waits. From within the runtime, or through `Runtime.post`."""

    def clear(self) -> None:
        """Lower the flag."""

    def is_set(self) -> bool:
        """Tell whether the flag is raised."""
        ...

    async def wait(self, until: float | None) -> bool:
        """Wait for the flag until a local instant (None: for ever); return whether it is raised."""
        ...


class Task(Protocol):
    """Something that runs beside its spawner."""

    def ended(self) -> bool:
        """Tell whether it has ended."""
        ...

    async def join(self, until: float | None) -> bool:
        """Wait for its end until a local instant; return whether it has ended."""
        ...


class Datagrams(Protocol):
    """A source of messages: what a runtime needs of a datagram socket."""

    def fileno(self) -> int:
        """Return the descriptor to wait on."""
        ...

    def recv(self, size: int, /) -> bytes:
        """Receive one message."""
        ...


class Runtime(Protocol):
    """What the protocol may ask of the world."""

    form: str
    """What runs the protocol, in a word: for error messages and reports."""

    goes_on: bool
    """Whether what `finish` was given goes on when its caller does not, since that was cancelled or interrupted."""

    def now(self) -> float:
        """Return local time in seconds from a clock that never steps and does not stop in a suspend."""
        ...

    def wall(self) -> int:
        """Return the wall clock in microseconds. It may be wrong: proposals of tokens only."""
        ...

    def random(self) -> float:
        """Return a number in [0, 1), to spread what would otherwise happen at once."""
        ...

    def new_id(self) -> str:
        """Return what nobody else ever gets, as text: hex digits and dashes."""
        ...

    def caller(self) -> tuple[object, str]:
        """Return the thread or task that calls, and what it is called."""
        ...

    def mark(self) -> object:
        """Return what is the same object for one thread or task only, even after its end; None outside of any."""
        ...

    def mutex(self) -> AbstractContextManager[Any]:
        """Make a lock for a few instructions that do not await."""
        ...

    def event(self) -> Event:
        """Make a lowered flag."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Do nothing for a while."""

    def spawn(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> Task:
        """Run `work()` beside the caller. Its end is the duty of whoever spawned it.

        Raises RuntimeError when nothing can be started any more, as when the interpreter shuts down.
        """
        ...

    async def finish(self, work: Coroutine[Any, Any, T]) -> T:
        """Await `work` to its end even if the caller is cancelled meanwhile (it then goes on without it)."""
        ...

    async def race(
        self,
        works: Sequence[Coroutine[Any, Any, T] | None],
        results: list[T | Exception | None],
        least: int,
        enough: Callable[[], bool],
    ) -> None:
        """Run `works` side by side until all have ended, or at least so many have and `enough()`.

        What one returns or raises is put into its place of `results`. What has not ended goes on to its own end
        without the caller, and its result still comes to its place. Each must end by itself. If the caller is
        cancelled, all go on. A place without work is left alone.
        """

    async def settle(self, until: float) -> None:
        """Wait for whatever `finish` left behind, until a local instant."""

    def post(self, action: Callable[[], None]) -> bool:
        """Run `action` soon where this runtime runs its code, from any thread; False if it is closed."""
        ...

    def listen(self, source: Datagrams, receive: Callable[[bytes], None]) -> Callable[[], None]:
        """Call `receive` with every message until the returned function is called."""
        ...
