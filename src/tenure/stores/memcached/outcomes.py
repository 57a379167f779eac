"""What became of a lease, told by the record of its name."""

from tenure.outcome import Outcome
from tenure.stores.memcached.items import SeenItem
from tenure.stores.memcached.records import RecordState

FORGOTTEN = "the server has no record of it: it was evicted or flushed, or the server was restarted or changed"


def is_held_by(seen: SeenItem, request_id: str, token: int) -> bool:
    """Tell whether a request holds the name with this token, and its lease has not run out."""
    return seen.is_of(request_id) and seen.lease_left() > 0 and seen.record is not None and seen.record.token == token


def outcome_of(seen: SeenItem, request_id: str, token: int) -> Outcome:
    """Return what became of a lease that is over."""
    record = seen.record
    if record is not None and record.request_id == request_id and record.state is not RecordState.HELD:
        return Outcome.RELEASED
    return Outcome.TAKEN_OVER if record is not None and record.token > token else Outcome.EXPIRED
