"""Releases that nobody waits for: those of leases that lingered, and are wanted by somebody outside or by nobody.

Whoever finds that a lease has lingered long enough (the keeper, the inbox) must not be kept by a store that does not
answer. So the release is sent by a task or thread of the client's own, and a few of them share the work. A release that
fails is repeated as any other; in the end the lease ends at its ttl.
"""

import logging
from collections import deque
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from holdfast.core.held import HeldLease
from holdfast.outcome import Outcome
from holdfast.runtimes.runtime import Runtime, Task

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

log = logging.getLogger("holdfast")

WORKERS = 8
"""How many releases are under way at once, so that a server that hangs does not hold up the others."""


class Departures:
    """The releases of one client that nobody waits for."""

    def __init__(self, runtime: Runtime, release: Callable[[HeldLease], Coroutine[Any, Any, Outcome]]) -> None:
        """Start without any."""
        self._runtime = runtime
        self._release = release
        self._mutex: AbstractContextManager[Any] = runtime.mutex()
        self._leases: deque[HeldLease] = deque()
        self._working = 0
        self._tasks: list[Task] = []

    def add(self, lease: HeldLease) -> None:
        """Release a lease soon."""
        with self._mutex:
            self._leases.append(lease)
            if self._working >= WORKERS:
                return
            self._working += 1
        try:
            task = self._runtime.spawn(self._work, "release")
        except RuntimeError:  # nothing can be started any more: closing the client releases it, or it ends at its ttl
            with self._mutex:
                self._working -= 1
            log.debug("the lease of %r lingers until the client is closed", lease.name)
        else:
            self._tasks = [*(each for each in self._tasks if not each.ended()), task]

    async def end(self, until: float) -> None:
        """Wait for all that is under way, until a local instant."""
        for task in self._tasks:
            await task.join(until)

    async def _work(self) -> None:
        while (lease := self._next()) is not None:
            try:
                await self._release(lease)
            except Exception:
                log.exception("a lease of %r that lingered could not be released; it ends at its ttl", lease.name)

    def _next(self) -> HeldLease | None:
        with self._mutex:
            if self._leases:
                return self._leases.popleft()
            self._working -= 1
            return None
