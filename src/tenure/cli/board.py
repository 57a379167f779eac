"""The board: what all who watch a store see of it, looked at once a second at most, and only while somebody watches.

The browsers of a console share one; `tenure top` and `--watch` have one each. Whoever needs a newer snapshot begins the
next look, unless one is due, and waits for it. So nothing runs while nobody watches, wherever a console is mounted. A
look is a task that ends by itself within LONGEST_LOOK; `close` ends it at once.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from tenure.cli.output import ANY_RULE, limit_text, read_stock, seconds, stock_text
from tenure.client import AsyncClient
from tenure.contracts.limits import describe_quarantine
from tenure.contracts.messages import HolderView, NameView
from tenure.errors import StoreError, UsageError
from tenure.escaping import quoted, shown
from tenure.primitives.history import HistoryEntry, history_of
from tenure.primitives.jobs import JobView

if TYPE_CHECKING:
    from tenure.contracts.findings import Report

INTERVAL = 1.0
"""The least time from one look at the store to the next, in seconds. The pause is as long as the look, at least."""

LONGEST_LOOK = 30.0
"""After how many seconds a look has failed."""

PATIENCE, LONG_PATIENCE = 0.3, 5.0
"""For how many seconds a page waits for a look; then it shows the last one, with its age. Longer
after an action, and for a name that was not looked at."""

FRESH = 1.5
"""For how many seconds a page shows a snapshot without another look; longer where looks take long."""

MOST_NAMES = 10_000
"""How many names a look reads at most."""

MOST_EXTRA, EXTRA_FOR = 50, 30.0
"""How many names that are not listed a look reads at most, and for how many seconds after somebody asked for them."""

EXAMINED_EVERY = 60.0
"""For how many seconds pages show what the doctor has found, before it looks again."""

READERS = 16
"""How many requests of a look are under way at the same time."""

ANY_NAME = "tenure"
"""The name that is inspected to learn whether a store without names is quarantined."""

LIMIT, STOCK = "limit", "stock"
"""The kinds of quantities that the board reads."""

Quantity = tuple[str, str]
"""A kind, and a name."""


def _now() -> float:
    return asyncio.get_running_loop().time()


@dataclass(slots=True)
class Snapshot:
    """The state of the store, as one look has found it.

    If the last look failed, it is the state that the last successful look found. While the first look is under way, it
    is what this look has found so far.
    """

    serial: int = 0
    seen_at: float = -math.inf
    """When the look that succeeded began, by the clock of the event loop."""
    took: float = 0.0
    error: str = ""
    """Why the last look failed; "" if it did not."""
    views: dict[str, NameView] = field(default_factory=dict[str, NameView])
    """The names that are held or waited for, in their order, and those that somebody asked for."""
    more: bool = False
    """Whether there are more than MOST_NAMES names."""
    jobs: list[JobView] = field(default_factory=list[JobView])
    quantities: dict[Quantity, str] = field(default_factory=dict[Quantity, str])
    """What is known of limits and stocks, for people."""
    histories: dict[str, tuple[list[HistoryEntry], datetime] | str] = field(default_factory=dict[str, Any])
    """The histories of the names that somebody asked for, with the instants of the look; or why there is none."""
    quarantined_for: float = 0.0

    @property
    def seen(self) -> bool:
        """Whether any look has succeeded."""
        return self.seen_at > -math.inf

    @property
    def age(self) -> float:
        """How many seconds ago the store was seen last; infinite if never."""
        return _now() - self.seen_at

    def used(self) -> list[NameView]:
        """Return the names that are held or waited for."""
        return [view for view in self.views.values() if view.holders or view.waiters]


class Board:
    """The snapshot that all browsers share."""

    def __init__(
        self,
        client: AsyncClient,
        quantities: Iterable[Quantity] = (),
        *,
        pattern: str | None = None,
        name: str | None = None,
    ) -> None:
        """Prepare; the first visitor takes the first look. `quantities` are read with every look.

        With a `pattern`, only the names that match it are read, with a `name` that name alone; and no jobs.
        """
        self.client = client
        self._pattern, self._name = pattern, name
        self.snapshot = Snapshot()
        self.capabilities = client._source.capabilities  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - of the same package
        self.title = client._source.title  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
        self._always = list(quantities)
        self._extra: dict[Quantity, float] = {}
        self._next: asyncio.Task[None] | None = None
        """The look that is due or under way."""
        self._looking = False
        self._due = 0.0
        self._least = 1
        self._closed = False
        self.report: Report | None = None
        """The result of the last examination that succeeded; None before the first."""
        self.unexamined = ""
        """Why the last examination failed; "" if it did not."""
        self._examination: asyncio.Task[None] | None = None
        self._examine_at = 0.0

    def close(self) -> None:
        """End all streams of looks, and what is under way; there is no further look."""
        self._closed = True
        for task in filter(None, (self._next, self._examination)):
            task.cancel()

    def expire(self) -> None:
        """Have the next page wait for a look that begins now or later: something was changed."""
        self._least = self.snapshot.serial + (2 if self._looking else 1)

    def include(self, kind: str, name: str) -> None:
        """Read a name, a limit or a stock with the next looks, also if it is not in a list."""
        key = (kind, name)
        known = name in self.snapshot.views if kind == "name" else key in self.snapshot.quantities
        self._extra.pop(key, None)
        if len(self._extra) >= MOST_EXTRA:
            del self._extra[next(iter(self._extra))]
        self._extra[key] = _now() + EXTRA_FOR
        if not known:
            self.expire()

    async def current(self) -> Snapshot:
        """Return a fresh snapshot, or the last one if a newer one takes too long to get."""
        snapshot = self.snapshot
        if snapshot.serial >= self._least and snapshot.age < FRESH + 2 * snapshot.took:
            return snapshot
        patience = LONG_PATIENCE if snapshot.serial < self._least > 1 else PATIENCE
        try:
            async with asyncio.timeout(patience):
                return await self._newer(max(self._least, snapshot.serial + 1))
        except TimeoutError:
            return self.snapshot

    async def looks(self, lasting: float) -> AsyncIterator[int]:
        """Yield the number of each look, for so many seconds, or until the board is closed."""
        end, serial = _now() + lasting, 0
        while _now() < end:
            serial = (await self._newer(serial + 1)).serial
            if self._closed:
                return
            yield serial

    async def examine(self) -> None:
        """Examine the settings of the store, unless that was done lately, and wait for that for PATIENCE seconds."""
        if _now() >= self._examine_at and not self._closed:
            self._examine_at = _now() + EXAMINED_EVERY
            self._examination = asyncio.create_task(self._examine(), name="tenure: an examination of the store")
        if self._examination is not None:
            await asyncio.wait([self._examination], timeout=PATIENCE)

    async def _examine(self) -> None:
        try:
            async with asyncio.timeout(LONGEST_LOOK):
                self.report = await self.client.examine()
            self.unexamined = ""
        except TimeoutError:
            self.unexamined = f"the examination has not ended in {LONGEST_LOOK:g} s"
        except (StoreError, UsageError) as error:
            self.unexamined = quoted(error)

    async def _newer(self, least: int) -> Snapshot:
        """Return a snapshot with this number or a later one, unless the board is closed; begin a look if none waits."""
        while self.snapshot.serial < least and not self._closed:
            if self._next is None or self._next.done():
                self._next = asyncio.create_task(self._take(), name="tenure: a look at the store")
            await asyncio.wait([self._next])  # a caller that leaves does not end the look of the others
        return self.snapshot

    async def _take(self) -> None:
        """Take the next look as soon as it is due."""
        await asyncio.sleep(self._due - _now())
        began = _now()
        self._looking = True
        try:
            self.snapshot = await self._look(began)
        finally:
            self._looking = False
            self._due = max(began + INTERVAL, 2 * _now() - began)

    async def _look(self, began: float) -> Snapshot:
        last = self.snapshot
        try:
            async with asyncio.timeout(LONGEST_LOOK):
                found = await self._see()
        except TimeoutError:
            return replace(last, serial=last.serial + 1, error=f"a look has not ended in {LONGEST_LOOK:g} s")
        except (StoreError, UsageError) as error:
            return replace(last, serial=last.serial + 1, error=quoted(error))
        return replace(found, serial=last.serial + 1, error="", seen_at=began, took=_now() - began)

    async def _see(self) -> Snapshot:
        now, found = _now(), Snapshot(self.snapshot.serial, error=self.snapshot.error)
        if not self.snapshot.seen:
            self.snapshot = found  # pages show the first names before the first look has seen all
        self._extra = {key: until for key, until in self._extra.items() if until > now}
        names = await self._names(found)
        names += [name for kind, name in self._extra if kind == "name" and name not in names]
        await self._inspect(names or [ANY_NAME], found)
        found.quarantined_for = max((view.quarantined_for for view in found.views.values()), default=0.0)
        if self.capabilities.cells and self._pattern is None and self._name is None:
            found.jobs = await self.client.jobs()
            for kind, name in dict.fromkeys([*self._always, *self._extra]):
                if kind == "name":
                    found.histories[name] = await self._history(name)
                else:
                    found.quantities[kind, name] = await self._read(kind, name)
        return found

    async def _names(self, found: Snapshot) -> list[str]:
        if self._name is not None:
            return [self._name]
        names: list[str] = []
        if self.capabilities.records:
            async for name in self.client.iter_names(self._pattern):
                if len(names) == MOST_NAMES:
                    found.more = True
                    break
                names.append(name)
        return sorted(names)

    async def _inspect(self, names: list[str], found: Snapshot) -> None:
        """Inspect names, several at a time."""
        left = iter(names)

        async def read() -> None:
            for name in left:
                views[name] = await self.client.inspect(name)
                await asyncio.sleep(0)  # an embedded store never waits

        views = found.views
        readers = [asyncio.create_task(read()) for _ in range(min(READERS, len(names)))]
        try:
            await asyncio.gather(*readers)
        finally:
            for reader in readers:
                reader.cancel()
            await asyncio.gather(*readers, return_exceptions=True)
        found.views = {name: views[name] for name in names}

    async def _history(self, name: str) -> tuple[list[HistoryEntry], datetime] | str:
        session = self.client.session()
        try:
            return await history_of(session, session.prefix + name)
        except StoreError as error:  # as of a form that this release does not know: the name is shown all the same
            return quoted(error)

    async def _read(self, kind: str, name: str) -> str:
        """Return what is known of a limit or a stock, for people."""
        if kind == LIMIT:
            return limit_text(await self.client.limit(name, *ANY_RULE).busy_for())
        return stock_text(await read_stock(self.client.session(), name))


# -- what is wrong at a store, as people read it: texts of others in these sentences are escaped -------------

LONG_WAIT = 30.0
"""For how many seconds a waiter waits before that is trouble, if nobody says otherwise."""

MOST_TROUBLES = 50
"""How many of one kind of trouble are told."""

SLOW = 3
"""A run that goes on for so many times as long as usual is trouble."""


@dataclass(slots=True, frozen=True)
class Trouble:
    """Something that is wrong now."""

    page: str
    """Where more is to be seen: name, jobs, store; empty if the sentence only counts others."""
    name: str
    """The name or the job; empty if it is the store."""
    text: str


def seen(snapshot: Snapshot) -> str:
    """Say how old a snapshot is, and why there is no newer one."""
    when = f"The store was seen {seconds(snapshot.age)} ago." if snapshot.seen else ""
    if not snapshot.error:
        return when or "The first look at the store has not ended yet."
    return f"The store does not answer: {snapshot.error}. {when or 'It was not seen before.'}"


def troubles(snapshot: Snapshot, long_wait: float = LONG_WAIT) -> Iterator[Trouble]:
    """Yield what is wrong, the worst first."""
    if snapshot.error:
        yield Trouble("store", "", seen(snapshot))
    if snapshot.quarantined_for:
        yield Trouble("store", "", f"{describe_quarantine(snapshot.quarantined_for)}.")
    for kind in (_waits(snapshot, long_wait), _silent(snapshot), _wrong_jobs(snapshot)):
        yield from kind[:MOST_TROUBLES]
        if len(kind) > MOST_TROUBLES:
            yield Trouble("", "", f"... and {len(kind) - MOST_TROUBLES} more of this kind.")


def _waits(snapshot: Snapshot, long_wait: float) -> list[Trouble]:
    waits = [(longest_wait(view), view) for view in snapshot.used() if view.waiters]
    waits.sort(key=lambda each: -each[0])
    return [
        Trouble("name", view.name, f"a waiter has waited for {seconds(wait)}; {len(view.waiters)} waiting.")
        for wait, view in waits
        if wait >= long_wait
    ]


def _silent(snapshot: Snapshot) -> list[Trouble]:
    return [
        Trouble(
            "name",
            view.name,
            f"the holder {shown(holder.owner)} has not renewed its lease for "
            f"{seconds(holder.ttl - holder.expires_in)}; it ends in {seconds(holder.expires_in)}.",
        )
        for view in snapshot.used()
        for holder in view.holders
        if is_silent(holder)
    ]


def _wrong_jobs(snapshot: Snapshot) -> list[Trouble]:
    return [Trouble("jobs", view.name, f"{wrong}.") for view in snapshot.jobs if (wrong := wrong_with(view))]


def is_silent(holder: HolderView) -> bool:
    """Tell whether a holder has missed a renewal: it renews after a third of its ttl."""
    return not holder.released and 0 < holder.expires_in < holder.ttl / 2


def longest_wait(view: NameView) -> float:
    """Return for how long the waiter waits that has waited longest, among those that are alive."""
    return max((waiter.waited_for for waiter in view.waiters if waiter.alive), default=0.0)


def wrong_with(view: JobView) -> str:
    """Return what is wrong with a job; "" if nothing is."""
    if view.overdue_for is not None:
        return f"the job is overdue: a run has been due for {seconds(view.overdue_for)}"
    if view.running_for is not None and view.usual is not None and view.running_for > max(1.0, SLOW * view.usual):
        return f"a run has gone on for {seconds(view.running_for)}, usually {seconds(view.usual)}"
    if view.error and not view.done and view.running_for is None:
        return f"the last run of the job failed: {shown(view.error)}"
    return ""
