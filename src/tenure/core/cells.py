"""The cells of one client: it changes them by pure functions, each change exactly once.

A change reads the cell, lets a function say what the cell becomes, and writes it if nobody else has written meanwhile;
else it begins again. A write whose reply was lost may have happened, so each cell also keeps the latest replies by
*lane*. A client has as many lanes as it has changes under way, and numbers the changes of a lane: a change that finds
its own number in the cell has been made, and takes the reply from there. So the memory of a cell grows with those who
change it at the same time, not with the number of changes.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

from tenure.contracts import forms
from tenure.contracts.cells import LARGEST_CELL, AddingCellStore, Addition, Cell, CellStore, Change
from tenure.core.access import StoreAccess
from tenure.errors import OutcomeUnknown, StoreError, StoreUnavailable, UsageError
from tenure.escaping import quoted

__all__ = ["Cells", "Change"]

REMEMBERED = 600_000_000
"""How long a cell keeps the last reply of a lane, in microseconds: no request is repeated or under way for as long."""

REMEMBERED_OF_MANY = 60_000_000
"""The same for a cell that keeps more than MANY replies, so that many clients one after another do not fill it."""

MANY = 256

ALWAYS_REMEMBERED = 16
"""How many replies a cell keeps however old they seem."""

FIRST_PAUSE, LONGEST_PAUSE = 0.0005, 0.05
"""The bounds of the pause before a change begins again because another client has written, in seconds."""


@dataclass(slots=True)
class _Content:
    """What stands in a cell."""

    state: Any = None
    replies: dict[str, list[Any]] = field(default_factory=dict[str, list[Any]])
    """By lane: the number of the last change, its reply, and when it was made by the store's clock."""


class Cells:
    """The cells of one client."""

    def __init__(self, access: StoreAccess) -> None:
        """Use the store of `access`, which must have the capability `cells`."""
        self._access = access
        self._store = cast("CellStore", access.store)
        self._adding = access.store if isinstance(access.store, AddingCellStore) else None
        self._client = access.runtime.new_id()
        self._free: list[int] = []
        """The lanes without a change under way."""
        self._lanes = 0
        self._numbers: dict[int, int] = {}
        """By lane: the number of its last change."""

    async def look(self, name: str) -> tuple[Any, int]:
        """Return the state in a cell (None: there is none), and the time of the store in microseconds.

        Raises StoreError if the store did not answer.
        """
        await self._access.open()
        now = self._access.runtime.now()
        end = now + self._access.operation_timeout
        cell = await self._access.insist(lambda until: self._store.read_cell(name, until), end, end)
        return _read(name, cell).state, cell.now

    async def change(self, name: str, change: Callable[[Any, int], Change], addition: Addition | None = None) -> Any:  # noqa: ANN401 - what JSON knows
        """Change a cell by a function of its state (None: there is none) and the store's time; return the reply.

        The function is called once or several times, and its last result counts: it must have no effects. An
        `addition` makes the same change of a state that allows it, for stores that do this faster. Raises
        StoreUnavailable if the store did not answer within `retry_for` seconds or others wrote all the time, and
        OutcomeUnknown if the change may have been made: then it was made once or not at all.
        """
        await self._access.open()
        with self._access.mutex:
            lane = self._free.pop() if self._free else self._lanes
            self._lanes = max(self._lanes, lane + 1)
            number = self._numbers[lane] = self._numbers.get(lane, 0) + 1
        try:
            return await self._change(name, change, f"{self._client}.{lane}", number, addition)
        finally:
            with self._access.mutex:
                self._free.append(lane)

    async def _change(
        self,
        name: str,
        change: Callable[[Any, int], Change],
        lane: str,
        number: int,
        addition: Addition | None,
    ) -> Any:  # noqa: ANN401
        access, runtime = self._access, self._access.runtime
        give_up_at = runtime.now() + access.retry_for
        pause, unknown = FIRST_PAUSE, None
        cell: Cell | None = None
        while True:
            until = runtime.now() + access.operation_timeout
            try:
                if (reply := await self._add(name, addition, lane, number, until)) is not None:
                    return reply
                addition = None
                if cell is None:
                    cell = await self._store.read_cell(name, until)
                content = _read(name, cell)
                if content.replies.get(lane, [0])[0] == number:
                    return content.replies[lane][1]
                made = change(content.state, cell.now)
                if not made.changed and unknown is None:
                    return made.reply
                state = made.state if made.changed else content.state  # written, so that a late request is refused
                value = _write(name, state, _latest(content.replies, cell.now, lane, [number, made.reply, cell.now]))
                keep = REMEMBERED if state is None else made.keep
                cell = await self._store.write_cell(name, value, cell.version, keep, until)
                if cell.written:
                    return made.reply
                error: StoreUnavailable | None = None
            except StoreError as failure:
                unknown = _weighed(name, failure, unknown)
                error, cell = cast("StoreUnavailable", failure), None
            if runtime.now() + pause > give_up_at:
                raise _gave_up(name, access.retry_for, error, unknown)
            await runtime.sleep(pause * (0.5 + runtime.random()))
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _add(self, name: str, addition: Addition | None, lane: str, number: int, until: float) -> int | None:
        """Make an addition in one request; return None if there is none, or the store cannot make it."""
        if addition is None or self._adding is None:
            return None
        return await self._adding.add_to_cell(name, addition, lane, number, until)


