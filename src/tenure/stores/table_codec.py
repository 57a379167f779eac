"""The codec of a name's state and of notifications: compact JSON that a person can read with the sqlite3 shell.

Request ids and channels are identifiers that Tenure makes (hex digits and dashes), so only the owner needs quoting.
"""

import json
from collections.abc import Iterable
from dataclasses import fields
from typing import Any

from tenure.contracts import forms
from tenure.contracts.messages import AcquireRequest, Notification, NotificationKind
from tenure.table.state import Holder, NameState, Queue, Waiter

_quote = json.encoder.encode_basestring
_TRUTH = ("false", "true")
_REQUEST = [each.name for each in fields(AcquireRequest)].index("fair_after")
"""The number of fields of a request that are encoded: all after the name, up to this one."""
_decoder = json.JSONDecoder()
_decode = _decoder.decode


def dump(state: NameState) -> str:
    """Encode a state without its counter. The encoder is written by hand because every acquisition runs it."""
    holders = ",".join(map(_dump_holder, state.holders)) if state.holders else ""
    queue = ",".join(map(_dump_waiter, state.queue)) if state.queue else ""
    tombstones = ", ".join([f'"{request_id}": {until}' for request_id, until in state.tombstones.items()])
    return (
        f"[{state.capacity},[{holders}],[{queue}],{state.blocked_until},{state.block},{{{tombstones}}},"
        f'"{state.last_released}",{state.used_at}]'
    )


def dump_queue(waiters: Iterable[Waiter]) -> str:
    """Encode waiters."""
    return f"[{','.join(map(_dump_waiter, waiters))}]"


def dump_request(request: AcquireRequest) -> str:
    """Encode the request of a waiter, without the name: the end of the list that `dump_queue` makes of a waiter."""
    return (
        f'"{request.request_id}","{request.channel}",{_quote(request.owner)},{request.ttl},'
        f"{request.interval},{request.waiter_ttl},{request.weight},{request.capacity},"
        f"{request.lock_delay},{request.proposal},{_TRUTH[request.wait]},{request.span},{_TRUTH[request.votes]}"
    )


def split_queue(text: str) -> dict[str, tuple[str, str, str, str, str]]:
    """Return the waiters in what `dump_queue` has made, in their order.

    By request id: that, the channel, when the waiter joined, until when it counts as alive, and its `dump_request`.
    """
    waiters: dict[str, tuple[str, str, str, str, str]] = {}
    at = 1
    while at < len(text):
        (_, _, request_id, channel, *_), end = _decoder.raw_decode(text, at)
        joined_at, fresh_until, waiter = text[at + 1 : end - 1].split(",", 2)
        waiters[request_id] = (request_id, channel, joined_at, fresh_until, waiter)
        at = end + 1
    return waiters


def load_queue(name: str, text: str) -> Queue:
    """Decode waiters."""
    return Queue(_load_waiter(name, *waiter) for waiter in _decode(text))


def load(name: str, counter: int, text: str) -> NameState:
    """Decode the state of a name. Raises StoreError if it begins with the mark of a later form."""
    try:
        capacity, holders, queue, *rest = _decode(text)
    except ValueError:
        forms.check(text, f"the state of {name!r}")
        raise
    return NameState(
        counter,
        capacity,
        [Holder(*row) for row in holders],
        Queue(_load_waiter(name, *waiter) for waiter in queue),
        *rest,
    )


def _dump_holder(holder: Holder) -> str:
    """Encode a holder as a list in the order of its fields."""
    return (
        f'["{holder.request_id}","{holder.channel}",{_quote(holder.owner)},{holder.token},{holder.weight},{holder.ttl},'
        f"{holder.lock_delay},{holder.granted_at},{holder.expires_at},{_TRUTH[holder.notify_contended]}]"
    )


def _dump_waiter(waiter: Waiter) -> str:
    """Encode a waiter and its request, without the name, as a list. Only one that may be passed has all fields."""
    fair_after = waiter.request.fair_after
    barging = f",{fair_after},{waiter.quiet_until}" if fair_after else ""
    return f"[{waiter.joined_at},{waiter.fresh_until},{dump_request(waiter.request)}{barging}]"


def _load_waiter(name: str, joined_at: int, fresh_until: int, *rest: Any) -> Waiter:  # noqa: ANN401 - as in the text
    request, quiet_until = rest[:_REQUEST], rest[_REQUEST:]
    return Waiter(AcquireRequest(name, *request), joined_at, fresh_until, *quiet_until)


def dump_notification(notification: Notification) -> bytes:
    """Encode a notification as a datagram."""
    told = notification
    text = f'["{told.kind}","{told.request_id}",{told.token},{told.after},{_TRUTH[told.contended]}]'
    return text.encode()


def load_notification(channel: str, datagram: bytes) -> Notification:
    """Decode a notification. Raises ValueError or TypeError if the datagram is no notification."""
    kind, request_id, token, after, contended = _decode(datagram.decode())
    if not (isinstance(request_id, str) and isinstance(token, int) and isinstance(after, int)):
        raise TypeError("not a notification")
    return Notification(channel, NotificationKind(kind), request_id, token, after, bool(contended))
