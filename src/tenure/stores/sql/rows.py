"""The row of a name, and how it keeps the state of the name.

A row is *plain* if the name has at most one holder, which is a lock's, and nobody waits. Plain rows keep everything in
columns, so that one statement of the database can grant, renew or release. A row that is plain but for waiters may keep
them apart, so that one statement can add a waiter or hand the name over. All other states are one JSON text.
"""

import json
from dataclasses import dataclass, fields
from typing import cast

from tenure.contracts.messages import AcquireRequest
from tenure.stores import table_codec
from tenure.table.state import PLACEHOLDER, Holder, NameState, Queue

HEADS = 8
"""For so many clients with waiters at the head of a queue the database says whether they still listen."""

CAPACITY = 1
"""The capacity of a plain row."""


@dataclass(slots=True)
class SqlRow:
    """One row, in the order of its columns."""

    name: str
    version: int = 0
    """Changes with every write; 0 in a row that was never written, or is not there."""
    counter: int = 0
    """The last token; in a plain row with a holder also the holder's token."""
    plain: bool = True
    request_id: str = ""
    """The request of the holder of a plain row; empty: the name is free."""
    holder: str = ""
    """What else is constant in the lease of that holder; see `pack_holder`."""
    ttl: int = 0
    lock_delay: int = 0
    granted_at: int = 0
    expires_at: int = 0
    last_released: str = ""
    tombstones: str = ""
    """The tombstones of a plain row, as JSON; empty if there are none."""
    used_at: int = 0
    """Ahead of the clock if that stepped back, until a step has shortened what lasts too long because of it."""
    idle_after: int = 0
    state: str = ""
    """The whole state of a row that is not plain, as JSON."""
    heads: str = ""
    """The channels of the clients that wait first, separated by spaces; empty if `queue` has the waiters."""
    queue: str = ""
    """The waiters of a row that is plain but for them, as JSON; empty in all other rows."""
    waiting: int = 0
    """How many waiters are in `queue`."""


COLUMNS: dict[str, type] = {each.name: cast("type", each.type) for each in fields(SqlRow)}
"""The columns of a row, and their types."""


def is_plain_request(request: AcquireRequest) -> bool:
    """Tell whether a grant of this request leaves a plain row, and its waiter can be kept apart."""
    return request.capacity == CAPACITY and request.weight == 1 and not request.votes and not request.fair_after


def pack_holder(channel: str, owner: str, *, notify_contended: bool) -> str:
    """Pack what is constant in the lease of the holder of a plain row."""
    return json.dumps((channel, owner, notify_contended), separators=(",", ":"))


def owner_in(holder: str) -> str:
    """Return the owner in what `pack_holder` has made."""
    owner: str = json.loads(holder)[1]
    return owner


def state_of(row: SqlRow, floor: int) -> NameState:
    """Return the state that a row keeps. `floor` is the least counter of a row that was never written.

    Raises StoreError if something else has written the row.
    """
    try:
        return _state_of(row, floor)
    except (ValueError, TypeError) as error:
        raise table_codec.foreign(row.name) from error


def _state_of(row: SqlRow, floor: int) -> NameState:
    if not row.plain and not row.queue:
        return table_codec.load(row.name, row.counter, row.state, row.idle_after)
    state = NameState(row.counter if row.version else max(row.counter, floor))
    state.last_released, state.used_at = row.last_released, row.used_at
    if row.tombstones:
        state.tombstones = json.loads(row.tombstones)
    if row.queue:
        state.queue = table_codec.load_queue(row.name, row.queue)
    if row.request_id:
        channel, owner, notify_contended = json.loads(row.holder)
        state.holders = [
            Holder(
                row.request_id,
                channel,
                owner,
                row.counter,
                1,
                row.ttl,
                row.lock_delay,
                row.granted_at,
                row.expires_at,
                notify_contended,
            )
        ]
    return state


def row_of(name: str, version: int, state: NameState, *, queues: bool = False) -> SqlRow:
    """Return the row that keeps a state. `version` is that of the row which it replaces.

    With `queues`, waiters of a row that is plain but for them are kept apart.
    """
    row = SqlRow(name, version, state.counter, used_at=state.used_at, idle_after=state.idle_after())
    if state.queue and queues and _has_plain_waiters(state):
        row.plain, row.queue, row.waiting = False, table_codec.dump_queue(state.queue), len(state.queue)
    elif state.queue or not _has_plain_holder(state):
        row.plain, row.state, row.heads = False, table_codec.dump(state), heads_of(state.queue)
        return row
    row.last_released = state.last_released
    row.tombstones = json.dumps(state.tombstones) if state.tombstones else ""
    for holder in state.holders:
        row.request_id, row.ttl, row.lock_delay = holder.request_id, holder.ttl, holder.lock_delay
        row.granted_at, row.expires_at = holder.granted_at, holder.expires_at
        row.holder = pack_holder(holder.channel, holder.owner, notify_contended=holder.notify_contended)
    return row


def heads_of(queue: Queue) -> str:
    """Return the channels of the clients that wait first, as a row keeps them."""
    return " ".join(queue.channels(HEADS))


def _has_plain_waiters(state: NameState) -> bool:
    """Tell whether a row is plain but for its waiters."""
    return _has_plain_holder(state) and all(is_plain_request(waiter.request) for waiter in state.queue)


def _has_plain_holder(state: NameState) -> bool:
    """Tell whether a row is plain, apart from waiters."""
    if state.capacity != CAPACITY or state.blocked_until or len(state.holders) > 1:
        return False
    return not state.holders or (
        state.holders[0].weight == 1
        and state.holders[0].token == state.counter
        and not state.holders[0].request_id.startswith(PLACEHOLDER)
    )
