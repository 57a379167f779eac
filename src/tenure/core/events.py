"""The events of a client, for metrics, traces and logs: the one place that makes them.

A client without a listener makes no events. It pays only for the check whether there is one.

Each acquisition is followed from its beginning to its end as a *use* of the name, and so is the lease that it leads to.
Both have the id of the use. The wait ends exactly once: by `ACQUIRED` or by `GAVE_UP`. The lease ends exactly once: by
`RELEASED`, `HANDED_ON`, `LOST` or `DROPPED`, whichever comes first.
"""

import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from tenure.contracts.deadlines import seconds
from tenure.contracts.messages import Busy, Granted, NotGranted, Queued
from tenure.core.lease import CoreLease, short_cause
from tenure.errors import Stopped, StoreError, StoreUnavailable
from tenure.escaping import quoted
from tenure.keeping import acquired_at, line_of
from tenure.outcome import Outcome
from tenure.table.limit import Slot

if TYPE_CHECKING:
    from tenure.contracts.runtime import Runtime

T = TypeVar("T")

log = logging.getLogger("tenure")

MAY_BE_QUARANTINED = frozenset({Queued, Busy, list})
"""The replies that tell of a quarantine; a list has those to several requests."""

LATE = 0.25
"""A renewal is late if so much of the time between the instant it was planned for and the deadline has passed."""

REQUESTS = (
    *("open", "acquire", "acquire_many", "release", "renew", "adjust", "withdraw", "inspect", "names", "resize"),
    *("request_revocation", "revoke", "read_cell", "write_cell", "add_to_cell"),
)
"""The methods of a store that send a request."""


class EventKind(StrEnum):
    """The kinds of events."""

    CONTENDED = "contended"
    """A wait begins: the name was not free. It ends by ACQUIRED, GAVE_UP, UNITS_TAKEN or UNITS_REFUSED of the same
    `id`."""
    ACQUIRED = "acquired"
    """The name was granted, after `waited` seconds. The lease has the `id` of the acquisition."""
    GAVE_UP = "gave up"
    """An acquisition ended without a lease, after `waited` seconds. `cause`: timeout, busy (it was not to wait),
    cancelled (also by an interrupt), stopped (by a `Stop`) or error."""
    RENEWED = "renewed"
    """The lease was renewed, in the background or by `extend`; `seconds` is the time until its local deadline."""
    RENEWAL_LATE = "renewal late"
    """A renewal is sent `seconds` later than planned: this process, or its event loop, may have stood still."""
    AT_RISK = "at risk"
    """A renewal failed: the lease is lost in `seconds` unless one succeeds; `error` says why it failed."""
    RECOVERED = "recovered"
    """A renewal of a lease at risk succeeded."""
    LOST = "lost"
    """The lease can no longer be trusted. `cause`: expired, refused, taken over, revoked, max_hold, group (another
    lease of the same multilock was lost), drained (a leader whose client is drained), adopted (once more, by this
    client) or closed (its client was, by another thread or task, while its body ran); `detail` says it in words."""
    HANDED_ON = "handed on"
    """The lease was released by a hand-off within this client, without the store."""
    RELEASED = "released"
    """The lease was released in the store, or lingers; `cause` is the outcome: released, or unknown. Or it was detached
    (`cause` says so): it goes on without this client."""
    DROPPED = "dropped"
    """The program dropped the lease without a release; `detail` says which line acquired it. The lease ends at its
    ttl, or when the client is closed."""
    STORE_ERROR = "store error"
    """A request to the store failed; `error` says why."""
    STORE_UNREACHABLE = "store unreachable"
    """A request was not answered, the first one since the store was reachable."""
    STORE_BACK = "store back"
    """The store answers again, after `seconds`. With the cause `closed`: the client is closed, and asks no more."""
    QUARANTINE_BEGUN = "quarantine begun"
    """The store may have forgotten leases, and grants nothing for another `seconds`."""
    QUARANTINE_OVER = "quarantine over"
    """The store grants again; with the cause `closed`: the client is closed, and asks no more."""
    RUN_BEGUN = "run begun"
    """A run of a job has begun."""
    RUN_ENDED = "run ended"
    """A run of a job has ended, after `held` seconds. `cause`: done, failed, superseded (its lease was lost, and
    another run has begun) or unknown (the store did not note the end)."""
    RUN_REFUSED = "run refused"
    """A call of a job did not run it. `cause`: done, running, failed, over, paused, busy,
    cancelled, stopped or error."""
    UNITS_TAKEN = "units taken"
    """`units` of a limit may be used now, or were taken from a stock."""
    UNITS_REFUSED = "units refused"
    """`units` of a limit or a stock were not given."""
    UNITS_RESERVED = "units reserved"
    """`units` of a stock were set aside; UNITS_TAKEN or UNITS_RETURNED may follow."""
    UNITS_RETURNED = "units returned"
    """A reservation of `units` of a stock was cancelled."""

    __hash__ = str.__hash__  # that of Enum is written in Python


