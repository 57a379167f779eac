"""What a URL, or a redis-py client, says: which servers, how to reach them, and how safe to be.

No error of this file repeats a value of the URL: it may be a password.
"""

import ssl
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote

from holdfast.core.limits import check_count
from holdfast.errors import UsageError
from holdfast.stores.redis.access import Access
from holdfast.stores.redis.deployment import GUARDS, Deployment, Rules
from holdfast.stores.redis.link import Address

FORMS = (
    "write redis://[user:password@]host[:port][/db], rediss:// for TLS, unix:///path/to/socket, "
    "redis+sentinel://host1,host2,host3/service or redis+cluster://host1,host2,host3"
)

ESCAPE = "In a password write %40 for `@`, %2F for `/`, %3F for `?`, %23 for `#`."

SENTINEL_PORT = 26379
REDIS_PORT = 6379


def deployment_of(parts: SplitResult, guard: str = "observed") -> Deployment:
    """Read a URL, which may name another guard. Raises UsageError if it can't be understood."""
    scheme, _, shape = parts.scheme.replace("valkey", "redis").partition("+")
    query = _query(parts)
    rules = _take_rules(query, guard)
    login = _login(parts)
    guide_login = _take_login(query, "sentinel_")
    options = login | _take_options(query)
    if query:
        known = ", ".join(sorted([*RULES, *OPTIONS, "sentinel_username", "sentinel_password"]))
        unknown = "this" if "@" in parts.query else repr(min(query))  # it may be the rest of a password
        raise UsageError(f"{unknown} is no option of a Redis URL; there are {known}. {ESCAPE}")
    if parts.scheme == "unix":
        return Deployment("single", [_socket(parts)], Access(options), rules)
    if "@" in parts.path:
        raise UsageError(f"there is an `@` in the path of the Redis URL. {ESCAPE}")
    tls = scheme == "rediss"
    if not tls and (given := [each for each in options if each.startswith("ssl_")]):
        raise UsageError(f"{given[0]} concerns TLS; write rediss:// instead of redis://.")
    path = unquote(parts.path).strip("/")
    access = Access(options, tls)
    if shape == "sentinel":
        service, _, database = path.partition("/")
        if not service:
            raise UsageError(f"a Sentinel URL ends with the service, as /mymaster; {FORMS}.")
        guides = Access(guide_login | {key: value for key, value in options.items() if key.startswith("ssl_")}, tls)
        options |= _database(database)
        return Deployment(shape, _hosts(parts, SENTINEL_PORT), Access(options, tls), rules, service, guides)
    if shape == "cluster":
        if path not in {"", "0"} or options.get("db"):
            raise UsageError("a Redis Cluster has only database 0; leave it out of the URL.")
        return Deployment(shape, _hosts(parts, REDIS_PORT), access, rules)
    addresses = _hosts(parts, REDIS_PORT)
    if len(addresses) > 1:
        raise UsageError(f"redis:// names one server; for several, {FORMS}.")
    return Deployment("single", addresses, Access(options | _database(path), tls), rules)


def rules_of(guard: str, replicas: int, max_ttl: float) -> Rules:
    """Check the rules that a caller gives. Raises UsageError if one can't be right."""
    if guard not in GUARDS:
        raise UsageError(f"guard is one of {', '.join(GUARDS)}; see docs/redis.md for what each of them keeps.")
    check_count(replicas, "replicas, how many replicas must acknowledge a grant,")
    if not 0 < max_ttl <= 10**7:
        raise UsageError("max_ttl is the longest ttl in use, in seconds: a positive number.")
    return Rules(GUARDS[guard], replicas, float(max_ttl))


# -- parts of a URL ----------------------------------------------------------------------------------------------


def _query(parts: SplitResult) -> dict[str, str]:
    if parts.fragment:
        raise UsageError(f"a Redis URL takes nothing after `#`. {ESCAPE}")
    return dict(parse_qsl(parts.query, keep_blank_values=True))


def _login(parts: SplitResult) -> dict[str, Any]:
    user, at, _ = parts.netloc.rpartition("@")
    if not at:
        return {}
    name, colon, password = user.partition(":")
    return {"username": unquote(name) or None, "password": unquote(password)} if colon else {"username": unquote(name)}


def _hosts(parts: SplitResult, port: int) -> list[Address]:
    """Read the hosts, with their ports or the usual one."""
    hosts = parts.netloc.rpartition("@")[2] or "localhost"
    return [_host(each, port) for each in hosts.split(",")]


def _host(text: str, port: int) -> Address:
    host, colon, given = text.rpartition(":") if not text.endswith("]") else (text, "", "")
    if not colon:
        host, given = text, str(port)
    if not (host and given.isdigit() and 0 < int(given) < 65536):  # noqa: PLR2004 - the ports that there are
        raise UsageError(f"a host or a port in the Redis URL cannot be read; {FORMS}.")
    return Address(host.strip("[]"), int(given))


