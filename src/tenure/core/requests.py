"""The requests of one client: how long each may take, how often it is repeated, and what is logged of them."""

import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tenure.contracts.deadlines import micros, seconds
from tenure.contracts.findings import Finding, Severity
from tenure.contracts.limits import describe_quarantine
from tenure.contracts.runtime import Runtime
from tenure.core.events import Listener
from tenure.errors import StoreUnavailable
from tenure.escaping import STORE_ERROR, quoted, shown

T = TypeVar("T")

log = logging.getLogger("tenure")

MIN_REQUEST_TIME = 0.05
"""The least time that a request is given, in seconds."""

LOGGED_AFTER = 1.0
"""For how many seconds a store may fail to answer before that is logged."""


@dataclass(slots=True)
class Settings:
    """The settings of a client. Times in seconds."""

    owner: str
    """The name of the client, for people to read."""
    operation_timeout: float = 1.0
    """The longest that one request to the store may take."""
    retry_for: float = 10.0
    """For how long an acquisition, or a use of a cell, repeats requests to a store that does not answer."""
    prefix: str = ""
    """The prefix of all names of this client in the store."""
    fairness_count: int = 32
    """How many local waiters this client may hand a name on to in one turn, while another client waits."""
    listeners: list[Listener] = field(default_factory=list[Listener])
    """What is called with each event."""
    record: bool = False
    """Whether the history of names is written."""
    wait_for_release: bool = True
    """Whether the end of a `with` waits for the reply to its release."""
    event_lines: bool = False
    """Whether events say which line of the program began an acquisition."""
    store_title: str = ""
    """The store, as events name it: without secrets."""
    advice: int = 0
    """How many findings about the settings of the store may still be logged."""


class Requests:
    """Bounds, repeats and logs the requests of one client."""

    def __init__(self, runtime: Runtime, settings: Settings) -> None:
        """Begin with a store of which nothing is logged."""
        self._runtime = runtime
        self._settings = settings
        self.retry_for = settings.retry_for
        self.operation_timeout = settings.operation_timeout
        self.ample_ttl = micros(settings.operation_timeout * 5)
        """The least ttl, in microseconds, of which a request may take the whole `operation_timeout`."""
        self._quarantined_until = 0.0
        self._unanswered = False
        """Whether it is logged that the store does not answer acquisitions, and it has not answered since."""

    async def look(self, operation: Callable[[float], Coroutine[Any, Any, T]]) -> T:
        """Carry out a request that changes nothing; repeat it if the connection breaks, within `operation_timeout`.

        The last try has at least half of that time: with less, it would fail for want of time and hide the real error.
        """
        now = self._runtime.now()
        return await self.repeat_until(operation, now + self.operation_timeout, now + self.operation_timeout / 2)

    async def repeat_until(
        self, operation: Callable[[float], Coroutine[Any, Any, T]], until: float, last_try: float
    ) -> T:
        """Repeat a request until the store answers, with the deadline `until`; begin no try after `last_try`."""
        delay = 0.01
        while True:
            try:
                return await operation(until)
            except StoreUnavailable as error:
                pause = delay * (0.5 + self._runtime.random())
                if self._runtime.now() + pause >= last_try:
                    raise
                unanswered = error
            await self._runtime.sleep(pause)
            if self._runtime.now() > last_try:  # this process stood still
                raise unanswered
            delay = min(delay * 2, 0.5)

    async def send_up_to_three_times(
        self, operation: Callable[[float], Coroutine[Any, Any, T]], request_timeout: float
    ) -> T:
        """Carry out a request that is safe to repeat: send it up to three times while the store does not answer."""
        for attempt in range(3):
            try:
                return await operation(self._runtime.now() + request_timeout)
            except StoreUnavailable:
                if attempt == 2:  # noqa: PLR2004 - the third try
                    raise
            await self._runtime.sleep(0.02 * 4**attempt * (0.5 + self._runtime.random()))
        raise AssertionError  # pragma: no cover - the loop returns or raises

    def request_timeout(self, ttl: int) -> float:
        """Return how many seconds one request for a lease of `ttl` microseconds may take: far less than the ttl."""
        if ttl >= self.ample_ttl:
            return self.operation_timeout
        return min(self.operation_timeout, max(MIN_REQUEST_TIME, seconds(ttl) / 5))

    def note_quarantine(self, seconds: float) -> None:
        """Log, once a quarantine, that the store grants nothing for so many seconds, if that is more than none."""
        ends_at = self._runtime.now() + seconds
        if seconds and ends_at > self._quarantined_until + 1.0:
            self._quarantined_until = ends_at
            log.warning(
                "%s. If no earlier holder can still be at work, `tenure quarantine end` ends it",
                describe_quarantine(seconds),
            )

    def log_findings(self, findings: Sequence[Finding]) -> None:
        """Log the worst findings about the settings of the store, a few in the life of the client."""
        for finding in findings[: self._settings.advice]:
            if finding.severity is not Severity.NOTE:
                self._settings.advice -= 1
                log.warning("%s (`tenure doctor` shows all findings)", shown(finding.text(), STORE_ERROR))

    def note_unanswered(self, name: str, error: StoreUnavailable, since: float, give_up_at: float) -> None:
        """Log, once an outage and after a second of it, that an acquisition repeats its request."""
        now = self._runtime.now()
        if self._unanswered or now < since + LOGGED_AFTER:
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
            log.warning("the store answers again, after %.1f s", self._runtime.now() - since)
