"""What a URL, or a client of redis-py, says: understood, or refused with a word on what to write. No secret is told."""

import asyncio
import logging
import traceback
from collections.abc import Generator
from contextlib import nullcontext
from importlib import import_module
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tenure import AsyncClient, Client, StoreError, UsageError
from tenure.contracts.limits import MAX_TTL
from tenure.runtimes.threads import ThreadsRuntime
from tenure.stores.redis import redis_source
from tenure.stores.redis.deployment import GUARDS, NO_GUARD, OBSERVED, STRICT, RedisDeployment, Rules
from tenure.stores.redis.links.link import RedisAddress
from tenure.stores.redis.names import state_key
from tenure.stores.redis.options import OPTIONS, deployment_of, deployment_of_client
from tenure.stores.urls import store_source
from tests.faults.scenes import API_FORMS
from tests.properties import thorough
from tests.redis.servers import clean, tidy
from tests.servers import Cluster, RedisServer, SentinelGroup

redis: Any = import_module("redis")  # so that type checkers don't take tests/redis for it
redis_asyncio: Any = import_module("redis.asyncio")


def read(url: str) -> RedisDeployment:
    """Read a URL."""
    return deployment_of(urlsplit(url))


# -- URLs --------------------------------------------------------------------------------------------------------

ONE = [RedisAddress("host", 6379)]
THREE = [RedisAddress("a", 1), RedisAddress("b", 2), RedisAddress("c", 3)]

FORMS: dict[str, tuple[str, list[RedisAddress], dict[str, object], bool]] = {
    "redis://host": ("single", ONE, {}, False),
    "redis://": ("single", [RedisAddress("localhost")], {}, False),
    "redis://host:7000/3": ("single", [RedisAddress("host", 7000)], {"db": 3}, False),
    "redis://[::1]:7000": ("single", [RedisAddress("::1", 7000)], {}, False),
    "redis://[::1]": ("single", [RedisAddress("::1")], {}, False),
    "redis://user:word@host": ("single", ONE, {"username": "user", "password": "word"}, False),
    "redis://:word@host": ("single", ONE, {"username": None, "password": "word"}, False),
    "redis://user@host": ("single", ONE, {"username": "user"}, False),
    "redis://u%3Aser:w%40r%2Fd%23@host": ("single", ONE, {"username": "u:ser", "password": "w@r/d#"}, False),
    "redis://host?db=4&client_name=me": ("single", ONE, {"db": 4, "client_name": "me"}, False),
    "redis://host?username=user&password=word": ("single", ONE, {"username": "user", "password": "word"}, False),
    "rediss://host": ("single", ONE, {}, True),
    "rediss://host?ssl_ca_certs=/ca&ssl_check_hostname=no&ssl_cert_reqs=none": (
        "single",
        ONE,
        {"ssl_ca_certs": "/ca", "ssl_check_hostname": False, "ssl_cert_reqs": "none"},
        True,
    ),
    "valkey://host": ("single", ONE, {}, False),
    "valkeys://host": ("single", ONE, {}, True),
    "unix:///run/redis.sock": ("single", [RedisAddress("", 0, "/run/redis.sock")], {}, False),
    "unix:///run/a%20b.sock?db=2": ("single", [RedisAddress("", 0, "/run/a b.sock")], {"db": 2}, False),
    "unix://user:word@/run/s": (
        "single",
        [RedisAddress("", 0, "/run/s")],
        {"username": "user", "password": "word"},
        False,
    ),
    "redis+sentinel://a:1,b:2,c:3/main": ("sentinel", THREE, {}, False),
    "redis+sentinel://a/main/5": ("sentinel", [RedisAddress("a", 26379)], {"db": 5}, False),
    "rediss+sentinel://:word@a/main": (
        "sentinel",
        [RedisAddress("a", 26379)],
        {"username": None, "password": "word"},
        True,
    ),
    "valkey+sentinel://a/main": ("sentinel", [RedisAddress("a", 26379)], {}, False),
    "redis+cluster://a:1,b:2,c:3": ("cluster", THREE, {}, False),
    "redis+cluster://host/0": ("cluster", ONE, {}, False),
    "rediss+cluster://user:word@host": ("cluster", ONE, {"username": "user", "password": "word"}, True),
    "valkeys+cluster://host": ("cluster", ONE, {}, True),
}


