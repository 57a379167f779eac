"""The history of names: what happened to each, in a cell of the store, for those who look later.

A client with `record=True` listens to its own events, and its history task writes them in batches: at most once a
second for each name, and once more when the client is closed. So a lease costs no request, and any store that keeps
cells keeps histories. An entry is a grant, to which the end of its lease is added, or an acquisition without a grant.

A write whose reply was lost is repeated. A grant is known again by its token, and a wait by its id, so neither is told
twice. The cell keeps the last entries that it has room for. What a process had not written when it was killed is
missing.
"""

import json
import logging
from bisect import insort
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tenure.contracts.cells import Change, cell_name
from tenure.contracts.deadlines import micros
from tenure.contracts.runtime import Runtime, SpawnedTask
from tenure.core.events import EventKind, LockEvent
from tenure.errors import StoreError, UsageError
from tenure.escaping import quoted

log = logging.getLogger("tenure")

MOST_ENTRIES = 100
"""How many entries the history of a name has at most."""

MOST_BYTES = 16_000
"""How many bytes they have at most, as JSON."""

LONGEST_TEXT = 200
"""How many characters of an owner or a reason are kept."""

KEPT = 30 * 86_400_000_000
"""After how many microseconds without an entry the store may forget a history: those that forget cells do."""

PERIOD, LONGEST_PERIOD = 1.0, 30.0
"""How many seconds pass between two writes of a client. While the store does not answer, the pause doubles, up to the
second number."""

MOST_WAITING = 10_000
"""How many events wait to be written at most, while the store does not answer: then the oldest go."""

BEGINS = {EventKind.ACQUIRED: "granted", EventKind.GAVE_UP: "not granted"}
ENDS = {
    EventKind.RELEASED: "released",
    EventKind.HANDED_ON: "handed on",
    EventKind.LOST: "lost",
    EventKind.DROPPED: "dropped",
}
"""What is written of the events that are recorded."""

BUSY = "busy"
"""Why an acquisition that was not to wait was refused. This is not recorded: a program may ask thousands of times."""

AT, WHAT, KEY, TOKEN, OWNER, WAITED, ENDED, HOW = range(8)
"""The places of an entry: its instant in microseconds since 1970, by the store's clock; what it is; what it is known by
again; the token, or 0; the owner; the wait in microseconds; the end of the lease, or 0; and how that came, or why there
was no grant."""


@dataclass(slots=True)
class Told:
    """An event that is to be written."""

    name: str
    at: float
    """The local instant."""
    what: str
    key: str
    token: int
    owner: str
    waited: int
    how: str

    def ends(self) -> bool:
        """Return whether it is the end of a lease."""
        return self.what == ""

    def added_to(self, entries: list[list[Any]], at: int) -> None:
        """Add it to a history, in which it may be already. `at` is its instant by the store's clock."""
        there = next((each for each in reversed(entries) if each[KEY] == self.key), None)
        if self.ends():
            if there is not None and not there[ENDED]:
                there[ENDED], there[HOW] = max(at, there[AT]), self.how
        elif there is None:
            insort(entries, [at, self.what, self.key, self.token, self.owner, self.waited, 0, self.how], key=_instant)


def _instant(entry: list[Any]) -> int:
    at: int = entry[AT]
    return at


def told(event: LockEvent, at: float) -> Told | None:
    """Return what is to be written of an event; None if it is not recorded."""
    what = BEGINS.get(event.event, "")
    end = ENDS.get(event.event, "")
    if not (what or end) or event.cause == BUSY:
        return None
    how = f"{end}: {event.cause}" if end and event.cause and event.cause != end else end or event.cause
    key = str(event.token) if event.token else f"{event.owner} {event.id}"
    return Told(
        event.name,
        at,
        what,
        key[:LONGEST_TEXT],
        event.token,
        event.owner[:LONGEST_TEXT],
        micros(event.waited or 0.0),
        how[:LONGEST_TEXT],
    )


