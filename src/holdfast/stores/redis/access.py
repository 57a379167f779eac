"""How to reach the servers of one deployment: what redis-py's connections have to be told."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.stores.redis.link import RedisAddress


@dataclass(slots=True, frozen=True)
class RedisAccess:
    """Credentials, TLS and the like, as keyword arguments of redis-py's Connection classes."""

    options: Mapping[str, Any] = field(default_factory=dict[str, Any], repr=False)
    """All but host, port, path, timeouts and retries, which are ours. May hold secrets."""
    tls: bool = False
    connect_timeout: float = 5.0
    """The longest that connecting may take, in seconds, where no operation sets a nearer end."""

    def connection_options(self, address: RedisAddress) -> dict[str, Any]:
        """Return the keyword arguments of a redis-py Connection (sync or asyncio) to `address`."""
        where = {"path": address.path} if address.path else {"host": address.host, "port": address.port}
        return {**self.options, **where}
