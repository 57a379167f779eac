"""Releases that nobody waits for: those of leases that lingered, and are wanted by somebody outside or by nobody.

Whoever finds that a lease has lingered long enough (the keeper, the inbox) must not be kept by a store that does not
answer. So the release is sent by a task or thread of the client's own, and a few of them share the work. A release that
fails is repeated as any other; in the end the lease ends at its ttl.
"""

import logging
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from holdfast.core.held import HeldLease
from holdfast.outcome import Outcome
from holdfast.runtimes.runtime import Runtime, Task

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

log = logging.getLogger("holdfast")

WORKERS = 8
"""How many releases are under way at once, so that a server that hangs does not hold up the others."""


@dataclass(slots=True, eq=False)
class _Worker:
    """A task that makes releases."""

    task: Task | None = None
    """None until it is started."""
    done: bool = False
    """Whether it takes no more."""

    def works(self) -> bool:
        """Tell whether it goes on: it is not done, and nobody cancelled it."""
        return not self.done and (self.task is None or not self.task.ended())


class Departures:
    """The releases of one client that nobody waits for."""

    def __init__(self, runtime: Runtime, release: Callable[[HeldLease], Coroutine[Any, Any, Outcome]]) -> None:
        """Start without any."""
        self._runtime = runtime
        self._release = release
        self._mutex: AbstractContextManager[Any] = runtime.mutex()
        self._leases: deque[HeldLease] = deque()
        self._workers: list[_Worker] = []

    def add(self, lease: HeldLease) -> None:
        """Release a lease soon."""
        worker = _Worker()
        with self._mutex:
            self._leases.append(lease)
            self._workers = [each for each in self._workers if each.task is None or not each.task.ended()]
            if sum(each.works() for each in self._workers) >= WORKERS:
                return
            self._workers.append(worker)
        try:
            worker.task = self._runtime.spawn(partial(self._work, worker), "release")
        except RuntimeError:  # nothing can be started any more: closing the client releases it, or it ends at its ttl
            with self._mutex:
                self._workers.remove(worker)
            log.debug("the lease of %r lingers until the client is closed", lease.name)

    async def end(self, until: float) -> None:
        """Wait for all that is under way, until a local instant."""
        for worker in self._workers:
            if worker.task is not None:
                await worker.task.join(until)

    async def _work(self, worker: _Worker) -> None:
        while (lease := self._next(worker)) is not None:
            try:
                await self._release(lease)
            except Exception:
                log.exception("a lease of %r that lingered could not be released; it ends at its ttl", lease.name)

    def _next(self, worker: _Worker) -> HeldLease | None:
        with self._mutex:
            if self._leases:
                return self._leases.popleft()
            worker.done = True
            return None