def _weighed(name: str, failure: StoreError, unknown: OutcomeUnknown | None) -> OutcomeUnknown | None:
    """Return the error of a request that may have made the change, if there is one; raise what no retry can help."""
    if isinstance(failure, StoreUnavailable):
        return failure if isinstance(failure, OutcomeUnknown) else unknown
    if unknown is None:
        raise failure
    raise OutcomeUnknown(
        f"{name!r} may have been changed, once or not at all: after a request without a reply the store refused to say "
        f"which it is ({quoted(failure)})"
    ) from failure


def _gave_up(name: str, after: float, error: StoreUnavailable | None, unknown: OutcomeUnknown | None) -> StoreError:
    if unknown is not None:
        return OutcomeUnknown(
            f"{name!r} may have been changed, once or not at all: after a request without a reply the store did not "
            f"say within {after:g} s which it is ({quoted(error or unknown)})"
        )
    if error is not None:
        return error
    return StoreUnavailable(f"{name!r} was not changed within {after:g} s, because others changed it all the time")


def _read(name: str, cell: Cell) -> _Content:
    if not cell.value:
        return _Content()
    forms.check(cell.value[:100].decode("ascii", "replace"), f"the cell {name!r}")
    try:
        state, replies = json.loads(cell.value)
    except ValueError as error:
        raise StoreError(f"the cell {name!r} has a value that Tenure did not write; remove it") from error
    return _Content(state, replies)


def _latest(replies: dict[str, list[Any]], now: int, lane: str, reply: list[Any]) -> dict[str, list[Any]]:
    """Return the replies that may still be asked for, the latest last, and the new one.

    A clock that steps makes all replies seem old, so the last few stay whatever it shows.
    """
    others = [each for each in replies.items() if each[0] != lane]
    longest = REMEMBERED if len(others) <= MANY else REMEMBERED_OF_MANY
    young = (each for each in others[:-ALWAYS_REMEMBERED] if abs(now - each[1][2]) < longest)
    return dict([*young, *others[-ALWAYS_REMEMBERED:], (lane, reply)])


def _write(name: str, state: Any, replies: dict[str, list[Any]]) -> bytes:  # noqa: ANN401 - what JSON knows
    """Return the value of a cell."""
    value = json.dumps([state, replies], separators=(",", ":")).encode()
    if len(value) > LARGEST_CELL:
        raise UsageError(f"{name!r} became larger than the {LARGEST_CELL} bytes that a store keeps in one cell")
    return value
