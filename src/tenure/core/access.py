"""The access of one client to its store, which acquisitions, releases, renewals and inspections share.

It opens the store once, limits the time of requests and repeats them, and logs each failure of the store once. It knows
neither local queues nor acquisitions: they are given this access.
"""

import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeVar

from tenure.contracts.deadlines import NEVER, micros, seconds
from tenure.contracts.messages import NameView, Notification, Page, WaiterView
from tenure.contracts.runtime import Event, Runtime
from tenure.contracts.store import Store, Waitable
from tenure.core.background_releases import BackgroundReleases
from tenure.core.events import Events, LockEvent
from tenure.core.renewer import Renewer
from tenure.core.spec import LockSpec
from tenure.core.stop import Stop
from tenure.errors import StoreUnavailable, UsageError
from tenure.escaping import quoted
from tenure.runtimes.single import SingleFlight

T = TypeVar("T")

log = logging.getLogger("tenure")

BRIEF = 0.05
"""The least time that a request is given, in seconds."""

OPENING = 3
"""A try to open the store may take this many times the `operation_timeout`: it sends several requests."""

RIDDEN_OUT = 1.0
"""For how many seconds a store may fail to answer before that is logged."""


@dataclass(slots=True, frozen=True)
class FairnessBudget:
    """For how long a process may keep a name to itself while another process waits for it."""

    count: int = 32
    """The most local hand-offs."""
    time: float = 0.05
    """The longest time, in seconds, from the grant to the last local hand-off."""


@dataclass(slots=True)
class Settings:
    """The settings of a client. Times in seconds."""

    owner: str
    """The name of the client, for people to read."""
    operation_timeout: float = 1.0
    """The longest that one request to the store may take."""
    retry_for: float = 10.0
    """For how long an acquisition repeats requests to a store that does not answer."""
    prefix: str = ""
    """The prefix of all names of this client in the store."""
    on_event: Callable[[LockEvent], object] | None = None
    """The callback for events."""
    budget: FairnessBudget = field(default_factory=FairnessBudget)
    """For how long this process may keep a name to itself while another process waits."""


class Acquisition(Protocol):
    """An acquisition that is under way: the part of it that notifications and `close` use."""

    outrun: bool
    """Whether the notification that another client waits for the name came before the grant itself."""

    def hear(self, notification: Notification) -> None:
        """Take a notification for its request."""
        ...

    def dismiss(self) -> None:
        """Wake the waiter, so that it sees that the client is closed or the wait is stopped."""
        ...

    def waits_with(self, stop: Stop) -> bool:
        """Return whether setting `stop` ends the wait of this acquisition."""
        ...


