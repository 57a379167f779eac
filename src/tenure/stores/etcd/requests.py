"""The request bodies of the etcd directory, in the format of the JSON gateway. Keys are given as text."""

from base64 import b64encode
from collections.abc import Sequence

from tenure.stores.etcd.http import JsonObject
from tenure.stores.etcd.keys import after, encoded, encoded_key

LARGEST = 50
"""The most steps of a transaction. Some of them make two operations; servers accept 128."""


def created(key: str, revision: int) -> JsonObject:
    """Compare the revision at which a key was created; 0 means that the key does not exist."""
    return {"key": encoded_key(key), "target": "CREATE", "result": "EQUAL", "create_revision": str(revision)}


def changed(key: str, revision: int) -> JsonObject:
    """Compare the revision at which a key was last written."""
    return {"key": encoded_key(key), "target": "MOD", "result": "EQUAL", "mod_revision": str(revision)}


def all_created(prefix: str, revision: int) -> JsonObject:
    """Compare when all keys with a prefix were created: true if only the key of that revision exists."""
    return {**created(prefix, revision), "range_end": encoded_key(after(prefix))}


def put(key: str, value: str, lease: int = 0) -> JsonObject:
    """Write a key."""
    return {"request_put": {"key": encoded_key(key), "value": encoded(value), "lease": str(lease)}}


def put_bytes(key: str, value: str) -> JsonObject:
    """Write a key that has no lease. The value is given in the gateway's encoding."""
    return {"request_put": {"key": encoded_key(key), "value": value}}


def touch_if_there(key: str, revision: int) -> JsonObject:
    """Write a key again unchanged, if it is still the key that was created at `revision`."""
    touch = {"request_put": {"key": encoded_key(key), "ignore_value": True, "ignore_lease": True}}
    return nested(transaction([created(key, revision)], [touch]))


def rewrite(key: str, value: str) -> JsonObject:
    """Change the value of a key; the key keeps its lease."""
    return {"request_put": {"key": encoded_key(key), "value": encoded(value), "ignore_lease": True}}


def delete(key: str) -> JsonObject:
    """Remove a key if it exists."""
    return {"request_delete_range": {"key": encoded_key(key)}}


def get(key: str) -> JsonObject:
    """Read a key."""
    return {"request_range": {"key": encoded_key(key)}}


def list_all(prefix: str) -> JsonObject:
    """Read all keys with a prefix."""
    return {"key": encoded_key(prefix), "range_end": encoded_key(after(prefix))}


def list_keys(prefix: str, first: bytes, most: int) -> JsonObject:
    """Read at most `most` keys with a prefix, without their values, from the key `first` on."""
    return {**list_all(prefix), "key": b64encode(first).decode(), "keys_only": True, "limit": str(most)}


def transaction(
    compare: Sequence[JsonObject], success: Sequence[JsonObject], failure: Sequence[JsonObject] = ()
) -> JsonObject:
    """Run `success` if all comparisons are true, else `failure`."""
    return {"compare": list(compare), "success": list(success), "failure": list(failure)}


def nested(inner: JsonObject) -> JsonObject:
    """Return a transaction as a step of another transaction."""
    return {"request_txn": inner}


def watch(place: int, key: str, range_end: str, revision: int) -> JsonObject:
    """Watch a key or a range from a revision on. `place` is the id of the watch on its stream."""
    ends = {"range_end": encoded_key(range_end)} if range_end else {}
    return {
        "create_request": {
            "watch_id": str(place),
            "key": encoded_key(key),
            **ends,
            "start_revision": str(revision),
        }
    }


def end_watch(place: int) -> JsonObject:
    """End a watch."""
    return {"cancel_request": {"watch_id": str(place)}}
