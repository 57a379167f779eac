"""What a URL says: which servers, how to reach them, and where among their nodes the locks are.

No error of this file repeats a value of the URL: it may be a password.
"""

import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote

from holdfast.errors import UsageError

FORM = "write zookeeper://host1,host2:2181,host3/path, with user:password@ before the hosts for a login"
ESCAPE = "In a password write %40 for `@`, %2F for `/`, %3F for `?`, %23 for `#`."

PORT = 2181
MECHANISMS = frozenset({"DIGEST-MD5", "GSSAPI"})
"""Which SASL logins servers take."""

ROOT = "/holdfast"
"""Where all nodes are, below the path in the URL."""

SESSION_TIMEOUT = 30.0
SHORTEST_SESSION = 0.1
LONGEST_SESSION = 3600.0


@dataclass(slots=True, frozen=True)
class Access:
    """How to reach an ensemble."""

    hosts: str
    """As kazoo takes them."""
    root: str
    options: dict[str, Any] = field(default_factory=dict[str, Any], repr=False)
    """What kazoo's client is made with. May hold secrets."""
    private: bool = False
    """Whether only the same login may touch what is made."""
    tls: ssl.SSLContext | None = field(default=None, repr=False)

    @property
    def sasl(self) -> str:
        """The mechanism of a SASL login; "" if there is none."""
        return str(self.options.get("sasl_options", {}).get("mechanism", ""))

    @property
    def servers(self) -> list[tuple[str, int]]:
        """The hosts, each with its port, as kazoo calls them."""
        each = (host.rpartition(":") for host in self.hosts.split(","))
        return [(name.strip("[]").lower(), int(port)) for name, _, port in each]

    @property
    def title(self) -> str:
        """The ensemble in a few words, without secrets."""
        return f"ZooKeeper at {self.hosts}{self.root.removesuffix(ROOT)}"


def access_of(parts: SplitResult) -> Access:
    """Read a URL. Raises UsageError if it can't be understood."""
    if parts.fragment:
        raise UsageError(f"a ZooKeeper URL takes nothing after `#`. {ESCAPE}")
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    given = _take(query)
    if query:
        unknown = "this" if "@" in parts.query else repr(min(query))  # it may be the rest of a password
        raise UsageError(f"{unknown} is no option of a ZooKeeper URL; there are {', '.join(sorted(READ))}. {ESCAPE}")
    private = given.pop("acl", "open") == "creator"
    options: dict[str, Any] = {"timeout": given.pop("session_timeout", SESSION_TIMEOUT)}
    options |= _login(parts, given)
    tls = _tls(given)
    if private and not options.keys() & {"auth_data", "sasl_options"}:
        raise UsageError(f"acl=creator is for who logs in; {FORM}.")
    return Access(_hosts(parts), _root(parts), options, private, tls)


def _hosts(parts: SplitResult) -> str:
    hosts = parts.netloc.rpartition("@")[2] or "localhost"
    return ",".join(map(_host, hosts.split(",")))


def _host(text: str) -> str:
    host, colon, port = text.rpartition(":") if not text.endswith("]") else (text, ":", str(PORT))
    if not colon:
        host, port = text, str(PORT)
    if not host or not port.isdecimal() or not 0 < int(port) < 65536 or not _is_host(host):  # noqa: PLR2004 - the ports that there are
        raise UsageError(f"a host or a port in the ZooKeeper URL cannot be read; {FORM}.")
    return f"{host}:{int(port)}"


def _is_host(text: str) -> bool:
    return not any(each in text for each in " /\\") and (":" not in text or text.startswith("["))


def _root(parts: SplitResult) -> str:
    if "@" in parts.path:
        raise UsageError(f"there is an `@` in the path of the ZooKeeper URL. {ESCAPE}")
    names = [unquote(each) for each in parts.path.split("/") if each]
    if any(each in {".", ".."} or "/" in each or not each.isprintable() for each in names):
        raise UsageError(f"the path of the ZooKeeper URL is no path of a node; {FORM}.")
    return "".join(f"/{each}" for each in names) + ROOT


def _login(parts: SplitResult, given: dict[str, Any]) -> dict[str, Any]:
    """Read who to log in as: by ZooKeeper's own digest, or by SASL."""
    user, at, _ = parts.netloc.rpartition("@")
    name, colon, password = user.partition(":")
    mechanism = given.pop("sasl_mechanism", "")
    sasl = {key: given.pop(f"sasl_{key}") for key in ("service", "principal") if f"sasl_{key}" in given}
    if at and not (colon and name):
        raise UsageError(f"a login is a user and a password; {FORM}.")
    if mechanism == "DIGEST-MD5" and not at:
        raise UsageError(f"sasl_mechanism=DIGEST-MD5 needs a user and a password; {FORM}.")
    if mechanism:
        login = {"username": unquote(name), "password": unquote(password)} if at else {}
        return {"sasl_options": {"mechanism": mechanism, **sasl, **login}}
    if sasl:
        raise UsageError("sasl_service and sasl_principal go with sasl_mechanism, as GSSAPI.")
    if ":" in unquote(name):
        raise UsageError("a user of ZooKeeper has no `:` in its name.")
    return {"auth_data": [("digest", f"{unquote(name)}:{unquote(password)}")]} if at else {}


def _tls(given: dict[str, Any]) -> ssl.SSLContext | None:
    """Return how to speak TLS, if we are to."""
    if given and not given.get("use_ssl"):
        raise UsageError(f"{min(given)} concerns TLS; add use_ssl=true.")
    if ("certfile" in given) != ("keyfile" in given):
        raise UsageError("certfile and keyfile go together, as PEM files.")
    verify = given.get("verify_certs", True)
    if given.get("check_hostname") and not verify:
        raise UsageError("check_hostname=true makes no sense with verify_certs=false.")
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
        password = given.get("keyfile_password", "")  # or OpenSSL would ask for one at the terminal
        context.load_cert_chain(given["certfile"], given["keyfile"], lambda: password)
    return context


def _take(query: dict[str, str]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for key, read in READ.items():
        if key in query:
            try:
                options[key] = read(query.pop(key))
            except (ValueError, KeyError):
                raise UsageError(f"the option {key} of the ZooKeeper URL has no value that makes sense.") from None
    return options


def _flag(text: str) -> bool:
    return {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}[text.lower()]


def _timeout(text: str) -> float:
    seconds = float(text)
    if not SHORTEST_SESSION <= seconds <= LONGEST_SESSION:
        raise ValueError
    return seconds


def _acl(text: str) -> str:
    if text not in {"open", "creator"}:
        raise ValueError
    return text


def _mechanism(text: str) -> str:
    if text.upper() not in MECHANISMS:
        raise ValueError
    return text.upper()


def _file(text: str) -> str:
    if not Path(text).is_file():
        raise ValueError
    return text


READ: Mapping[str, Callable[[str], Any]] = {
    "session_timeout": _timeout,
    "acl": _acl,
    "sasl_mechanism": _mechanism,
    "sasl_service": str,
    "sasl_principal": str,
    "use_ssl": _flag,
    "ca": _file,
    "certfile": _file,
    "keyfile": _file,
    "keyfile_password": str,
    "verify_certs": _flag,
    "check_hostname": _flag,
}
"""What a URL may say."""
