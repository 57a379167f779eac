"""The points of a test at which a lease may be lost: they are counted, and at one of them it is."""

import threading
from collections.abc import Callable, Coroutine, Generator, Sequence
from typing import Any, TypeVar, cast

from holdfast.testing.pytest.leases import Acquired, Leases, current_task, mark
from holdfast.testing.pytest.places import RUNNERS, caller, suspended

T = TypeVar("T")

HELD_BACK = 20
"""For how many turns of the event loop every await goes on after a loss: a real one is long enough to be cancelled."""

INTERNAL = "holdfast-"
"""What the names of Holdfast's own threads and tasks begin with."""


class Points:
    """The points of one run of a test."""

    def __init__(self, leases: Leases, lose: Callable[[Acquired], None], target: int | None) -> None:
        """Lose what is held at point number `target`, from 1; 0: only count; None: do neither."""
        self.leases = leases
        self.wanted = target is not None
        """Whether points are counted at all."""
        self.count = 0
        """How many points were reached."""
        self.hit = ""
        """Where the lease was lost, if it was."""
        self.hit_in_task = False
        """Whether it was lost in an event loop."""
        self.unseen = ""
        """Where a task acquired a lease or wrote although its awaits cannot be seen; "" if none did."""
        self._fresh: dict[object, set[Acquired]] = {}
        """The leases that each thread or task has acquired, or has seen valid, since its last point."""
        self._lose = lose
        self._target = target
        self._active = False
        self._mutex = threading.Lock()

    def begin(self) -> None:
        """Count from now on: the test itself begins."""
        self._active = self.wanted

    def end(self) -> None:
        """Count no more."""
        self._active = False

    def reach(self, kind: str, victims: Sequence[Acquired], place: Callable[[], str] = caller) -> None:
        """Note a point at which `victims` may be lost."""
        if not self._active or self.hit or not victims:
            return
        with self._mutex:
            self.count += 1
            if self.count != self._target:
                return
            self.hit = f"{place()}  ({kind})"
            self.hit_in_task = current_task() is not None
        for each in victims:
            self._lose(each)

    def look(self, held: Sequence[object]) -> None:
        """Note that the code looks at a lease: it may have been lost just before."""
        looked_at = self.leases.look(held)
        if looked_at is None:
            return
        if looked_at.is_valid():
            self.reach("just before this look at the lease", [looked_at])
        self.freshen(looked_at)

    def freshen(self, acquired: Acquired) -> None:
        """Note that the caller has just learnt whether a lease is held."""
        fresh = self._fresh.setdefault(mark(), set())
        if self._active and acquired.is_valid():
            fresh.add(acquired)
        else:
            fresh.discard(acquired)

    def objection(self) -> str:
        """Return why the caller must not write; "" if it may.

        If a point of another thread loses a lease between this thread's look and its write, the write is right: this
        thread has points of its own for its mistakes. Otherwise chance would decide which thread is accused.
        """
        why = self.leases.objection()
        return self.leases.objection(self._fresh.get(mark(), ())) if why and self.hit else why

    def request(self) -> None:
        """Note a request to the store, of a thread: its leases may be lost meanwhile."""
        if not threading.current_thread().name.startswith(INTERNAL):
            self._reach("during this request to the store")

    def spent(self, kind: str, what: str) -> None:
        """Note that time may have gone by in a call of `what`, which does not await."""
        self._reach(kind, self.leases.valid(), lambda: caller(what))

    def must_see(self) -> None:
        """Note that the caller acquires a lease or writes: if it is a task, its awaits must be seen."""
        task = current_task() if self._active else None
        coroutine = None if task is None else task.get_coro()
        if task is not None and not (isinstance(coroutine, Followed) and coroutine.points is self):
            self.unseen = self.unseen or caller()

    def follow(self, coroutine: T, name: object) -> "T | Followed":
        """Return a coroutine that reaches a point whenever it suspends a task that holds a lease."""
        if str(name or "").startswith(INTERNAL) or not isinstance(coroutine, Coroutine):
            return coroutine
        return Followed(cast("Coroutine[Any, Any, Any]", coroutine), self)

    def suspended(self, coroutine: object, begun_at: str) -> None:
        """Note that the task of a coroutine suspends."""
        self._reach("during this await", self.leases.valid(), lambda: suspended(coroutine, begun_at))

    def _reach(self, kind: str, others: Sequence[Acquired] = (), place: Callable[[], str] = caller) -> None:
        """Note points at which the caller's leases may be lost: all, and each alone; or `others` if it has none."""
        self._fresh.pop(mark(), None)
        own = [each for each in self.leases.of_caller() if each.is_valid()]
        self.reach(kind, own or others, place)
        for each in own if len(own) > 1 else ():
            self.reach(kind, [each], place)


class Followed(Coroutine[Any, Any, Any]):
    """A coroutine that tells when it suspends its task."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], points: Points) -> None:
        """Run `coroutine`."""
        self.begun_at = caller()
        self._coroutine = coroutine
        self.points = points
        self._held_back = 0

    def send(self, value: object) -> object:
        """Go on until the coroutine suspends again. Just after a loss, only let the event loop go on."""
        if self.points.hit_in_task and self._held_back < HELD_BACK:
            self._held_back += 1
            return None
        awaited = self._coroutine.send(value)
        self.points.suspended(self._coroutine, self.begun_at)
        return awaited

    def throw(self, *error: Any) -> object:  # noqa: ANN401 - whatever a coroutine takes
        """Raise an error where the coroutine is suspended, and go on until it suspends again."""
        awaited = self._coroutine.throw(*error)
        self.points.suspended(self._coroutine, self.begun_at)
        return awaited

    def close(self) -> None:
        """End the coroutine."""
        self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._coroutine.__await__()

    def __getattr__(self, name: str) -> object:
        """Show what asyncio looks up to describe a task."""
        return getattr(self._coroutine, name)


RUNNERS.update({Followed.send.__code__, Followed.throw.__code__})
