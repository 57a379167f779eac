"""Leader election: a lock whose holder, the leader, publishes a value.

A campaign is an acquisition, a term is a lease, and the number of a term is its fencing token. The owner metadata of
the lease carries the published value, so every inspection of the name shows the value.

A deposed leader may not know that it was deposed: it may be paused, or cut off. So `is_leader` depends on the local
deadline alone, which passes here before the lease ends in the store. A resource that two leaders must never use at once
has to compare the token. The answers of `leader()` and `observe()` may be out of date as soon as they arrive.
"""

from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Never, Self, TypeVar

from tenure.contracts.limits import check_duration, check_timeout
from tenure.contracts.messages import NameView
from tenure.contracts.owner_metadata import OwnerMetadata, read_metadata
from tenure.core.session import Session
from tenure.core.spec import LockSpec
from tenure.core.stop import Stop
from tenure.entering import NeverEntered
from tenure.errors import StoreError, StoreUnavailable, UsageError
from tenure.lease import Acquiring, AsyncLease, Lease, LeaseBase
from tenure.outcome import Outcome
from tenure.primitives.base import UNSET, LockBase, Sessions
from tenure.primitives.options import LockOptions, refuse_unknown
from tenure.runtimes.threads import drive

INTERVAL = 1.0
"""The default time between two inspections of an observation, in seconds."""

VALUE_BYTES = 4096
"""The most bytes of a published value."""


@dataclass(slots=True, frozen=True)
class Leader:
    """A leader, as the store showed it last."""

    owner: str
    """The owner of the leader's client."""
    value: str
    """The value that the leader publishes."""
    token: int
    """The number of the term: the fencing token of the lease, which grows from leader to leader."""


def check_value(value: object) -> str:
    """Return `value` if a leader can publish it; else raise UsageError."""
    if not isinstance(value, str):
        raise UsageError(f"a leader publishes a str, not {value!r}: convert the value first")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise UsageError(f"a leader publishes text that UTF-8 can encode, and {value!r} is not: escape it") from None
    if size > VALUE_BYTES:
        raise UsageError(
            f"a leader publishes a value of up to {VALUE_BYTES} bytes of UTF-8, not {size}: publish where to find the "
            "rest"
        )
    return value


def _metadata(session: Session, value: str) -> str:
    """Return the owner metadata of a leader. They are never empty, so a campaign never uses a local queue."""
    return OwnerMetadata(session.owner, value).text()


def leader_of(view: NameView) -> Leader | None:
    """Return the leader in an inspected name; None if nobody leads."""
    if not view.holders:
        return None
    holder = view.holders[0]
    return Leader(holder.owner, holder.value, holder.token)


class _TermBase(LeaseBase):
    """The part of a term that is the same for threads and asyncio."""

    __slots__ = ()

    @property
    def value(self) -> str:
        """The value that the leader publishes."""
        return read_metadata(self._core.grant.request.owner).value

    async def _detach(self, ttl: float | None, reason: str) -> str:  # noqa: ARG002 - as of any lease
        raise UsageError(
            f"the term of a leader of {self._name!r} is not handed over by a handle: resign(), and campaign on the "
            "other side."
        )


class Leadership(_TermBase, Lease):
    """One term of a leader, from `Election.campaign`. It is a lease; to release it is to resign."""

    __slots__ = ()

    def publish(self, value: str) -> None:
        """Publish another value in the same term.

        Raises LeaseLost if the term is over, StoreError if the store did not answer: then either the old or the new
        value is published, and publishing again is safe.
        """
        check_value(value)
        drive(self._session.adjust(self._core, owner=_metadata(self._session, value)))


class AsyncLeadership(_TermBase, AsyncLease):
    """One term of a leader, from `AsyncElection.campaign`. It is a lease; to release it is to resign."""

    __slots__ = ()

    async def publish(self, value: str) -> None:
        """Publish another value in the same term, as `Leadership.publish`.

        If it is cancelled, either the old or the new value is published.
        """
        check_value(value)
        await self._session.adjust(self._core, owner=_metadata(self._session, value))


