"""A deployment of Redis in any of its shapes: its servers, the access to them, its rules, and its links."""

from collections.abc import Callable
from dataclasses import dataclass, field

from tenure.contracts.limits import MAX_TTL
from tenure.contracts.runtime import Runtime
from tenure.errors import UsageError
from tenure.runtimes.aio import AsyncioRuntime
from tenure.runtimes.threads import ThreadsRuntime
from tenure.stores.redis.links import wire
from tenure.stores.redis.links.link import RedisAccess, RedisAddress, RedisCallbacks, RedisLink
from tenure.stores.redis.topology import Cluster, OneServer, OpenLink, Sentinels, Topology

NO_GUARD, OBSERVED, STRICT, UPTIME = 0, 1, 2, 3

GUARDS = {"off": NO_GUARD, "observed": OBSERVED, "uptime": UPTIME, "strict": STRICT}
"""The numbers of the guards in the scripts.

UPTIME trusts a server that has been up for longer than `max_ttl`, whatever the server was before. Such a server
must never have been a replica. The nodes of a quorum are such servers.
"""


@dataclass(slots=True)
class Rules:
    """How a deployment protects grants from being forgotten."""

    guard: int = OBSERVED
    replicas: int = 0
    """How many replicas must have a grant before it counts."""
    max_ttl: float = MAX_TTL
    """The longest ttl of this client, in seconds, and the least length of a quarantine."""
    also: str = ""
    """"redis-py": whether a holder has the key of redis-py's Lock, too."""


@dataclass(slots=True)
class RedisDeployment:
    """One Redis in any of its shapes."""

    shape: str
    """`single`, `sentinel` or `cluster`."""
    addresses: list[RedisAddress]
    access: RedisAccess
    rules: Rules
    service: str = ""
    guides: RedisAccess = field(default_factory=RedisAccess)
    """The access to the Sentinels."""
    fan_out: bool = False
    """Whether requests of threads are fanned out to it and to others, as to a node of a quorum."""

    def title(self) -> str:
        """Return the URL of the deployment without secrets."""
        where = ",".join(map(str, self.addresses))
        if self.addresses[0].path:
            return f"unix://{where}"
        scheme = "rediss" if self.access.tls else "redis"
        return {"single": f"{scheme}://{where}", "sentinel": f"{scheme}+sentinel://{where}/{self.service}"}.get(
            self.shape, f"{scheme}+cluster://{where}"
        )

    def topology(self, runtime: Runtime, open_link: OpenLink) -> Topology:
        """Return the topology of the deployment.

        A node of a Cluster is asked over the link that `open_link` returns.
        """
        if self.shape == "cluster":
            return Cluster(runtime, self.addresses, open_link)
        if self.shape == "sentinel":
            return Sentinels(runtime, list(self.addresses), self.service, lambda address: self._guide(runtime, address))
        return OneServer(self.addresses[0])

    def link(self, runtime: Runtime, address: RedisAddress, callbacks: RedisCallbacks) -> RedisLink:
        """Return a new link to a server that holds names."""
        make = _maker(runtime, fan_out=self.fan_out)
        identify = wire.WHO_AND_HOW if self.rules.guard == UPTIME else wire.WHO if self.rules.guard else None
        if self.fan_out:  # the identity shows whether two nodes of a quorum are one server
            identify = identify or wire.WHO
        return make(runtime, self.access, address, callbacks, identify=identify, sharded=self.shape == "cluster")

    def _guide(self, runtime: Runtime, address: RedisAddress) -> RedisLink:
        make = _maker(runtime)
        return make(
            runtime, self.guides, address, RedisCallbacks(_ignore_push, _ignore_gap), identify=None, sharded=False
        )


def _maker(runtime: Runtime, *, fan_out: bool = False) -> Callable[..., RedisLink]:
    """Return the class of a runtime's links."""
    if isinstance(runtime, ThreadsRuntime):
        from tenure.stores.redis.links.threads import FanOutLink, RedisThreadLink

        return FanOutLink if fan_out else RedisThreadLink
    if isinstance(runtime, AsyncioRuntime):
        from tenure.stores.redis.links.aio import RedisAsyncLink

        return RedisAsyncLink
    raise UsageError(f"the Redis store does not run in a {type(runtime).__name__}; use Client or AsyncClient")


def _ignore_push(payload: bytes) -> None:
    """Ignore a push of a Sentinel."""


def _ignore_gap() -> None:
    """Ignore a gap in the pushes of a Sentinel."""