@dataclass(slots=True)
class LockEvent:
    """One event of a client. Listeners share it, and change nothing. What has no meaning for an event is None or ""."""

    event: EventKind
    name: str
    """The name as the program wrote it, without the namespace; "" for events of the store."""
    template: str
    """The name as it stands in a decorator, or the `template` that the program gave; else the same as `kind`. Unlike
    the name, it takes few values: label metrics with it."""
    kind: str
    """The kind of primitive: lock, semaphore, rw read, rw write, multilock, election, job, limit, stock; or store."""
    store: str
    """The store, as errors name it: without secrets."""
    owner: str
    """The owner of this client."""
    id: int = 0
    """The use of the name: a wait and the lease that it leads to have the same id. Unique in this client."""
    token: int = 0
    """The fencing token of the lease; 0 if there is none yet, or the store has none."""
    units: int = 1
    """The permits of a semaphore that the lease takes, or the units of a limit or a stock."""
    waited: float | None = None
    """For how many seconds the acquisition went on."""
    held: float | None = None
    """For how many seconds the lease was held, or the run went on, until now."""
    seconds: float | None = None
    """Another duration; `EventKind` says which."""
    cause: str = ""
    """Why something ended, as one of a few words."""
    detail: str = ""
    """More of that, as text for people."""
    error: BaseException | None = None
    """The error that is behind it, if there was one."""
    thread: str = ""
    """The thread or task that waits or holds."""
    line: str = ""
    """The line of the program that began the acquisition, as file:line; only with `Client(event_lines=True)`."""

    def fields(self) -> dict[str, str | int | float]:
        """Return what is known of the event, by the names of the attributes, as JSON can express it.

        Durations are rounded to microseconds. An error is given as its type and its text.
        """
        found: dict[str, str | int | float] = {"event": self.event.value}
        for name in _FIELDS:
            value = getattr(self, name)
            if isinstance(value, float):
                found[name] = round(value, 6)
            elif isinstance(value, BaseException):
                found[name] = f"{type(value).__name__}: {quoted(value)}"
            elif value:
                found[name] = value
        return found


_FIELDS = tuple(each.name for each in fields(LockEvent) if each.name != "event")

Listener = Callable[[LockEvent], object]


class Reported(Protocol):
    """What events say of a name: the part of a `LockSpec` that they need."""

    @property
    def title(self) -> str:
        """The name as the program wrote it."""
        ...

    @property
    def template(self) -> str:
        """The template of the name; "" if the program gave none."""
        ...

    @property
    def kind(self) -> str:
        """The kind of primitive."""
        ...

    @property
    def weight(self) -> int:
        """The number of units."""
        ...


@dataclass(slots=True, frozen=True)
class Subject:
    """The name of something that is no lock, as events report it."""

    title: str
    template: str
    kind: str
    weight: int = 1


def _one() -> list[None]:
    return [None]


