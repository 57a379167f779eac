"""The options of a ZooKeeper URL: the servers, the login, TLS, and the path of the locks.

No error of this file repeats a value of the URL, because it may be a password.
"""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, unquote

from tenure.errors import UsageError
from tenure.stores.urlparts import Option, UrlParts, one_of, seconds, switch, text

FORM = "write zookeeper://host1,host2:2181,host3/path, with user:password@ before the hosts for a login"

PORT = 2181
MECHANISMS = ("DIGEST-MD5", "GSSAPI")
"""The SASL mechanisms that servers accept."""

ROOT = "/tenure"
"""The topmost node of all locks, below the path in the URL."""

SESSION_TIMEOUT = 30.0
SHORTEST_SESSION = 0.1
LONGEST_SESSION = 3600.0


@dataclass(slots=True, frozen=True)
class ZooKeeperAccess:
    """The servers of an ensemble, and how to connect and log in to them."""

    hosts: str
    """The hosts in kazoo's format."""
    root: str
    options: dict[str, Any] = field(default_factory=dict[str, Any], repr=False)
    """The arguments for kazoo's client. They may contain secrets."""
    private: bool = False
    """Whether only the same login may use the nodes that are created."""
    tls: ssl.SSLContext | None = field(default=None, repr=False)

    @property
    def sasl(self) -> str:
        """The mechanism of the SASL login; "" if there is none."""
        return str(self.options.get("sasl_options", {}).get("mechanism", ""))

    @property
    def servers(self) -> list[tuple[str, int]]:
        """The hosts and ports, written as kazoo passes them to the handler."""
        each = (host.rpartition(":") for host in self.hosts.split(","))
        return [(name.strip("[]").lower(), int(port)) for name, _, port in each]

    @property
    def title(self) -> str:
        """A short description of the ensemble without secrets."""
        return f"ZooKeeper at {self.hosts}{self.root.removesuffix(ROOT)}"


def access_of(parts: SplitResult) -> ZooKeeperAccess:
    """Parse a ZooKeeper URL. Raises UsageError if it can't be understood."""
    url = UrlParts(parts, "ZooKeeper", FORM)
    given = url.take(url.query(OPTIONS), OPTIONS)
    private = given.pop("acl", "open") == "creator"
    options: dict[str, Any] = {"timeout": given.pop("session_timeout", SESSION_TIMEOUT)}
    options |= _login(url, given)
    tls = _tls(given)
    if private and not options.keys() & {"auth_data", "sasl_options"}:
        raise UsageError(f"acl=creator needs a login; {FORM}.")
    return ZooKeeperAccess(_hosts(url), _root(url), options, private, tls)


def _hosts(url: UrlParts) -> str:
    return ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in url.hosts(PORT))


def _root(url: UrlParts) -> str:
    names = [unquote(each) for each in url.path().split("/") if each]
    if any(each in {".", ".."} or "/" in each or not each.isprintable() for each in names):
        raise UsageError(f"the path of the ZooKeeper URL is not a path of a node; {FORM}.")
    return "".join(f"/{each}" for each in names) + ROOT


def _login(url: UrlParts, given: dict[str, Any]) -> dict[str, Any]:
    """Return kazoo's arguments for the login: ZooKeeper's own digest, or SASL."""
    login = url.login()
    user, password = login or ("", None)
    mechanism = given.pop("sasl_mechanism", "")
    sasl = {key: given.pop(f"sasl_{key}") for key in ("service", "principal") if f"sasl_{key}" in given}
    if login and not (user and password is not None):
        raise UsageError(f"a login in the ZooKeeper URL needs both a user and a password; {FORM}.")
    if mechanism == "DIGEST-MD5" and not login:
        raise UsageError(f"sasl_mechanism=DIGEST-MD5 needs a user and a password; {FORM}.")
    if mechanism:
        who = {"username": user, "password": password} if login else {}
        return {"sasl_options": {"mechanism": mechanism, **sasl, **who}}
    if sasl:
        raise UsageError("sasl_service and sasl_principal need sasl_mechanism=GSSAPI.")
    if ":" in user:
        raise UsageError("the user in the ZooKeeper URL contains `:`, which ZooKeeper does not allow.")
    return {"auth_data": [("digest", f"{user}:{password}")]} if login else {}


def _tls(given: dict[str, Any]) -> ssl.SSLContext | None:
    """Return the TLS context; None if the URL does not ask for TLS."""
    if given and not given.get("use_ssl"):
        raise UsageError(f"the option {min(given)} is for TLS only; add use_ssl=true.")
    if ("certfile" in given) != ("keyfile" in given):
        raise UsageError("certfile and keyfile must be given together, as PEM files.")
    verify = given.get("verify_certs", True)
    if given.get("check_hostname") and not verify:
        raise UsageError("check_hostname=true contradicts verify_certs=false; remove one of them.")
    if not given:
        return None
    try:
        context = _context(given)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"a certificate or key named in the ZooKeeper URL cannot be loaded ({type(error).__name__}); check ca, "
            "certfile, keyfile and keyfile_password."
        ) from None
    context.check_hostname = given.get("check_hostname", verify)
    context.verify_mode = ssl.CERT_REQUIRED if verify else ssl.CERT_NONE
    return context


def _context(given: dict[str, Any]) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=given.get("ca"))
    if "certfile" in given:
        password = given.get("keyfile_password", "")  # without it OpenSSL would prompt for one at the terminal
        context.load_cert_chain(given["certfile"], given["keyfile"], lambda: password)
    return context


def _file(text: str) -> str:
    if not Path(text).is_file():
        raise ValueError
    return text


def _path(key: str, example: str) -> Option:
    return Option(_file, f"must be the path of an existing file, as ?{key}={example}")


OPTIONS: Mapping[str, Option] = {
    "session_timeout": Option(
        seconds(SHORTEST_SESSION, LONGEST_SESSION),
        f"must be a number of seconds from {SHORTEST_SESSION:g} to {LONGEST_SESSION:g}, as ?session_timeout=30",
    ),
    "acl": Option(one_of("open", "creator"), "must be open or creator, as ?acl=creator"),
    "sasl_mechanism": Option(one_of(*MECHANISMS), f"must be {' or '.join(MECHANISMS)}, as ?sasl_mechanism=GSSAPI"),
    "sasl_service": text("sasl_service", "zookeeper"),
    "sasl_principal": text("sasl_principal", "me@EXAMPLE.ORG"),
    "use_ssl": switch("use_ssl"),
    "ca": _path("ca", "/etc/ssl/ca.pem"),
    "certfile": _path("certfile", "/etc/ssl/client.pem"),
    "keyfile": _path("keyfile", "/etc/ssl/client.key"),
    "keyfile_password": text("keyfile_password", "%2A%2A%2A"),
    "verify_certs": switch("verify_certs"),
    "check_hostname": switch("check_hostname"),
}
"""All options of a ZooKeeper URL."""
