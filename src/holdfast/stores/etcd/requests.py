"""What the directory asks, in the words of the JSON gateway. Keys are given as text."""

from base64 import b64encode
from collections.abc import Sequence

from holdfast.stores.etcd.keys import after, encoded
from holdfast.stores.etcd.link import Said

LARGEST = 50
"""How many steps a transaction has at most, some of which are two; servers take 128."""


def created(key: str, revision: int) -> Said:
    """Compare when a key was created; 0: it is not there."""
    return {"key": encoded(key), "target": "CREATE", "result": "EQUAL", "create_revision": str(revision)}


def changed(key: str, revision: int) -> Said:
    """Compare when a key was written last."""
    return {"key": encoded(key), "target": "MOD", "result": "EQUAL", "mod_revision": str(revision)}


def all_created(prefix: str, revision: int) -> Said:
    """Compare when all keys with a prefix were created: true if there is only one, and it is this."""
    return {**created(prefix, revision), "range_end": encoded(after(prefix))}


def put(key: str, value: str, lease: int = 0) -> Said:
    """Write a key."""
    return {"request_put": {"key": encoded(key), "value": encoded(value), "lease": str(lease)}}


def touch_if_there(key: str, revision: int) -> Said:
    """Write a key anew as it is, if it is still the one that was created then."""
    touch = {"request_put": {"key": encoded(key), "ignore_value": True, "ignore_lease": True}}
    return nested(transaction([created(key, revision)], [touch]))


def rewrite(key: str, value: str) -> Said:
    """Change a value; the key keeps its lease."""
    return {"request_put": {"key": encoded(key), "value": encoded(value), "ignore_lease": True}}


def delete(key: str) -> Said:
    """Remove a key, if it is there."""
    return {"request_delete_range": {"key": encoded(key)}}


def get(key: str) -> Said:
    """Read a key."""
    return {"request_range": {"key": encoded(key)}}


def list_all(prefix: str) -> Said:
    """Read all keys with a prefix."""
    return {"key": encoded(prefix), "range_end": encoded(after(prefix))}


def list_keys(prefix: str, first: bytes, most: int) -> Said:
    """Read the keys with a prefix without their values, from the `first` on, and `most` at most."""
    return {**list_all(prefix), "key": b64encode(first).decode(), "keys_only": True, "limit": str(most)}


def transaction(compare: Sequence[Said], success: Sequence[Said], failure: Sequence[Said] = ()) -> Said:
    """Do one or the other."""
    return {"compare": list(compare), "success": list(success), "failure": list(failure)}


def nested(inner: Said) -> Said:
    """Make a transaction a step of another."""
    return {"request_txn": inner}


def watch(place: int, key: str, range_end: str, revision: int) -> Said:
    """Watch a key, or a range, from a revision on; `place` is what it is called on its stream."""
    ends = {"range_end": encoded(range_end)} if range_end else {}
    return {
        "create_request": {
            "watch_id": str(place),
            "key": encoded(key),
            **ends,
            "start_revision": str(revision),
        }
    }


def end_watch(place: int) -> Said:
    """End a watch."""
    return {"cancel_request": {"watch_id": str(place)}}
