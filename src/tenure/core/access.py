"""The access of one client to its store, which acquisitions, releases, renewals and inspections share.

It opens the store once, and has what is shared: the requests, the renewer, the releases, the events. It knows neither
local queues nor acquisitions: they are given this access.
"""

import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Protocol, TypeVar

from tenure.contracts.deadlines import NEVER, micros
from tenure.contracts.messages import NameView, Notification, Page, SharedPart, WaiterView
from tenure.contracts.runtime import Event, Runtime
from tenure.contracts.store import Examinable, Store, Waitable
from tenure.core.background_releases import BackgroundReleases
from tenure.core.events import Events
from tenure.core.history import Recorder
from tenure.core.renewer import Renewer
from tenure.core.requests import MIN_REQUEST_TIME, Requests, Settings
from tenure.core.spec import LockSpec
from tenure.core.stop import Stop
from tenure.errors import Stopped, StoreUnavailable, UsageError
from tenure.runtimes.single import SingleFlight

T = TypeVar("T")

log = logging.getLogger("tenure")

OPENING = 3
"""A try to open the store may take this many times the `operation_timeout`: it sends several requests."""

DRAINED = (
    "this client is being drained, because its program is about to end, and acquires nothing new. Nothing is held, and "
    "the place in the queue is given up: end this worker, and leave its work to another process."
)

INTERVAL = 1_000_000
"""The longest time between two requests of the first waiter, in microseconds."""

POLLING = 20_000
"""The same for a client without a notification channel: only a reply can tell its waiters of a grant."""

MOST_PLANS = 1000
"""How many plans a client keeps at most."""


class AttemptPlan:
    """The values that all attempts of one client for one spec share. The first attempt computes them."""

    __slots__ = ("interval", "owner", "request_timeout", "shared", "shared_range", "ttl", "usual_key")

    def __init__(self, access: "StoreAccess", spec: LockSpec) -> None:
        """Compute it, for a client that is open."""
        longest = INTERVAL if access.channel else POLLING
        self.usual_key = None if spec.linger or access.events is not None else spec.key
        """The key of the local queue, if an acquisition is nothing more than an acquisition there, as most are."""
        self.ttl = spec.ttl if spec.max_hold == NEVER else min(spec.ttl, micros(spec.max_hold))
        self.interval = longest if self.ttl >= 4 * longest else self.ttl // 4
        self.owner = spec.metadata or access.owner
        self.request_timeout = access.requests.request_timeout(spec.ttl)
        self.shared = SharedPart()
        """For the requests that reserve one token."""
        self.shared_range = SharedPart()
        """For the requests that reserve a range of tokens, of which a store has but one length."""


