"""The options of a Redis URL, or of a redis-py client: the servers, the access to them, and the rules.

No error of this file repeats a value of the URL, because it may be a password.
"""

import ssl
from collections.abc import Mapping
from typing import Any
from urllib.parse import SplitResult, unquote

from tenure.contracts.limits import MAX_TTL, check_count
from tenure.errors import UsageError
from tenure.posix import require_posix
from tenure.stores.redis.deployment import GUARDS, RedisDeployment, Rules
from tenure.stores.redis.links.link import RedisAccess, RedisAddress
from tenure.stores.urlparts import Option, UrlParts, number, one_of, switch, text

FORMS = (
    "write redis://[user:password@]host[:port][/db], rediss:// for TLS, unix:///path/to/socket, "
    "redis+sentinel://host1,host2,host3/service or redis+cluster://host1,host2,host3"
)

HOST_AND_PORT = "give the host and the port of the server"

REDIS_PY = "redis-py"
"""What `also` may be: the library beside whose locks a client works."""

SENTINEL_PORT = 26379
REDIS_PORT = 6379


def deployment_of(parts: SplitResult, guard: str = "observed") -> RedisDeployment:
    """Parse a Redis URL, which may name another guard. Raises UsageError if it can't be understood."""
    scheme, _, shape = parts.scheme.replace("valkey", "redis").partition("+")
    url = UrlParts(parts, "Redis", FORMS)
    query = url.query(KNOWN)
    rules = _take_rules(query, guard)
    guide_login = _take_login(query)
    options = _login(url) | url.take(query, OPTIONS)
    if parts.scheme == "unix":
        return RedisDeployment("single", [_socket(parts)], RedisAccess(options), rules)
    path = unquote(url.path()).strip("/")
    tls = scheme == "rediss"
    if not tls and (given := [each for each in options if each.startswith("ssl_")]):
        raise UsageError(f"the option {given[0]} is for TLS only; write rediss:// instead of redis://.")
    access = RedisAccess(options, tls)
    if shape == "sentinel":
        service, _, database = path.partition("/")
        if not service:
            raise UsageError(f"a Sentinel URL must end with the service, as in /mymaster; {FORMS}.")
        guides = RedisAccess(
            guide_login | {key: value for key, value in options.items() if key.startswith("ssl_")}, tls
        )
        options |= _database(database)
        return RedisDeployment(shape, _hosts(url, SENTINEL_PORT), RedisAccess(options, tls), rules, service, guides)
    if shape == "cluster":
        if path not in {"", "0"} or options.get("db"):
            raise UsageError("a Redis Cluster has only database 0; leave it out of the URL.")
        return RedisDeployment(shape, _hosts(url, REDIS_PORT), access, rules)
    addresses = _hosts(url, REDIS_PORT)
    if len(addresses) > 1:
        raise UsageError(f"redis:// names one server; for several, {FORMS}.")
    return RedisDeployment("single", addresses, RedisAccess(options | _database(path), tls), rules)


def rules_of(guard: str, replicas: int, max_ttl: float, also: str | None = None) -> Rules:
    """Check the rules that a caller gives. Raises UsageError if one is not valid."""
    if guard not in GUARDS:
        raise UsageError(f"`guard` must be one of {', '.join(GUARDS)}; docs/redis.md tells what each of them guards.")
    check_count(replicas, "replicas, how many replicas must acknowledge a grant,")
    if not 0 < max_ttl <= 10**7:
        raise UsageError("`max_ttl` must be the longest ttl that a lock may have, in seconds: a positive number.")
    if also not in {None, "", REDIS_PY}:
        raise UsageError(f"`also` may be {REDIS_PY!r}, for locks that exclude those of redis-py, or None.")
    return Rules(GUARDS[guard], replicas, float(max_ttl), also or "")


# -- parts of a URL ----------------------------------------------------------------------------------------------


def _login(url: UrlParts) -> dict[str, Any]:
    login = url.login()
    if login is None:
        return {}
    user, password = login
    return {"username": user} if password is None else {"username": user or None, "password": password}


def _hosts(url: UrlParts, port: int) -> list[RedisAddress]:
    return [RedisAddress(*each) for each in url.hosts(port)]


def _socket(parts: SplitResult) -> RedisAddress:
    require_posix("a Unix socket (unix://)", HOST_AND_PORT)
    path = unquote(parts.path)
    if not path.startswith("/") or parts.netloc.rpartition("@")[2]:
        raise UsageError("a Unix socket must be given by its absolute path, as unix:///run/redis/redis.sock.")
    return RedisAddress("", 0, path)


def _database(text: str) -> dict[str, int]:
    if not text:
        return {}
    try:
        return {"db": number(text)}
    except ValueError:
        raise UsageError(f"the database of a Redis URL must be a number; {FORMS}.") from None


