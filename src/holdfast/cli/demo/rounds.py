"""One round of the demo: start the workers together, strike two of them if that is the plan, and wait for the rest."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.cli.demo.crew import Crew, DemoError
from holdfast.cli.demo.plan import Event, Plan, What
from holdfast.cli.demo.record import Record
from holdfast.cli.demo.tally import Tally

LIMIT = 90.0
"""The longest that a round may take, in seconds."""

TICK = 0.25
"""How often to look whether there is anything to see to when nothing happens, in seconds."""

SPARE = 1.5
"""After how many seconds beyond its ttl a stopped worker gets a moment to run, if nobody could follow it."""


@dataclass(slots=True)
class Strikes:
    """Whom to kill and whom to stop, each while it holds the lock."""

    kill: int
    stop: int
    nth: int = 2
    """At which of their updates."""

    def ordeals(self) -> dict[str, int]:
        """Return where the workers have to pause for it."""
        return {str(self.kill): self.nth, str(self.stop): self.nth + 1}


@dataclass(slots=True)
class Story:
    """What happened in a round, and what it left."""

    tally: Tally = field(default_factory=Tally)
    events: list[Event] = field(default_factory=list[Event])
    began: float = 0.0
    ended: float = 0.0

    def all_of(self, what: What) -> list[Event]:
        """Return all events of a kind, in order."""
        return [event for event in self.events if event.what is what]

    def first(self, what: What) -> Event | None:
        """Return the first event of a kind."""
        return next(iter(self.all_of(what)), None)


class Round:
    """A round under way."""

    def __init__(self, plan: Plan, strikes: Strikes | None, url: str, folder: Path, tick: Callable[[], None]) -> None:
        """Prepare a round; `tick` is called for each update that was written."""
        self._plan = plan
        self._strikes = strikes
        self._url = url
        self._folder = folder
        self._tick = tick
        self._story = Story()
        self._stopped: Event | None = None
        self._nudge_at = 0.0

    def run(self) -> Story:
        """Carry it out. Raises DemoError if it can't be."""
        with Record.create(Path(self._plan.record)) as record:
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
                self._heed(event, crew)
            self._nudge(crew)
            self._check(crew, until)

    def _heed(self, event: Event, crew: Crew) -> None:
        stopped = self._stopped
        if event.what is What.WROTE:
            self._tick()
        elif event.what is What.PAUSED:
            self._strike(event, crew)
        elif event.what is What.TOUCHED and stopped is not None and event.token > stopped.token:
            crew.tell(stopped.worker)
            self._stopped = None
            crew.cont(stopped.worker)
            self._note(What.CONTINUED, stopped)

    def _strike(self, event: Event, crew: Crew) -> None:
        if self._strikes is not None and event.worker == self._strikes.kill:
            crew.kill(event.worker)
            self._note(What.KILLED, event)
        else:
            crew.stop(event.worker)
            self._stopped = event
            self._nudge_at = time.monotonic() + self._plan.ttl + SPARE
            self._note(What.STOPPED, event)

    def _nudge(self, crew: Crew) -> None:
        """Give a stopped worker a moment if nobody can follow it: its background renewal was stopped mid-transaction.

        It still stands before its write, and learns in that moment that its lease is lost.
        """
        if self._stopped is not None and time.monotonic() > self._nudge_at:
            crew.cont(self._stopped.worker)
            time.sleep(0.02)
            crew.stop(self._stopped.worker)
            self._nudge_at = time.monotonic() + self._plan.ttl + SPARE

    def _note(self, what: What, of: Event) -> None:
        self._story.events.append(Event(of.worker, what, time.monotonic(), of.token, of.batch))

    def _check(self, crew: Crew, until: float) -> None:
        crew.check_health()
        if time.monotonic() > until:
            raise DemoError(f"the round was not over after {LIMIT:g} s; is the store very slow?")
