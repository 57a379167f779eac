"""One round of the demo: starts the workers together, kills one and stops one if planned, and waits for the others."""

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from demo.crew import Crew
from demo.plan import DemoError, DemoEvent, Plan, What
from demo.record import SharedRecord
from demo.tally import Tally

LIMIT = 90.0
"""The longest that a round may take, in seconds."""

TICK = 0.25
"""How long to wait for the next event before the workers are checked, in seconds."""

SPARE = 1.5
"""How many seconds beyond its ttl a stopped worker is continued for a moment, if no other worker was granted."""


@dataclass(slots=True)
class Story:
    """The events of a round, and the counts in its record."""

    tally: Tally = field(default_factory=Tally)
    events: list[DemoEvent] = field(default_factory=list[DemoEvent])
    began: float = 0.0
    ended: float = 0.0

    def all_of(self, what: What) -> list[DemoEvent]:
        """Return all events of a kind, in order."""
        return [event for event in self.events if event.what is what]


class Round:
    """A running round."""

    def __init__(self, plan: Plan, url: str, folder: Path, tick: Callable[[], None]) -> None:
        """Prepare a round. `tick` is called for each written update."""
        self._plan = plan
        self._url = url
        self._folder = folder
        self._tick = tick
        self._story = Story()
        self._stopped: DemoEvent | None = None
        self._nudge_at = 0.0

    def run(self) -> Story:
        """Run the round. Raises DemoError if it fails."""
        with SharedRecord.create(Path(self._plan.record)) as record:
            until = time.monotonic() + LIMIT
            with Crew(self._plan, self._url, self._folder) as crew:
                self._start_together(crew, until)
                self._watch(crew, until)
                crew.check_ends(until)
            self._story.ended = time.monotonic()
            self._story.events.sort(key=lambda event: event.at)
            self._story.tally = record.read()
        return self._story

    def _start_together(self, crew: Crew, until: float) -> None:
        waiting = self._plan.workers
        while waiting:
            waiting -= len(crew.events(TICK) or [])
            self._check(crew, until)
        self._story.began = time.monotonic()
        for number in range(self._plan.workers):
            crew.tell(number)

    def _watch(self, crew: Crew, until: float) -> None:
        while (events := crew.events(TICK)) is not None:
            for event in events:
                self._story.events.append(event)
                self._react(event, crew)
            self._nudge(crew)
            self._check(crew, until)

    def _react(self, event: DemoEvent, crew: Crew) -> None:
        stopped = self._stopped
        if event.what is What.WROTE:
            self._tick()
        elif event.what is What.PAUSED and event.worker == self._plan.kill:
            crew.send_signal(event.worker, signal.SIGKILL)  # as the kernel does when memory is short
            self._note(What.KILLED, event)
        elif event.what is What.PAUSED:
            crew.send_signal(event.worker, signal.SIGSTOP)  # as a debugger, a suspended machine or a swap storm does
            self._stopped, self._nudge_at = event, self._next_nudge()
            self._note(What.STOPPED, event)
        elif event.what is What.TOUCHED and stopped is not None and event.token > stopped.token:
            crew.tell(stopped.worker)
            self._stopped = None
            crew.send_signal(stopped.worker, signal.SIGCONT)
            self._note(What.CONTINUED, stopped)

    def _nudge(self, crew: Crew) -> None:
        """Continue a stopped worker for a moment if it was stopped in a transaction of its background renewal.

        Such a transaction keeps all other workers from the lock. The worker still pauses before its write, and learns
        in that moment that its lease is lost.
        """
        if self._stopped is not None and time.monotonic() > self._nudge_at:
            crew.send_signal(self._stopped.worker, signal.SIGCONT)
            time.sleep(0.02)
            crew.send_signal(self._stopped.worker, signal.SIGSTOP)
            self._nudge_at = self._next_nudge()

    def _next_nudge(self) -> float:
        return time.monotonic() + self._plan.ttl + SPARE

    def _note(self, what: What, of: DemoEvent) -> None:
        self._story.events.append(DemoEvent(of.worker, what, time.monotonic(), of.token, of.batch))

    def _check(self, crew: Crew, until: float) -> None:
        crew.check_health()
        if time.monotonic() > until:
            raise DemoError(f"the round was not over after {LIMIT:g} s. Check whether the store is very slow.")