class Acquisition(Protocol):
    """An acquisition that is under way: the part of it that notifications and `close` use."""

    contended_before_grant: bool
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

    local_waiters: Callable[[str], list[WaiterView]]
    """Returns the local waiters of a name, of whom the store does not know. The session sets it."""

    def __init__(
        self, runtime: Runtime, store: Store, settings: Settings, deliver: Callable[[Notification], None]
    ) -> None:
        """Prepare; the first operation opens the store. `deliver` takes the notifications of the store."""
        self.runtime = runtime
        self.store = store
        self.requests = Requests(runtime, settings)
        self.owner = settings.owner
        self.prefix = settings.prefix
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
        self.plans: dict[tuple[object, ...], AttemptPlan] = {}
        """What attempts have computed from a spec, by the `plan_key` of the spec."""
        self.recorder = Recorder(runtime, self.prefix) if settings.record else None
        """Writes the history of names, if that was asked for."""
        self.events = self._make_events(settings)
        """Makes the events; None if nobody listens."""
        self.renewer = Renewer(runtime, store, self.requests.request_timeout, self.events)
        self.background_releases = BackgroundReleases(runtime, self.renewer.look_by)
        self.late_releases = BackgroundReleases(runtime, self.renewer.look_by)
        """Those that the store has not answered: others do not wait behind their pauses."""
        self.opened = False
        self.opening = SingleFlight(runtime)
        self.closed = False
        self.draining = False
        """Whether the client is being drained, or was: it acquires nothing new."""
        self.acquires = True
        """Whether the client is neither closed nor drained."""
        self._deliver = deliver
        if isinstance(store, Examinable):
            store.on_findings = self.requests.log_findings
        self.runs_in_caller = store.capabilities.runs_in_caller
        """Whether this process itself carries out requests."""
        self.highest_token = 0
        """The highest token that this client has seen, which tells a store that lost its state where to go on."""

    def _make_events(self, settings: Settings) -> Events | None:
        listeners = [*settings.listeners, *([self.recorder.note] if self.recorder else ())]
        if not listeners:
            return None
        events = Events(listeners, self.runtime, self.owner, settings.store_title, lines=settings.event_lines)
        events.watch(self.store)
        return events

    async def open(self) -> None:
        """Open the store, as `open_within`, by one try, which may take `OPENING` times the `operation_timeout`."""
        if not self.opened:
            await self.open_within(0.0, requests=OPENING)

    async def open_within(self, timeout: float | None, spec: LockSpec | None = None, requests: int = 1) -> None:
        """Open the store once: the first caller opens it, other callers wait for that, each within its own timeout.

        For an acquisition (of `spec`, if it is of a lock) or a change, `timeout` is that of the call (None: no end). A
        store that does not answer is tried again for `retry_for` seconds, but not after the timeout. With a timeout of
        0 there is one try, within the time of so many requests. Raises StoreUnavailable if the store is not open by
        then.
        """
        began = self.runtime.now()
        wait = timeout != 0
        end = NEVER if timeout is None else began + (timeout or requests * self.requests.operation_timeout)
        give_up_at = min(end, began + self.requests.retry_for)
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
                    self.requests.note_unanswered(spec.title, error, began, give_up_at)
                    troubled = True
                await self.runtime.sleep(pause)
                delay = min(delay * 2, 0.5)
        if troubled:
            self.requests.note_answer(began)

    async def _try_to_open(self, end: float, give_up_at: float) -> None:
        """Try once to open the store, by the caller's deadline; the last try, too, has the time of one request."""
        now, request_time = self.runtime.now(), self.requests.operation_timeout
        until = max(now + MIN_REQUEST_TIME, min(end, now + OPENING * request_time, max(give_up_at, now + request_time)))
        if not await self.opening.run(lambda: not self.opened, partial(self._open, until), until):
            raise StoreUnavailable(
                "the store was not opened in time, because another thread or task was still opening it: raise "
                "`timeout` or `operation_timeout`"
            )

    async def _open(self, until: float) -> None:
        try:
            channel = await self.store.open(self._deliver, until)
        except OSError as error:  # a store names its servers itself: this process lacks something, such as a descriptor
            raise StoreUnavailable(f"the store cannot be opened: {error}") from error
        self.set_channel(channel)
        if self.events is not None:
            self.events.tokens = self.store.capabilities.tokens
        self.opened = True

    def set_channel(self, channel: str) -> None:
        """Note the notification channel of this client. Each plan depends on it, and is computed anew."""
        self.channel = channel
        self.plans = {}  # last: a plan that another thread computes meanwhile goes into the dict that is given up

    def refuse_if_closed(self) -> None:
        """Raise UsageError once the client is closed."""
        if self.closed:
            message = "this client is closed; make a new one"
            raise UsageError(message)

    def refuse_to_acquire(self) -> None:
        """Raise Stopped once the client is being drained, and UsageError once it is closed without that."""
        if self.draining:
            raise Stopped(DRAINED)
        self.refuse_if_closed()

    def refuse_to_wait(self, spec: LockSpec) -> None:
        """Raise Stopped once the client is drained or the `stop` of this wait is set, UsageError once it is closed."""
        self.refuse_to_acquire()
        if spec.stop is not None:
            spec.stop.check(spec.title)

    async def inspect(self, name: str) -> NameView:
        """Return the holders and waiters of a name; of all local waiters, only those of this client."""
        return self.read(await self.look_at(name))

    def read(self, view: NameView) -> NameView:
        """Complete a view that the store returned: split owners from their metadata, and add the local waiters."""
        for holder in view.holders:
            holder.read_metadata()
        for waiter in view.waiters:
            waiter.read_metadata()
        view.waiters += self.local_waiters(view.name)
        return view

    async def look_at(self, name: str) -> NameView:
        """Return the holders and waiters of a name, with the store's texts for their owners."""
        await self.open()
        return await self.requests.look(partial(self.store.inspect, name))

    async def page(self, prefix: str, rest: object = None) -> Page:
        """Return a page of the names in use: the first, or the page at `rest`. Each has the time of one operation."""
        await self.open()
        return await self.requests.look(lambda until: self.store.names(prefix, until, rest))

    async def names(self, prefix: str) -> list[str]:
        """List the names in use that begin with a prefix, sorted."""
        page = await self.page(prefix)
        found = page.names
        while page.rest is not None:
            page = await self.page(prefix, page.rest)
            found += page.names
        return sorted(found)

    def plan_of(self, spec: LockSpec) -> AttemptPlan:
        """Return the plan of a spec; the first attempt computes it. The store must be open."""
        plans = self.plans
        plan = plans.get(spec.plan_key)
        if plan is None:
            if len(plans) >= MOST_PLANS:
                plans.clear()  # it costs less to compute the plans in use again than to tell which they are
            plan = plans[spec.plan_key] = AttemptPlan(self, spec)
        return plan


async def _wait(event: Event, until: float | None) -> bool:
    return await event.wait(until)
