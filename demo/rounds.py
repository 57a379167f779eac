"""One round of a story: starts the workers together, kills those that pause or stops one, and waits for the others."""

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from demo.crew import Crew
from demo.plan import DemoError, DemoEvent, Plan, What

LIMIT = 90.0
"""The longest that a round may take, in seconds."""

TICK = 0.25
"""How long to wait for the next event before the workers are checked, in seconds."""

SPARE = 1.5
"""How many seconds beyond its ttl a stopped worker is continued for a moment, if no other worker was granted."""


@dataclass(slots=True)
class RoundResult:
    """The events of a round, and its time."""

    events: list[DemoEvent] = field(default_factory=list[DemoEvent])
    began: float = 0.0
    ended: float = 0.0

    def all_of(self, what: What) -> list[DemoEvent]:
        """Return all events of a kind, in order."""
        return [event for event in self.events if event.what is what]


class Round:
    """A running round."""

    def __init__(self, plan: Plan, url: str, folder: Path, tick: Callable[[], None]) -> None:
        """Prepare a round. `tick` is called for each unit of work that is done."""
        self._plan = plan
        self._url = url
        self._folder = folder
        self._tick = tick
        self._result = RoundResult()
        self._stopped: DemoEvent | None = None
        self._nudge_at = 0.0

    def run(self) -> RoundResult:
        """Run the round. Raises DemoError if it fails."""
        until = time.monotonic() + LIMIT
        with Crew(self._plan, self._url, self._folder) as crew:
            self._start_together(crew, until)
            self._watch(crew, until)
            crew.check_ends(until)
        self._result.ended = time.monotonic()
        self._result.events.sort(key=lambda event: event.at)
        return self._result

    def _start_together(self, crew: Crew, until: float) -> None:
        waiting = self._plan.workers
        while waiting:
            waiting -= len(crew.events(TICK) or [])
            self._check(crew, until)
        self._result.began = time.monotonic()
        for number in range(self._plan.workers):
            crew.tell(number)

    def _watch(self, crew: Crew, until: float) -> None:
        while (events := crew.events(TICK)) is not None:
            for event in events:
                self._result.events.append(event)
                self._react(event, crew)
            self._nudge(crew)
            self._check(crew, until)

    def _react(self, event: DemoEvent, crew: Crew) -> None:
        stopped = self._stopped
        if event.what in (What.WROTE, What.SOLD):
            self._tick()
        elif event.what is What.PAUSED and event.worker != self._plan.stop:
            crew.kill(event.worker)
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
        self._result.events.append(DemoEvent(of.worker, what, time.monotonic(), of.token, of.batch))

    def _check(self, crew: Crew, until: float) -> None:
        crew.check_health()
        if time.monotonic() > until:
            raise DemoError(f"the round was not over after {LIMIT:g} s. Check whether the store is very slow.")


@dataclass(slots=True)
class Stage:
    """The settings that all stories share: the number of workers, the store, a folder for data, and a listener."""

    workers: int
    url: str
    folder: Path
    log: Path
    log_name: str
    namespace: str
    tell: Callable[[str], None] = print
    """Tells a sentence before the rounds begin."""
    count: Callable[[str, int], Callable[[], None]] = lambda _title, _total: lambda: None
    """Shows the progress of a round, which has a title and a number of units of work."""

    def half(self) -> int:
        """Return the number of workers of a story in which fewer show as much; at least three."""
        return max(3, self.workers // 2)

    def play(self, plan: Plan, title: str, total: int) -> RoundResult:
        """Run a round."""
        return Round(plan, self.url, self.folder, self.count(title, total)).run()
