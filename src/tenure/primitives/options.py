"""The options of locks, the checks of their values, and the errors for unknown keywords."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, NoReturn, Self, TypedDict

from tenure.callables import refuse_async_callback
from tenure.contracts.deadlines import micros
from tenure.contracts.limits import (
    BUSY,
    RAISE,
    WAIT,
    check_count,
    check_duration,
    check_template,
    check_timeout,
    check_ttl,
)
from tenure.contracts.store import Capabilities
from tenure.errors import LeaseLost, UnknownArgument, UsageError
from tenure.escaping import escape

BusyPolicy = Literal["wait", "raise", "skip"]

if TYPE_CHECKING:  # type checkers know typing_extensions, which Tenure does not need: it has a TypeVar with a default
    from typing_extensions import TypeVar

    Busy_co = TypeVar("Busy_co", bound=BusyPolicy, default=BusyPolicy, covariant=True)
else:
    from typing import TypeVar

    Busy_co = TypeVar("Busy_co", covariant=True)
"""The `busy` of a lock, as far as a type checker knows it: a function decorated with "skip" may return None."""


class Options(TypedDict, Generic[Busy_co], total=False):
    """The options of all locks, semaphores and reader/writer locks. `Client.lock` says what they mean."""

    lock_delay: float
    max_hold: float | None
    min_hold: float
    on_lost: Callable[[LeaseLost], object] | None
    on_revoke: Callable[[Any], object] | None
    detect_deadlock: bool
    busy: Busy_co
    max_waiters: int | None
    renew: bool
    wait_for_release: bool | None
    template: str


class PlainOptions(Options[Busy_co], total=False):
    """The options of a lock, which has one holder at a time. `Client.lock` says what they mean."""

    linger: float
    reentrant: bool
    fair: bool
    fair_after: float


class MultiLockOptions(TypedDict, total=False):
    """The options of a multilock. `Client.lock` says what they mean."""

    lock_delay: float
    max_hold: float | None
    on_lost: Callable[[LeaseLost], object] | None
    detect_deadlock: bool
    template: str


class ElectionOptions(TypedDict, total=False):
    """The options of an election. `Client.lock` says what they mean."""

    lock_delay: float
    max_hold: float | None
    on_lost: Callable[[LeaseLost], object] | None
    template: str


class OnceOptions(TypedDict, total=False):
    """The options of a job that runs once. `Client.once` says what they mean."""

    window: object
    key: str | None
    attempts: int
    at_least: float
    at_most: float | None
    busy: str | None
    ttl: float | None
    timeout: float | None
    max_waiters: int | None
    keep: float | None
    fingerprint: object
    template: str


_TTL = "give the lock a ttl: for how many seconds a lease outlives a holder that died (a live holder renews its lease)"
_TIMEOUT = "give a timeout, in seconds (0: ask once; None: wait for ever)"
_RENEWED = "a lease is renewed for as long as it is held; leave it out, or limit that by max_hold, or give renew=False"
_TOLD = "the store notifies a waiter of its grant, so a waiter does not poll; leave it out"
_OBJECT = "a lease is an object that any thread may use; leave it out"
_OWNER = "give the client an owner: Client(url, owner=...)"
_NAMESPACE = "give the client a namespace: Client(url, namespace=...)"
_PERMITS = "make a semaphore: client.semaphore(name, permits)"

MEANT = {
    **dict.fromkeys(
        ("expire", "expiry", "expires", "expiration", "ex", "px", "lease", "lease_time", "leaseTime"), _TTL
    ),
    **dict.fromkeys(("lease_duration", "lock_timeout", "lock_ttl", "auto_release_time", "duration", "validity"), _TTL),
    **dict.fromkeys(("blocking_timeout", "wait", "wait_time", "wait_timeout", "waitTime", "acquire_timeout"), _TIMEOUT),
    **dict.fromkeys(("max_wait", "deadline"), _TIMEOUT),
    **dict.fromkeys(("blocking", "block", "nowait"), "to ask once, give timeout=0, or call try_acquire()"),
    **dict.fromkeys(("auto_renewal", "auto_renew", "watchdog", "keepalive", "heartbeat"), _RENEWED),
    **dict.fromkeys(("sleep", "poll_interval", "poll", "interval", "retry_interval", "retry_delay", "delay"), _TOLD),
    **dict.fromkeys(("retry_times", "retry_count", "retries", "max_retries", "num_tries", "check_interval"), _TOLD),
    **dict.fromkeys(("thread_local", "thread_id"), _OBJECT),
    **dict.fromkeys(("id", "identifier", "client_id", "holder"), _OWNER),
    **dict.fromkeys(("prefix", "key_prefix"), _NAMESPACE),
    **dict.fromkeys(("unfair", "barging"), "give the lock fair=False"),
    **dict.fromkeys(("value", "limit", "max_leases", "count", "maxsize"), _PERMITS),
}
"""The advice for keywords of other libraries: redis-py, Redlock, Redisson, filelock, kazoo."""

ELSEWHERE = {
    "ttl": "client.lock(name, ttl=...)",
    "timeout": "client.lock(name, timeout=...), or lock.acquire(timeout=...)",
    "weight": "semaphore.acquire(weight=...)",
    "stop": "lock.acquire(stop=...), of a blocking Client",
    "permits": "client.semaphore(name, permits)",
    "max_ttl": "the URL of a Redis, as redis://host?max_ttl=300",
    **dict.fromkeys(
        ("host", "port", "db", "username", "password", "ssl", "unix_socket_path"),
        "the URL of the store, as redis://user:password@host:6379/0",
    ),
    **dict.fromkeys(
        ("owner", "namespace", "retry_for", "operation_timeout", "on_event", "event_lines"), "Client(url, ...)"
    ),
    **{each: f"client.lock(name, {each}=...)" for each in PlainOptions.__optional_keys__},
}
"""Where the library's own keywords belong."""


