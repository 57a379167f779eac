"""Limits: at most so many units in so many seconds, for all users of a name together."""

from tenure.contracts.cells import cell_name
from tenure.contracts.deadlines import micros
from tenure.contracts.limits import check_duration, check_name, check_number, check_timeout
from tenure.core.slots import take_slot
from tenure.errors import LockTimeout, UsageError
from tenure.primitives.base import Sessions
from tenure.runtimes.threads import drive
from tenure.table.limit import LimitRule

MOST_UNITS = 10**9
"""The largest rate and burst of a limit."""

SHORTEST, LONGEST_BURST = 0.001, 366 * 86_400.0
"""The least `per`, and how long a limit may take to be idle again, in seconds."""


class _LimitBase:
    """The part of a limit that is the same for threads and asyncio."""

    def __init__(self, client: Sessions, name: str, prefix: str, rule: tuple[int, float, int]) -> None:
        """Make the limit of a rate, a duration in seconds and a burst; the first call sends the first request."""
        rate, per, burst = rule
        self._client = client
        self._name = check_name(name, "a limit's name")
        self._prefix = prefix
        self._rule = LimitRule(
            check_number(rate, "rate", MOST_UNITS),
            micros(check_duration(per, "per", SHORTEST)),
            check_number(burst, "burst", MOST_UNITS),
        )
        if burst * per / rate > LONGEST_BURST:
            raise UsageError(
                f"a burst of {burst} at {rate} in {per:g} s lasts for more than a year: give a smaller one"
            )

    @property
    def name(self) -> str:
        """The name, without the namespace."""
        return self._name

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._name!r}>"

    def _cell(self, key: str | None) -> str:
        if key is None:
            return cell_name("limit", self._prefix, self._name)
        check_name(f"{self._name}={check_name(key, 'a key')}", "a limit's name and key, together,")
        return cell_name(f"limit-key-{len(self._name)}", self._prefix, f"{self._name}={key}")

    async def _take(self, n: int, timeout: float | None, key: str | None) -> float | None:
        units = check_number(n, "n", MOST_UNITS)
        if units > self._rule.burst:
            raise UsageError(
                f"{units} units at once are more than the burst of {self._rule.burst} of the limit {self._name!r}: "
                "acquire fewer, or make the limit with a larger burst"
            )
        return await take_slot(self._client.session(), self._cell(key), self._rule, units, timeout)

    async def _acquire(self, n: int, timeout: float | None, key: str | None) -> None:
        refused = await self._take(n, check_timeout(timeout), key)
        if refused is not None:
            raise LockTimeout(
                f"the limit {self._name!r} lets {n} more pass in {refused:.3g} s, which is more than the timeout of "
                f"{timeout:g} s: nothing was reserved. Try again later, or give a longer timeout",
                wait=refused,
            )


class Limit(_LimitBase):
    """A limit of a `Client`: at most `rate` units per `per` seconds, and `burst` at once. Made by `Client.limit`.

    Each call that succeeds has a *slot*, an instant of the store's clock, and returns at or after its slot, never
    before. In any half-open window of `per` seconds there are slots of at most rate + burst - 1 units; with the default
    burst of 1 that is the rate. Slots are given in the order in which the store took the calls: first come, first
    served.

    If the store's clock steps back, the limit goes on as if no time had passed since its last use, and the bound holds.
    A step ahead counts as time that has passed, so that as many more units may pass as in that time.
    """

    def acquire(self, n: int = 1, timeout: float | None = None, *, key: str | None = None) -> None:
        """Reserve the next slot for `n` units, and wait for it.

        Args:
            n: how many units, at most `burst`.
            timeout: how long to wait, in seconds; None: for ever. If the slot would be later, LockTimeout is raised at
                once, whose `wait` is how long it would have taken, and nothing is reserved.
            key: one of any number of keys, such as a customer: each key has a limit of its own.

        A wait that an interrupt ends gives its slot back, unless another has reserved after it. Raises UsageError if
        `n` is more than `burst` or the client is closed meanwhile, and StoreError if the store did not answer: then a
        slot may be left unused.
        """
        drive(self._acquire(n, timeout, key))

    def try_acquire(self, n: int = 1, *, key: str | None = None) -> bool:
        """Take `n` units if they may be used now; return whether. Errors as of `acquire`."""
        return drive(self._take(n, 0.0, key)) is None


class AsyncLimit(_LimitBase):
    """A limit of an `AsyncClient`, as `Limit`. Made by `AsyncClient.limit`."""

    async def acquire(self, n: int = 1, timeout: float | None = None, *, key: str | None = None) -> None:
        """Reserve the next slot for `n` units, and wait for it, as `Limit.acquire`.

        A call that is cancelled gives its slot back, unless another has reserved after it.
        """
        await self._acquire(n, timeout, key)

    async def try_acquire(self, n: int = 1, *, key: str | None = None) -> bool:
        """Take `n` units if they may be used now; return whether. Errors as of `acquire`."""
        return await self._take(n, 0.0, key) is None