def _take_login(query: dict[str, str]) -> dict[str, Any]:
    return {key.removeprefix("sentinel_"): query.pop(key) for key in GUIDE_LOGIN if key in query}


def _take_rules(query: dict[str, str], guard: str) -> Rules:
    given = {key: query.pop(key) for key in RULES if key in query}
    try:
        replicas, max_ttl = int(given.get("replicas", "0")), float(given.get("max_ttl", MAX_TTL))
    except ValueError:
        raise UsageError("replicas and max_ttl must be numbers, as in redis://host?replicas=1&max_ttl=30.") from None
    return rules_of(given.get("guard", guard), replicas, max_ttl, given.get("also"))


RULES = ("guard", "replicas", "max_ttl", "also")

GUIDE_LOGIN = ("sentinel_username", "sentinel_password")

OPTIONS: Mapping[str, Option] = {
    "db": Option(number, "must be the number of a database, as ?db=3"),
    "client_name": text("client_name", "billing"),
    "username": text("username", "tenure"),
    "password": text("password", "%2A%2A%2A"),
    "ssl_ca_certs": text("ssl_ca_certs", "/etc/ssl/ca.pem"),
    "ssl_ca_path": text("ssl_ca_path", "/etc/ssl/certs"),
    "ssl_certfile": text("ssl_certfile", "/etc/ssl/client.pem"),
    "ssl_keyfile": text("ssl_keyfile", "/etc/ssl/client.key"),
    "ssl_password": text("ssl_password", "%2A%2A%2A"),
    "ssl_cert_reqs": Option(
        one_of("none", "optional", "required"), "must be none, optional or required, as ?ssl_cert_reqs=required"
    ),
    "ssl_check_hostname": switch("ssl_check_hostname"),
}
"""The options of a connection in a URL, with the names that redis-py gives them."""

KNOWN = (*RULES, *OPTIONS, *GUIDE_LOGIN)


# -- clients of redis-py -----------------------------------------------------------------------------------------

TAKEN_OVER = frozenset(
    {"db", "username", "password", "credential_provider", "client_name", "lib_name", "lib_version", "socket_keepalive"}
    | {"socket_keepalive_options", "socket_type", "driver_info", "redis_connect_func"}
)
"""The settings that are taken over from a redis-py client, besides all that begin with `ssl_`.

Timeouts and retries are not: they would cut a wait short, or repeat a request.
"""


def deployment_of_client(client: Any, rules: Rules) -> RedisDeployment:  # noqa: ANN401 - any client of redis-py
    """Take over the settings of a Redis, Sentinel or RedisCluster client. Raises UsageError for any other."""
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
        require_posix("a Unix socket", HOST_AND_PORT)
        return RedisDeployment("single", [RedisAddress("", 0, options["path"])], access, rules)
    address = RedisAddress(options.get("host", "localhost"), int(options.get("port", REDIS_PORT)))
    return RedisDeployment("single", [address], access, rules)


def _of_sentinel(pool: Any, sentinel: Any, rules: Rules) -> RedisDeployment:  # noqa: ANN401
    guides = [each.connection_pool for each in sentinel.sentinels]
    addresses = [RedisAddress(each.connection_kwargs["host"], int(each.connection_kwargs["port"])) for each in guides]
    guide_access = _access(guides[0].connection_kwargs, guides[0].connection_class)
    access = _access(pool.connection_kwargs, pool.connection_class)
    return RedisDeployment("sentinel", addresses, access, rules, pool.service_name, guide_access)


def _of_cluster(client: Any, manager: Any, rules: Rules) -> RedisDeployment:  # noqa: ANN401
    options = getattr(client, "connection_kwargs", None) or manager.connection_kwargs
    nodes = [RedisAddress(node.host, int(node.port)) for node in manager.startup_nodes.values()]
    tls = options.get("connection_class") or (ssl if options.get("ssl") else None)
    return RedisDeployment("cluster", nodes, _access(options, tls), rules)


def _access(options: Mapping[str, Any], connection: object) -> RedisAccess:
    made_by = getattr(connection, "__module__", "redis").partition(".")[0]
    if made_by not in {"redis", "valkey"}:
        raise UsageError(
            f"the client connects by {getattr(connection, '__qualname__', connection)} of {made_by}, which may lead to "
            "another server than its settings, and which Tenure cannot take over: give a client without "
            "`connection_class=`, or a URL."
        )
    kept = {
        key: value
        for key, value in options.items()
        if value is not None and (key in TAKEN_OVER or key.startswith("ssl_"))
    }
    tls = connection is ssl or "SSL" in getattr(connection, "__name__", "")
    return RedisAccess(kept, tls)