def refuse_unknown(call: str, given: Iterable[str], known: Iterable[str]) -> NoReturn:
    """Raise UnknownArgument for the first of the keywords `given` that is not `known`, with advice what to write."""
    known = sorted(known)
    word = next(each for each in given if each not in known)
    meant = word if word in MEANT or word in ELSEWHERE else _nearest(word.lower(), (*known, *MEANT, *ELSEWHERE))
    if meant in known:
        advice = f"did you mean {meant}?"
    elif meant in MEANT:
        advice = f"{MEANT[meant]}."
    elif meant in ELSEWHERE:
        advice = f"it belongs to {ELSEWHERE[meant]}."
    else:
        advice = f"there are {', '.join(known)}." if known else "it takes none."
    raise UnknownArgument(f"{call}() has no argument {escape(word)!r}: {advice}")


def _nearest(word: str, words: Iterable[str]) -> str:
    from difflib import get_close_matches  # `import tenure` takes less time without

    return next(iter(get_close_matches(word, list(words), 1)), "")


@dataclass(slots=True, kw_only=True)
class LockOptions:
    """The options of a lock, checked. All times in seconds."""

    ttl: float
    timeout: float | None
    lock_delay: float = 0.0
    max_hold: float | None = None
    min_hold: float = 0.0
    on_lost: Callable[[LeaseLost], object] | None = None
    on_revoke: Callable[[Any], object] | None = None
    detect_deadlock: bool = False
    busy: str = WAIT
    max_waiters: int | None = None
    renew: bool = True
    wait_for_release: bool | None = None
    """Whether the end of a `with` waits for the reply to its release; None: as the client says."""
    template: str = ""

    def __post_init__(self) -> None:
        """Ask only once if `busy` says not to wait."""
        if self.busy != WAIT and self.timeout is None:
            self.timeout = 0.0

    def check(self, able: Capabilities) -> Self:
        """Return self if a store with these capabilities allows every value; else raise UsageError."""
        check_ttl(self.ttl, able)
        check_timeout(self.timeout)
        check_template(self.template)
        check_duration(self.lock_delay, "lock_delay")
        if self.max_hold is not None:
            check_duration(self.max_hold, "max_hold (or None, for no limit)", able.min_ttl)
        refuse_async_callback(self.on_lost, "on_lost")
        refuse_async_callback(self.on_revoke, "on_revoke")
        self._check_min_hold()
        if not able.records:
            self._refuse_records()
        self._check_busy(able)
        if self.detect_deadlock and not able.shows_waiters:
            raise UsageError(
                "detect_deadlock is not available: this store does not know who waits. Make the lock without it, or "
                "use another store, such as redis://host."
            )
        return self

    def _refuse_records(self) -> None:
        """Raise UsageError for options that need a store with a record of each name."""
        given = {"lock_delay": self.lock_delay, "min_hold": self.min_hold, "on_revoke": self.on_revoke}
        for option, value in given.items():
            if value:
                raise UsageError(
                    f"{option} is not available: this store keeps no record of a name beside its lock. Make the lock "
                    "without it, or use another store, such as redis://host."
                )

    def _check_busy(self, able: Capabilities) -> None:
        if self.busy not in BUSY:
            raise UsageError(f"busy must be one of {', '.join(map(repr, BUSY))}, not {self.busy!r}")
        if self.busy != WAIT and self.max_waiters is not None:
            raise UsageError(f"busy={self.busy!r} needs no max_waiters: leave it out, or give busy={WAIT!r}")
        if self.busy == RAISE and self.timeout:
            raise UsageError(f"busy={RAISE!r} does not wait: leave timeout out, or give busy={WAIT!r}")
        if self.max_waiters is None:
            return
        check_count(self.max_waiters, "max_waiters (or None, for no limit)")
        if not able.shows_waiters:
            raise UsageError(
                "max_waiters is not available: this store does not know who waits. Give a timeout, or use another "
                "store, such as redis://host."
            )

    def _check_min_hold(self) -> None:
        check_duration(self.min_hold, "min_hold")
        if self.min_hold > self.ttl:
            raise UsageError(
                f"min_hold={self.min_hold:g} is longer than the ttl of {self.ttl:g} s: the lease of a holder that dies "
                "would end before. Give a longer ttl, or a shorter min_hold."
            )
        if self.max_hold is not None and self.min_hold > self.max_hold:
            raise UsageError(
                f"min_hold={self.min_hold:g} is longer than max_hold={self.max_hold:g}, after which the lease is lost. "
                "Give a longer max_hold, or a shorter min_hold."
            )


