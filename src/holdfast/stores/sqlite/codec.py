"""The state of a name, and a notice, as compact JSON that a person can read with the sqlite3 shell.

Requests and inboxes are identifiers of our own making (hex and dashes); only the owner is anybody's text.
"""

import json

from holdfast.contracts.messages import Ask, Notice, NoticeKind
from holdfast.table.state import Holder, NameState, Queue, Waiter

_quote = json.encoder.encode_basestring
_TRUTH = ("false", "true")
_decode = json.JSONDecoder().decode


def dump(state: NameState) -> str:
    """Encode a state, without its counter. Written out by hand: it is on the way of every acquisition."""
    holders = ",".join(map(_dump_holder, state.holders)) if state.holders else ""
    queue = ",".join(map(_dump_waiter, state.queue)) if state.queue else ""
    tombstones = ", ".join([f'"{request}": {until}' for request, until in state.tombstones.items()])
    return (
        f"[{state.capacity},[{holders}],[{queue}],{state.blocked_until},{state.block},{{{tombstones}}},"
        f'"{state.last_released}",{state.used_at}]'
    )


def load(name: str, counter: int, text: str) -> NameState:
    """Decode a state."""
    capacity, holders, queue, *rest = _decode(text)
    return NameState(
        counter,
        capacity,
        [Holder(*row) for row in holders],
        Queue(Waiter(Ask(name, *ask), joined, fresh) for joined, fresh, *ask in queue),
        *rest,
    )


def _dump_holder(holder: Holder) -> str:
    """Encode a holder in the order of its fields."""
    return (
        f'["{holder.request}","{holder.inbox}",{_quote(holder.owner)},{holder.token},{holder.weight},{holder.ttl},'
        f"{holder.lock_delay},{holder.granted_at},{holder.expires_at},{_TRUTH[holder.told]}]"
    )


def _dump_waiter(waiter: Waiter) -> str:
    """Encode a waiter and its ask, without its name, in the order of their fields."""
    ask = waiter.ask
    return (
        f'[{waiter.joined_at},{waiter.fresh_until},"{ask.request}","{ask.inbox}",{_quote(ask.owner)},{ask.ttl},'
        f"{ask.interval},{ask.patience},{ask.weight},{ask.capacity},"
        f"{ask.lock_delay},{ask.proposal},{_TRUTH[ask.wait]},{ask.span},{_TRUTH[ask.votes]}]"
    )


def dump_notice(notice: Notice) -> bytes:
    """Encode a notice as one datagram."""
    return f'["{notice.kind}","{notice.request}",{notice.token},{notice.after},{_TRUTH[notice.wanted]}]'.encode()


def load_notice(inbox: str, datagram: bytes) -> Notice:
    """Decode a datagram. Raises ValueError or TypeError if it is none of ours."""
    kind, request, token, after, wanted = _decode(datagram.decode())
    if not (isinstance(request, str) and isinstance(token, int) and isinstance(after, int)):
        raise TypeError("not a notice")
    return Notice(inbox, NoticeKind(kind), request, token, after, bool(wanted))
