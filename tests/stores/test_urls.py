"""What stands in the place of a store's URL by mistake, and what the error says instead."""

import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from tenure import AsyncClient, Client, UsageError


@pytest.mark.parametrize(
    "scheme", ["redis", "rediss", "redis+cluster", "redlock", "etcd", "zookeeper", "memcached", "postgresql", "mysql"]
)
def test_a_url_with_one_slash_is_refused(scheme: str) -> None:
    """`redis:/host` has no host: it would be the server of this machine, with a database of that name."""
    for rest in ("/s3cr3t", "s3cr3t", ""):
        with pytest.raises(
            UsageError, match=f"two slashes after its scheme, as {scheme}://host".replace("+", r"\+")
        ) as caught:
            Client(f"{scheme}:{rest}")
        assert "s3cr3t" not in str(caught.value)


@pytest.mark.parametrize("right", ["s3://bucket", "gs://bucket", "az://container", "dynamodb://table"])
def test_a_url_with_one_slash_learns_what_stands_there(right: str) -> None:
    """The URL of a bucket or a table names no host, and neither does the advice."""
    with pytest.raises(UsageError, match=f"two slashes after its scheme, as {right}"):
        Client(right.replace("//", "/"))


HOSTED = ["redis://{}", "redis+sentinel://good,{}/name", "redis+cluster://good,{}", "mysql://good,{}/name"] + [
    f"{scheme}://good,{{}}:1" for scheme in ("etcd", "zookeeper", "nats", "memcached", "postgresql")
]


@pytest.mark.parametrize("host", ["a..b", ".a", "x" * 64])
@pytest.mark.parametrize("url", HOSTED)
def test_a_host_that_no_resolver_takes_is_refused(url: str, host: str) -> None:
    """When the URL is read: the encoding of the name would raise UnicodeError at each try to connect."""
    with pytest.raises(UsageError, match="a part that is empty or longer than 63 characters") as caught:
        Client(url.format(host))
    assert host not in str(caught.value)
    for name in (f"a.{'x' * 63}.", "münchen.de", "[fe80::1%eth0]"):
        Client(url.format(name)).close()


def test_a_connection_or_a_session_of_sqlalchemy_is_no_store() -> None:
    """Its engine is one, and both are told where it is."""
    engine = create_engine("sqlite://")
    with engine.connect() as connection, Session(engine) as session:
        for given in (connection, session):
            with pytest.raises(UsageError, match=r"connection\.engine or session\.get_bind\(\)"):
                Client(given)
    engine.dispose()


def test_an_async_client_outside_of_asyncio_says_what_to_use() -> None:
    """As in trio, whose tasks run in no event loop of asyncio."""
    work = AsyncClient("memory://").lock("name").acquire()
    with pytest.raises(RuntimeError) as caught:
        work.send(None)
    assert any("trio.to_thread.run_sync" in note for note in caught.value.__notes__)
