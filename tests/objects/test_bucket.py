"""A bucket that ignores conditions is refused, errors and titles hold no secret, and costs are as the page says."""

import asyncio
import http.client
import os
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from obstore import exceptions
from obstore.store import MemoryStore

import tenure
from tenure.errors import StoreError, UsageError
from tenure.stores.objects import objects_source, table
from tenure.stores.objects.table import ObjectTable
from tenure.stores.rows import Row
from tenure.stores.urls import store_source
from tests.planting import planted
from tests.servers import SeaweedServer

CONDITIONS = ("if-match", "if-none-match")


class Gateway(ThreadingHTTPServer):
    """A proxy that takes a header away from each request, and counts requests."""

    daemon_threads = True

    def __init__(self, server: SeaweedServer) -> None:
        self.behind = server.address
        self.removes: tuple[str, ...] = ()
        self.requests: list[str] = []
        super().__init__(("127.0.0.1", 0), _Passing)


class _Passing(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        server: Any = self.server
        server.requests.append(self.command)
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        kept = {key: value for key, value in self.headers.items() if key.lower() not in server.removes}
        host, port = server.behind
        with closing(http.client.HTTPConnection(host, port, timeout=30)) as behind:
            behind.request(self.command, self.path, body, kept)
            reply = behind.getresponse()
            data = reply.read()
        self.send_response(reply.status)
        for key, value in reply.getheaders():
            if key.lower() not in {"content-length", "transfer-encoding", "date", "server"}:
                self.send_header(key, value)
        self.send_header("content-length", str(len(data)))
        with suppress(BrokenPipeError, ConnectionResetError):  # a client whose time was up waits no longer
            self.end_headers()
            self.wfile.write(data)

    do_PUT = do_GET  # noqa: N815 - as the base calls it

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as the base names it
        """Say nothing."""


@pytest.fixture
def gateway(seaweed_server: SeaweedServer) -> Iterator[Gateway]:
    """Run a proxy."""
    with Gateway(seaweed_server) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("removed", CONDITIONS)
def test_a_proxy_that_removes_a_condition_is_refused(
    removed: str, gateway: Gateway, seaweed_server: SeaweedServer
) -> None:
    """By the first client that wants a lock, and by the doctor; without it both find nothing."""
    url = seaweed_server.url_behind(gateway.server_address[1])
    with tenure.Client(url) as client, client.lock(f"through {removed}", timeout=100):
        assert client.examine().sound
    gateway.removes = (removed,)
    with tenure.Client(url) as client:
        with pytest.raises(StoreError, match="It takes the condition that a row must"):
            client.lock("a").acquire(timeout=100)
        assert [each.id for each in client.examine().findings] == ["table-conditions"]


def test_costs_are_as_the_page_says(gateway: Gateway, seaweed_server: SeaweedServer) -> None:
    """A pair is two writes from the second time on."""
    with tenure.Client(seaweed_server.url_behind(gateway.server_address[1])) as client:
        lock = client.lock("costs")
        for _ in range(2):
            with lock:
                pass
        gateway.requests.clear()
        with lock:
            pass
    assert gateway.requests == ["PUT", "PUT"]


def test_no_secret_is_shown(seaweed_server: SeaweedServer) -> None:
    """Not by the client, nor by an error of a server that is away, nor of an option."""
    url = seaweed_server.url_behind(1)
    with tenure.Client(url, retry_for=0) as client:
        assert "a-secret" not in repr(client)
        with pytest.raises(StoreError) as failed:
            client.lock("a").acquire(timeout=0)
    assert "a-secret" not in f"{failed.value!r} {failed.value.__cause__!r} {failed.value.__context__!r}"
    assert "s3://locks/tests" in str(failed.value)


@pytest.mark.parametrize(
    "url",
    ["s3://", "s3://key:a-secret@bucket", "s3://b?secret=a-secret", "gs://b?service_account=/none", "s3://b?poll=0"],
)
def test_wrong_urls_are_refused(url: str) -> None:
    """Nothing of them is repeated."""
    with pytest.raises(UsageError) as failed:
        store_source(url)
    assert "a-secret" not in str(failed.value)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("s3://bucket?endpoint=http://127.0.0.1:1&allow_http=true&", "it cannot be reached"),
        ("s3://bucket?endpoint=http://127.0.0.1:1&", "add &allow_http=true"),
    ],
)
def test_an_error_says_what_to_do(url: str, says: str) -> None:
    """Nothing of the text of obstore is repeated, which may contain a signature."""
    login = "region=us-east-1&access_key_id=any&secret_access_key=a-secret"
    with tenure.Client(url + login, retry_for=0) as client, pytest.raises(StoreError) as caught:
        client.lock("name").try_acquire()
    assert says in str(caught.value)
    assert "a-secret" not in str(caught.value)