class StoreAccess:
    """The access of one client to its store. Opened by the first operation."""

    def __init__(
        self, runtime: Runtime, store: Store, settings: Settings, deliver: Callable[[Notification], None]
    ) -> None:
        """Prepare; the first operation opens the store. `deliver` takes the notifications of the store."""
        self.runtime = runtime
        self.store = store
        self.owner = settings.owner
        self.prefix = settings.prefix
        self.retry_for = settings.retry_for
        self.operation_timeout = settings.operation_timeout
        self.wait: Callable[[Event, float | None], Coroutine[Any, Any, bool]] = (
            store.wait if isinstance(store, Waitable) else _wait
        )
        """Waits for an event until a local instant, and for notifications of the store."""
        self.mutex = runtime.mutex()
        """Shared by all leases and local queues of the client."""
        self.channel = ""
        """The notification channel of this client; empty if the store sends no notifications."""
        self.attempts: dict[str, Acquisition] = {}
        """The acquisitions under way, by the id of their request."""
        self.renewer = Renewer(runtime, store, self.request_timeout)
        self.background_releases = BackgroundReleases(runtime)
        self.late_releases = BackgroundReleases(runtime)
        """Those that the store has not answered: others do not wait behind their pauses."""
        self.local_waiters: Callable[[str], list[WaiterView]] = _none
        """Returns the local waiters of a name, of whom the store does not know."""
        self.events: Events | None = None
        """Sends events to the `on_event` callback, if there is one."""
        if settings.on_event is not None:
            self.events = Events(settings.on_event, runtime.now, self.owner, self.prefix)
            self.renewer.events = self.events
        self.opened = False
        self.opening = SingleFlight(runtime)
        self.closed = False
        self._deliver = deliver
        self.ample_ttl = micros(settings.operation_timeout * 5)
        """The least ttl, in microseconds, of which a request may take the whole `operation_timeout`."""
        self.local = store.capabilities.local
        """Whether this process itself carries out requests."""
        self.highest = 0
        """The highest token that this client has seen, which tells a store that lost its state where to go on."""
        self._quarantined_until = 0.0
        self._unanswered = False
        """Whether it is logged that the store does not answer acquisitions, and it has not answered since."""

    async def open(self, timeout: float | None = 0.0, spec: LockSpec | None = None) -> None:
        """Open the store once: the first caller opens it, other callers wait for that, each within its own timeout.

        For an acquisition of `spec`, `timeout` is that of the acquisition (None: no end). A store that does not answer
        is tried again for `retry_for` seconds, but not after the timeout. With a timeout of 0, which all other
        operations give, there is one try. Raises StoreUnavailable if the store is not open by then.
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
        """Try once to open the store, by the caller's deadline; the last try, too, has the time of one request."""
        now, request_time = self.runtime.now(), self.operation_timeout
        until = max(now + BRIEF, min(end, now + OPENING * request_time, max(give_up_at, now + request_time)))
        if not await self.opening.fly(lambda: not self.opened, partial(self._open, until), until):
            raise StoreUnavailable(
                "the store was not opened in time, because another thread or task was still opening it: raise "
                "`timeout` or `operation_timeout`"
            )

    async def _open(self, until: float) -> None:
        self.channel = await self.store.open(self._deliver, until)
        if self.events is not None:
            self.events.tokens = self.store.capabilities.tokens
        self.opened = True

    def refuse_if_closed(self) -> None:
        """Raise UsageError once the client is closed."""
        if self.closed:
            message = "this client is closed; make a new one"
            raise UsageError(message)

    def refuse_to_wait(self, spec: LockSpec) -> None:
        """Raise UsageError once the client is closed, and Stopped once the `stop` of this wait is set."""
        self.refuse_if_closed()
        if spec.stop is not None:
            spec.stop.check(spec.title)

    async def inspect(self, name: str) -> NameView:
        """Return the holders and waiters of a name; of all local waiters, only those of this client."""
        await self.open()
        view = await self._look(lambda until: self.store.inspect(name, until))
        for holder in view.holders:
            holder.read_metadata()
        for waiter in view.waiters:
            waiter.read_metadata()
        view.waiters += self.local_waiters(name)
        return view

    async def page(self, prefix: str, rest: object = None) -> Page:
        """Return a page of the names in use: the first, or the page at `rest`. Each has the time of one operation."""
        await self.open()
        return await self._look(lambda until: self.store.names(prefix, until, rest))

    async def names(self, prefix: str) -> list[str]:
        """List the names in use that begin with a prefix, sorted."""
        page = await self.page(prefix)
        found = page.names
        while page.rest is not None:
            page = await self.page(prefix, page.rest)
            found += page.names
        return sorted(found)

    async def _look(self, operation: Callable[[float], Coroutine[Any, Any, T]]) -> T:
        """Carry out a request that changes nothing; repeat it if the connection breaks, within `operation_timeout`.

        The last try has at least half of that time: with less, it would fail for want of time and hide the real error.
        """
        now = self.runtime.now()
        return await self.insist(operation, now + self.operation_timeout, now + self.operation_timeout / 2)

    async def insist(self, operation: Callable[[float], Coroutine[Any, Any, T]], until: float, last_try: float) -> T:
        """Repeat a request until the store answers, with the deadline `until`; begin no try after `last_try`."""
        delay = 0.01
        while True:
            try:
                return await operation(until)
            except StoreUnavailable as error:
                pause = delay * (0.5 + self.runtime.random())
                if self.runtime.now() + pause >= last_try:
                    raise
                unanswered = error
            await self.runtime.sleep(pause)
            if self.runtime.now() > last_try:  # this process stood still
                raise unanswered
            delay *= 2

    async def persist(self, operation: Callable[[float], Coroutine[Any, Any, T]], request_timeout: float) -> T:
        """Carry out a request that is safe to repeat: send it up to three times while the store does not answer."""
        for attempt in range(3):
            try:
                return await operation(self.runtime.now() + request_timeout)
            except StoreUnavailable:
                if attempt == 2:  # noqa: PLR2004 - the third try
                    raise
            await self.runtime.sleep(0.02 * 4**attempt * (0.5 + self.runtime.random()))
        raise AssertionError  # pragma: no cover - the loop returns or raises

    def request_timeout(self, ttl: int) -> float:
        """Return how many seconds one request for a lease of `ttl` microseconds may take: far less than the ttl."""
        if ttl >= self.ample_ttl:
            return self.operation_timeout
        return min(self.operation_timeout, max(BRIEF, seconds(ttl) / 5))

    def note_quarantine(self, seconds: float) -> None:
        """Log, once a quarantine, that the store grants nothing for so many seconds."""
        ends_at = self.runtime.now() + seconds
        if ends_at > self._quarantined_until + 1.0:
            self._quarantined_until = ends_at
            log.warning(
                "the store restarted or failed over, and may have forgotten grants: it grants nothing for %.1f s, "
                "until the oldest of them has run out",
                seconds,
            )

    def note_unanswered(self, name: str, error: StoreUnavailable, since: float, give_up_at: float) -> None:
        """Log, once an outage and after a second of it, that an acquisition repeats its request."""
        now = self.runtime.now()
        if self._unanswered or now < since + RIDDEN_OUT:
            return
        self._unanswered = True
        log.warning(
            "the store has not answered for %.1f s (%s); repeating the request for %r for another %.1f s",
            now - since,
            quoted(error),
            name,
            max(0.0, give_up_at - now),
        )

    def note_answer(self, since: float) -> None:
        """Log the end of an outage that was logged."""
        if self._unanswered:
            self._unanswered = False
            log.warning("the store answers again, after %.1f s", self.runtime.now() - since)

    def proposal(self) -> int:
        """Return the token that this client proposes: the store's next token is to be larger.

        Not for a store whose requests this process carries out: such a store reads the same wall clock itself.
        """
        wall, highest = self.runtime.wall(), self.highest
        return wall if wall > highest else highest  # noqa: FURB136 - max() costs more


async def _wait(event: Event, until: float | None) -> bool:
    return await event.wait(until)


def _none(_name: str) -> list[WaiterView]:
    return []