def _socket(parts: SplitResult) -> Address:
    path = unquote(parts.path)
    if not path.startswith("/") or parts.netloc.rpartition("@")[2]:
        raise UsageError("a socket is given by its absolute path, as unix:///run/redis/redis.sock.")
    return Address("", 0, path)


def _database(text: str) -> dict[str, int]:
    if not text:
        return {}
    if not text.isdigit():
        raise UsageError(f"the database of a Redis URL is a number; {FORMS}.")
    return {"db": int(text)}


def _take_login(query: dict[str, str], prefix: str) -> dict[str, Any]:
    return {key: query.pop(prefix + key) for key in ("username", "password") if prefix + key in query}


def _take_rules(query: dict[str, str], guard: str) -> Rules:
    given = {key: query.pop(key) for key in RULES if key in query}
    try:
        replicas, max_ttl = int(given.get("replicas", "0")), float(given.get("max_ttl", "60"))
    except ValueError:
        raise UsageError("replicas and max_ttl are numbers, as in redis://host?replicas=1&max_ttl=60.") from None
    return rules_of(given.get("guard", guard), replicas, max_ttl)


def _take_options(query: dict[str, str]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for key, read in OPTIONS.items():
        if key in query:
            try:
                options[key] = read(query.pop(key))
            except (ValueError, KeyError):
                raise UsageError(f"the option {key} of the Redis URL has no value that makes sense.") from None
    return options


def _flag(text: str) -> bool:
    return {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}[text.lower()]


def _certificates(text: str) -> str:
    if text not in {"none", "optional", "required"}:
        raise ValueError
    return text


RULES = ("guard", "replicas", "max_ttl")

OPTIONS: Mapping[str, Callable[[str], Any]] = {
    "db": int,
    "client_name": str,
    "username": str,
    "password": str,
    "ssl_ca_certs": str,
    "ssl_ca_path": str,
    "ssl_certfile": str,
    "ssl_keyfile": str,
    "ssl_password": str,
    "ssl_cert_reqs": _certificates,
    "ssl_check_hostname": _flag,
}
"""What a URL may say of a connection, as redis-py names it."""


# -- clients of redis-py -----------------------------------------------------------------------------------------

TAKEN_OVER = frozenset(
    {"db", "username", "password", "credential_provider", "client_name", "lib_name", "lib_version", "socket_keepalive"}
    | {"socket_keepalive_options", "socket_type", "driver_info", "redis_connect_func"}
)
"""The settings of a redis-py client that are ours too; also all that begin with `ssl_`. Timeouts and retries are not:
a wait must not be cut short, and a request not be repeated by somebody else."""


def deployment_of_client(client: Any, rules: Rules) -> Deployment:  # noqa: ANN401 - any client of redis-py
    """Take over the settings of a Redis, Sentinel-managed or RedisCluster client. Raises UsageError for another."""
    manager = getattr(client, "nodes_manager", None)
    if manager is not None:
        return _of_cluster(client, manager, rules)
    pool = getattr(client, "connection_pool", None)
    options = getattr(pool, "connection_kwargs", None)
    if pool is None or options is None:
        raise UsageError(
            f"a {type(client).__name__} is no store: give a URL, or a Redis or RedisCluster client of redis-py "
            "(for Sentinel: sentinel.master_for(service))."
        )
    if (sentinel := getattr(pool, "sentinel_manager", None)) is not None:
        return _of_sentinel(pool, sentinel, rules)
    access = _access(options, pool.connection_class)
    if options.get("path"):
        return Deployment("single", [Address("", 0, options["path"])], access, rules)
    address = Address(options.get("host", "localhost"), int(options.get("port", REDIS_PORT)))
    return Deployment("single", [address], access, rules)


def _of_sentinel(pool: Any, sentinel: Any, rules: Rules) -> Deployment:  # noqa: ANN401
    guides = [each.connection_pool for each in sentinel.sentinels]
    addresses = [Address(each.connection_kwargs["host"], int(each.connection_kwargs["port"])) for each in guides]
    guide_access = _access(guides[0].connection_kwargs, guides[0].connection_class)
    access = _access(pool.connection_kwargs, pool.connection_class)
    return Deployment("sentinel", addresses, access, rules, pool.service_name, guide_access)


def _of_cluster(client: Any, manager: Any, rules: Rules) -> Deployment:  # noqa: ANN401
    options = getattr(client, "connection_kwargs", None) or manager.connection_kwargs
    nodes = [Address(node.host, int(node.port)) for node in manager.startup_nodes.values()]
    tls = options.get("connection_class") or (ssl if options.get("ssl") else None)
    return Deployment("cluster", nodes, _access(options, tls), rules)


def _access(options: Mapping[str, Any], connection: object) -> Access:
    kept = {
        key: value
        for key, value in options.items()
        if value is not None and (key in TAKEN_OVER or key.startswith("ssl_"))
    }
    tls = connection is ssl or "SSL" in getattr(connection, "__name__", "")
    return Access(kept, tls)