def test_an_account_that_is_missing_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """At once: it belongs to the URL, if it is not in the environment."""
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    with pytest.raises(UsageError, match=r"name the account as \?account_name="):
        tenure.Client("az://container")


@pytest.mark.parametrize("place", ["http://169.254.169.254/latest/api/token", "http://metadata.google.internal/token"])
def test_credentials_that_are_missing_are_asked_for(place: str) -> None:
    """Without any, obstore asks the cloud for those of the machine; what that answers would mislead."""
    error = exceptions.GenericError(
        f"Error performing PUT {place} - Server returned non-2xx status code: 403 Forbidden"
    )
    assert "no credentials were found" in table.cause_of(error)


def test_a_forked_child_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The threads of obstore do not exist there, and a request would wait for them."""
    with tenure.Client(store=objects_source(MemoryStore())) as client:
        assert not client.names()
        monkeypatch.setattr(table, "_used_by", [os.getpid() + 1])
        with pytest.raises(StoreError, match="forked"):
            client.names()


def test_a_process_that_ends_begins_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody would wait for it."""
    monkeypatch.setattr(table, "_ending", [True])
    with (
        tenure.Client(store=objects_source(MemoryStore()), retry_for=0) as client,
        pytest.raises(StoreError, match="the process ends"),
    ):
        client.names()


async def rows_are_rows() -> None:
    """Write only what is unchanged, list in order and in pages, and find what is not there absent."""
    rows = ObjectTable(MemoryStore(), "a bucket")
    assert await rows.read("lock.a", 9) == Row()
    first = await rows.write("lock.a", b"1", None, 9)
    assert first is not None
    assert await rows.write("lock.a", b"2", None, 9) is None
    second = await rows.write("lock.a", b"2", first, 9)
    assert second is not None
    assert second != first
    assert await rows.write("lock.a", b"3", first, 9) is None
    assert await rows.read("lock.a", 9) == Row(b"2", second)
    assert await rows.write("lock.none", b"1", second, 9) is None
    for key in ("cell.a", "lock.A", "lock.ab", "lock.b", "lock.c", "zzz"):
        await rows.write(key, b"", None, 9)
    assert await rows.keys("lock.", "", 99, 9) == ["lock.A", "lock.a", "lock.ab", "lock.b", "lock.c"]
    assert await rows.keys("lock.a", "", 99, 9) == ["lock.a", "lock.ab"]
    assert await rows.keys("lock.", "lock.a", 2, 9) == ["lock.ab", "lock.b"]


def test_rows_are_rows() -> None:
    """As the contract says."""
    asyncio.run(rows_are_rows())


@pytest.mark.parametrize(
    ("method", "right", "wrong"),
    [
        ("write", '"create" if version is None else version', '"overwrite" if version is None else version'),
        ("write", '"create" if version is None else version', '"create" if version is None else "overwrite"'),
        ("keys", "max(prefix[:-1], after)", "max(prefix, after)"),
        ("keys", "if key.startswith(prefix)", ""),
        ("keys", "max(prefix[:-1], after)", "prefix[:-1]"),
    ],
)
def test_a_planted_bug_is_found(method: str, right: str, wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a maintainer could get wrong."""
    monkeypatch.setattr(ObjectTable, method, planted(ObjectTable, method, right, wrong))
    try:
        asyncio.run(rows_are_rows())
    except Exception:  # noqa: BLE001 - whatever it is, it is noticed
        return
    pytest.fail("nobody noticed")
