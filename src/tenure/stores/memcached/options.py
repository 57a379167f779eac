"""The options of a memcached URL: the servers and the prefix of all keys."""

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import SplitResult, unquote

from tenure.errors import UsageError
from tenure.stores.memcached.keys import MOST_PREFIX, is_plain
from tenure.stores.urlparts import Option, UrlParts, seconds
from tenure.transport.link import ServerAddress

FORMS = "write memcached://host1[:port],host2,host3[/prefix]?connect_timeout=5"

PORT = 11211
PREFIX = "tenure"
CONNECT_TIMEOUT = 5.0

OPTIONS: Mapping[str, Option] = {
    "connect_timeout": Option(
        seconds(0.01, 3600.0), "must be a number of seconds from 0.01 to 3600, as ?connect_timeout=5"
    ),
}
"""All options of a memcached URL."""


@dataclass(slots=True)
class MemcachedDeployment:
    """The servers that share the names, and how to reach them."""

    addresses: list[ServerAddress]
    prefix: str = PREFIX
    """The prefix of all keys, without the colon that follows."""
    connect_timeout: float = CONNECT_TIMEOUT
    """The longest time to connect, in seconds, where no operation sets an earlier deadline."""

    def title(self) -> str:
        """Return a short description."""
        return f"memcached://{','.join(map(str, self.addresses))}/{self.prefix}"


def deployment_of(parts: SplitResult) -> MemcachedDeployment:
    """Parse a memcached URL. Raises UsageError if it can't be understood."""
    url = UrlParts(parts, "memcached", FORMS)
    given = url.take(url.query(OPTIONS), OPTIONS)
    if url.login() is not None:
        raise UsageError(
            "a memcached URL takes no user and no password: Tenure does not log in to memcached. Give an address "
            "that only your own machines reach, and leave the login out."
        )
    addresses = [ServerAddress(*each) for each in url.hosts(PORT)]
    if len(set(addresses)) < len(addresses):
        raise UsageError("the memcached URL names a server twice; name each server once.")
    return MemcachedDeployment(addresses, _prefix(url), given.get("connect_timeout", CONNECT_TIMEOUT))


def _prefix(url: UrlParts) -> str:
    prefix = unquote(url.path()).strip("/") or PREFIX
    if not is_plain(prefix) or len(prefix) > MOST_PREFIX:
        raise UsageError(
            f"the prefix of the memcached URL must have up to {MOST_PREFIX} visible ASCII characters without spaces; "
            f"{FORMS}."
        )
    return prefix
