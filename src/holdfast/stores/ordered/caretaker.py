"""What a client does though nobody asks: keep the session alive, end who is silent, remove what means nothing now."""

import logging
from collections.abc import Callable, Coroutine
from typing import Any

from holdfast.contracts.runtime import Runtime, Task
from holdfast.stores.ordered.contenders import Contender, ContenderRegistry
from holdfast.stores.ordered.directory import Directory
from holdfast.stores.ordered.entries import Entry

log = logging.getLogger("holdfast")

AGAIN = 0.2
"""After how many seconds something is tried again that nobody waits for."""

OPERATION = 2.0
"""How long something may take that nobody waits for, in seconds."""


class Caretaker:
    """Works in the background from `start` to `stop`."""

    def __init__(
        self,
        runtime: Runtime,
        directory: Directory,
        contenders: ContenderRegistry,
        end: Callable[[Contender, float], Coroutine[Any, Any, object]],
    ) -> None:
        """Prepare; `end` removes all entries of a place whose owner is silent."""
        self._runtime = runtime
        self._directory = directory
        self._contenders = contenders
        self._end = end
        self._signal = runtime.event()
        self._looks_at = float("inf")
        self._keeps_alive_at = 0.0
        self._litter: list[tuple[str, list[Entry]]] = []
        self._ending: list[Contender] = []
        self._task: Task | None = None
        self._closed = False

    def start(self) -> None:
        """Begin, unless that was done."""
        if self._task is None:
            self._keeps_alive_at = self._runtime.now() + self._directory.trust / 3
            self._task = self._runtime.spawn(self._work, "session")

    async def stop(self) -> None:
        """End, for good."""
        self.abandon()
        self._signal.set()
        if self._task is not None:
            await self._task.join(self._runtime.now() + OPERATION)

    def abandon(self) -> None:
        """Do nothing any more: in a forked child nobody works."""
        self._closed = True

    def look_by(self, instant: float) -> None:
        """Look after the places at an instant, at the latest."""
        if instant < self._looks_at:
            self._signal.set()

    def throw_away(self, name: str, stale: list[Entry]) -> None:
        """Remove entries that mean nothing any more, soon."""
        self._litter.append((name, stale))
        self._signal.set()

    async def _work(self) -> None:
        while not self._closed:
            self._looks_at = float("inf")  # so that whoever comes while we look wakes us again
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
        """Renew the session if it is time; return when it is the next time."""
        if now >= self._keeps_alive_at:
            third = self._directory.trust / 3
            try:
                await self._directory.keep_alive(now + min(OPERATION, third))
                self._keeps_alive_at = now + third
            except Exception as error:  # noqa: BLE001 - whatever ails a store, this goes on, or all would be lost
                log.debug("the session could not be renewed: %s", error)
                self._keeps_alive_at = now + min(AGAIN, third)
        return self._keeps_alive_at

    async def _clean_up(self) -> None:
        """End places whose owners are silent, and remove the litter."""
        until = self._runtime.now() + min(OPERATION, self._directory.trust / 3)  # then the session is to be renewed
        ending, self._ending = self._ending, []
        for contender in ending:
            try:
                await self._end(contender, until)
            except Exception as error:  # noqa: BLE001 - as above
                log.debug("%r could not be given up: %s", contender.request.name, error)
                if contender.entry is None or contender.entry.session == self._directory.session():
                    self._ending.append(contender)
                    continue
            self._contenders.ending.discard(contender.request.request_id)
        litter, self._litter = self._litter, []
        for name, stale in litter:
            try:
                await self._directory.change(name, stale, [], until)
            except Exception as error:  # noqa: BLE001 - as above
                log.debug("left-overs of %r could not be removed: %s", name, error)
