"""The error mapping of the Redis store: the meaning of each error reply, by the code that it begins with.

Every code here replies to a request that was *not* carried out: a server refuses a script as a whole before it begins.
Only a missing reply leaves the outcome unknown, and UNBLOCKED, which replies to a WAIT after its script.
"""

import re

from tenure.contracts import forms
from tenure.errors import OutcomeUnknown, StoreError, StoreUnavailable
from tenure.stores.redis.links.link import RedisAddress, ReplyError

ELSEWHERE = frozenset({"MOVED", "ASK"})
"""Another node serves this slot; the reply names the node."""

STALE = frozenset({"READONLY", "MASTERDOWN", "CLUSTERDOWN", "LOADING", "UNBLOCKED", "NOREPLICAS"})
"""The server may no longer be the master: the topology must look for the master again."""

PASSING = {
    "READONLY": "is a replica, so a failover may be under way; else give the URL of the master, or of its Sentinels",
    "MASTERDOWN": "is a replica that has lost its master",
    "CLUSTERDOWN": "says that its cluster is down or does not cover all slots",
    "LOADING": "is still loading its data",
    "TRYAGAIN": "is just moving this slot to another node",
    "MOVED": "redirects a request from node to node, so its cluster is changing",
    "ASK": "redirects a request from node to node, so its cluster is changing",
    "BUSY": "is busy with another client's script (see SCRIPT KILL)",
    "OOM": "is out of memory: raise maxmemory, or free some",
    "MISCONF": "refuses writes because it cannot save to disk; see its log",
    "NOREPLICAS": "has fewer good replicas than its min-replicas-to-write requires; see why they lag, or lower it",
    "NOSCRIPT": "forgets scripts as fast as they are loaded",
    "UNBLOCKED": "changed its role meanwhile",
    "FAILOVER": "is handing over to a replica",
}
"""Conditions that may pass: a later request may succeed."""

LASTING = {
    "NOAUTH": "requires a password; give one in the URL",
    "WRONGPASS": "does not accept the user or the password in the URL",
    "NOPERM": "denies this user what locks need; docs/redis.md lists the commands, keys and channels",
    "WRONGTYPE": "has a key that begins with tenure: and is not ours; another program must have written it",
    "CROSSSLOT": "is part of a cluster; write redis+cluster:// instead of redis://",
    "EXECABORT": "refused the request",
}
"""Conditions that a repeated request cannot mend."""

LATER = "FORM"
"""The code by which our own scripts refuse a later form; then come its number and the release that reads it."""

UNCODED: tuple[tuple[str, type[StoreError], str], ...] = (
    ("max number of clients", StoreUnavailable, "has reached its maxclients; raise it"),
    ("The user executing the script can't|ACL failure in script", StoreError, LASTING["NOPERM"]),
    ("cluster support disabled", StoreError, "is not part of a cluster; write redis:// instead of redis+cluster://"),
    (
        "(?i)unknown command .?SENTINEL\\b",
        StoreError,
        "is no Sentinel; write redis:// for a server, or name its Sentinels, which listen on port 26379 by default",
    ),
    ("(?i)unknown command", StoreError, "is too old or restricted, or a Sentinel: it must be Redis 7.0"),
)
"""Errors with the code ERR, by a pattern in their text. Redis and Valkey send NOPERM of a script in this way."""


def to_store_error(address: RedisAddress, error: ReplyError) -> StoreError:
    """Return the error of Tenure that stands for an error reply. The reply is its cause."""
    text = str(error)
    if error.code == LATER:
        _, form, needed = text.split(" ")[:3]
        return forms.later(form, needed, f"the data of the Redis server at {address}")
    if error.code in PASSING:
        kind = OutcomeUnknown if error.code == "UNBLOCKED" else StoreUnavailable
        return kind(f"the Redis server at {address} {PASSING[error.code]} ({text})")
    if error.code in LASTING:
        return StoreError(f"the Redis server at {address} {LASTING[error.code]} ({text})")
    if error.code == "ERR":
        for pattern, meant, why in UNCODED:
            if re.search(pattern, text):
                return meant(f"the Redis server at {address} {why} ({text})")
    return StoreError(f"the Redis server at {address} replied with an error: {text}")


def elsewhere(error: ReplyError, sender: RedisAddress) -> tuple[int, RedisAddress]:
    """Return the slot and the node that a MOVED or ASK names. An empty host is the host that sent it."""
    _, slot, where = str(error).split(" ")[:3]
    host, _, port = where.rpartition(":")
    return int(slot), RedisAddress(host.strip("[]") or sender.host, int(port))
