"""The access of one client to its store: what an acquisition, a release, a renewal and a look need of the client.

It opens the store once, bounds and repeats requests, and logs once what befalls the store. It knows no local queue and
no acquisition: those are given this access.
"""

import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeVar

from holdfast.contracts.deadlines import NEVER, micros, seconds
from holdfast.contracts.messages import NameView, Notification, Page, WaiterView
from holdfast.contracts.runtime import Runtime
from holdfast.contracts.store import Store
from holdfast.core.background_releases import BackgroundReleases
from holdfast.core.events import Events, LockEvent
from holdfast.core.renewer import Renewer
from holdfast.core.spec import LockSpec
from holdfast.core.stop import Stop
from holdfast.errors import StoreUnavailable, UsageError
from holdfast.escaping import quoted
from holdfast.runtimes.single import SingleFlight

T = TypeVar("T")

log = logging.getLogger("holdfast")

BRIEF = 0.05
"""How long a try may take at least, in seconds."""

OPENING = 3
"""How many times as long as one request a try to open the store may take: it is several, when a program has no time."""

RIDDEN_OUT = 1.0
"""For how many seconds a store may not answer before that is logged."""


@dataclass(slots=True, frozen=True)
class FairnessBudget:
    """For how long a process may keep a name to itself while another process waits for it."""

    count: int = 32
    """How often the process hands the name on."""
    time: float = 0.05
    """For how many seconds the process does."""


@dataclass(slots=True)
class Settings:
    """The settings of a client. Times in seconds."""

    owner: str
    """The client's name, for people to read."""
    operation_timeout: float = 1.0
    """The longest that one request to the store may take."""
    retry_for: float = 10.0
    """For how long an acquisition repeats requests to a store that does not answer."""
    prefix: str = ""
    """What the names of all locks of this client begin with in the store."""
    on_event: Callable[[LockEvent], object] | None = None
    budget: FairnessBudget = field(default_factory=FairnessBudget)
    """For how long this process may keep a name to itself while another one waits."""


class Acquisition(Protocol):
    """An acquisition that is under way, as far as notifications and the client's end concern it."""

    outrun: bool
    """Whether the notification that another client waits for the lease came before the grant itself."""

    def hear(self, notification: Notification) -> None:
        """Take a notification for its request."""
        ...

    def dismiss(self) -> None:
        """Wake up and look whether the client is closed, or the wait stopped."""
        ...

    def waits_with(self, stop: Stop) -> bool:
        """Tell whether setting `stop` ends its wait."""
        ...


