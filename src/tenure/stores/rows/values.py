"""What the value of a row says: first a head, then the state of a lock as text, or the bytes of a cell."""

import json
from dataclasses import dataclass, field
from typing import Any

from tenure.contracts import forms
from tenure.errors import StoreError
from tenure.stores import table_codec
from tenure.stores.rows.contract import Row
from tenure.table.state import NameState

LOCK, CELL = "lock", "cell"
"""The kinds of rows."""

DELAY = ""
"""The part of a lock that no request has: its lock delay."""


@dataclass(slots=True)
class LockRow:
    """What the value of a lock's row says."""

    number: int
    """How often the row was written: so no two values of a row are alike."""
    name: str
    state: NameState
    pulses: dict[str, int] = field(default_factory=dict[str, int])
    """By request of a holder: the number of the row in which it was prolonged last."""
    news: list[list[Any]] = field(default_factory=list[list[Any]])
    """The last notifications: the number of the row that they came with, its time, and the fields of each."""


def load_row(name: str, row: Row) -> LockRow:
    """Return what the row of a lock says. Raises StoreError if it is none, or of a later form."""
    if not row.value:  # there is none, or a tool of the table has removed it and left its version
        return LockRow(0, name, NameState())
    text = row.value.decode(errors="replace")
    forms.check(text, f"the row of {name!r}")
    try:
        head, state = text.split("\n", 1)
        number, counter, _, name, pulses, news = json.loads(head)
        return LockRow(number, name, table_codec.load(name, counter, state), pulses, news)
    except (ValueError, TypeError) as error:
        raise table_codec.foreign(name) from error


def cell_head(row: Row) -> tuple[int, int, bytes]:
    """Return the number of the version of a cell's row, the time of its last write, and the value."""
    if not row.value:
        return 0, 0, b""
    try:
        head, value = row.value.split(b"\n", 1)
        number, written, _ = head.split(b" ")
        return int(number), int(written), value
    except ValueError as error:
        raise StoreError("the row of a cell is none of Tenure's: something else has written it") from error


def signs(row: LockRow) -> dict[str, object]:
    """Return a sign of each part of a lock that lasts for a time: it changes whenever the part is prolonged."""
    state = row.state
    found: dict[str, object] = {each.request.request_id: each.fresh_until for each in state.queue}
    found |= {each.request_id: (each.expires_at, row.pulses.get(each.request_id)) for each in state.holders}
    if state.blocked_until:
        found[DELAY] = state.blocked_until
    return found


def lasting(text: str) -> str:
    """Return what the text of a state says, apart from the instant of the last step."""
    return text.rpartition(",")[0]