class _ObservationBase:
    """The changes of the leader, found by inspecting the name every `interval` seconds."""

    def __init__(self, session: Session, name: str, interval: float, timeout: float | None) -> None:
        self._session = session
        self._name = name
        self._interval = check_duration(interval, "interval", 0.01)
        self._until = None if check_timeout(timeout) is None else session.runtime.now() + (timeout or 0.0)
        self._signal = session.runtime.event()
        self._stopped = False
        self._look_at = 0.0
        self._unanswered_since: float | None = None
        self._last: tuple[Leader | None] | None = None
        """The leader that was returned last, in a tuple; None before the first."""

    def stop(self) -> None:
        """End the iteration at once; from any thread. Idempotent."""
        self._stopped = True
        self._session.runtime.post(self._signal.set)

    async def _advance(self) -> tuple[Leader | None] | None:
        """Wait for a change and return the leader in a tuple; return None at the end of the observation."""
        now = self._session.runtime.now
        while not self._is_over():
            if now() < self._look_at:
                until = self._until if self._last is not None else None  # the first leader is returned, however late
                await self._signal.wait(self._look_at if until is None else min(self._look_at, until))
                continue
            self._look_at = now() + self._interval
            seen = await self._look()
            if seen is not None and seen != self._last:
                self._last = seen
                return seen
        return None

    async def _look(self) -> tuple[Leader | None] | None:
        """Ask the store for the leader; None if the store does not answer, for up to `retry_for` seconds."""
        session = self._session
        asked = session.runtime.now()
        try:
            view = await session.inspect(self._name)
        except StoreUnavailable:
            since = self._unanswered_since = self._unanswered_since or asked
            if not self._is_over() and session.runtime.now() >= since + session.requests.retry_for:
                raise
            return None
        except (StoreError, UsageError):
            if self._is_over():
                return None
            raise
        self._unanswered_since = None
        return (leader_of(view),)

    def _is_over(self) -> bool:
        if self._stopped:
            return True
        try:
            self._session.refuse_if_closed()
        except UsageError:
            return True
        return self._last is not None and self._until is not None and self._session.runtime.now() >= self._until


class Observation(_ObservationBase):
    """An iterator over the changes of the leader, from `Election.observe`. Another thread ends it by `stop()`."""

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Leader | None:
        """Block until the leader has changed, and return the new leader, or None if nobody leads."""
        seen = drive(self._advance())
        if seen is None:
            raise StopIteration
        return seen[0]


