"""Counters: a whole number that a store keeps, changed exactly once by each call, also if replies are lost."""

from collections.abc import Coroutine
from typing import Any

from tenure.contracts.cells import cell_name
from tenure.contracts.limits import check_name
from tenure.primitives.base import Sessions
from tenure.runtimes.threads import drive
from tenure.table import counter


class _CounterBase:
    """The part of a counter that is the same for threads and asyncio."""

    def __init__(self, client: Sessions, name: str, prefix: str) -> None:
        self._client = client
        self._name = check_name(name, "a counter's name")
        self._cell = cell_name("counter", prefix, name)

    @property
    def name(self) -> str:
        """The name, without the namespace."""
        return self._name

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._name!r}>"

    def _get(self) -> Coroutine[Any, Any, int]:
        return self._client.session().cells.read(self._cell, lambda state, _: counter.value_of(state), None)

    def _add(self, n: int) -> Coroutine[Any, Any, int]:
        by = counter.check_value(n, "n")
        return self._client.session().cells.change(self._cell, counter.add(by), counter.addition(by))

    def _reset(self, to: int) -> Coroutine[Any, Any, int]:
        change = counter.reset(counter.check_value(to, "to"))
        return self._client.session().cells.change(self._cell, change)

    def _compare_and_set(self, expected: int, value: int) -> Coroutine[Any, Any, bool]:
        change = counter.compare_and_set(counter.check_value(expected, "expected"), counter.check_value(value, "value"))
        return self._client.session().cells.change(self._cell, change)


class Counter(_CounterBase):
    """A counter of a `Client`: a whole number from -(2**53 - 1) to 2**53 - 1. Made by `Client.counter`.

    Every call is made exactly once, although requests are repeated and replies lost. All calls raise StoreUnavailable
    if the store did not answer within `retry_for` seconds, and OutcomeUnknown, which is one, if the change may have
    been made: once or not at all.
    """

    def add(self, n: int = 1) -> int:
        """Add `n`, which may be negative; return the new value. Raises UsageError beyond +-(2**53 - 1)."""
        return drive(self._add(n))

    def get(self) -> int:
        """Return the value; 0 if nobody has changed it yet."""
        return drive(self._get())

    def reset(self, to: int = 0) -> int:
        """Set the value; return the value before, so that nothing that was counted is lost."""
        return drive(self._reset(to))

    def compare_and_set(self, expected: int, value: int) -> bool:
        """Set the value if it is `expected`; return whether it was."""
        return drive(self._compare_and_set(expected, value))


class AsyncCounter(_CounterBase):
    """A counter of an `AsyncClient`, as `Counter`. Made by `AsyncClient.counter`.

    A call that is cancelled was made once or not at all.
    """

    async def add(self, n: int = 1) -> int:
        """Add `n`, which may be negative; return the new value. Raises UsageError beyond +-(2**53 - 1)."""
        return await self._add(n)

    async def get(self) -> int:
        """Return the value; 0 if nobody has changed it yet."""
        return await self._get()

    async def reset(self, to: int = 0) -> int:
        """Set the value; return the value before, so that nothing that was counted is lost."""
        return await self._reset(to)

    async def compare_and_set(self, expected: int, value: int) -> bool:
        """Set the value if it is `expected`; return whether it was."""
        return await self._compare_and_set(expected, value)
