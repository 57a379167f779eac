"""Background releases: releases and withdrawals that nobody waits for.

They are the releases of leases that lingered or were lost, and the withdrawals of requests whose caller's time is up.
The renewer, the notification channel and a caller whose timeout has passed must not wait for a store that does not
answer. So a few tasks or threads of the client do that work. They also go on with a release or withdrawal that the
store did not answer, after its caller was told so: until it is answered, its lease has ended, or the client closes.
"""

import logging
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from tenure.contracts.runtime import NoThreadLeft, Runtime, SpawnedTask
from tenure.errors import StoreError, StoreUnavailable
from tenure.escaping import quoted

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

log = logging.getLogger("tenure")

Work = Callable[[], Coroutine[Any, Any, object]]

SHORTEST_PAUSE, LONGEST_PAUSE = 0.1, 1.0
"""The time between two tries of a request that the store does not answer, in seconds: twice that before the last."""

WORKERS = 8
"""How many background releases run at once at most: several, so that one that hangs does not delay the others."""


@dataclass(slots=True, eq=False)
class _Worker:
    """A task or thread that carries out background releases."""

    task: SpawnedTask | None = None
    """The task or thread; None until it is started."""
    done: bool = False
    """Whether the worker has found nothing more to do, and takes no further work."""

    def works(self) -> bool:
        """Return whether the worker still takes work: it is not done, and its task was not cancelled."""
        return not self.done and (self.task is None or not self.task.ended())


class BackgroundReleases:
    """The background releases of one client."""

    def __init__(self, runtime: Runtime, look_by: Callable[[float], None]) -> None:
        """Start without work and workers; `look_by` has `go_on` called by a local instant."""
        self._runtime = runtime
        self._look_by = look_by
        self._mutex: AbstractContextManager[Any] = runtime.mutex()
        self._works: deque[tuple[Work, str]] = deque()
        self._workers: list[_Worker] = []
        self._stalled = False
        """Whether work waits because no thread could be started, and no worker is there that takes it."""
        self._closing = False

    def add(self, work: Work, name: str) -> None:
        """Run `work` soon in the background: it releases or withdraws `name`, and ends by itself."""
        with self._mutex:
            self._works.append((work, name))
        self._start_worker()
        if self._stalled:
            with suppress(RuntimeError):  # without a lease there is no renewer: the next `add` starts a worker
                self._look_by(self._runtime.now() + SHORTEST_PAUSE)

    def go_on(self) -> bool:
        """Start a worker if work waits because none could be started; return whether it still waits for that."""
        if self._stalled and not self._closing:
            self._stalled = False
            self._start_worker()
        return self._stalled

    def _start_worker(self) -> None:
        worker = _Worker()
        with self._mutex:
            self._workers = [each for each in self._workers if each.task is None or not each.task.ended()]
            if sum(each.works() for each in self._workers) >= WORKERS:
                return
            self._workers.append(worker)
        try:
            worker.task = self._runtime.spawn(partial(self._work, worker), "release", again=True)
        except RuntimeError as error:
            # At the end of the interpreter or of an event loop, closing the client releases a lease; a request ends at
            # its ttl. Later this system may start a thread again: a lease that waits for its release is renewed.
            with self._mutex:
                self._workers.remove(worker)
                self._stalled = isinstance(error, NoThreadLeft) and not any(each.works() for each in self._workers)
            log.debug("no background release can be started (%s)", quoted(error))

    def repeat(self, request: Callable[[], Coroutine[Any, Any, object]], name: str, until: float) -> None:
        """Send a request that releases or withdraws `name`, again and again, until the store answers it.

        It ends at the local instant `until`, after which the request means nothing any more, or with the client.
        """
        self._try_later(request, name, until, SHORTEST_PAUSE)

    def _try_later(
        self, request: Callable[[], Coroutine[Any, Any, object]], name: str, until: float, pause: float
    ) -> None:
        at = self._runtime.now() + pause * (0.5 + self._runtime.random())

        async def work() -> None:
            await self._runtime.sleep(at - self._runtime.now())  # not at all, if others were tried meanwhile
            if self._closing:
                return
            try:
                await request()
            except StoreUnavailable:
                self._try_later(request, name, until, min(2 * pause, LONGEST_PAUSE))
            except StoreError as error:
                log.debug("%r is not released in the background (%s)", name, quoted(error))

        if at < until and not self._closing:
            self.add(work, name)

    async def end(self, until: float) -> None:
        """Wait for all background releases that are under way, until a local instant."""
        self._closing = True
        for worker in self._workers:
            if worker.task is not None:
                await worker.task.join(until)

    async def _work(self, worker: _Worker) -> None:
        while (todo := self._next(worker)) is not None:
            work, name = todo
            try:
                await work()
            except Exception:
                log.exception("the background release of %r failed; its lease or request ends at its ttl", name)
            except BaseException:
                # Others have cancelled the task, which begins again: to repeat a release does no harm.
                self._works.appendleft(todo)
                raise

    def _next(self, worker: _Worker) -> tuple[Work, str] | None:
        with self._mutex:
            if self._works:
                return self._works.popleft()
            worker.done = True  # with the mutex held: an `add` after this line starts another worker
            return None
