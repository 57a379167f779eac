"""What is told the store while nobody waits for it: releases of leases that lingered, and requests given up too late.

Whoever finds that a lease has lingered long enough (the renewer, the channel), or whose timeout has passed, must not be
kept by a store that does not answer. So that is told by a task or thread of the client's own, and a few of them share
the work. What fails is repeated as anywhere else; in the end a lease ends at its ttl, and so does what was asked for.
"""

import logging
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from holdfast.contracts.runtime import Runtime, Task

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

log = logging.getLogger("holdfast")

Work = Callable[[], Coroutine[Any, Any, object]]

WORKERS = 8
"""How many of them are under way at once, so that a server that hangs does not hold up the others."""


@dataclass(slots=True, eq=False)
class _Worker:
    """A task that tells the store."""

    task: Task | None = None
    """None until it is started."""
    done: bool = False
    """Whether it takes no more."""

    def works(self) -> bool:
        """Tell whether it goes on: it is not done, and nobody cancelled it."""
        return not self.done and (self.task is None or not self.task.ended())


class BackgroundReleases:
    """What one client tells its store while nobody waits for it."""

    def __init__(self, runtime: Runtime) -> None:
        """Start without any."""
        self._runtime = runtime
        self._mutex: AbstractContextManager[Any] = runtime.mutex()
        self._works: deque[tuple[Work, str]] = deque()
        self._workers: list[_Worker] = []

    def add(self, work: Work, name: str) -> None:
        """Run soon what lets go of `name`, and ends by itself."""
        worker = _Worker()
        with self._mutex:
            self._works.append((work, name))
            self._workers = [each for each in self._workers if each.task is None or not each.task.ended()]
            if sum(each.works() for each in self._workers) >= WORKERS:
                return
            self._workers.append(worker)
        try:
            worker.task = self._runtime.spawn(partial(self._work, worker), "release")
        except (
            RuntimeError
        ):  # nothing can be started any more: it ends at its ttl, or a lease when the client is closed
            with self._mutex:
                self._workers.remove(worker)
            log.debug("%r is not let go of before the client is closed", name)

    async def end(self, until: float) -> None:
        """Wait for all that is under way, until a local instant."""
        for worker in self._workers:
            if worker.task is not None:
                await worker.task.join(until)

    async def _work(self, worker: _Worker) -> None:
        while (todo := self._next(worker)) is not None:
            work, name = todo
            try:
                await work()
            except Exception:
                log.exception("%r could not be let go of in the background; what is left ends at its ttl", name)

    def _next(self, worker: _Worker) -> tuple[Work, str] | None:
        with self._mutex:
            if self._works:
                return self._works.popleft()
            worker.done = True
            return None
