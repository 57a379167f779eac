"""The first errors that a beginner meets say what to do, and show no password."""

import asyncio
import gc
import re
import subprocess
import sys
from pathlib import Path
from typing import cast

import pytest

from tenure import AsyncClient, Client, LockTimeout, StoreError, UsageError
from tenure.stores.memory import MemoryTable, memory_source
from tenure.stores.sqlite import sqlite_source


@pytest.mark.parametrize("url", ["locks.db", "/var/lib/locks.db", "./locks.db"])
def test_the_error_for_a_bare_path_shows_the_url(url: str) -> None:
    """The error shows the three forms of a lock file's URL."""
    with pytest.raises(UsageError, match=re.escape("sqlite:relative/path")):
        Client(url)


def test_the_error_for_an_unknown_scheme_lists_the_known_ones_without_the_password() -> None:
    """The error names the scheme and those that exist, but not the password of the URL."""
    with pytest.raises(UsageError, match="'mongodb'; there are sqlite, file, memory") as caught:
        Client("mongodb://user:hunter2@host")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("url", ["localhost:6379", "me:hunter2@localhost:6379", "127.0.0.1:6379"])
def test_the_error_for_a_bare_host_shows_the_url(url: str) -> None:
    """The text before the port is not taken for a scheme."""
    with pytest.raises(UsageError, match="as redis://host:6379") as caught:
        Client(url)
    assert "there are" not in str(caught.value)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("redi", "redis"),
        ("reddis", "redis"),
        ("zookeper", "zookeeper"),
        ("postgresql+psycopg", "postgresql"),
        ("mysql+pymysql", "mysql"),
        ("mariadb+aiomysql", "mariadb"),
    ],
)
def test_the_error_for_a_misspelled_scheme_suggests_the_right_one(typed: str, meant: str) -> None:
    """It does not list all schemes."""
    with pytest.raises(UsageError, match=rf"did you mean {meant}\?\n"):
        Client(f"{typed}://host")


@pytest.mark.parametrize(
    ("url", "meant"),
    [
        ("redis://h?gaurd=off", "guard"),
        ("redis+cluster://h?replica=1", "replicas"),
        ("redlock://a,b,c?quorm=2", "quorum"),
        ("redlock://a,b,c?max_tll=2", "max_ttl"),
        ("zookeeper://h?Session-Timeout=5", "session_timeout"),
        ("zookeeper://h?keyfile_pasword=secret", "keyfile_password"),
        ("etcd://h?sesion_timeout=5", "session_timeout"),
    ],
)
def test_the_error_for_a_misspelled_option_suggests_the_right_one(url: str, meant: str) -> None:
    """It does not list all options."""
    with pytest.raises(UsageError, match=rf"is not an option of an? \w+ URL; did you mean {meant}\?\n"):
        Client(url)


@pytest.mark.parametrize("password", ["hunter2?gaurd=hunter2", "hunter2?gaurd#hunter2", "hunter2?hunter2=1&gaurd#"])
@pytest.mark.parametrize("scheme", ["redis", "redlock", "zookeeper", "etcd"])
def test_what_may_be_the_rest_of_a_password_is_not_repeated(scheme: str, password: str) -> None:
    """The error does not suggest an option either: a `?` in a password begins no option."""
    with pytest.raises(UsageError, match="n a password write %40") as caught:
        Client(f"{scheme}://user:{password}@a,b,c")
    assert not re.search("hunter2|gaurd|did you mean", str(caught.value))


@pytest.mark.parametrize(
    ("url", "takes"),
    [
        ("redis://h?db=first", "db of the Redis URL must be the number of a database, as ?db=3."),
        ("rediss://h?ssl_check_hostname=maybe", "must be true or false, as ?ssl_check_hostname=true."),
        ("rediss://h?ssl_cert_reqs=some", "must be none, optional or required, as ?ssl_cert_reqs=required."),
        ("zookeeper://h?session_timeout=0", "must be a number of seconds from 0.1 to 3600, as ?session_timeout=30."),
        ("zookeeper://h?session_timeout=30s", "must be a number of seconds from 0.1 to 3600, as ?session_timeout=30."),
        ("zookeeper://h?acl=me", "must be open or creator, as ?acl=creator."),
        ("zookeeper://h?sasl_mechanism=PLAIN", "must be DIGEST-MD5 or GSSAPI, as ?sasl_mechanism=GSSAPI."),
        ("zookeeper://h?use_ssl=on", "must be true or false, as ?use_ssl=true."),
        (
            "zookeeper://h?use_ssl=1&ca=/none",
            "ca of the ZooKeeper URL must be the path of an existing file, as ?ca=/etc",
        ),
        ("etcd://h?session_timeout=2.5", "must be a whole number of seconds from 1 to 3600, as ?session_timeout=30."),
        ("etcds://h?ssl_cert_reqs=some", "must be none, optional or required, as ?ssl_cert_reqs=required."),
        ("etcds://h?ssl_check_hostname=on", "must be true or false, as ?ssl_check_hostname=true."),
    ],
)
def test_the_error_for_a_senseless_value_shows_a_valid_one(url: str, takes: str) -> None:
    """The error has an example to copy."""
    with pytest.raises(UsageError, match=re.escape(takes)):
        Client(url)


