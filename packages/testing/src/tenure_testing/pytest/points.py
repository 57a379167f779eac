"""The points of a test at which a lease may be lost. Each run counts them, and loses the lease at one of them."""

import threading
from collections.abc import Callable, Coroutine, Generator, Sequence
from typing import Any, TypeVar, cast

from tenure_testing.pytest.leases import Acquired, Leases, current_task, mark
from tenure_testing.pytest.places import RUNNERS, caller, suspended

T = TypeVar("T")

HELD_BACK = 20
"""How many more steps of the event loop every await takes after a loss: a real await lasts until it is cancelled."""

INTERNAL = "tenure-"
"""The prefix of the names of Tenure's own threads and tasks."""


class Points:
    """The points of one run of a test."""

    def __init__(self, leases: Leases, lose: Callable[[Acquired], None], target: int | None) -> None:
        """Lose the held leases at point number `target`, from 1; 0: only count points; None: do neither."""
        self.leases = leases
        self.counted = target is not None
        """Whether points are counted at all."""
        self.count = 0
        """The number of points that were reached."""
        self.hit = ""
        """The place where a lease was lost; "" if none was."""
        self.hit_in_task = False
        """Whether the lease was lost in an event loop."""
        self.unseen = ""
        """The place where a task whose awaits cannot be seen acquired a lease or wrote; "" if there is none."""
        self._fresh: dict[object, set[Acquired]] = {}
        """The leases that each thread or task has acquired, or has found valid, since its last point."""
        self._lose = lose
        self._target = target
        self._active = False
        self._mutex = threading.Lock()

    def begin(self) -> None:
        """Start to count points: the test itself begins."""
        self._active = self.counted

    def end(self) -> None:
        """Stop counting points."""
        self._active = False

    def reach(self, kind: str, victims: Sequence[Acquired], place: Callable[[], str] = caller) -> None:
        """Record a point at which `victims` may be lost, and lose them if it is the target."""
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
        """Record that the code checks a lease, which may have been lost just before."""
        looked_at = self.leases.look(held)
        if looked_at is None:
            return
        if looked_at.is_valid():
            self.reach("just before this look at the lease", [looked_at])
        self.freshen(looked_at)

    def freshen(self, acquired: Acquired) -> None:
        """Record that the caller has just learnt whether a lease is held."""
        fresh = self._fresh.setdefault(mark(), set())
        if self._active and acquired.is_valid():
            fresh.add(acquired)
        else:
            fresh.discard(acquired)

    def objection(self) -> str:
        """Return why the caller must not write; "" if it may.

        If a point of another thread loses a lease between this thread's check and its write, the write is allowed:
        this thread has points of its own for its mistakes. Otherwise chance would decide which thread is reported.
        """
        why = self.leases.objection()
        return self.leases.objection(self._fresh.get(mark(), ())) if why and self.hit else why

    def request(self) -> None:
        """Record a request of a thread to the store, during which its leases may be lost."""
        if not threading.current_thread().name.startswith(INTERNAL):
            self._reach("during this request to the store")

    def spent(self, kind: str, what: str) -> None:
        """Record a call of `what`, which does not await, but may take long enough for leases to be lost."""
        self._reach(kind, self.leases.valid(), lambda: caller(what))

    def must_see(self) -> None:
        """Record a caller that acquires a lease or writes, if it is a task whose awaits cannot be seen."""
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
        """Record that the task of a coroutine suspends."""
        self._reach("during this await", self.leases.valid(), lambda: suspended(coroutine, begun_at))

    def _reach(self, kind: str, others: Sequence[Acquired] = (), place: Callable[[], str] = caller) -> None:
        """Record points at which the caller's leases may be lost, all and each alone; or `others` if it has none."""
        self._fresh.pop(mark(), None)
        own = [each for each in self.leases.of_caller() if each.is_valid()]
        self.reach(kind, own or others, place)
        for each in own if len(own) > 1 else ():
            self.reach(kind, [each], place)


class Followed(Coroutine[Any, Any, Any]):
    """A coroutine that reports to `points` whenever it suspends its task."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], points: Points) -> None:
        """Wrap `coroutine`."""
        self.begun_at = caller()
        self._coroutine = coroutine
        self.points = points
        self._held_back = 0

    def send(self, value: object) -> object:
        """Run the coroutine until it suspends again. Just after a loss, only let the event loop take its steps."""
        if self.points.hit_in_task and self._held_back < HELD_BACK:
            self._held_back += 1
            return None
        awaited = self._coroutine.send(value)
        self.points.suspended(self._coroutine, self.begun_at)
        return awaited

    def throw(self, *error: Any) -> object:  # noqa: ANN401 - whatever a coroutine takes
        """Raise an error where the coroutine is suspended, and run it until it suspends again."""
        awaited = self._coroutine.throw(*error)
        self.points.suspended(self._coroutine, self.begun_at)
        return awaited

    def close(self) -> None:
        """End the coroutine."""
        self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._coroutine.__await__()

    def __getattr__(self, name: str) -> object:
        """Return an attribute of the coroutine, which asyncio uses to describe a task."""
        return getattr(self._coroutine, name)


RUNNERS.update({Followed.send.__code__, Followed.throw.__code__})
