"""The record of a name: the value of its item, and what it means at a certain age of the item.

memcached counts whole seconds by a timer, which is always a little late: now and then it passes over a second. So an
item stored for n seconds is kept for n-2 to n seconds. It is stored for CLOCK_SLACK longer than its lease must last,
and no lease is shorter than its ttl unless the timer is late by a second or more.

An item outlives its lease: by the lock delay, and by RETENTION. So the name keeps its last token, and a name is free
because its record says so, not because its item is missing. Whether a lease has run out is told by the server's clock:
by how many seconds of the item are left.
"""

from dataclasses import dataclass
from enum import StrEnum

from tenure.contracts import forms
from tenure.contracts.deadlines import MICROS
from tenure.table.times import LATEST

CLOCK_SLACK = 2
"""By how many seconds the server's clock may run ahead while an item is stored."""

RETENTION = 3600
"""For how many seconds a name keeps its last token after its last use."""

LONGEST_ITEM = 30 * 86_400
"""For how many seconds memcached keeps an item at most. It takes a larger number for a date."""

LONGEST_DELAY = 14 * 86_400
"""The longest lock delay and the longest `min_hold` after a release, in seconds."""

MARK = forms.mark()
"""What this release writes; with it each record begins, and so says in which form it is."""
_MARK = MARK.encode()


class RecordState(StrEnum):
    """What the record says of its name."""

    HELD = "held"
    """A client holds the name until its lease runs out."""
    KEPT = "kept"
    """Nobody holds the name, and nobody gets it before `min_hold` has passed."""
    DELAYED = "delayed"
    """Nobody holds the name, and nobody gets it before the lock delay of a revoked lease has passed."""
    FREE = "free"
    """Nobody holds the name."""


@dataclass(slots=True)
class LockRecord:
    """What an item says of its name."""

    state: RecordState
    request_id: str
    """The request that holds or has held the name, or that was withdrawn."""
    token: int
    """The last token that was issued for the name."""
    ttl: int = 0
    """The ttl of the lease, in microseconds."""
    delay: int = 0
    """The lock delay, in whole seconds."""
    granted_at: int = 0
    """When the lease was granted, by the wall clock of its holder, in microseconds: for people to read."""
    owner: str = ""
    """The owner of the lease with its metadata."""
    revoking: bool = False
    """Whether a revocation request has come for the lease."""
    name: str = ""
    """The name, if it does not stand in the key."""
    retention: int = RETENTION
    """For how many seconds the item is kept after all this has passed."""
    doubted: int = 0
    """The largest token of a lease that was revoked, or that the server may have forgotten."""

    def to_bytes(self) -> bytes:
        """Return the value of the item."""
        owner = self.owner
        size = len(owner if owner.isascii() else owner.encode("utf-8", "replace"))
        return (
            f"{MARK}{self.state} {self.request_id or '-'} {self.token} {self.ttl} {self.delay} {self.granted_at} "
            f"{self.retention} {self.doubted} {self.revoking:d} {size}\n{owner}{self.name}"
        ).encode("utf-8", "replace")


def record_of(data: bytes, name: str) -> LockRecord:
    """Return the record that the value of an item contains. Raises ValueError if it is none.

    Raises StoreError if it has a later form; that names the item by `name`.
    """
    head, _, texts = data.partition(b"\n")
    if not head.startswith(_MARK) and not forms.check(head.decode("utf-8", "replace"), f"the record of {name!r}"):
        raise ValueError("no record")
    state, request_id, *numbers = head.split(b" ")[3:]
    token, ttl, delay, granted_at, retention, doubted, revoking, size = map(int, numbers)
    return LockRecord(
        RecordState(state.decode()),
        request_id.decode(),
        token,
        ttl,
        delay,
        granted_at,
        texts[:size].decode("utf-8", "replace"),
        bool(revoking),
        texts[size:].decode("utf-8", "replace"),
        retention,
        doubted,
    )


def next_token(last: int, proposal: int) -> int:
    """Return the token of a grant: larger than the last one of the name, and what the client's clock proposes.

    A clock that shows a year after 2200 is not believed.
    """
    return max(last + 1, proposal if proposal <= LATEST else 0)


def whole_seconds(micros: int) -> int:
    """Return for how many seconds an item must be stored to last for so many microseconds."""
    return -(-micros // MICROS) + CLOCK_SLACK


def seconds_of_delay(micros: int) -> int:
    """Return a lock delay in whole seconds, rounded up."""
    return -(-micros // MICROS)


def longest_ttl(delay: int) -> int:
    """Return the longest ttl of one grant or renewal, in microseconds, with so many seconds of lock delay."""
    return (LONGEST_ITEM - RETENTION - delay - CLOCK_SLACK) * MICROS
