"""The runtime of asyncio: run the protocol in an event loop, which awaits its coroutines natively."""

import asyncio
import concurrent.futures
import contextlib
import logging
import os
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, TypeVar

from tenure.contracts.runtime import Datagrams
from tenure.errors import OutcomeUnknown
from tenure.runtimes import clocks
from tenure.runtimes.real import DATAGRAM, RealWorld

T = TypeVar("T")

Loop = asyncio.AbstractEventLoop

log = logging.getLogger("tenure")


def mark() -> object:
    """Return an object of the calling task alone, which does not keep the task alive; None outside a task."""
    task = asyncio.current_task()
    return None if task is None else weakref.ref(task)


class LoopEvent:
    """A flag of one event loop whose wait ends at an instant of the steady clock."""

    __slots__ = ("_loop", "_raised", "_waiting")

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._raised = False
        self._waiting: set[asyncio.Future[None]] = set()

    def set(self) -> None:
        """Raise the flag and wake all waiters. Call it only in the thread of the loop."""
        self._raised = True
        for future in self._waiting:
            _wake(future)

    def clear(self) -> None:
        """Lower the flag."""
        self._raised = False

    def is_set(self) -> bool:
        """Tell whether the flag is raised."""
        return self._raised

    async def wait(self, until: float | None) -> bool:
        """Wait for the flag until a steady instant."""
        if self._raised:
            return True
        future: asyncio.Future[None] = self._loop.create_future()
        timer = None
        if until is not None:
            timer = self._loop.call_later(max(0.0, until - clocks.steady()), _wake, future)
        self._waiting.add(future)
        try:
            await future
        finally:
            self._waiting.discard(future)
            if timer is not None:
                timer.cancel()
        return self._raised


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


CANCELLED = "the program cancelled a task of Tenure: it may cancel its own tasks only"
"""The message of the error for work whose task the program has cancelled."""

AGAIN = 0.05
"""After how many seconds work that others have cancelled begins again."""