@pytest.mark.parametrize("url", FORMS)
def test_every_form_of_a_url(url: str) -> None:
    """Hosts, ports, logins, databases and TLS are read from wherever a URL has a place for them."""
    found = read(url)
    assert (found.shape, found.addresses, dict(found.access.options), found.access.tls) == FORMS[url]
    assert store_source(url).title == found.title()


def test_the_service_and_its_guides() -> None:
    """Sentinels have a login of their own, and share the TLS settings."""
    url = "rediss+sentinel://user:word@a,b:7/main?sentinel_username=guide&sentinel_password=path&ssl_ca_certs=/ca"
    found = read(url)
    assert found.service == "main"
    assert found.addresses == [RedisAddress("a", 26379), RedisAddress("b", 7)]
    assert dict(found.guides.options) == {"username": "guide", "password": "path", "ssl_ca_certs": "/ca"}
    assert found.guides.tls
    assert dict(found.access.options) == {"username": "user", "password": "word", "ssl_ca_certs": "/ca"}


@pytest.mark.parametrize(
    ("query", "rules"),
    [
        ("", Rules(OBSERVED, 0, MAX_TTL)),
        ("?guard=strict&max_ttl=2.5", Rules(STRICT, 0, 2.5)),
        ("?guard=off&replicas=2", Rules(NO_GUARD, 2, MAX_TTL)),
        ("?guard=observed&replicas=0&max_ttl=3600", Rules(OBSERVED, 0, 3600.0)),
    ],
)
@pytest.mark.parametrize("url", ["redis://host", "unix:///s", "redis+sentinel://a/main", "redis+cluster://a"])
def test_the_rules(url: str, query: str, rules: Rules) -> None:
    """How safe to be is said in the same way of every kind of server."""
    assert read(url + query).rules == rules


WRONG = {
    "redis://host?unknown=1": "'unknown' is not an option",
    "redis://host?socket_timeout=1": "'socket_timeout' is not an option",
    "redis://host?guard=maybe": "`guard` must be one of off, observed, uptime, strict",
    "redis://host?replicas=-1": "must be a whole number from 0 on",
    "redis://host?replicas=one": "replicas and max_ttl must be numbers",
    "redis://host?max_ttl=0": "`max_ttl` must be the longest ttl that a lock may have",
    "redis://host?max_ttl=nan": "`max_ttl` must be the longest ttl",
    "redis://host?max_ttl=long": "replicas and max_ttl must be numbers",
    "redis://host?db=first": "option db",
    "rediss://host?ssl_check_hostname=maybe": "option ssl_check_hostname",
    "rediss://host?ssl_cert_reqs=sometimes": "option ssl_cert_reqs",
    "redis://host?ssl_ca_certs=/ca": "write rediss://",
    "redis://host/first": "database of a Redis URL must be a number",
    f"redis://host/{'9' * 5000}": "database of a Redis URL must be a number",
    "redis://host:port": "host or a port",
    "redis://host:0": "host or a port",
    "redis://host:65536": "host or a port",
    "redis://a,b": "redis:// names one server",
    "redis://a,,b": "host or a port",
    "redis://host#frag": "nothing after `#`",
    "redis://user:wo/rd@host": "write %40 for `@`",
    "redis+sentinel://a": "must end with the service",
    "redis+sentinel://a/main/first": "database of a Redis URL must be a number",
    "redis+cluster://a/3": "only database 0",
    "redis+cluster://a?db=3": "only database 0",
    "unix://socket": "absolute path",
    "unix://host/run/s": "absolute path",
}


