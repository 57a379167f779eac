"""The state of a name, and a notice, as compact JSON that a person can read with the sqlite3 shell."""

import json
from typing import Any

from holdfast.core.messages import Ask, Notice, NoticeKind
from holdfast.core.state import Holder, NameState, Waiter

_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode
_decode = json.JSONDecoder().decode


def dump(state: NameState) -> str:
    """Encode a state, without its counter."""
    holders = [
        [
            h.request,
            h.inbox,
            h.owner,
            h.token,
            h.weight,
            h.ttl,
            h.lock_delay,
            h.granted_at,
            h.expires_at,
            h.confirmed,
        ]
        for h in state.holders
    ]
    queue = [[w.joined_at, w.fresh_until, *_dump_ask(w.ask)] for w in state.queue]
    rest = [state.blocked_until, state.block, state.tombstones, state.last_released]
    return _encode([state.capacity, holders, queue, *rest])


def load(name: str, counter: int, text: str) -> NameState:
    """Decode a state."""
    capacity, holders, queue, *rest = _decode(text)
    return NameState(
        counter,
        capacity,
        [Holder(*row) for row in holders],
        [Waiter(Ask(name, *ask), joined_at, fresh_until) for joined_at, fresh_until, *ask in queue],
        *rest,
    )


def _dump_ask(ask: Ask) -> list[Any]:
    """Encode an ask, without its name, in the order of its fields."""
    times = [ask.ttl, ask.first_ttl, ask.pushed_ttl, ask.interval, ask.patience]
    return [
        ask.request,
        ask.inbox,
        ask.owner,
        *times,
        ask.weight,
        ask.capacity,
        ask.lock_delay,
        ask.proposal,
        ask.wait,
    ]


def dump_notice(notice: Notice) -> bytes:
    """Encode a notice as one datagram."""
    return _encode([notice.kind, notice.request, notice.token, notice.after]).encode()


def load_notice(inbox: str, datagram: bytes) -> Notice:
    """Decode a datagram. Raises ValueError or TypeError if it is none of ours."""
    kind, request, token, after = _decode(datagram.decode())
    if not (isinstance(request, str) and isinstance(token, int) and isinstance(after, int)):
        raise TypeError("not a notice")
    return Notice(inbox, NoticeKind(kind), request, token, after)