class AsyncObservation(_ObservationBase):
    """An async iterator over the changes of the leader, from `AsyncElection.observe`. `stop()` ends it."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Leader | None:
        """Wait until the leader has changed, and return the new leader, or None if nobody leads."""
        seen = await self._advance()
        if seen is None:
            raise StopAsyncIteration
        return seen[0]


T = TypeVar("T", bound=_TermBase)


class _ElectionBase(NeverEntered, LockBase[T]):
    """The part of an election that is the same for threads and asyncio."""

    _kind = "an election"
    _reported = "election"
    _wait_for_release = True
    _enter_instead = "campaign()"
    _advice = "This candidate leads already: publish() another value, or resign() first, or give a timeout."

    def __init__(self, client: Sessions, name: str, options: LockOptions) -> None:
        super().__init__(client, name, options)
        self._prepares = True
        self._term: T | None = None
        """The last term of this object; None before the first."""

    @property
    def is_leader(self) -> bool:
        """Whether the last term of this object certainly goes on. Sends no request.

        False from the local deadline of the lease on, even if the store still keeps the lease.
        """
        term = self._term
        return term is not None and term.remaining() > 0

    def _spec_with(self, session: Session, value: str) -> LockSpec:
        return replace(self._spec, metadata=_metadata(session, value))

    def _prepared(self, lease: T) -> T:
        lease._core.grant.leads = True  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - a term of this election
        self._term = super()._prepared(lease)
        return lease

    def _no_term(self) -> UsageError:
        return UsageError(
            f"this object has not been elected to lead {self._name!r}: call campaign() before you publish"
        )


class Election(_ElectionBase[Leadership]):
    """An election of a `Client`. Made by `Client.election`."""

    _face = Leadership

    def campaign(
        self, value: str = "", timeout: float | None = UNSET, *, stop: Stop | None = None, **unknown: Never
    ) -> Leadership:
        """Wait to be elected, up to `timeout` seconds (0: ask once; None: for ever); then lead and publish `value`.

        Candidates are elected in the order in which they came. The returned lease is the term: it is renewed until it
        is released, `resign` is called or it is lost. Raises LockTimeout, which names the leader, if the candidate was
        not elected in time; StoreError if the store did not answer; UsageError if the value has more than 4096 bytes of
        UTF-8; Stopped if another thread sets `stop` meanwhile.
        """
        if unknown:
            refuse_unknown("campaign", unknown, ("value", "timeout", "stop"))
        check_value(value)
        session = self._client.session()
        spec = replace(self._spec_with(session, value), stop=stop)
        with nullcontext() if stop is None else stop.watching(session, self._name):
            return drive(self._obtain(session, spec, timeout))

    def publish(self, value: str) -> None:
        """Publish another value as the leader; see `Leadership.publish`. Raises UsageError if there was no term."""
        if self._term is None:
            raise self._no_term()
        self._term.publish(value)

    def resign(self) -> Outcome | None:
        """End the last term of this object, so that the next candidate leads; return None if there was no term.

        Never raises because of the store. Called again, it returns the same outcome.
        """
        term = self._term
        return None if term is None else term.release()

    def leader(self) -> Leader | None:
        """Ask the store for the leader; None if nobody leads. Raises StoreError if the store did not answer."""
        return leader_of(drive(self._client.session().inspect(self._spec.name)))

    def observe(self, timeout: float | None = None, *, interval: float = INTERVAL) -> Observation:
        """Iterate over the leaders: first the present one, then each change of the leader or of its value.

        None stands for no leader. The store is asked every `interval` seconds, so leaders that come and go in between
        are not seen. The iteration ends after `timeout` seconds (0: after the present leader; None: never), when
        `stop()` of the observation is called, or within `interval` seconds after the client is closed. A store that
        does not answer is asked again for `retry_for` seconds, as by an acquisition; then StoreError is raised, and the
        iteration may be continued.
        """
        return Observation(self._client.session(), self._spec.name, interval, timeout)


class AsyncElection(_ElectionBase[AsyncLeadership]):
    """An election of an `AsyncClient`. Made by `AsyncClient.election`."""

    _face = AsyncLeadership

    def campaign(self, value: str = "", timeout: float | None = UNSET, **unknown: Never) -> Acquiring[AsyncLeadership]:
        """Wait to be elected, as `Election.campaign`: await the call, or enter it by `async with`.

        A call that is cancelled at any point leaves no leader and no candidate behind. A body is cancelled if the term
        is lost.
        """
        if unknown:
            refuse_unknown("campaign", unknown, ("value", "timeout"))
        return Acquiring(self._campaign(check_value(value), timeout))

    async def _campaign(self, value: str, timeout: float | None) -> AsyncLeadership:
        session = self._client.session()
        return await self._obtain(session, self._spec_with(session, value), timeout)

    async def publish(self, value: str) -> None:
        """Publish another value as the leader; see `AsyncLeadership.publish`."""
        if self._term is None:
            raise self._no_term()
        await self._term.publish(value)

    async def resign(self) -> Outcome | None:
        """End the last term, as `Election.resign`. If it is cancelled, it is carried out all the same."""
        term = self._term
        return None if term is None else await term.release()

    async def leader(self) -> Leader | None:
        """Ask the store for the leader; None if nobody leads. Raises StoreError if the store did not answer."""
        return leader_of(await self._client.session().inspect(self._spec.name))

    def observe(self, timeout: float | None = None, *, interval: float = INTERVAL) -> AsyncObservation:
        """Iterate over the leaders by `async for`, as `Election.observe`. A cancellation of the task ends it, too."""
        return AsyncObservation(self._client.session(), self._spec.name, interval, timeout)
