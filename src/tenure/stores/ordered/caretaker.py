"""The background work of a client: renew its session, remove expired contenders, delete stale entries."""

import logging
from collections.abc import Callable, Coroutine
from typing import Any

from tenure.contracts.runtime import Runtime, SpawnedTask
from tenure.stores.ordered.contenders import Contender, ContenderRegistry
from tenure.stores.ordered.directory import Directory
from tenure.stores.ordered.entries import Entry

log = logging.getLogger("tenure")

AGAIN = 0.2
"""The pause before background work that failed is tried again, in seconds."""

OPERATION = 2.0
"""The longest time that one piece of background work may take, in seconds."""


class Caretaker:
    """The background task of an ordered store, from `start` to `stop`."""

    def __init__(
        self,
        runtime: Runtime,
        directory: Directory,
        contenders: ContenderRegistry,
        end: Callable[[Contender, float], Coroutine[Any, Any, object]],
    ) -> None:
        """Prepare the task; `end` removes all entries of an expired contender."""
        self._runtime = runtime
        self._directory = directory
        self._contenders = contenders
        self._end = end
        self._signal = runtime.event()
        self._looks_at = float("inf")
        self._keeps_alive_at = 0.0
        self._litter: list[tuple[str, list[Entry]]] = []
        self._ending: list[Contender] = []
        self._task: SpawnedTask | None = None
        self._closed = False

    def start(self) -> None:
        """Start the task, unless it was started before."""
        if self._task is None:
            self._keeps_alive_at = self._runtime.now() + self._directory.trust / 3
            self._task = self._runtime.spawn(self._work, "session", again=True)

    async def stop(self) -> None:
        """Stop the task for good."""
        self.abandon()
        self._signal.set()
        if self._task is not None:
            await self._task.join(self._runtime.now() + OPERATION)

    def abandon(self) -> None:
        """Do no more work: in a forked child no task runs."""
        self._closed = True

    def look_by(self, instant: float) -> None:
        """Check the contenders for expired ones at `instant`, at the latest."""
        if instant < self._looks_at:
            self._signal.set()

    def throw_away(self, name: str, stale: list[Entry]) -> None:
        """Delete stale entries of `name` soon."""
        self._litter.append((name, stale))
        self._signal.set()

    async def _work(self) -> None:
        while not self._closed:
            self._looks_at = float("inf")  # so that a contender added during this round wakes the task again
            self._signal.clear()
            now = self._runtime.now()
            self._ending += self._contenders.silent(now)
            looks_at = min(self._contenders.next_end(), await self._keep_alive(now))
            if self._ending or self._litter:
                await self._clean_up()
                looks_at = min(looks_at, now + AGAIN) if self._ending or self._litter else looks_at
            self._looks_at = looks_at
            if not self._closed and self._contenders.next_end() >= looks_at:
                await self._signal.wait(looks_at)

    async def _keep_alive(self, now: float) -> float:
        """Renew the session if it is due; return the local instant of the next renewal."""
        if now >= self._keeps_alive_at:
            third = self._directory.trust / 3
            try:
                await self._directory.keep_alive(now + min(OPERATION, third))
                self._keeps_alive_at = now + third
            except Exception as error:  # noqa: BLE001 - the task must survive every error, or all leases are lost
                log.debug("the session could not be renewed: %s", error)
                self._keeps_alive_at = now + min(AGAIN, third)
        return self._keeps_alive_at

    async def _clean_up(self) -> None:
        """Remove expired contenders and delete stale entries."""
        # The next renewal of the session is due after a third of the trust, and this must not delay it.
        until = self._runtime.now() + min(OPERATION, self._directory.trust / 3)
        ending, self._ending = self._ending, []
        for contender in ending:
            try:
                await self._end(contender, until)
            except Exception as error:  # noqa: BLE001 - as above
                log.debug("the expired request for %r could not be removed: %s", contender.request.name, error)
                if contender.entry is None or contender.entry.session == self._directory.session():
                    self._ending.append(contender)
                    continue
            self._contenders.ending.discard(contender.request.request_id)
        litter, self._litter = self._litter, []
        for name, stale in litter:
            try:
                await self._directory.change(name, stale, [], until)
            except Exception as error:  # noqa: BLE001 - as above
                log.debug("stale entries of %r could not be deleted: %s", name, error)