FAIR_AFTER = 0.1
"""For how many seconds a waiter with fair=False may be passed, if the lock does not say."""

UNFAIR = "fair=False"
"""The option in the words of Python, as an error names it. The command line replaces them by its own `--unfair`."""


@dataclass(slots=True, kw_only=True)
class PlainLockOptions(LockOptions):
    """The options of a lock that has one holder at a time, checked. All times in seconds."""

    linger: float = 0.0
    reentrant: bool = False
    fair: bool = True
    fair_after: float | None = None

    def bound(self) -> int:
        """Return for how many microseconds a request may be passed by others and may pass them; 0 if it is fair."""
        return 0 if self.fair else micros(FAIR_AFTER if self.fair_after is None else self.fair_after)

    def check(self, able: Capabilities) -> Self:
        """Return self if a store with these capabilities allows every value; else raise UsageError."""
        LockOptions.check(self, able)
        check_duration(self.linger, "linger")
        if self.fair_after is not None:
            check_duration(self.fair_after, "fair_after")
            if self.fair:
                raise UsageError(
                    "fair_after says for how long a waiter may be passed: give fair=False, or leave it out"
                )
        if not self.fair and not able.barging:
            message = (
                f"{UNFAIR} is not available: this store decides itself in which order it serves waiters. Make the "
                "lock without it, or use another store, such as redis://host."
            )
            raise UsageError(message)
        if self.linger and self.min_hold:
            message = (
                "linger and min_hold exclude each other: linger keeps a released name for this client, min_hold keeps "
                "it from everybody. Give one of them."
            )
            raise UsageError(message)
        if self.linger and not self.renew:
            message = (
                "linger and renew=False exclude each other: a lease that lingers is renewed. Leave one of them out."
            )
            raise UsageError(message)
        if self.linger and self.detect_deadlock:
            message = (
                "linger and detect_deadlock exclude each other: a lease with deadlock detection is never kept after "
                "its release. Give one of them."
            )
            raise UsageError(message)
        return self
