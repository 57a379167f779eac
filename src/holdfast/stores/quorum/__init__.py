"""A name is held by whoever holds it at a majority of independent nodes."""

from collections.abc import Sequence
from urllib.parse import SplitResult, parse_qsl, urlencode, urlsplit

from holdfast.errors import UsageError
from holdfast.stores.quorum.store import QuorumStore, capabilities_of
from holdfast.stores.redis import redis_node_source
from holdfast.stores.store import StoreSource

__all__ = ["quorum_source", "redlock_url_source"]

REDIS = {"redlock": "redis", "redlocks": "rediss"}
"""By which scheme each node of such a URL would be named alone."""

LEAST = 3
"""With fewer nodes, a majority is all of them."""


def quorum_source(nodes: Sequence[object], quorum: int | None = None) -> StoreSource:
    """Return the store that stands on a quorum of independent nodes, each a URL, a client of redis-py or a StoreSource.

    `quorum` is how many must agree; default: the least majority.

    Raises UsageError if there are fewer than three nodes, a node is there twice, or `quorum` is no majority.
    """
    sources = [_node(node) for node in nodes]
    if len(sources) < LEAST:
        raise UsageError(f"a quorum needs at least {LEAST} independent nodes, better 5; these are {len(sources)}.")
    if twice := [source.title for number, source in enumerate(sources) if source.title in _titles(sources[:number])]:
        raise UsageError(f"the node {twice[0]} is there twice, and would vote twice; name each node once.")
    majority = len(sources) // 2 + 1
    needed = majority if quorum is None else quorum
    if not majority <= needed <= len(sources):
        raise UsageError(f"a quorum of {len(sources)} nodes is from {majority} to {len(sources)}, not {needed}.")
    title = "a quorum of " + ", ".join(_titles(sources))
    return StoreSource(title, capabilities_of(sources), lambda runtime: QuorumStore(runtime, sources, needed))


def redlock_url_source(parts: SplitResult) -> StoreSource:
    """Return the quorum of the servers of a URL, which share login, database and options.

    Raises UsageError if it can't be understood.
    """
    login, at, hosts = parts.netloc.rpartition("@")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    quorum = options.pop("quorum", None)
    if quorum is not None and not quorum.isdigit():
        raise UsageError("quorum is how many nodes must agree, as in redlock://host1,host2,host3,host4,host5?quorum=4.")
    scheme, query = REDIS[parts.scheme], urlencode(options)
    nodes = [
        redis_node_source(SplitResult(scheme, f"{login}{at}{host}", parts.path, query, parts.fragment))
        for host in hosts.split(",")
    ]
    return quorum_source(nodes, None if quorum is None else int(quorum))


def _node(node: object) -> StoreSource:
    if isinstance(node, StoreSource):
        return node
    if hasattr(node, "connection_pool"):
        return redis_node_source(node)
    from holdfast.stores.urls import store_source

    if not isinstance(node, str):
        raise UsageError(f"a node is a URL or a client of redis-py, not a {type(node).__name__}.")
    parts = urlsplit(node)
    if parts.scheme in {"redis", "rediss", "valkey", "valkeys", "unix"}:
        return redis_node_source(parts)
    return store_source(node)


def _titles(sources: Sequence[StoreSource]) -> list[str]:
    return [source.title for source in sources]
