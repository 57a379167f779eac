"""The Redis store: locks in Redis or Valkey, on one server, one behind Sentinels, or a Cluster."""

from functools import partial
from urllib.parse import SplitResult

from tenure.contracts.limits import MAX_TTL
from tenure.contracts.store import StoreSource
from tenure.errors import UsageError
from tenure.stores.redis.beside_redis_py import RedisStoreBesideRedisPy, capabilities_beside
from tenure.stores.redis.deployment import RedisDeployment
from tenure.stores.redis.options import deployment_of, deployment_of_client, rules_of
from tenure.stores.redis.store import RedisStore, capabilities_of

__all__ = ["redis_source"]


def redis_source(
    client: object, *, guard: str = "observed", replicas: int = 0, max_ttl: float = MAX_TTL, also: str | None = None
) -> StoreSource:
    """Return the source of stores on the servers of a redis-py client, sync or asyncio.

    The client is a Redis, one of Sentinel's `master_for`, or a RedisCluster. Its settings are used, except timeouts and
    retries. Its connections are not used, and it may be closed.

    Args:
        client: the client.
        guard: what a server that restarted or was promoted, and so may have forgotten grants, may grant before the
            longest lease that may exist has run out: "strict": nothing; "observed": nothing, if anybody can know of it;
            "uptime": nothing, as far as its uptime says so, for servers that are never promoted; "off": everything.
        replicas: how many replicas must have a grant before it counts.
        max_ttl: the longest ttl that a lock may have, in seconds, and the least time for which such a server grants
            nothing.
        also: "redis-py", for locks that exclude those of redis-py's Lock of the same name, too, while programs change
            from one to the other. Then there are locks only: no semaphores, multilocks in one step, or handles.

    Raises UsageError if `client` is no such client, if it connects by a `connection_class` of your own, or if a value
    is not valid.
    """
    return _source(deployment_of_client(client, rules_of(guard, replicas, max_ttl, also)))


def redis_url_source(parts: SplitResult) -> StoreSource:
    """Return the source of stores for a Redis URL. Raises UsageError if the URL can't be understood."""
    return _source(deployment_of(parts))


def redis_node_source(node: SplitResult | object) -> StoreSource:
    """Return the source of stores for a URL or a client, as a node of a quorum, whose requests are fanned out."""
    if isinstance(node, SplitResult):
        deployment = deployment_of(node, guard="uptime")
    else:
        deployment = deployment_of_client(node, rules_of("uptime", 0, MAX_TTL))
    if deployment.rules.also:
        raise UsageError("a node of a quorum cannot have also=: redis-py's Lock knows of one server only.")
    if deployment.shape != "single" or deployment.rules.replicas:  # a promoted replica may forget a vote, however old
        raise UsageError("a node of a quorum must be one server, never a replica: no Sentinel, Cluster or replicas.")
    deployment.fan_out = True
    return _source(deployment)


def _source(deployment: RedisDeployment) -> StoreSource:
    able = capabilities_of(deployment.rules, clustered=deployment.shape == "cluster")
    if not deployment.rules.also:
        return StoreSource(deployment.title(), able, partial(RedisStore, deployment))
    return StoreSource(deployment.title(), capabilities_beside(able), partial(RedisStoreBesideRedisPy, deployment))