@pytest.mark.parametrize("url", WRONG)
def test_what_cannot_be_right_is_refused(url: str) -> None:
    """A URL that cannot be right is refused when the client is made, and the message says what to write."""
    with pytest.raises(UsageError) as caught:
        Client(url)
    assert WRONG[url] in str(caught.value)


def test_an_unknown_option_is_told_the_known_ones() -> None:
    """Whoever writes an option that is like none is shown all there are."""
    with pytest.raises(UsageError) as caught:
        read("redis://host?wait_for=1")
    assert all(option in str(caught.value) for option in [*OPTIONS, "guard", "replicas", "max_ttl"])


@pytest.mark.parametrize("guard", GUARDS)
def test_a_guard_bounds_the_ttl(guard: str) -> None:
    """Nothing may be granted that outlives a quarantine: a longer ttl is refused when the lock is made."""
    url = f"redis://host?guard={guard}&max_ttl=7"
    assert store_source(url).capabilities.max_ttl == (float("inf") if guard == "off" else 7)
    client = Client(url)
    client.lock("name", ttl=7)
    with nullcontext() if guard == "off" else pytest.raises(UsageError, match=r"\?max_ttl=8"):
        client.lock("name", ttl=8)


# -- secrets -----------------------------------------------------------------------------------------------------

SECRET = "s3cr3t"  # noqa: S105 - it opens nothing

passwords = st.lists(st.sampled_from("/?#@:/?#@:%&=+[],; 漢") | st.just(""), min_size=1, max_size=4).map(
    lambda between: SECRET.join(["", *between, ""])
)
"""Whatever may be in a password, with the secret in every part that it may be taken apart into."""

urls = st.sampled_from(
    ["{}://user:{}@host:1", "{}://:{}@host", "{}://user:{}@host/1", "{}://{}@a,b/main", "{}://u:{}@a/main/1?guard=off"]
)
schemes = st.sampled_from(
    ["redis", "rediss", "unix", "redis+sentinel", "rediss+sentinel", "redis+cluster", "valkey", "valkeys+cluster"]
)


def told(url: str) -> list[str]:
    """Return all that is said of a URL before anything is connected."""
    try:
        with Client(url) as client:
            session = client.session()
            return [repr(client), repr(session.store), store_source(url).title]
    except UsageError as error:
        return traceback.format_exception(error)


@given(urls, schemes, passwords)
@example("{}://u:{}@host", "redis", f"{SECRET}?{SECRET}=1")
@example("{}://u:{}@host", "redis+sentinel", f"1/{SECRET}")
@example("{}://u:{}@host", "unix", f"{SECRET}/{SECRET}")
@thorough(400)
def test_no_secret_is_told_of_a_url(url: str, scheme: str, password: str) -> None:
    """Whatever a password holds, escaped or not, neither an error nor a repr shows any of it."""
    for written in (quote(password, safe=""), password):
        lines = [line for line in told(url.format(scheme, written)) if "tests/redis" not in line]
        assert not any(SECRET in line.replace(url.format(scheme, written), "") for line in lines), lines


@given(url=urls, scheme=schemes, password=passwords)
@thorough(100)
def test_an_escaped_password_arrives(url: str, scheme: str, password: str) -> None:
    """A password that is escaped as in any URL is the password, whatever it holds."""
    try:
        found = read(url.format(scheme, quote(password, safe="")))
    except UsageError:  # this form does not go with this scheme
        return
    assert found.access.options.get("password", found.access.options.get("username")) == password


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[RedisServer, None, None]:
    """Run a server with a user who is known by a password with all that means something in a URL."""
    with tidy(RedisServer(tmp_path_factory.mktemp("redis"))) as running:
        running.command("ACL", "SETUSER", "known", "on", f">{SECRET}:/@#?%&", "~*", "&*", "+@all")
        yield running


