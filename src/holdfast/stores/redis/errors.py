"""What each error reply of a Redis server means for a lock: one table, by the code that it begins with.

Every code here is the answer to a request that was *not* carried out: a script is refused as a whole before it
begins. What may have been carried out is a reply that did not come; but UNBLOCKED answers a WAIT, after its script.
"""

import re

from holdfast.errors import OutcomeUnknown, StoreError, StoreUnavailable
from holdfast.stores.redis.link import RedisAddress, ReplyError

ELSEWHERE = frozenset({"MOVED", "ASK"})
"""Another node serves this slot; the reply says which."""

STALE = frozenset({"READONLY", "MASTERDOWN", "CLUSTERDOWN", "LOADING", "UNBLOCKED", "NOREPLICAS"})
"""This node may not be the master any more: look again who is."""

PASSING = {
    "READONLY": "is a replica, so a failover may be under way; else give the URL of the master, or of its Sentinels",
    "MASTERDOWN": "is a replica that has lost its master",
    "CLUSTERDOWN": "says that its cluster is down or does not cover all slots",
    "LOADING": "is still loading its data",
    "TRYAGAIN": "is just moving this slot to another node",
    "MOVED": "sends us from node to node, so its cluster is changing",
    "ASK": "sends us from node to node, so its cluster is changing",
    "BUSY": "is busy with somebody's script (see SCRIPT KILL)",
    "OOM": "is out of memory: raise maxmemory, or free some",
    "MISCONF": "refuses writes because it cannot save to disk; see its log",
    "NOREPLICAS": "has fewer good replicas than its min-replicas-to-write asks for; see why they lag, or lower it",
    "NOSCRIPT": "forgets scripts as fast as they are loaded",
    "UNBLOCKED": "changed its role meanwhile",
    "FAILOVER": "is handing over to a replica",
}
"""What may pass: asking again later may help."""

LASTING = {
    "NOAUTH": "wants a password; give one in the URL",
    "WRONGPASS": "does not accept the user or the password in the URL",
    "NOPERM": "does not allow this user what locks need; docs/redis.md lists the commands, keys and channels",
    "WRONGTYPE": "has a key that begins with holdfast: and is not ours; another program must have written it",
    "CROSSSLOT": "is part of a cluster; write redis+cluster:// instead of redis://",
    "EXECABORT": "refused the request",
}
"""What asking again cannot mend."""

UNCODED: tuple[tuple[str, type[StoreError], str], ...] = (
    ("max number of clients", StoreUnavailable, "has reached its maxclients; raise it"),
    ("The user executing the script can't|ACL failure in script", StoreError, LASTING["NOPERM"]),
    ("cluster support disabled", StoreError, "is not part of a cluster; write redis:// instead of redis+cluster://"),
    (
        "(?i)unknown command .?SENTINEL\\b",
        StoreError,
        "is no Sentinel; write redis:// for a server, or name its Sentinels, which listen on port 26379 by default",
    ),
    ("(?i)unknown command", StoreError, "is too old or restricted: it must be Redis 7.0"),
)
"""What is behind the code ERR, by what is in the text; Redis and Valkey say NOPERM of what a script does like that."""


def explain(address: RedisAddress, error: ReplyError) -> StoreError:
    """Return what an error reply means, as the error that users get. The reply itself is the cause."""
    text = str(error)
    if error.code in PASSING:
        kind = OutcomeUnknown if error.code == "UNBLOCKED" else StoreUnavailable
        return kind(f"the Redis server at {address} {PASSING[error.code]} ({text})")
    if error.code in LASTING:
        return StoreError(f"the Redis server at {address} {LASTING[error.code]} ({text})")
    if error.code == "ERR":
        for pattern, meant, why in UNCODED:
            if re.search(pattern, text):
                return meant(f"the Redis server at {address} {why} ({text})")
    return StoreError(f"the Redis server at {address} answered an error: {text}")


def elsewhere(error: ReplyError, asked: RedisAddress) -> tuple[int, RedisAddress]:
    """Return the slot and the node that a MOVED or ASK names. An empty host is the host that was asked."""
    _, slot, where = str(error).split(" ")[:3]
    host, _, port = where.rpartition(":")
    return int(slot), RedisAddress(host.strip("[]") or asked.host, int(port))