def added(state: Any, now: int, *, events: Sequence[Told], local_now: float) -> Change:  # noqa: ANN401 - what JSON knows
    """Add events to the history of a name, which drops its oldest entries when it is full."""
    before: list[list[Any]] = state or []
    entries = [[*each] for each in before]
    for event in events:
        event.added_to(entries, now - micros(local_now - event.at))
    entries = entries[-MOST_ENTRIES:]
    while len(entries) > 1 and len(json.dumps(entries, separators=(",", ":"))) > MOST_BYTES:
        del entries[: max(1, len(entries) // 10)]
    return Change(entries, None, changed=entries != before, keep=KEPT)


def history_cell(prefix: str, name: str) -> str:
    """Return the name of the cell that has the history of a name."""
    return cell_name("history", prefix, name)


class Recorder:
    """Writes what happens to the names of one client."""

    change: Callable[..., Coroutine[Any, Any, Any]]
    """Changes a cell. Set by the session, which makes both."""

    def __init__(self, runtime: Runtime, prefix: str) -> None:
        """Start with nothing to write. The task starts with the first event."""
        self._runtime = runtime
        self._prefix = prefix
        self._mutex = runtime.mutex()
        self._signal = runtime.event()
        self._waiting: deque[Told] = deque(maxlen=MOST_WAITING)
        self._task: SpawnedTask | None = None
        self._runs = False
        """Whether the task runs, and will look at what waits once more."""
        self._stopping = False

    def note(self, event: LockEvent) -> None:
        """Take an event, which is written later. Events are made inside Tenure, so never by a signal handler."""
        each = told(event, self._runtime.now())
        if each is not None:
            self._waiting.append(each)
            if not self._runs:
                self._runtime.post(self._start)

    def _start(self) -> None:
        with self._mutex:
            if self._runs or self._stopping:
                return
            self._runs = True
        try:
            self._task = self._runtime.spawn(self._run, "history")
        except RuntimeError:
            # No thread or task can be started: the next event starts it, or the end of the client writes.
            self._runs = False

    async def _run(self) -> None:
        pause = PERIOD
        try:
            while self._goes_on():
                await self._signal.wait(self._runtime.now() + pause)
                pause = PERIOD if await self._write() else min(2 * pause, LONGEST_PERIOD)
        finally:
            self._runs = False  # after a cancellation, the next event starts another task

    def _goes_on(self) -> bool:
        """Return whether there is something to write; if not, the next event starts another task."""
        with self._mutex:
            self._runs = False  # first: an event that comes after the next line finds this
            self._runs = bool(self._waiting) and not self._stopping
            return self._runs

    async def end(self, until: float, *, write: bool) -> None:
        """End the task by a local instant, and write what is left. Without `write`, the store was never open."""
        self._stopping = True
        self._signal.set()
        if self._task is not None:
            await self._task.join(until)
        if write and self._runtime.now() < until:
            await self._write()

    async def _write(self) -> bool:
        """Write all that waits, name by name. After an error, the rest waits again; return whether there was none."""
        by_name: dict[str, list[Told]] = {}
        while self._waiting:
            each = self._waiting.popleft()
            by_name.setdefault(each.name, []).append(each)
        while by_name:
            name, events = next(iter(by_name.items()))
            change = partial(added, events=events, local_now=self._runtime.now())
            cell = history_cell(self._prefix, name)
            try:
                await self.change(cell, change, timeout=0.0, closing=self._stopping)
            except BaseException as error:
                self._waiting.extendleft(reversed([each for events in by_name.values() for each in events]))
                if not isinstance(error, (StoreError, UsageError)):  # others have cancelled the task
                    raise
                # A UsageError: the client is closed just now, and writes again.
                log.debug("the history of %r is not written yet (%s)", name, quoted(error))
                return False
            del by_name[name]
        return True