def lock_once(form: str, store: Any) -> None:  # noqa: ANN401 - a URL or a client
    """Have a lock, in one colour."""

    async def main() -> None:
        async with AsyncClient(store, retry_for=0.2) as client, client.lock("options"):
            pass

    if form == API_FORMS[0]:
        with Client(store, retry_for=0.2) as client, client.lock("options"):
            pass
    else:
        asyncio.run(main())


@pytest.mark.parametrize("form", API_FORMS)
@pytest.mark.parametrize("user", ["known", "unknown"])
def test_no_secret_is_told_of_a_refused_login(
    server: RedisServer, user: str, form: str, caplog: pytest.LogCaptureFixture
) -> None:
    """No error, cause or log holds a password that a server refuses."""
    caplog.set_level(logging.DEBUG)
    for password in (SECRET, f"{SECRET}:/@#", f"\r\n{SECRET}\r\n", f"漢{SECRET}"):
        with pytest.raises(StoreError) as caught:
            lock_once(form, server.url_for(user, quote(password, safe="")))
        chain = [caught.value, caught.value.__cause__, caught.value.__context__]
        assert SECRET not in "".join(f"{error!r} {error}" for error in chain)
        assert SECRET not in caplog.text


@pytest.mark.parametrize("form", API_FORMS)
def test_a_login_a_database_and_a_name_arrive(server: RedisServer, form: str) -> None:
    """What a URL says of the connection is done."""
    login = server.url_for("known", quote(f"{SECRET}:/@#?%&", safe="")).removesuffix("/0")
    with server.connect() as wire:
        for url in (f"{login}/5?client_name=me", f"{login}?db=5&client_name=me"):
            lock_once(form, url)
            wire.command("SELECT", 5)
            assert wire.command("EXISTS", state_key("options")) == 1
            assert wire.command("FLUSHDB") == "OK"
            wire.command("SELECT", 0)
            assert wire.command("EXISTS", state_key("options")) == 0


# -- clients of redis-py -----------------------------------------------------------------------------------------


def taken_over(client: Any) -> RedisDeployment:  # noqa: ANN401 - any client
    """Take over the settings of a client."""
    return deployment_of_client(client, Rules())


@pytest.mark.parametrize("module", [redis, redis_asyncio], ids=API_FORMS)
def test_the_settings_of_a_client_are_taken_over(module: Any) -> None:  # noqa: ANN401 - of redis-py
    """Servers, logins, databases, names and TLS come from a client; timeouts, retries and decoding do not."""
    retry = module.Redis().connection_pool.connection_kwargs.get("retry")
    found = taken_over(
        module.Redis(
            host="there",
            port=7000,
            db=3,
            username="user",
            password="word",  # noqa: S106 - of nobody
            client_name="me",
            socket_timeout=0.1,
            socket_connect_timeout=0.1,
            retry=retry,
            health_check_interval=3,
            decode_responses=True,
            ssl=True,
            ssl_ca_certs="/ca",
            ssl_check_hostname=False,
        )
    )
    options = dict(found.access.options)
    assert (found.shape, found.addresses, found.access.tls) == ("single", [RedisAddress("there", 7000)], True)
    wanted = {"db": 3, "username": "user", "password": "word", "client_name": "me", "ssl_ca_certs": "/ca"}
    assert wanted.items() <= options.items()
    assert not options["ssl_check_hostname"]
    assert not any(key.startswith(("socket_t", "socket_c", "retry", "health", "decode", "host")) for key in options)


@pytest.mark.parametrize("module", [redis, redis_asyncio], ids=API_FORMS)
def test_a_socket_of_a_client_is_taken_over(module: Any) -> None:  # noqa: ANN401 - of redis-py
    """A client of a Unix socket leads there."""
    assert taken_over(module.Redis(unix_socket_path="/run/s")).addresses == [RedisAddress("", 0, "/run/s")]
    assert taken_over(module.Redis.from_url("unix:///run/s?db=2")).access.options["db"] == 2