@pytest.mark.parametrize("scheme", ["redis", "redis+cluster", "zookeeper", "etcd"])
@pytest.mark.parametrize("host", ["h:", "h:0", "h:65536", "h:port", "h:²", ":1", "a b", "a,", "h:1:2", "::1"])
def test_hosts_are_read_alike(scheme: str, host: str) -> None:
    """The URLs of all servers refuse a host that cannot be parsed, and say what to write."""
    with pytest.raises(UsageError, match=rf"write {re.escape(scheme.partition('+')[0])}://") as caught:
        Client(f"{scheme}://{host}")
    assert ("two ports" in str(caught.value)) == (host in {"h:1:2", "::1"})


def test_a_closed_client_is_not_entered() -> None:
    """Its `with` would otherwise fail only at the first lock."""
    client = Client("memory:")
    client.close()
    with pytest.raises(UsageError, match="is closed; make a new one"), client:
        pass

    async def main() -> None:
        client = AsyncClient("memory:")
        await client.close()
        with pytest.raises(UsageError, match="is closed; make a new one"):
            async with client:
                pass

    asyncio.run(main())


def test_a_pattern_that_is_no_text_is_refused() -> None:
    """The error shows one."""
    with Client("memory:") as client, pytest.raises(UsageError, match=r"as 'orders:\*', not 5"):
        client.names(cast("str", 5))


def test_an_empty_url_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """With an empty variable of a deployment, each machine would otherwise lock in a local file of its own."""
    with pytest.raises(UsageError, match="is empty"):
        Client("")
    monkeypatch.setenv("TENURE_URL", "")
    with pytest.raises(UsageError, match="TENURE_URL unset"):
        Client()


@pytest.mark.parametrize("missing", ["redis", "hiredis"])
def test_a_missing_library_is_named_with_its_extra(missing: str) -> None:
    """The error comes before any import that needs the library; stores that do not need it work."""
    urls = ["redis://h", "redis://h?foo=1", "redis+cluster://h", "redlock://a,b,c"]
    code = f"""
import sys
sys.modules[{missing!r}] = None
from tenure import Client, UsageError
with Client(quorum=["memory://a", "memory://b", "memory://c"]) as client, client.lock("name"):
    pass
for url in {urls!r}:
    try:
        Client(url)
    except UsageError as error:
        print(error)
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    advice = f"the Redis store needs {missing}, which is not installed: pip install 'tenure[redis]'"
    assert said.stdout.splitlines() == [advice] * len(urls)


@pytest.mark.parametrize("url", [Path("/tmp/locks.db"), 5, b"sqlite:///tmp/locks.db"])  # noqa: S108 - never made
def test_a_url_that_is_no_str_is_refused_by_its_type(url: object) -> None:
    """The error for a path object, a number or bytes names the type."""
    with pytest.raises(UsageError, match=f"not {type(url).__name__}"):
        Client(cast("str", url))


@pytest.mark.parametrize("owner", ["\ud800", "x" * 513, 5])
def test_an_owner_that_no_store_can_keep_is_refused(owner: object) -> None:
    """An owner is text like a name; the client refuses another one when it is made, before the store would."""
    with pytest.raises(UsageError, match="an owner"):
        Client("memory://", owner=cast("str", owner))


def test_a_folder_that_takes_no_files_is_not_said_to_be_missing() -> None:
    """If the folder exists but the file cannot be made, the error does not say to create the folder."""
    with Client(store=sqlite_source(Path("/proc/locks.db"))) as client, pytest.raises(StoreError) as caught:
        client.lock("name").acquire()
    assert "does not exist" not in str(caught.value)


def test_a_timeout_on_the_clients_own_lease_says_so() -> None:
    """The error says that the lock is not reentrant."""
    with Client(store=memory_source(MemoryTable())) as client:
        lock = client.lock("name")
        with lock, pytest.raises(LockTimeout, match="not reentrant"):
            lock.acquire(0.05)


def test_an_async_client_that_is_not_closed_with_its_loop_warns() -> None:
    """A loop cannot end it where another one runs. The warning names the AsyncClient, not a nameless socket."""

    async def use() -> None:
        client = AsyncClient(store=memory_source(MemoryTable()))
        await (await client.lock("name").acquire()).release()

    async def main() -> None:
        loop = asyncio.new_event_loop()
        await asyncio.to_thread(loop.run_until_complete, use())
        loop.close()
        with pytest.warns(ResourceWarning, match=r"<AsyncClient memory://> was not closed"):
            gc.collect()

    asyncio.run(main())


def test_the_repr_of_a_loss_event_names_its_lease() -> None:
    """The repr also says whether the event is set."""
    with Client(store=memory_source(MemoryTable())) as client, client.lock("name") as lease:
        assert repr(lease.lost) == "<Loss of 'name': not set>"