def _begun(work: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
    """Return a coroutine for a task that begins the work, whoever cancels the task.

    A coroutine that has not begun runs nothing when its task is cancelled, no `finally` either. So this one has begun.
    """
    coroutine = _work(work)
    coroutine.send(None)
    return coroutine


async def _work(work: Coroutine[Any, Any, T]) -> T:
    try:
        await asyncio.sleep(0)  # here it stands until the first step of its task
    except asyncio.CancelledError:
        if task := asyncio.current_task():
            task.cancel()  # it reaches the work where that first waits
    except GeneratorExit:  # the loop is closed, so no task will run this
        work.close()
        raise
    return await work


class LoopTask:
    """Work that the protocol spawned: an asyncio task, or several, one after another was cancelled."""

    __slots__ = ("_again", "_begin", "_loop", "_task", "_timer")

    def __init__(self, loop: Loop, begin: Callable[[], asyncio.Task[None]], *, again: bool) -> None:
        self._loop = loop
        self._begin = begin
        self._again = again
        self._timer: asyncio.TimerHandle | None = None
        """Begins the next task. Not at once: whoever ends a loop waits for all its tasks, and for no timer."""
        self._run()

    def ended(self) -> bool:
        """Tell whether the work has ended."""
        return self._timer is None and self._task.done()

    def cancel(self) -> None:
        """Cancel the work for good."""
        self._end()
        self._task.cancel()

    async def join(self, until: float | None) -> bool:
        """Wait for the end of the work until a steady instant. A task that is cancelled from now on is the last."""
        self._end()
        if self._task is not asyncio.current_task() and not self._task.done():
            timeout = None if until is None else max(0.0, until - clocks.steady())
            await asyncio.wait({self._task}, timeout=timeout)
        return self._task.done()

    def _end(self) -> None:
        self._again = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _run(self) -> None:
        self._timer = None
        self._task = self._begin()
        if self._again:
            self._task.add_done_callback(self._after)

    def _after(self, task: asyncio.Task[None]) -> None:
        if self._again and task.cancelled():
            self._timer = self._loop.call_later(AGAIN, self._run)


CANCEL_AGAIN = 0.05
"""After how many seconds a library's work that did not end is cancelled again."""


def retrieve(task: "asyncio.Future[Any]") -> None:
    """Read the error of a task or future that nobody awaits, because asyncio logs errors that were not read."""
    if not task.cancelled():
        task.exception()


async def in_own_task(
    work: Awaitable[T], timeout: float, when_given_up: "Callable[[asyncio.Future[T]], object]" = retrieve
) -> T:
    """Await a library's work as a task of its own, for so many seconds at most.

    Libraries use the wait_for() of asyncio, which swallows a cancellation in some Pythons if the awaited work has just
    ended. So the caller waits in a way that loses no cancellation. Work that is given up has ended when this returns,
    and `when_given_up` gets its task, which may have made something nevertheless. Raises TimeoutError, and
    ConnectionAbortedError if others have cancelled the task and not the caller.
    """
    task = asyncio.ensure_future(work)
    taken = False
    try:
        await asyncio.wait({task}, timeout=max(0.0, timeout))
        taken = task.done()
    finally:
        if not taken:
            task.add_done_callback(when_given_up)
            while not task.done():
                task.cancel()
                await asyncio.wait({task}, timeout=CANCEL_AGAIN)
    if not taken:
        raise TimeoutError
    if task.cancelled():
        raise ConnectionAbortedError(CANCELLED)
    return task.result()


def running_loop() -> Loop:
    """Return the running loop. Raises RuntimeError if there is none."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError as error:
        error.add_note(
            "An AsyncClient works in an event loop of asyncio. In trio, use tenure.Client by trio.to_thread.run_sync()."
        )
        raise


class LoopClose:
    """Stands in the place of `close` of an event loop, and lets the runtimes of the loop end in it before.

    asyncio tells nobody else that a loop is about to be closed. Afterwards no lease can be released, and no socket be
    closed without a warning.
    """

    def __init__(self, loop: Loop) -> None:
        """Take the place of the close of `loop`."""
        self.runtimes: weakref.WeakSet[AsyncioRuntime] = weakref.WeakSet()
        self._loop = loop
        self._close = loop.close
        self._process = os.getpid()

    def __call__(self) -> None:
        """End the runtimes, and close the loop."""
        loop = self._loop
        try:
            if self.runtimes and not (loop.is_running() or loop.is_closed()) and os.getpid() == self._process:
                ending = self._end()
                try:
                    loop.run_until_complete(ending)
                finally:
                    ending.close()
        except Exception as error:  # noqa: BLE001 - the loop must be closed; in another loop's thread, it runs no more
            log.warning("a client could not be closed with its event loop (%r): its leases end at their ttl", error)
        finally:
            self._close()

    async def _end(self) -> None:
        if others := {task for task in _from_elsewhere.copy() if task.get_loop() is self._loop}:
            await asyncio.wait(others)
        for runtime in list(self.runtimes):
            if (work := runtime.last_work()) is not None:
                await work()


_from_elsewhere: set[asyncio.Task[Any]] = set()
"""The tasks that `run_in_each` has begun in loops of other threads."""


async def run_in_each(works: Mapping[Loop, Callable[[], Coroutine[Any, Any, T]]], timeout: float) -> list[T | None]:
    """Run each work in its event loop; return the results: None for what failed, or did not end in time.

    Other loops have `timeout` seconds. The running loop's own work takes the time that it needs. A loop that does not
    run begins when it runs again.
    """
    here, until = running_loop(), clocks.steady() + timeout
    elsewhere = {loop: _begin(loop, work) for loop, work in works.items() if loop is not here}
    results: list[T | None] = [await works[here]()] if here in works else []
    if waiting := [asyncio.wrap_future(done) for loop, done in elsewhere.items() if loop.is_running()]:
        await asyncio.wait(waiting, timeout=max(0.0, until - clocks.steady()))
        if late := [each for each in waiting if each.cancel()]:
            log.warning(
                "%d event loops of other threads did not end their part of a client within %g s: they go on with that "
                "when they run again, or are closed",
                len(late),
                timeout,
            )
    return results + [done.result() if done.done() and not done.cancelled() else None for done in elsewhere.values()]


def _begin(loop: Loop, work: Callable[[], Coroutine[Any, Any, T]]) -> "concurrent.futures.Future[T | None]":
    """Run `work()` as a task of a loop of another thread. Makes no coroutine unless the loop runs."""
    done: concurrent.futures.Future[T | None] = concurrent.futures.Future()

    def end(task: asyncio.Task[T]) -> None:
        _from_elsewhere.discard(task)
        _report(task)
        if done.set_running_or_notify_cancel():
            done.set_result(None if task.cancelled() or task.exception() is not None else task.result())

    def begin() -> None:
        task = loop.create_task(work(), name="tenure-from-elsewhere")
        _from_elsewhere.add(task)
        task.add_done_callback(end)

    try:
        loop.call_soon_threadsafe(begin)
    except RuntimeError:  # the loop was closed just now
        done.cancel()
    return done


class AsyncioRuntime(RealWorld):
    """The runtime of `tenure.AsyncClient`, bound to the loop that runs when it is made."""

    form = "asyncio"
    goes_on = True

    def __init__(self) -> None:
        """Bind to the running loop. Raises RuntimeError if no loop runs."""
        super().__init__()
        self.loop = running_loop()
        self.last_work: Callable[[], Callable[[], Coroutine[Any, Any, None]] | None] = _nothing
        """Returns what to do before the loop is closed."""
        self._spawned: set[asyncio.Task[Any]] = set()
        self._unfinished: set[asyncio.Task[Any]] = set()

    def before_loop_closes(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run `work()`, a method, in the loop before it is closed, if the object of the method still exists then.

        In a loop whose `close` cannot be replaced it never runs: then a client has to be closed by its user.
        """
        self.last_work = weakref.WeakMethod(work)
        close = self.loop.close
        if not isinstance(close, LoopClose):
            try:
                close = self.loop.close = LoopClose(self.loop)  # type: ignore[method-assign]
            except AttributeError:  # a loop that is written in C
                return
        close.runtimes.add(self)

    def caller(self) -> tuple[object, str]:
        """Return this task and its name; outside a task, the loop."""
        task = asyncio.current_task()
        return (self.loop, "event loop") if task is None else (task, task.get_name())

    def mark(self) -> object:
        """Return an object of the calling task alone; None outside a task."""
        return mark()

    def mutex(self) -> AbstractContextManager[Any]:
        """Return a mutex that does nothing: in one loop, code that does not await cannot be interrupted."""
        return nullcontext()

    def event(self) -> LoopEvent:
        """Make a lowered flag."""
        return LoopEvent(self.loop)

    async def sleep(self, seconds: float) -> None:
        """Suspend this task for a number of seconds."""
        await asyncio.sleep(max(0.0, seconds))

    def spawn(
        self,
        work: Callable[[], Coroutine[Any, Any, None]],
        name: str,
        *,
        or_here: bool = False,  # noqa: ARG002 - a task needs no thread
        again: bool = False,
    ) -> LoopTask:
        """Run `work()` as a task, and keep a strong reference to the task."""
        return LoopTask(self.loop, lambda: self._start(work(), f"tenure-{name}", self._spawned), again=again)

    async def finish(self, work: Coroutine[Any, Any, T]) -> T:
        """Await `work` as a task that a cancellation of the caller does not reach.

        Raises OutcomeUnknown if others have cancelled that task and not the caller, which must not end as cancelled.
        The work begins even if they cancel the task before its first step, so its `finally` blocks run.
        """
        task = self._start(_begun(work), "tenure-finish", self._unfinished)
        await asyncio.wait({task})
        caller = asyncio.current_task()
        if task.cancelled() and (caller is None or not caller.cancelling()):
            raise OutcomeUnknown(CANCELLED)
        return task.result()

    async def race(
        self,
        works: Sequence[Coroutine[Any, Any, T] | None],
        results: list[T | Exception | None],
        least: int,
        enough: Callable[[], bool],
    ) -> None:
        """Run each work as a task; `settle` waits for the tasks that have not ended when `enough()` is true."""
        decided: asyncio.Future[None] = self.loop.create_future()
        begun = [(place, work) for place, work in enumerate(works) if work is not None]
        ended = 0

        def end(place: int, task: asyncio.Task[T]) -> None:
            nonlocal ended
            ended += 1
            error = asyncio.InvalidStateError("cancelled") if task.cancelled() else task.exception()
            results[place] = error if isinstance(error, Exception) else None if error else task.result()
            if not decided.done() and (ended == len(begun) or (ended >= least and enough())):
                decided.set_result(None)

        for place, work in begun:
            self._start(work, "tenure-race", self._unfinished, partial(end, place))
        if begun:
            await decided

    async def settle(self, until: float) -> None:
        """Wait for the tasks that `finish` and `race` left behind, until a steady instant."""
        current = asyncio.current_task()
        if others := {task for task in self._unfinished if task is not current}:
            await asyncio.wait(others, timeout=max(0.0, until - clocks.steady()))

    def _start(
        self,
        work: Coroutine[Any, Any, T],
        name: str,
        group: set[asyncio.Task[Any]],
        hear: Callable[[asyncio.Task[T]], None] | None = None,
    ) -> asyncio.Task[T]:
        """Start a task that is in `group` until its end; then call `hear` with the task."""
        if self.loop.is_closed():
            work.close()
            message = "the event loop in which this was acquired is closed, and with it what was acquired in it"
            raise RuntimeError(message)
        task = self.loop.create_task(work, name=name)
        group.add(task)
        task.add_done_callback(group.discard)
        task.add_done_callback(hear or _report)
        return task

    def post(self, action: Callable[[], None]) -> bool:
        """Run `action` in the loop's thread, from any thread."""
        try:
            self.loop.call_soon_threadsafe(action)
        except RuntimeError:
            return False
        return True

    def listen(self, source: Datagrams, receive: Callable[[bytes], None]) -> Callable[[], None]:
        """Receive in the loop until stopped."""
        descriptor = source.fileno()

        def readable() -> None:
            with contextlib.suppress(BlockingIOError):
                while True:
                    receive(source.recv(DATAGRAM))

        self.loop.add_reader(descriptor, readable)

        def close() -> None:
            if not self.loop.is_closed():
                self.loop.remove_reader(descriptor)

        return close


def _nothing() -> None:
    """Stand for the last work of a runtime that has none."""


def _report(task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.debug("%s ended by %r", task.get_name(), error)