@dataclass(slots=True, eq=False)
class Use:
    """One use of a name: the acquisition, and the lease or run that it leads to."""

    events: "Events"
    of: Reported
    id: int
    thread: str
    line: str
    since: float
    contended: bool = False
    held_since: float = 0.0
    waits: list[None] = field(default_factory=_one)
    """Has one item until the wait has ended. To take that is atomic, so the end is reported once."""
    holds: list[None] = field(default_factory=_one)
    """Has one item until the lease or run has ended."""

    def lost(self, lease: CoreLease) -> None:
        """Report that the lease is lost."""
        self.events.ended(lease, Outcome.EXPIRED)


class Events:
    """Makes the events of one client and passes them to its listeners."""

    def __init__(
        self, listeners: Iterable[Listener], runtime: "Runtime", owner: str, store: str, *, lines: bool
    ) -> None:
        """Pass events to `listeners`; with `lines`, find the line that began each acquisition."""
        self.tokens = True
        """Whether the store has fencing tokens; if not, every event has the token 0."""
        self._listeners = tuple(listeners)
        self._runtime = runtime
        self._now = runtime.now
        self._owner = owner
        self._store = store
        self._lines = lines
        self._ids = count(1)
        self._waits: dict[object, Use] = {}
        """The acquisition that is under way, by its thread or task."""
        self._mutex = runtime.mutex()
        self._unreachable_since: float | None = None
        self._quarantined = False

    # -- waits ---------------------------------------------------------------------------------------------

    async def follow(
        self,
        of: Reported,
        acquire: Callable[[], Coroutine[Any, Any, T]],
        *,
        waits: bool,
        since: float | None = None,
        quiet: bool = False,
    ) -> T:
        """Await an acquisition, and report its end: ACQUIRED, or GAVE_UP with its cause.

        `waits` says whether it may wait, `since` when it began, if that is before now. One that is `quiet` is not
        reported if the name is not free, because another one follows.
        """
        mark = self._runtime.mark()
        outer = self._waits.get(mark)
        use: Use | None = None
        try:
            use = self._waits[mark] = self._begin(of, since)
            result = await acquire()
            if isinstance(result, CoreLease):
                self._granted(use, result)
            elif isinstance(result, NotGranted):
                if not quiet or use.contended:
                    self._gave_up(use, "timeout" if waits else "busy")
            elif isinstance(result, Slot) and result.refused is None:
                self._end_wait(use, EventKind.UNITS_TAKEN)
            else:
                self._end_wait(use, EventKind.UNITS_REFUSED, "timeout" if waits else "busy")
            return result
        except BaseException as error:
            if use is not None:
                if use.waits:
                    use.holds.clear()  # an interrupt came between the grant and its report: nobody hears of the lease
                self._gave_up(use, why(error), error)
            raise
        finally:
            if outer is None:
                self._waits.pop(mark, None)
            else:
                self._waits[mark] = outer

    def refused(self, of: Reported, error: Exception) -> None:
        """Report an acquisition that was refused before it began, because too many wait."""
        self._gave_up(self._begin(of), "busy", error)

    def contended(self) -> None:
        """Report that the acquisition of the calling thread or task has to wait."""
        use = self._waits.get(self._runtime.mark())
        if use is not None and not use.contended:
            use.contended = True
            self._say(EventKind.CONTENDED, use)

    def _begin(self, of: Reported, since: float | None = None) -> Use:
        return Use(
            self,
            of,
            next(self._ids),
            self._runtime.caller()[1],
            line_of(acquired_at(1)) if self._lines else "",
            self._now() if since is None else since,
        )

    def _granted(self, use: Use, lease: CoreLease) -> None:
        use.held_since = now = self._now()
        lease.told = use  # from here on the end of the lease is reported
        event = self._event(EventKind.ACQUIRED, use, lease.token)
        event.waited = now - use.since
        self._pass_once(use.waits, event)
        if lease.lost_because or lease.outcome is not None:  # a client that is closed may be as fast
            self.ended(lease, lease.outcome or Outcome.EXPIRED)

    def _gave_up(self, use: Use, cause: str, error: BaseException | None = None) -> None:
        kept = error if isinstance(error, Exception) else None
        self._end_wait(use, EventKind.GAVE_UP, cause, kept)

    def _end_wait(self, use: Use, kind: EventKind, cause: str = "", error: BaseException | None = None) -> None:
        event = self._event(kind, use)
        event.waited, event.cause, event.error = self._now() - use.since, cause, error
        self._pass_once(use.waits, event)

    # -- leases --------------------------------------------------------------------------------------------

    def ended(self, lease: CoreLease, outcome: Outcome) -> None:
        """Report that a lease has ended: that it is lost, or its release. Only the first report counts."""
        if lease.lost_because:
            kind, cause, detail = EventKind.LOST, short_cause(lease.lost_because), lease.why_lost()
        else:
            kind, cause, detail = EventKind.RELEASED, outcome.value, ""
        self._end_lease(lease, kind, cause, detail)

    def handed_on(self, lease: CoreLease) -> None:
        """Report a release by a local hand-off."""
        self._end_lease(lease, EventKind.HANDED_ON)

    def dropped(self, lease: CoreLease, where: str) -> None:
        """Report a lease that was dropped without a release."""
        self._end_lease(lease, EventKind.DROPPED, detail=where)

    def renewed(self, lease: CoreLease, *, recovered: bool) -> None:
        """Report a renewal; `recovered` says whether the lease was at risk before."""
        self._of_lease(EventKind.RENEWED, lease, lease.valid_until - self._now())
        if recovered:
            self._of_lease(EventKind.RECOVERED, lease)

    def renewing(self, leases: Sequence[CoreLease], sent: float) -> None:
        """Report those of some leases whose renewal, which is sent now, is late."""
        for lease in leases:
            if sent - lease.due_at > (lease.valid_until - lease.due_at) * LATE:
                self._of_lease(EventKind.RENEWAL_LATE, lease, sent - lease.due_at)

    def at_risk(self, lease: CoreLease, error: Exception) -> None:
        """Report a renewal that failed, the first one since the last that succeeded."""
        self._of_lease(EventKind.AT_RISK, lease, lease.valid_until - self._now(), error)

    def _end_lease(self, lease: CoreLease, kind: EventKind, cause: str = "", detail: str = "") -> None:
        use = lease.told
        if not isinstance(use, Use):  # nobody has held it, or its wait was never reported
            return
        event = self._event(kind, use, lease.token)
        event.held, event.cause, event.detail = self._now() - use.held_since, cause, detail
        if kind is EventKind.LOST:
            event.error = lease.last_error
        self._pass_once(use.holds, event)

    def _of_lease(
        self, kind: EventKind, lease: CoreLease, duration: float | None = None, error: Exception | None = None
    ) -> None:
        use = lease.told
        if isinstance(use, Use) and use.holds:
            event = self._event(kind, use, lease.token)
            event.held, event.seconds, event.error = self._now() - use.held_since, duration, error
            self._pass(event)

    # -- jobs and units ------------------------------------------------------------------------------------

    def run_begun(self, of: Reported) -> Use:
        """Report that a run of a job has begun; return the use that ends by `run_ended`."""
        use = self._begin(of)
        use.held_since = use.since
        self._say(EventKind.RUN_BEGUN, use)
        return use

    def run_ended(self, use: Use, cause: str, detail: str = "") -> None:
        """Report that a run has ended. Only the first report counts."""
        event = self._event(EventKind.RUN_ENDED, use)
        event.held, event.cause, event.detail = self._now() - use.held_since, cause, detail
        self._pass_once(use.holds, event)

    def run_refused(self, of: Reported, cause: str, error: Exception | None = None) -> None:
        """Report a call that did not run its job."""
        event = self._event(EventKind.RUN_REFUSED, self._begin(of))
        event.cause, event.error = cause, error
        self._pass(event)

    def units(self, kind: EventKind, of: Reported) -> None:
        """Report units of a stock that were taken, refused, reserved or returned."""
        self._say(kind, self._begin(of))

    # -- the store -----------------------------------------------------------------------------------------

    def watch(self, store: object) -> None:
        """Have each request to a store of this client report how it goes with the store."""
        for name in REQUESTS:
            method = getattr(store, name, None)
            if method is not None:
                setattr(store, name, partial(self._request, method))

    async def _request(self, method: Callable[..., Coroutine[Any, Any, Any]], *arguments: object) -> Any:  # noqa: ANN401 - whatever the store replies
        try:
            reply = await method(*arguments)
        except StoreError as error:
            self._of_store(EventKind.STORE_ERROR, error=error)
            if isinstance(error, StoreUnavailable):
                self._note_silence(error)
            raise
        if self._unreachable_since is not None:
            self._note_answer()
        if self._quarantined or type(reply) in MAY_BE_QUARANTINED:
            self._note_quarantine(reply)
        return reply

    def _note_silence(self, error: StoreUnavailable) -> None:
        with self._mutex:
            if self._unreachable_since is not None:
                return
            self._unreachable_since = self._now()
        self._of_store(EventKind.STORE_UNREACHABLE, error=error)

    def _note_answer(self, cause: str = "") -> None:
        with self._mutex:
            since, self._unreachable_since = self._unreachable_since, None
        if since is not None:
            self._of_store(EventKind.STORE_BACK, self._now() - since, cause=cause)

    def _note_quarantine(self, reply: Any) -> None:  # noqa: ANN401 - whatever the store replies
        first = cast("list[object]", reply)[0] if isinstance(reply, list) and reply else cast("object", reply)
        left: int | None = 0 if isinstance(first, Granted) else getattr(first, "quarantine", None)
        if left is None or bool(left) is self._quarantined:
            return
        with self._mutex:
            if bool(left) is self._quarantined:
                return
            self._quarantined = bool(left)
        if left:
            self._of_store(EventKind.QUARANTINE_BEGUN, seconds(left))
        else:
            self._of_store(EventKind.QUARANTINE_OVER)

    def closed(self) -> None:
        """End what is open of the store, because the client is closed and asks no more."""
        self._note_answer("closed")
        with self._mutex:
            quarantined, self._quarantined = self._quarantined, False
        if quarantined:
            self._of_store(EventKind.QUARANTINE_OVER, cause="closed")

    def _of_store(
        self, kind: EventKind, duration: float | None = None, error: BaseException | None = None, cause: str = ""
    ) -> None:
        event = LockEvent(kind, "", STORE, STORE, self._store, self._owner, seconds=duration, error=error, units=0)
        event.cause = cause
        self._pass(event)

    # -- making and passing --------------------------------------------------------------------------------

    def _event(self, kind: EventKind, use: Use, token: int = 0) -> LockEvent:
        of = use.of
        return LockEvent(
            kind,
            of.title,
            of.template or of.kind,
            of.kind,
            self._store,
            self._owner,
            use.id,
            token if self.tokens else 0,
            of.weight,
            thread=use.thread,
            line=use.line,
        )

    def _say(self, kind: EventKind, use: Use) -> None:
        self._pass(self._event(kind, use))

    def _pass_once(self, ends: list[None], event: LockEvent) -> None:
        """Pass the event that ends something, unless that has ended before; an interrupt does not come between."""
        rest = [*self._listeners]
        try:
            ends.pop()
            self._pass(event, rest)
        except IndexError:  # it has ended
            return
        except BaseException:  # an interrupt after the end was taken
            self._pass(event, rest)
            raise

    def _pass(self, event: LockEvent, rest: list[Listener] | None = None) -> None:
        """Pass an event to all listeners, or to the `rest`, which it removes one by one. Their errors are logged."""
        if rest is None:
            rest = [*self._listeners]
        while rest:
            tell = rest[0]
            del rest[0]  # no signal handler runs between this and the call
            try:
                tell(event)
            except (Exception, SystemExit):  # SystemExit would end the renewer's thread, or leave a lease without owner
                log.exception("a listener (on_event) raised an error for %r; the lock works on", event.name)


STORE = "store"
"""The kind of events that are about the store."""


def why(error: BaseException) -> str:
    """Return the cause of an acquisition, or of a call, that ended by an error."""
    if not isinstance(error, Exception):
        return "cancelled"
    return "stopped" if isinstance(error, Stopped) else "error"
