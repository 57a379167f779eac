"""A name is held by whoever holds it at a majority of independent nodes."""

from collections.abc import Sequence
from urllib.parse import urlsplit

from holdfast.errors import UsageError
from holdfast.stores.quorum.store import QuorumStore, capabilities_of
from holdfast.stores.store import StoreSource

__all__ = ["quorum_source"]

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


def _node(node: object) -> StoreSource:
    if isinstance(node, StoreSource):
        return node
    if hasattr(node, "connection_pool"):
        from holdfast.stores.redis import redis_node_source

        return redis_node_source(node)
    from holdfast.stores.urls import store_source

    if not isinstance(node, str):
        raise UsageError(f"a node is a URL or a client of redis-py, not a {type(node).__name__}.")
    parts = urlsplit(node)
    if parts.scheme in {"redis", "rediss", "valkey", "valkeys", "unix"}:
        from holdfast.stores.redis import redis_node_source

        return redis_node_source(parts)
    return store_source(node)


def _titles(sources: Sequence[StoreSource]) -> list[str]:
    return [source.title for source in sources]
