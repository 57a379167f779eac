"""The quorum store: a client holds a name if it holds the name at a majority of independent nodes."""

from collections.abc import Sequence
from urllib.parse import SplitResult, parse_qsl, urlencode, urlsplit

from tenure.contracts.store import StoreSource
from tenure.errors import UsageError
from tenure.stores.embedded import memory_url_source, sqlite_url_source
from tenure.stores.extras import require_redis
from tenure.stores.quorum.store import QuorumStore, capabilities_of
from tenure.stores.urlparts import number, refuse_unknown

__all__ = ["quorum_source", "redlock_url_source"]

REDIS = {"redlock": "redis", "redlocks": "rediss"}
"""The scheme of a single node's URL, by the scheme of the quorum's URL."""

NODES = frozenset({"redis", "rediss", "valkey", "valkeys", "unix", "memory", "sqlite"})
"""The schemes of nodes. A store that fails over by itself is no node, because it may forget a vote."""

LEAST = 3
"""The fewest nodes. With fewer nodes, a majority would be all of them."""


def quorum_source(nodes: Sequence[object], quorum: int | None = None) -> StoreSource:
    """Return the source of stores on a quorum of nodes, each of which is a URL, a client of redis-py or a StoreSource.

    `quorum` is how many nodes must agree; default: the smallest majority.

    Raises UsageError if there are fewer than three nodes, a node is listed twice, or `quorum` is no majority.
    """
    if isinstance(nodes, str | bytes) or not hasattr(nodes, "__iter__"):
        raise UsageError("`quorum` must be a list of nodes; to name them in one URL write redlock://host1,host2,host3.")
    sources = [_node(node) for node in nodes]
    if len(sources) < LEAST:
        raise UsageError(f"a quorum needs at least {LEAST} independent nodes, better 5; there are {len(sources)}.")
    if twice := [source.title for number, source in enumerate(sources) if source.title in _titles(sources[:number])]:
        raise UsageError(f"the node {twice[0]} is listed twice, and would vote twice; name each node once.")
    majority = len(sources) // 2 + 1
    needed = majority if quorum is None else quorum
    if not majority <= needed <= len(sources):
        raise UsageError(f"the quorum of {len(sources)} nodes must be from {majority} to {len(sources)}, not {needed}.")
    title = "a quorum of " + ", ".join(_titles(sources))
    return StoreSource(title, capabilities_of(sources), lambda runtime: QuorumStore(runtime, sources, needed))


def redlock_url_source(parts: SplitResult) -> StoreSource:
    """Return the source of stores on the servers of a URL, which share the login, the database and the options.

    Raises UsageError if the URL can't be understood.
    """
    login, at, hosts = parts.netloc.rpartition("@")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    quorum = options.pop("quorum", None)
    if "@" in parts.query:  # it may be the rest of a password, which an error would otherwise repeat
        raise UsageError("the options of the URL contain an `@`; in a password write %40 for it, and %3F for `?`.")
    try:
        needed = None if quorum is None else number(quorum)
    except ValueError:
        message = "`quorum` must be a number of nodes, as in redlock://host1,host2,host3,host4,host5?quorum=4."
        raise UsageError(message) from None
    if not all(hosts.split(",")):
        raise UsageError("a host of the quorum is empty; write redlock://host1,host2,host3.")
    if "replicas" in options:
        raise UsageError("the nodes of a quorum are independent and have no replicas to wait for; leave out replicas.")
    refuse_unknown(parts, options, _options(), "a redlock URL")
    scheme, query = REDIS[parts.scheme], urlencode(options)
    nodes = [
        _redis_node(SplitResult(scheme, f"{login}{at}{host}", parts.path, query, parts.fragment))
        for host in hosts.split(",")
    ]
    return quorum_source(nodes, needed)


def _options() -> set[str]:
    from tenure.stores.redis.options import OPTIONS

    return {*OPTIONS, "guard", "max_ttl", "quorum"}


def _node(node: object) -> StoreSource:
    if isinstance(node, StoreSource):
        return node
    if hasattr(node, "connection_pool"):
        return _redis_node(node)
    if not isinstance(node, str) or not node:
        what = "an empty one" if node == "" else f"a {type(node).__name__}"
        raise UsageError(f"a node must be a URL or a client of redis-py, not {what}.")
    try:
        parts = urlsplit(node)
    except ValueError:  # its message may repeat a password
        raise UsageError("the URL of a node is not valid; write redis://[user:password@]host[:port].") from None
    if parts.scheme not in NODES:
        raise UsageError(f"a node must be one server, with a URL of {', '.join(sorted(NODES))}; not {parts.scheme!r}.")
    if parts.scheme in {"redis", "rediss", "valkey", "valkeys", "unix"}:
        return _redis_node(parts)
    return sqlite_url_source(parts) if parts.scheme == "sqlite" else memory_url_source(parts)


def _redis_node(node: object) -> StoreSource:
    require_redis()
    from tenure.stores.redis import redis_node_source

    return redis_node_source(node)


def _titles(sources: Sequence[StoreSource]) -> list[str]:
    return [source.title for source in sources]
