"""The options of an etcd URL: the servers, the connection to them, the key prefix and the session timeout.

No error of this file repeats a value of the URL, because it may be a password.
"""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import SplitResult, unquote

from tenure.errors import UsageError
from tenure.stores.tls import TLS_OPTIONS, tls_context
from tenure.stores.urlparts import ESCAPE, Option, UrlParts, number
from tenure.transport.link import ServerAddress

FORMS = "write etcd://[user:password@]host1[:port],host2,host3[/prefix]?session_timeout=30, or etcds:// for TLS"

PORT = 2379
PREFIX = "tenure"
SESSION = 30
LONGEST = 3600


def _session_timeout(text: str) -> int:
    if not 1 <= (seconds := number(text)) <= LONGEST:
        raise ValueError
    return seconds


OPTIONS: Mapping[str, Option] = {
    "session_timeout": Option(
        _session_timeout, f"must be a whole number of seconds from 1 to {LONGEST}, as ?session_timeout=30"
    ),
    **TLS_OPTIONS,
}
"""All options of an etcd URL."""


@dataclass(slots=True)
class EtcdDeployment:
    """The servers of one ensemble, and how to connect and log in to them."""

    addresses: list[ServerAddress]
    prefix: str = PREFIX
    """The prefix of all keys, without the slash that follows."""
    session_timeout: int = SESSION
    """How long, in seconds, the servers keep a session after the client's last message."""
    user: str = ""
    password: str = field(default="", repr=False)
    tls: ssl.SSLContext | None = None
    connect_timeout: float = 5.0
    """The longest time to connect, in seconds, where no operation sets an earlier deadline."""

    def title(self) -> str:
        """Return a short description without secrets."""
        scheme = "etcd" if self.tls is None else "etcds"
        return f"{scheme}://{','.join(map(str, self.addresses))}/{self.prefix}"


def deployment_of(parts: SplitResult) -> EtcdDeployment:
    """Parse an etcd URL. Raises UsageError if it can't be understood."""
    url = UrlParts(parts, "etcd", FORMS)
    given = url.take(url.query(OPTIONS), OPTIONS)
    user, password = _login(url)
    return EtcdDeployment(
        [ServerAddress(*each) for each in url.hosts(PORT)],
        unquote(url.path()).strip("/") or PREFIX,
        given.pop("session_timeout", SESSION),
        user,
        password,
        tls_context(parts.scheme, given, "etcd", "etcds"),
    )


def _login(url: UrlParts) -> tuple[str, str]:
    if (login := url.login()) is None:
        return "", ""
    if not login.user or login.password is None:
        raise UsageError(f"the etcd URL lacks a password or a user; give both: etcd://user:password@host. {ESCAPE}")
    return login.user, login.password
