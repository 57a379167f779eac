"""The options of a NATS URL: the servers, the login, the bucket and its replicas.

No error of this file repeats a value of the URL, because it may be a password.
"""

import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, unquote

from tenure.errors import UsageError
from tenure.stores.tls import TLS_OPTIONS, tls_context
from tenure.stores.urlparts import Option, UrlParts, number, text
from tenure.transport.link import ServerAddress

FORMS = "write nats://[user:password@]host1[:port],host2,host3[/bucket]?replicas=3, or natss:// for TLS"

PORT = 4222
BUCKET = "tenure"


def _replicas(text: str) -> int:
    if (replicas := number(text)) not in {1, 3, 5}:
        raise ValueError
    return replicas


OPTIONS: Mapping[str, Option] = {
    "credentials": text("credentials", "/etc/nats/locks.creds"),
    "replicas": Option(_replicas, "must be 1, 3 or 5, as ?replicas=3"),
    **TLS_OPTIONS,
}
"""All options of a NATS URL."""


@dataclass(slots=True)
class NatsDeployment:
    """The servers, how to connect and log in to them, and the bucket."""

    addresses: list[ServerAddress]
    bucket: str = BUCKET
    replicas: int | None = None
    """How many servers keep each row of a bucket that the client makes; None: three in a cluster, else one."""
    login: dict[str, Any] = field(default_factory=dict[str, Any], repr=False)
    """The login, as nats-py takes it."""
    tls: ssl.SSLContext | None = None

    def title(self) -> str:
        """Return a short description without secrets."""
        scheme = "nats" if self.tls is None else "natss"
        return f"{scheme}://{','.join(map(str, self.addresses))}/{self.bucket}"


def deployment_of(parts: SplitResult) -> NatsDeployment:
    """Parse a NATS URL. Raises UsageError if it can't be understood."""
    url = UrlParts(parts, "nats", FORMS)
    given = url.take(url.query(OPTIONS), OPTIONS)
    bucket = unquote(url.path()).strip("/") or BUCKET
    if not re.fullmatch("[A-Za-z0-9_-]+", bucket):
        raise UsageError("the bucket of the nats URL may have letters, digits, - and _ only, as nats://host/locks.")
    replicas = given.pop("replicas", None)
    login = _login(url, given.pop("credentials", None))
    addresses = [ServerAddress(*each) for each in url.hosts(PORT)]
    return NatsDeployment(addresses, bucket, replicas, login, tls_context(parts.scheme, given, "nats", "natss"))


def _login(url: UrlParts, credentials: str | None) -> dict[str, Any]:
    """Return a user and a password, a token (a user without a password), or the file with credentials."""
    login = url.login()
    if credentials is not None:
        if login is not None:
            raise UsageError("the nats URL has a login and the option credentials; give one of them.")
        if not Path(credentials).is_file():
            raise UsageError("the file that the option credentials of the nats URL names is not there.")
        return {"user_credentials": credentials}
    if login is None:
        return {}
    if login.password is None:
        return {"token": login.user}
    return {"user": login.user, "password": login.password}
