"""The access to the servers of a deployment: the options for redis-py's connections."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tenure.stores.redis.links.link import RedisAddress


@dataclass(slots=True, frozen=True)
class RedisAccess:
    """Credentials, TLS and other options, as keyword arguments of redis-py's Connection classes."""

    options: Mapping[str, Any] = field(default_factory=dict[str, Any], repr=False)
    """All options except host, port, path, timeouts and retries, which this store decides. They may contain secrets."""
    tls: bool = False
    connect_timeout: float = 5.0
    """The longest time to connect, in seconds, where no operation sets an earlier deadline."""

    def connection_options(self, address: RedisAddress) -> dict[str, Any]:
        """Return the keyword arguments of a redis-py Connection (sync or asyncio) to `address`."""
        where = {"path": address.path} if address.path else {"host": address.host, "port": address.port}
        return {**self.options, **where}
