"""The jobs of a client: what was run, by whom and when; and what an operator may do about them."""

from dataclasses import dataclass
from datetime import datetime  # noqa: TID251 - a type; no clock is read
from functools import partial
from typing import Any

from tenure.contracts.cells import cell_name
from tenure.contracts.deadlines import seconds
from tenure.core.session import Session
from tenure.errors import UsageError
from tenure.jobs.index import all_titles, remove_title
from tenure.jobs.record import forget, pause, repeat
from tenure.jobs.windows import instant, schedule
from tenure.primitives.base import Sessions
from tenure.primitives.once import escaped
from tenure.runtimes.threads import drive


@dataclass(slots=True, frozen=True)
class JobRun:
    """One run of a job that has ended."""

    by: str
    """The owner of the client that made it."""
    at: datetime
    """When it began, by the store's clock, in UTC."""
    took: float
    """How long it took, in seconds."""
    attempt: int
    """Which attempt of its window it was, from 1 on."""
    error: str
    """Its error; "" if it was done."""


@dataclass(slots=True, frozen=True)
class JobView:
    """A job, as `Client.jobs` shows it."""

    name: str
    every: str
    """Its window, as its caller wrote it, or "by key"."""
    paused: bool
    running: str
    """The owner of the run that has begun and not ended; "" if there is none. Its node may have died."""
    since: datetime | None
    """When that run began."""
    done: bool
    """Whether the last window that began is done."""
    error: str
    """The last error of that window."""
    next: datetime | None
    """When the next window begins; None for runs by key, and if this machine cannot tell."""
    runs: tuple[JobRun, ...]
    """The last 20 runs, the latest last."""
    running_for: float | None = None
    """For how many seconds the run under way has gone on, by the store's clock; None if there is none."""
    usual: float | None = None
    """How many seconds a run usually takes: the median of those of the last 20 that were done; None if none was."""
    overdue_for: float | None = None
    """For how many seconds a run has been due, if a whole window has gone by in which none began, by the store's clock;
    None if none has, or the job is paused or running."""


def _view(name: str, state: dict[str, Any] | None, now: int) -> JobView | None:
    """Return what is known of a job; None if there is no such job any more."""
    if state is None:
        return None
    run = state["run"]
    following, due = None, now
    if state["every"] != "by key":
        try:
            window = schedule(_readable(state["every"]))[1]
            present = window(now)
            following, due = instant(present.ends), window(present.starts - 1).starts
        except UsageError:  # a time zone or an extra that this machine does not have
            pass
    paused = state.get("paused", False)
    runs = tuple(
        JobRun(line["by"], instant(line["at"]), seconds(line["took"]), line["attempt"], line["error"])
        for line in state.get("history", [])
    )
    return JobView(
        name,
        state["every"],
        paused,
        run["by"] if run else "",
        instant(run["at"]) if run else None,
        state["done"] is not None,
        state["error"],
        following,
        runs,
        seconds(max(0, now - run["at"])) if run else None,
        _usual([each.took for each in runs if not each.error]),
        seconds(now - due) if runs and not run and not paused and runs[-1].at < instant(due) else None,
    )


def _usual(took: list[float]) -> float | None:
    """Return the median; None of nothing."""
    return sorted(took)[len(took) // 2] if took else None


def _readable(every: str) -> object:
    """Return a window from its text."""
    return float(every.removesuffix(" s")) if every.endswith(" s") else every


async def views(session: Session, prefix: str) -> list[JobView]:
    """Return the jobs of a namespace, by name."""
    found: list[JobView] = []
    for title in await all_titles(session.cells, prefix):
        cell = cell_name("job", prefix, escaped(title))
        if view := await session.cells.read(cell, partial(_view, title)):
            found.append(view)
    return found


class _JobBase:
    def __init__(self, client: Sessions, name: str) -> None:
        prefix = f"{client.namespace}:" if client.namespace else ""
        self._client = client
        self._prefix = prefix
        self._cell = cell_name("job", prefix, escaped(name))
        self.name = name

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    async def _pause(self, *, paused: bool) -> bool:
        cells = self._client.session().cells
        return bool(await cells.change(self._cell, lambda state, now: pause(state, now, paused=paused)))

    async def _repeat(self, key: str | None) -> bool:
        cell = self._cell if key is None else f"{self._cell}:{key}"
        return bool(await self._client.session().cells.change(cell, repeat))

    async def _forget(self, key: str | None) -> bool:
        cells = self._client.session().cells
        if key is not None:
            return bool(await cells.change(f"{self._cell}:{key}", forget))
        known = bool(await cells.change(self._cell, forget))
        await remove_title(cells, self._prefix, self.name)
        return known


class Job(_JobBase):
    """What an operator does with a job of a `Client`. Made by `Client.job`.

    Each method returns whether the job is known, and raises StoreError if the store did not answer.
    """

    def pause(self) -> bool:
        """Let no run begin until `resume`; a run that has begun goes on."""
        return drive(self._pause(paused=True))

    def resume(self) -> bool:
        """Let runs begin again."""
        return drive(self._pause(paused=False))

    def repeat(self, key: str | None = None) -> bool:
        """Let the next call run the job in the present window, though it is done or has no attempt left.

        A run by key is repeated only if its `key` is given. A run that is under way goes on, and counts no longer.
        """
        return drive(self._repeat(key))

    def forget(self, key: str | None = None) -> bool:
        """Remove the record of the job: the next call runs it. With `key`, remove only the record of that key.

        A run that is under way keeps its lock, and is noted when it ends.
        """
        return drive(self._forget(key))


class AsyncJob(_JobBase):
    """What an operator does with a job of an `AsyncClient`, as `Job`. Made by `AsyncClient.job`."""

    async def pause(self) -> bool:
        """Let no run begin until `resume`."""
        return await self._pause(paused=True)

    async def resume(self) -> bool:
        """Let runs begin again."""
        return await self._pause(paused=False)

    async def repeat(self, key: str | None = None) -> bool:
        """Let the next call run the job again, in the present window or for `key`."""
        return await self._repeat(key)

    async def forget(self, key: str | None = None) -> bool:
        """Remove the record of the job, or of one key."""
        return await self._forget(key)
