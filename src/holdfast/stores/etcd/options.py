"""What a URL says: which servers, how to reach them, where in the store the locks live, how long a session lasts.

No error of this file repeats a value of the URL: it may be a password.
"""

import ssl
from dataclasses import dataclass, field
from urllib.parse import SplitResult, parse_qsl, unquote

from holdfast.errors import UsageError
from holdfast.stores.etcd.link import Address

FORMS = "write etcd://[user:password@]host1[:port],host2,host3[/prefix]?session_timeout=30, or etcds:// for TLS"

ESCAPE = "In a password write %40 for `@`, %2F for `/`, %3F for `?`, %23 for `#`."

PORT = 2379
PREFIX = "holdfast"
SESSION = 30
LONGEST = 3600

TLS_OPTIONS = (
    "ssl_ca_certs",
    "ssl_ca_path",
    "ssl_certfile",
    "ssl_keyfile",
    "ssl_password",
    "ssl_cert_reqs",
    "ssl_check_hostname",
)
"""As redis-py, and so a Redis URL, names them."""

OPTIONS = ("session_timeout", *TLS_OPTIONS)


@dataclass(slots=True)
class Deployment:
    """The servers of one ensemble, and what one needs to use them."""

    addresses: list[Address]
    prefix: str = PREFIX
    """What all keys begin with, without the slash that follows."""
    session_timeout: int = SESSION
    """For how long, in seconds, what a client has is kept after it fell silent."""
    user: str = ""
    password: str = field(default="", repr=False)
    tls: ssl.SSLContext | None = None
    connect_timeout: float = 5.0
    """The longest that connecting may take, in seconds, where no operation sets a nearer end."""

    def title(self) -> str:
        """Return it in a few words, without secrets."""
        scheme = "etcd" if self.tls is None else "etcds"
        return f"{scheme}://{','.join(map(str, self.addresses))}/{self.prefix}"


def deployment_of(parts: SplitResult) -> Deployment:
    """Read a URL. Raises UsageError if it can't be understood."""
    if parts.fragment:
        raise UsageError(f"an etcd URL takes nothing after `#`. {ESCAPE}")
    if "@" in parts.path:
        raise UsageError(f"there is an `@` in the path of the etcd URL. {ESCAPE}")
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    for key in query:
        if key not in OPTIONS:
            unknown = "this" if "@" in parts.query else repr(key)  # it may be the rest of a password
            raise UsageError(f"{unknown} is no option of an etcd URL; there are {', '.join(OPTIONS)}. {ESCAPE}")
    user, password = _login(parts)
    return Deployment(
        _hosts(parts),
        unquote(parts.path).strip("/") or PREFIX,
        _session_timeout(query),
        user,
        password,
        _tls(parts.scheme, query),
    )


def _login(parts: SplitResult) -> tuple[str, str]:
    user, at, _ = parts.netloc.rpartition("@")
    name, colon, password = user.partition(":")
    if at and not (name and colon):
        raise UsageError(f"a user comes with a password, as in etcd://user:password@host. {ESCAPE}")
    return unquote(name), unquote(password)


def _hosts(parts: SplitResult) -> list[Address]:
    hosts = parts.netloc.rpartition("@")[2] or "localhost"
    return [_host(each) for each in hosts.split(",")]


def _host(text: str) -> Address:
    host, colon, port = text.rpartition(":") if not text.endswith("]") else (text, "", "")
    if not colon:
        host, port = text, str(PORT)
    if ":" in host and not host.startswith("["):
        raise UsageError(f"a host of the etcd URL has two ports; {FORMS}.")
    if not (host and port.isdecimal() and 0 < int(port) < 65536):  # noqa: PLR2004 - the ports that there are
        raise UsageError(f"a host or a port in the etcd URL cannot be read; {FORMS}.")
    return Address(host.strip("[]"), int(port))


def _session_timeout(query: dict[str, str]) -> int:
    text = query.get("session_timeout", str(SESSION))
    if not (text.isdecimal() and 1 <= int(text) <= LONGEST):
        raise UsageError(f"session_timeout is a whole number of seconds from 1 to {LONGEST}, as ?session_timeout=30.")
    return int(text)


def _tls(scheme: str, query: dict[str, str]) -> ssl.SSLContext | None:
    given = {key: query[key] for key in TLS_OPTIONS if key in query}
    if scheme != "etcds":
        if given:
            raise UsageError(f"{min(given)} concerns TLS; write etcds:// instead of etcd://.")
        return None
    try:
        context = ssl.create_default_context(cafile=given.get("ssl_ca_certs"), capath=given.get("ssl_ca_path"))
        if "ssl_certfile" in given:
            password = given.get("ssl_password", "")  # or OpenSSL would ask for one at the terminal
            context.load_cert_chain(given["ssl_certfile"], given.get("ssl_keyfile"), lambda: password)
        trust = TRUST[given.get("ssl_cert_reqs", "required")]
        context.check_hostname = FLAGS[given.get("ssl_check_hostname", "true").lower()] and trust is ssl.CERT_REQUIRED
        context.verify_mode = trust
    except KeyError:
        raise UsageError(
            "ssl_cert_reqs is none, optional or required, and ssl_check_hostname is true or false."
        ) from None
    except (OSError, ValueError) as error:
        raise UsageError(
            f"a certificate or key named in the etcd URL cannot be loaded ({type(error).__name__}); check "
            "ssl_ca_certs, ssl_certfile, ssl_keyfile and ssl_password."
        ) from None
    return context


TRUST = {"none": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
FLAGS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
