"""Run the protocol in virtual time: one thread, a seeded scheduler, and processes that pause, crash and drift.

The coroutines under test are those that ship. A `World` keeps a heap of the next events, and nothing happens between
two events, so a run is a pure function of its seed. A `Process` is one simulated operating system process: it has its
own clock, which may run at another rate, and it may be paused (its clock goes on, its code does not) or crash (its code
never runs again).
"""

import itertools
import random
from collections.abc import Callable, Coroutine, Generator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from heapq import heappop, heappush
from typing import Any, Generic, TypeVar

from tenure.contracts.runtime import Datagrams

T = TypeVar("T")

EPOCH = 1_700_000_000_000_000
"""The wall clock of a world at its start, in microseconds."""


class Cancelled(BaseException):
    """A task of the simulation was cancelled."""


class EndlessError(Exception):
    """A run has more events than are allowed: some code loops for ever."""


class World:
    """Virtual time, and the events to come."""

    def __init__(self, seed: int | str) -> None:
        """Start at time 0 with nothing to do."""
        self.time = 0.0
        self.random = random.Random(seed)
        self.events = 0
        self.most_events: float = float("inf")
        """The largest number of events in a run."""
        self.after_event: Callable[[], object] = lambda: None
        self.running: SimTask[Any] | None = None
        """The task whose code runs now; None while other code runs."""
        self.errors: list[tuple[str, BaseException]] = []
        """The name and error of each task that failed while nobody awaited it."""
        self._agenda: list[tuple[float, int, Timer]] = []
        self._order = itertools.count()

    def at(self, when: float, action: Callable[[], object], process: "Process | None" = None) -> "Timer":
        """Schedule `action` for a time, after earlier events of that time; in `process`, if that runs then."""
        timer = Timer(action, process)
        heappush(self._agenda, (max(when, self.time), next(self._order), timer))
        return timer

    def after(self, delay: float, action: Callable[[], object]) -> "Timer":
        """Schedule `action` after a delay."""
        return self.at(self.time + delay, action)

    def run(self, until: float) -> None:
        """Run all events until a time. Raises EndlessError if there are too many."""
        agenda, after_event = self._agenda, self.after_event
        while agenda and agenda[0][0] <= until:
            when, _, timer = heappop(agenda)
            action = timer.action
            if action is None:
                continue
            process = timer.process
            if process is not None:
                if process.crashed:
                    continue
                if when < process.paused_until:
                    heappush(agenda, (process.paused_until, next(self._order), timer))
                    continue
            timer.action = None
            self.time = when
            self.events += 1
            action()
            after_event()
            if self.events > self.most_events:
                raise EndlessError(f"more than {self.most_events:.0f} events by {self.time:.6f}")
        self.time = max(self.time, until)


class Timer:
    """An event to come, which can be cancelled."""

    __slots__ = ("action", "process")

    def __init__(self, action: Callable[[], object], process: "Process | None") -> None:
        """Make an event of `process`: a paused process runs it later, a crashed process never."""
        self.action: Callable[[], object] | None = action
        self.process = process

    def cancel(self) -> None:
        """Cancel the event."""
        self.action = None


class Future(Generic[T]):
    """A result that one task awaits."""

    __slots__ = ("_error", "_value", "done", "wake")

    def __init__(self) -> None:
        """Start without a result."""
        self.done = False
        self.wake: Callable[[], object] | None = None
        self._value: T | None = None
        self._error: BaseException | None = None

    def resolve(self, value: T) -> None:
        """Set the result, once; later results are ignored."""
        self._finish(value, None)

    def fail(self, error: BaseException) -> None:
        """Set an error as the result."""
        self._finish(None, error)

    def outcome(self) -> T | Exception | None:
        """Return the result: a value or an error."""
        return self._error if isinstance(self._error, Exception) else self._value

    def _finish(self, value: T | None, error: BaseException | None) -> None:
        if not self.done:
            self.done, self._value, self._error = True, value, error
            if self.wake is not None:
                self.wake()

    def __await__(self) -> Generator["Future[T]", None, T]:
        if not self.done:
            yield self
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]  # resolved with a T