@pytest.mark.parametrize("module", [redis, redis_asyncio], ids=API_FORMS)
def test_the_settings_of_sentinels_are_taken_over(module: Any) -> None:  # noqa: ANN401 - of redis-py
    """The service, its Sentinels, and the logins of both come from `master_for`."""
    guides = {"username": "guide", "password": "path"}
    sentinel = module.Sentinel([("a", 1), ("b", 2)], sentinel_kwargs=guides, password="word")  # noqa: S106
    found = taken_over(sentinel.master_for("main", db=2))
    assert (found.shape, found.service, found.addresses) == (
        "sentinel",
        "main",
        [RedisAddress("a", 1), RedisAddress("b", 2)],
    )
    assert guides.items() <= found.guides.options.items()
    assert {"password": "word", "db": 2}.items() <= found.access.options.items()


class OwnConnection(redis.Connection):  # type: ignore[misc]
    """A class of connections of a user's own, which may connect anywhere."""


class OwnAsyncConnection(redis_asyncio.Connection):  # type: ignore[misc]
    """The same for asyncio."""


@pytest.mark.parametrize(("module", "own"), [(redis, OwnConnection), (redis_asyncio, OwnAsyncConnection)])
def test_a_client_with_connections_of_its_own_is_refused(module: Any, own: object) -> None:  # noqa: ANN401 - of redis-py
    """Where a class of the user's connects is not known, so nothing is locked by a guess."""
    pool = module.ConnectionPool(connection_class=own, host="there")
    sentinels = [("a", 1)]
    for client in (
        module.Redis(connection_pool=pool),
        module.Sentinel(sentinels).master_for("main", connection_class=own),
    ):
        with pytest.raises(UsageError, match="`connection_class=`"):
            taken_over(client)


class Provider(redis.CredentialProvider):  # type: ignore[misc]
    """Knows a login, and counts how often it is asked."""

    asked = 0

    def get_credentials(self) -> tuple[str, str]:
        """Return it."""
        self.asked += 1
        return "known", f"{SECRET}:/@#?%&"


@pytest.mark.parametrize("form", API_FORMS)
def test_a_credential_provider_is_asked(server: RedisServer, form: str) -> None:
    """Credentials that a client of redis-py gets from elsewhere are got from there by us as well."""
    host, port = server.address
    module = redis_asyncio if form == API_FORMS[1] else redis
    provider = Provider()
    lock_once(form, module.Redis(host=host, port=port, credential_provider=provider))
    assert provider.asked


@pytest.mark.parametrize("form", API_FORMS)
def test_clients_of_every_kind_lead_to_their_servers(
    redis_sentinel: SentinelGroup, redis_cluster: Cluster, form: str
) -> None:
    """A master behind Sentinels and a Cluster are found by the clients that know them."""
    module = redis_asyncio if form == API_FORMS[1] else redis
    with clean([*redis_sentinel.servers, *redis_cluster.nodes]):
        sentinel = module.Sentinel(redis_sentinel.addresses)
        lock_once(form, sentinel.master_for(redis_sentinel.service))
        host, port = redis_cluster.addresses[0]
        lock_once(form, module.RedisCluster(host=host, port=port))


def test_a_source_of_a_client_takes_the_rules() -> None:
    """What a URL says after the question mark is said of a client by arguments."""
    source = redis_source(redis.Redis(), guard="strict", replicas=2, max_ttl=9)
    assert (source.capabilities.max_ttl, source.capabilities.pushes_count) == (9, False)
    with pytest.raises(UsageError, match="`guard` must be one of"):
        redis_source(redis.Redis(), guard="lax")


@pytest.mark.parametrize("what", [object(), 5, redis.ConnectionPool(), ThreadsRuntime()])
def test_what_is_no_client_is_refused(what: object) -> None:
    """Whatever else is given is no store, and the message says what would be."""
    with pytest.raises(UsageError, match=r"is no store: give a URL, or a Redis|must be a str|store URL is a str"):
        redis_source(what)
