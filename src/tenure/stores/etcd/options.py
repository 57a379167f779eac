"""The options of an etcd URL: the servers, the connection to them, the key prefix and the session timeout.

No error of this file repeats a value of the URL, because it may be a password.
"""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import SplitResult, unquote

from tenure.errors import UsageError
from tenure.stores.etcd.link import EtcdAddress
from tenure.stores.urlparts import ESCAPE, Option, UrlParts, number, one_of, switch, text

FORMS = "write etcd://[user:password@]host1[:port],host2,host3[/prefix]?session_timeout=30, or etcds:// for TLS"

PORT = 2379
PREFIX = "tenure"
SESSION = 30
LONGEST = 3600

TRUST = {"none": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}


def _session_timeout(text: str) -> int:
    if not 1 <= (seconds := number(text)) <= LONGEST:
        raise ValueError
    return seconds


TLS_OPTIONS: Mapping[str, Option] = {
    "ssl_ca_certs": text("ssl_ca_certs", "/etc/ssl/ca.pem"),
    "ssl_ca_path": text("ssl_ca_path", "/etc/ssl/certs"),
    "ssl_certfile": text("ssl_certfile", "/etc/ssl/client.pem"),
    "ssl_keyfile": text("ssl_keyfile", "/etc/ssl/client.key"),
    "ssl_password": text("ssl_password", "%2A%2A%2A"),
    "ssl_cert_reqs": Option(one_of(*TRUST), "must be none, optional or required, as ?ssl_cert_reqs=required"),
    "ssl_check_hostname": switch("ssl_check_hostname"),
}
"""The TLS options, with the names that redis-py, and so a Redis URL, gives them."""

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

    addresses: list[EtcdAddress]
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
        [EtcdAddress(*each) for each in url.hosts(PORT)],
        unquote(url.path()).strip("/") or PREFIX,
        given.pop("session_timeout", SESSION),
        user,
        password,
        _tls(parts.scheme, given),
    )


def _login(url: UrlParts) -> tuple[str, str]:
    if (login := url.login()) is None:
        return "", ""
    if not login.user or login.password is None:
        raise UsageError(f"the etcd URL lacks a password or a user; give both: etcd://user:password@host. {ESCAPE}")
    return login.user, login.password


def _tls(scheme: str, given: dict[str, Any]) -> ssl.SSLContext | None:
    if scheme != "etcds":
        if given:
            raise UsageError(f"the option {min(given)} is for TLS only; write etcds:// instead of etcd://.")
        return None
    try:
        context = ssl.create_default_context(cafile=given.get("ssl_ca_certs"), capath=given.get("ssl_ca_path"))
        if "ssl_certfile" in given:
            password = given.get("ssl_password", "")  # without it OpenSSL would prompt for one at the terminal
            context.load_cert_chain(given["ssl_certfile"], given.get("ssl_keyfile"), lambda: password)
        trust = TRUST[given.get("ssl_cert_reqs", "required")]
        context.check_hostname = given.get("ssl_check_hostname", True) and trust is ssl.CERT_REQUIRED
        context.verify_mode = trust
    except (OSError, ValueError) as error:
        raise UsageError(
            f"a certificate or key named in the etcd URL cannot be loaded ({type(error).__name__}); check "
            "ssl_ca_certs, ssl_certfile, ssl_keyfile and ssl_password."
        ) from None
    return context