class Process:
    """One simulated process: its clock, its tasks, and whether it runs."""

    def __init__(self, world: World, name: str, rate: float = 1.0, offset: float = 0.0, wall_offset: int = 0) -> None:
        """Start a process whose clock shows `offset` at time 0 and runs at `rate`; `wall_offset` in microseconds."""
        self.world = world
        self.name = name
        self.rate = rate
        self.crashed = False
        self.paused_until = 0.0
        self._offset = offset
        self._wall_offset = wall_offset
        self.tasks: dict[SimTask[Any], None] = {}
        """The tasks that have not ended, in the order of their start."""

    def clock(self) -> float:
        """Return local time in seconds."""
        return self._offset + self.world.time * self.rate

    def wall(self) -> int:
        """Return the wall clock of this process in microseconds."""
        return EPOCH + self._wall_offset + round(self.world.time * 1e6)

    def later(self, local_delay: float, action: Callable[[], object]) -> Timer:
        """Schedule `action` in this process after a delay by its own clock."""
        world = self.world
        return world.at(world.time + local_delay / self.rate if local_delay > 0.0 else world.time, action, self)

    def start(self, work: Coroutine[Any, Any, T], name: str) -> "SimTask[T]":
        """Run a coroutine as a task of this process."""
        task = SimTask(self, work, name)
        self.tasks[task] = None
        self.world.at(self.world.time, task.step, self)
        return task

    def pause(self, duration: float) -> None:
        """Run no code for a while, as in a long garbage collection or SIGSTOP."""
        self.paused_until = max(self.paused_until, self.world.time + duration)

    def crash(self) -> None:
        """Run no code ever again."""
        self.crashed = True
        self.close()

    def end_here(self) -> None:
        """Run no code behind this line if a task of this process has just made the process crash.

        Raises GeneratorExit, as in a coroutine that is closed.
        """
        if self.crashed and self.world.running is not None:
            raise GeneratorExit

    def close(self) -> None:
        """Drop all tasks without cancelling them."""
        for task in list(self.tasks):
            task.drop()
        self.tasks.clear()


class SimTask(Generic[T]):
    """A coroutine that a process runs."""

    def __init__(self, process: Process, work: Coroutine[Any, Any, T], name: str) -> None:
        """Make a task; the process starts it."""
        self.name = name
        self.note = ""
        """A note of the simulation about the task."""
        self.result: Future[T] = Future()
        self.suspensions = 0
        self.cancel_at = 0
        """The suspension at which to cancel the task, counted from 1; 0: never."""
        self._process = process
        self._work = work
        self._waiting: Future[Any] | None = None
        self._watchers: list[Future[None]] = []

    def step(self, error: BaseException | None = None) -> None:
        """Run until the next suspension."""
        if self.result.done:
            return
        self._waiting = None
        world = self._process.world
        world.running = self
        try:
            waiting = self._work.send(None) if error is None else self._work.throw(error)
        except StopIteration as end:
            self._end(end.value, None)
        except BaseException as failure:  # noqa: BLE001 - whatever it is, it is the task's result
            self._end(None, failure)
        else:
            self._suspend(waiting)
        finally:
            world.running = None

    def cancel(self) -> None:
        """Raise Cancelled in the task at its await, unless the task has ended."""
        if self.result.done or self._waiting is None:
            return
        self._waiting.wake = None
        self._waiting = None
        self._process.later(0.0, lambda: self.step(Cancelled()))

    def ended(self) -> bool:
        """Tell whether the task has ended."""
        return self.result.done

    async def join(self, until: float | None) -> bool:
        """Wait for the end until a local instant."""
        if not self.result.done:
            watcher: Future[None] = Future()
            self._watchers.append(watcher)
            if until is not None:
                self._process.later(until - self._process.clock(), lambda: watcher.resolve(None))
            await watcher
        return self.result.done

    def drop(self) -> None:
        """End the task as a crash does. One that runs now goes on, until it is told by `Process.end_here`."""
        if not self.result.done:
            self.result.done = True
            if self._waiting is not None:
                self._waiting.wake = None
            if self._process.world.running is not self:
                self._work.close()

    def _suspend(self, waiting: Future[Any]) -> None:
        self.suspensions += 1
        self._waiting = waiting
        waiting.wake = self._wake
        if self.suspensions == self.cancel_at:
            self.cancel()

    def _wake(self) -> None:
        world = self._process.world
        world.at(world.time, self.step, self._process)

    def _end(self, value: T | None, error: BaseException | None) -> None:
        if self.result.done:  # it was dropped while it ran
            return
        self._process.tasks.pop(self, None)
        awaited = self.result.wake is not None
        self.result._finish(value, error)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - its other half
        for watcher in self._watchers:
            watcher.resolve(None)
        if error is not None and not awaited and not isinstance(error, Cancelled):
            self._process.world.errors.append((self.name, error))