class StoreAccess:
    """The access of one client to its store. Opened by the first operation."""

    def __init__(
        self, runtime: Runtime, store: Store, settings: Settings, deliver: Callable[[Notification], None]
    ) -> None:
        """Prepare; nothing is opened yet. `deliver` takes the notifications of the store."""
        self.runtime = runtime
        self.store = store
        self.owner = settings.owner
        self.prefix = settings.prefix
        self.retry_for = settings.retry_for
        self.operation_timeout = settings.operation_timeout
        self.mutex = runtime.mutex()
        """Shared by all leases and local queues of the client."""
        self.channel = ""
        """Where the store sends this client's notifications; empty if it can send none."""
        self.attempts: dict[str, Acquisition] = {}
        """The acquisitions under way, by the id of their request."""
        self.renewer = Renewer(runtime, store, self.request_timeout)
        self.background_releases = BackgroundReleases(runtime)
        self.local_waiters: Callable[[str], list[WaiterView]] = _none
        """Shows the waiters of a name that wait within this client, of whom the store does not know."""
        self.events: Events | None = None
        """Tells the client's listener what happens, if there is one."""
        if settings.on_event is not None:
            self.events = Events(settings.on_event, runtime.now, self.owner, self.prefix)
            self.renewer.events = self.events
        self.opened = False
        self.opening = SingleFlight(runtime)
        self.closed = False
        self._deliver = deliver
        self.ample_ttl = micros(settings.operation_timeout * 5)
        """From which ttl on a request may take the whole `operation_timeout`, in microseconds."""
        self.local = store.capabilities.local
        """Whether a request is carried out by this process itself."""
        self.highest = 0
        """The highest token seen, so that a store that lost its state is told of it."""
        self._quarantined_until = 0.0
        self._unanswered = False
        """Whether it was logged that the store does not answer acquisitions, and none was answered since."""

    async def open(self, timeout: float | None = 0.0, spec: LockSpec | None = None) -> None:
        """Open the store once, whoever comes first; the others wait for it, each within its own time.

        `timeout` is that of an acquisition, of `spec`: errors are ridden out for `retry_for`, but not beyond it (None:
        it has no end). With 0, as of what is no acquisition, there is one try. Raises StoreUnavailable if the store is
        not open by then.
        """
        began = self.runtime.now()
        wait = timeout != 0
        end = NEVER if timeout is None else began + (timeout or OPENING * self.operation_timeout)
        give_up_at = min(end, began + self.retry_for)
        delay, troubled = 0.02, False
        while not self.opened:
            self.refuse_if_closed() if spec is None else self.refuse_to_wait(spec)
            try:
                await self._try_to_open(end, give_up_at)
            except StoreUnavailable as error:
                pause = delay * (0.5 + self.runtime.random())
                if not wait or self.runtime.now() + pause >= give_up_at:
                    raise
                if spec is not None:
                    self.note_unanswered(spec.title, error, began, give_up_at)
                    troubled = True
                await self.runtime.sleep(pause)
                delay = min(delay * 2, 0.5)
        if troubled:
            self.note_answer(began)

    async def _try_to_open(self, end: float, give_up_at: float) -> None:
        """Try once: within the caller's own time, and for as long as one request may take though it is the last try."""
        now, request_time = self.runtime.now(), self.operation_timeout
        until = max(now + BRIEF, min(end, now + OPENING * request_time, max(give_up_at, now + request_time)))
        if not await self.opening.fly(lambda: not self.opened, partial(self._open, until), until):
            raise StoreUnavailable("the store was not opened in time; raise `timeout` or `operation_timeout`")

    async def _open(self, until: float) -> None:
        self.channel = await self.store.open(self._deliver, until)
        self.opened = True

    def refuse_if_closed(self) -> None:
        """Raise UsageError once the client is closed."""
        if self.closed:
            message = "this client is closed; make a new one"
            raise UsageError(message)

    def refuse_to_wait(self, spec: LockSpec) -> None:
        """Raise UsageError once the client is closed, and Stopped once this wait is to stop."""
        self.refuse_if_closed()
        if spec.stop is not None:
            spec.stop.check(spec.title)

    async def inspect(self, name: str) -> NameView:
        """Show who holds a name and who waits for it; of those who wait in a local queue, only this client's own."""
        await self.open()
        view = await self._look(lambda until: self.store.inspect(name, until))
        for holder in view.holders:
            holder.read_metadata()
        for waiter in view.waiters:
            waiter.read_metadata()
        view.waiters += self.local_waiters(name)
        return view

    async def page(self, prefix: str, rest: object = None) -> Page:
        """Return a page of the names in use, which has the time of one operation: the first, or the one after."""
        await self.open()
        return await self._look(lambda until: self.store.names(prefix, until, rest))

    async def names(self, prefix: str) -> list[str]:
        """List the names in use, sorted."""
        page = await self.page(prefix)
        found = page.names
        while page.rest is not None:
            page = await self.page(prefix, page.rest)
            found += page.names
        return sorted(found)

    async def _look(self, operation: Callable[[float], Coroutine[Any, Any, T]]) -> T:
        """Ask what changes nothing, again if the connection breaks, within the time of one operation.

        The last try has half of that at least, or its error would be that there was no time.
        """
        now = self.runtime.now()
        return await self.insist(operation, now + self.operation_timeout, now + self.operation_timeout / 2)

    async def insist(self, operation: Callable[[float], Coroutine[Any, Any, T]], until: float, last_try: float) -> T:
        """Ask by `until`, again and again while the store does not answer; nothing is begun after `last_try`."""
        delay = 0.01
        while True:
            try:
                return await operation(until)
            except StoreUnavailable:
                if self.runtime.now() + delay >= last_try:
                    raise
            await self.runtime.sleep(delay * (0.5 + self.runtime.random()))
            delay *= 2

    async def persist(self, operation: Callable[[float], Coroutine[Any, Any, T]], request_timeout: float) -> T:
        """Carry out what is safe to repeat: ask up to three times while the store does not answer."""
        for attempt in range(3):
            try:
                return await operation(self.runtime.now() + request_timeout)
            except StoreUnavailable:
                if attempt == 2:  # noqa: PLR2004 - the third time
                    raise
            await self.runtime.sleep(0.02 * 4**attempt * (0.5 + self.runtime.random()))
        raise AssertionError  # pragma: no cover - the loop returns or raises

    def request_timeout(self, ttl: int) -> float:
        """Return how many seconds one request about a lease of `ttl` microseconds may take: far below the ttl."""
        if ttl >= self.ample_ttl:
            return self.operation_timeout
        return min(self.operation_timeout, max(BRIEF, seconds(ttl) / 5))

    def note_quarantine(self, seconds: float) -> None:
        """Log that the store grants nothing for a while; once a quarantine."""
        ends_at = self.runtime.now() + seconds
        if ends_at > self._quarantined_until + 1.0:
            self._quarantined_until = ends_at
            log.warning(
                "the store restarted or failed over, and may have forgotten grants: it grants nothing for %.1f s, "
                "until the oldest of them has run out",
                seconds,
            )

    def note_unanswered(self, name: str, error: StoreUnavailable, since: float, give_up_at: float) -> None:
        """Log that an acquisition rides out a store that does not answer: once a trouble, after a second."""
        now = self.runtime.now()
        if self._unanswered or now < since + RIDDEN_OUT:
            return
        self._unanswered = True
        log.warning(
            "the store has not answered for %.1f s (%s); asking for %r again for another %.1f s",
            now - since,
            quoted(error),
            name,
            max(0.0, give_up_at - now),
        )

    def note_answer(self, since: float) -> None:
        """Log that a trouble which was logged has ended."""
        if self._unanswered:
            self._unanswered = False
            log.warning("the store answers again, after %.1f s", self.runtime.now() - since)

    def proposal(self) -> int:
        """Return the token that this client would like to be surpassed."""
        if self.local:
            return self.highest  # the store reads the same wall clock itself
        wall, highest = self.runtime.wall(), self.highest
        return wall if wall > highest else highest  # noqa: FURB136 - max() costs more


def _none(_name: str) -> list[WaiterView]:
    return []
