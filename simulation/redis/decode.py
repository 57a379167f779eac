"""The decoding of a name's keys into a state of the grant table, for the checks. `start.lua` describes the keys."""

from dataclasses import dataclass, replace
from functools import lru_cache
from struct import Struct
from typing import Any

from simulation.redis.keyspace import Keyspace, SortedSet
from simulation.redis.messagepack import unpacked
from tenure.contracts import forms
from tenure.contracts.messages import AcquireRequest
from tenure.stores.redis.names import state_key
from tenure.table.state import Holder, NameState, Queue, Waiter

USUAL, HEAD, MARKER = 193, Struct(">BBIddddddddd"), Struct(">dddddd")
"""As in start.lua."""


@dataclass(slots=True)
class Marker:
    """A node's record of the process that grants. Times are in microseconds."""

    generation: str
    """The generation: a number, a run id, and the offset of the last promotion."""
    born: int
    ends: int
    """The end of the quarantine; 0 if there was none."""
    longest: int
    """The longest ttl and lock delay in use."""
    in_use_until: int
    others: int
    """The longest of the others that were requested since."""

    @property
    def run_id(self) -> str:
        """The run id of the process."""
        return self.generation.partition(" ")[2].partition("@")[0]


def marker_at(keys: Keyspace, key: str) -> Marker | None:
    """Return the marker in a keyspace, if there is one."""
    packed = keys.value(key.encode())
    return Marker(*_marker(packed)) if isinstance(packed, bytes) else None


def state_of(keys: Keyspace, name: str) -> NameState:
    """Return the state of a name in a keyspace, without tombstones, which are keys of their own."""
    key = state_key(name).encode()
    fields, places = keys.value(key), keys.value(key + b":q")
    if not isinstance(fields, dict):
        return NameState()
    packed = fields[b"="]
    barging: list[Any] | bool = False
    if packed[0] == USUAL:
        counter, capacity, blocked, block, released, used, first, others = _usual(packed)
    else:
        counter, capacity, blocked, block, released, used, _last, _expire, _queued, _slowest, _heavy, *rest = unpacked(
            packed
        )
        first, others, barging = rest[:10], rest[10], rest[12]
    holders = ([first] if first[0] else []) + (others or [])
    order = places.order if isinstance(places, SortedSet) else []
    waiters = [
        _waiter(name, request_id, fields[b"w" + request_id], capacity, int(score)) for score, request_id in order
    ]
    if waiters and isinstance(barging, list):
        waiters[0] = replace(waiters[0], quiet_until=barging[1])
    return NameState(
        counter,
        capacity,
        [Holder(*holder) for holder in holders],
        Queue(waiters),
        blocked,
        block,
        {},
        released,
        used,
    )


def _usual(packed: bytes) -> tuple[Any, ...]:
    """Read the state of a name in the usual form; see read_state in start.lua."""
    _form, told, _queued, *numbers = HEAD.unpack_from(packed)
    counter, used, _expires, _last, _slowest, granted, ends, ttl, _tomb = (int(number) for number in numbers)
    texts, at = list[str](), HEAD.size
    for _ in range(3):
        size = packed[at]
        texts.append(packed[at + 1 : at + 1 + size].decode())
        at += 1 + size
    released, request_id, channel = texts
    first = [request_id, channel, packed[at:].decode(), counter, 1, ttl, 0, granted, ends, told == 1]
    return counter, 1, 0, 0, released, used, first, False


@lru_cache(maxsize=1000)
def _waiter(name: str, request_id: bytes, packed: bytes, capacity: int, score: int) -> Waiter:
    """Decode one place in the queue. The result is cached, for the checks read it more often than it changes."""
    [waiter] = unpacked(packed)
    channel, owner, ttl, interval, waiter_ttl, weight, delay, proposal, span, votes, joined, fresh, *more = waiter
    proposal = score if votes == 1 else proposal  # a request that waits for a vote is queued by its proposal
    times = (ttl, interval, waiter_ttl)
    request = AcquireRequest(
        name,
        request_id.decode(),
        channel,
        owner,
        *times,
        weight,
        capacity,
        delay,
        proposal,
        span=span,
        votes=votes == 1,
        fair_after=more[0] if more else 0,
    )
    return Waiter(request, joined, fresh)


@lru_cache(maxsize=1000)
def _marker(packed: bytes) -> tuple[Any, ...]:
    """Decode the marker. The result is cached, for the checks read it more often than it changes."""
    packed = packed.removeprefix(forms.mark().encode())
    numbers = MARKER.unpack_from(packed)
    return packed[MARKER.size :].decode(), *map(int, numbers[:5])