class SimEvent:
    """A flag whose wait ends at an instant of its process's clock."""

    __slots__ = ("_process", "_raised", "_waiting")

    def __init__(self, process: Process) -> None:
        """Start lowered."""
        self._process = process
        self._raised = False
        self._waiting: list[Future[None]] = []

    def set(self) -> None:
        """Raise the flag and wake all waiters."""
        self._raised = True
        for future in self._waiting:
            future.resolve(None)

    def clear(self) -> None:
        """Lower the flag."""
        self._raised = False

    def is_set(self) -> bool:
        """Tell whether the flag is raised."""
        return self._raised

    async def wait(self, until: float | None) -> bool:
        """Wait for the flag until a local instant."""
        if self._raised:
            return True
        future: Future[None] = Future()
        timer = None
        if until is not None and until != float("inf"):
            timer = self._process.later(until - self._process.clock(), lambda: future.resolve(None))
        self._waiting.append(future)
        try:
            await future
        finally:
            self._waiting.remove(future)
            if timer is not None:
                timer.cancel()
        return self._raised


class SimRuntime:
    """The runtime of one simulated process."""

    form = "simulation"
    goes_on = True

    def __init__(self, process: Process) -> None:
        """Run in `process`."""
        self.process = process
        self.now = process.clock
        self.wall = process.wall
        self.random = process.world.random.random
        self._unfinished: list[SimTask[Any]] = []
        self._ids = itertools.count(1)

    def new_id(self) -> str:
        """Return a readable id that is unique in the world."""
        return f"{self.process.name}.{next(self._ids)}"

    def caller(self) -> tuple[object, str]:
        """Return the task that runs, and its name."""
        running = self.process.world.running
        return running, running.name if running is not None else self.process.name

    def mark(self) -> object:
        """Return the task that runs."""
        return self.process.world.running

    def mutex(self) -> AbstractContextManager[Any]:
        """Return a mutex that does nothing: there is one thread."""
        return nullcontext()

    def event(self) -> SimEvent:
        """Make a lowered flag."""
        return SimEvent(self.process)

    async def sleep(self, seconds: float) -> None:
        """Let virtual time pass."""
        woken: Future[None] = Future()
        timer = self.process.later(seconds, lambda: woken.resolve(None))
        try:
            await woken
        finally:
            timer.cancel()

    def spawn(
        self,
        work: Callable[[], Coroutine[Any, Any, None]],
        name: str,
        *,
        or_here: bool = False,  # noqa: ARG002 - a task needs no thread
        again: bool = False,  # noqa: ARG002 - nobody cancels it
    ) -> SimTask[None]:
        """Run `work()` as a task of the process."""
        return self.process.start(work(), f"{self.process.name}/{name}")

    async def finish(self, work: Coroutine[Any, Any, T]) -> T:
        """Await `work` as a task that a cancellation of the caller does not reach."""
        task = self.process.start(work, f"{self.process.name}/finish")
        self._unfinished = [each for each in self._unfinished if not each.result.done]
        self._unfinished.append(task)
        return await task.result

    async def race(
        self,
        works: Sequence[Coroutine[Any, Any, T] | None],
        results: list[T | Exception | None],
        least: int,
        enough: Callable[[], bool],
    ) -> None:
        """Run each work as a task; tasks that have not ended when `enough()` is true go on."""
        decided: Future[None] = Future()
        begun = [(place, work) for place, work in enumerate(works) if work is not None]
        if not begun:
            return
        ended = 0

        def note(place: int, result: Future[T]) -> None:
            nonlocal ended
            results[place] = result.outcome()
            ended += 1
            if ended == len(begun) or (ended >= least and enough()):
                decided.resolve(None)

        name = f"{self.process.name}/race"
        for place, work in begun:
            result = self.process.start(work, name).result
            result.wake = partial(note, place, result)
        await decided

    async def settle(self, until: float) -> None:
        """Wait for work that `finish` left behind, until a local instant."""
        for task in self._unfinished:
            await task.join(until)

    def post(self, action: Callable[[], object]) -> bool:
        """Run `action` soon in the process."""
        self.process.later(0.0, action)
        return not self.process.crashed

    def listen(self, source: Datagrams, receive: Callable[[bytes], None]) -> Callable[[], None]:
        """Raise NotImplementedError: a simulated store delivers its notifications by itself."""
        raise NotImplementedError
