"""A bucket as a table: writes by number, repetitions, servers that are lost, and buckets that would lose locks."""

import asyncio
import gc
import os
import threading
import warnings
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import tenure
from tenure.stores.nats import bucket as module
from tenure.stores.nats.bucket import Bucket
from tenure.stores.nats.options import deployment_of
from tenure.stores.rows.contract import Row
from tenure_testing.conformance.kit import Kit
from tests.faults.scenes import API_FORMS, client_at, play
from tests.hazards.helpers import cancel_all, soon
from tests.planting import module_with
from tests.rows.forking import assert_a_forked_child_has_connections_of_its_own
from tests.servers import NatsCluster, NatsServer, Proxy
from tests.servers.tls import Certificates

LONG = 20.0
Scene = Callable[[Bucket], Awaitable[None]]


def run(url: str, scene: Scene, source: Any = module) -> None:  # noqa: ANN401 - a module, maybe with a bug
    """Run a scene on a bucket."""

    async def main() -> None:
        bucket = source.Bucket(deployment_of(urlsplit(url)))
        try:
            async with asyncio.timeout(2 * LONG):
                await scene(bucket)
        finally:
            await bucket.close()

    asyncio.run(main())


def url_of(proxy: Proxy, bucket: str) -> str:
    """Return where clients connect."""
    host, port = proxy.address
    return f"nats://{host}:{port}/{bucket}"


@pytest.fixture
def proxy(nats_server: NatsServer) -> Iterator[Proxy]:
    """Put a proxy in front of the server."""
    with Proxy(nats_server.address) as running:
        yield running


async def writes_by_number(bucket: Bucket) -> None:
    """Of several writes that expect the same version one is done; no version comes again."""
    assert await bucket.read("lock.a", LONG) == Row()
    first = await bucket.write("lock.a", b"1", None, LONG)
    assert await bucket.write("lock.a", b"2", None, LONG) is None
    done = await asyncio.gather(*(bucket.write("lock.a", b"%d" % each, first, LONG) for each in range(3, 10)))
    assert [each for each in done if each] == [max(filter(None, done))]
    row = await bucket.read("lock.a", LONG)
    assert row.version == max(filter(None, done))
    assert await bucket.write("lock.a", b"late", first, LONG) is None


async def lists_keys(bucket: Bucket) -> None:
    """Keys come in the order of their bytes, page by page, and those of one kind alone."""
    names = sorted(f"lock.{each}" for each in ("b", "ba", "bb-1", "c", "B", "b=2F.cut"))
    for key in [*names, "cell.b"]:
        await bucket.write(key, b"x", None, LONG)
    assert await bucket.keys("lock.", "", 100, LONG) == names
    wanted = [each for each in names if each.startswith("lock.b")]
    assert await bucket.keys("lock.b", "", 2, LONG) == wanted[:2]
    assert await bucket.keys("lock.b", wanted[1], 100, LONG) == wanted[2:]


@pytest.mark.parametrize("scene", [writes_by_number, lists_keys], ids=lambda scene: scene.__name__)
def test_a_bucket_is_a_table(scene: Scene, nats_server: NatsServer, tmp_path: Path) -> None:
    """It keeps the contract of a table."""
    run(f"{nats_server.url}/{tmp_path.name}", scene)


def lost_reply(proxy: Proxy) -> Scene:
    """Return a scene in which the reply to a write is lost, and the connection with it."""

    async def scene(bucket: Bucket) -> None:
        first = await bucket.write("lock.a", b"1", None, LONG)
        proxy.swallow(containing=b"Expected-Last-Subject")
        second = await bucket.write("lock.a", b"2", first, LONG)
        row = await bucket.read("lock.a", LONG)
        assert row == Row(b"2", second)

    return scene


def lost_race(proxy: Proxy, url: str) -> Scene:
    """Return a scene in which the reply to a write is lost that was refused, because another was faster."""

    async def scene(bucket: Bucket) -> None:
        first = await bucket.write("lock.a", b"1", None, LONG)
        other = Bucket(deployment_of(urlsplit(url)))
        assert await other.write("lock.a", b"other", first, LONG)
        await other.close()
        proxy.swallow(containing=b"Expected-Last-Subject")
        with pytest.raises(tenure.OutcomeUnknown):
            await bucket.write("lock.a", b"2", first, LONG)
        assert (await bucket.read("lock.a", LONG)).value == b"other"

    return scene


def lost_look(proxy: Proxy) -> Scene:
    """Return a scene in which the reply to a write is lost, and nobody says what is in the row."""

    async def scene(bucket: Bucket) -> None:
        first = await bucket.write("lock.a", b"1", None, LONG)

        async def is_silent(*_: Any) -> Row:  # noqa: ANN401
            raise tenure.StoreUnavailable("silent")

        setattr(bucket, "read", is_silent)  # noqa: B010 - as a type checker sees it, a method
        proxy.swallow(containing=b"Expected-Last-Subject")
        with pytest.raises(tenure.OutcomeUnknown):
            await bucket.write("lock.a", b"2", first, LONG)

    return scene


def test_a_write_that_was_repeated_and_cannot_be_looked_at_is_unknown(proxy: Proxy, tmp_path: Path) -> None:
    """Whoever counts must not count it as not done."""
    run(url_of(proxy, tmp_path.name), lost_look(proxy))


def test_a_write_whose_reply_was_lost_is_found_done(proxy: Proxy, tmp_path: Path) -> None:
    """It is sent again, refused, and found in the row."""
    run(url_of(proxy, tmp_path.name), lost_reply(proxy))


def test_a_write_that_another_overtook_is_not_said_to_be_done(
    proxy: Proxy, nats_server: NatsServer, tmp_path: Path
) -> None:
    """When the row is not as it was written, nobody knows whether it ever was."""
    run(url_of(proxy, tmp_path.name), lost_race(proxy, f"{nats_server.url}/{tmp_path.name}"))


async def stale_read(bucket: Bucket) -> None:
    """Refuse the answer of a server that led the stream before: it is what was then."""
    first = await bucket.write("lock.a", b"1", None, LONG)
    call: Any = bucket._call
    old = await call(f"STREAM.MSG.GET.{bucket._stream}", {"last_by_subj": f"{bucket._subjects}lock.a"}, LONG)
    second = await bucket.write("lock.a", b"2", first, LONG)
    replies = [old]

    async def answers(*asked: Any) -> Any:  # noqa: ANN401
        return replies.pop() if replies else await call(*asked)

    setattr(bucket, "_call", answers)  # noqa: B010 - as a type checker sees it, a method
    with pytest.raises(tenure.StoreUnavailable, match="leads no longer"):
        await bucket.read("lock.a", LONG)
    assert await bucket.read("lock.a", LONG) == Row(b"2", second)


async def overtaken_read(bucket: Bucket) -> None:
    """Take the answer to a read that a write of the same client has overtaken."""
    first = await bucket.write("lock.a", b"1", None, LONG)
    call: Any = bucket._call

    async def answers(*asked: Any) -> Any:  # noqa: ANN401
        reply = await call(*asked)
        assert await bucket.write("lock.a", b"2", first, LONG)
        return reply

    setattr(bucket, "_call", answers)  # noqa: B010 - as a type checker sees it, a method
    assert await bucket.read("lock.a", LONG) == Row(b"1", first)


def test_a_read_that_a_write_overtakes_is_answered(nats_server: NatsServer, tmp_path: Path) -> None:
    """What it says was true when it was asked, and a write on top of it is refused."""
    run(f"{nats_server.url}/{tmp_path.name}", overtaken_read)


def test_a_row_that_is_older_than_what_was_seen_is_refused(nats_server: NatsServer, tmp_path: Path) -> None:
    """Else a holder would be told that its lease is gone."""
    run(f"{nats_server.url}/{tmp_path.name}", stale_read)


PLANTED: dict[str, tuple[str, str, Callable[[Proxy], Scene]]] = {
    "no condition": (
        '"Nats-Expected-Last-Subject-Sequence": str(version or 0), ',
        "",
        lambda _: writes_by_number,
    ),
    "a refusal is success": (
        "                if sent.times == 1:\n                    return None\n",
        "",
        lambda _: writes_by_number,
    ),
    "a repeated write that is refused was not done": ("if sent.times == 1:", "if sent.times:", lost_reply),
    "old rows": ('if message["seq"] < min(known, self._newest.get(key, 0)):', "if False:", lambda _: stale_read),
    "what was written meanwhile": (
        "min(known, self._newest.get(key, 0))",
        "self._newest[key]",
        lambda _: overtaken_read,
    ),
    "a write that cannot be looked at was not done": ("with suppress(StoreUnavailable):", "if True:", lost_look),
    "keys from the beginning": (" and key > after", "", lambda _: lists_keys),
}


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_found(bug: str, proxy: Proxy, tmp_path: Path) -> None:
    """Each is one that a maintainer could bring in; a scene fails."""
    right, wrong, scene = PLANTED[bug]
    changed = module_with(module, (right, wrong))
    with pytest.raises((AssertionError, ValueError, tenure.StoreError, pytest.fail.Exception)):
        run(url_of(proxy, tmp_path.name), scene(proxy), changed)


def test_a_row_that_a_tool_removed_begins_anew(nats_server: NatsServer, tmp_path: Path) -> None:
    """`nats kv del` leaves a mark; the next grant has a larger token."""
    url = f"{nats_server.url}/{tmp_path.name}"
    with tenure.Client(url) as client:
        with client.lock("a") as lease:
            before = lease.token
        nats_server.ask(f"$KV.{tmp_path.name}.lock.a")
        with tenure.Client(url) as other, other.lock("a") as lease:
            assert lease.token > before


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "memory": ({"storage": "memory"}, "it is kept in memory"),
    "ends": ({"storage": "file", "max_age": 3600 * 10**9}, "its rows end by themselves"),
    "drops": ({"storage": "file", "max_bytes": 10**6, "discard": "old"}, "it drops the oldest rows"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bucket_that_would_lose_locks_is_refused(kind: str, nats_server: NatsServer, tmp_path: Path) -> None:
    """Its configuration is looked at when a client opens it."""
    config, flaw = BAD[kind]
    stream = f"KV_{tmp_path.name}"
    made = nats_server.ask(
        f"$JS.API.STREAM.CREATE.{stream}", {"name": stream, "subjects": [f"$KV.{tmp_path.name}.>"], **config}
    )
    assert "error" not in made
    with tenure.Client(f"{nats_server.url}/{tmp_path.name}") as client, pytest.raises(tenure.StoreError, match=flaw):
        client.lock("a").try_acquire()


@pytest.mark.parametrize("form", API_FORMS)
def test_what_cannot_be_reached_or_entered_says_so(form: str, tmp_path: Path) -> None:
    """Nobody listens; the login is wrong; JetStream is off. No error has the password."""

    async def scene(kit: Kit) -> None:
        for url, says in ((server.url_for("anna:wr0ng"), "the login is refused"), (nobody, "cannot be reached")):
            client = client_at(kit, url, retry_for=0)
            said = ""
            while says not in said:  # a server that refuses a login may reset the connection before it is heard
                with pytest.raises(tenure.StoreError) as failure:
                    await client.lock("a").try_acquire()
                said = str(failure.value)
                assert "wr0ng" not in said + repr(client)
                assert says in said or "reset" in said

    with NatsServer(tmp_path / "n", options=["--user", "anna", "--pass", "a-secret"]) as server:
        with NatsServer(tmp_path / "gone") as gone:
            nobody = gone.url
        play(form, server.url_for("anna:a-secret"), scene)


@pytest.mark.parametrize("form", API_FORMS)
def test_a_server_that_was_killed_keeps_what_was_held(form: str, nats_server: NatsServer) -> None:
    """A holder goes on after the restart, and a waiter is served."""

    async def scene(kit: Kit) -> None:
        holder, waiter = client_at(kit, nats_server.url), client_at(kit, nats_server.url)
        lease = await holder.lock("a", ttl=20).acquire()
        nats_server.kill()
        nats_server.start()
        assert await waiter.lock("a").try_acquire() is None
        assert await lease.release() is tenure.Outcome.RELEASED
        second = await waiter.lock("a", timeout=LONG).acquire()
        assert second.token > lease.token

    play(form, nats_server.url, scene)


def test_a_silent_server_is_left_though_no_request_waits_for_long(nats_server: NatsServer) -> None:
    """The default of `operation_timeout` is that of one attempt, which leaves no time to try the connection."""

    async def main() -> None:
        with Proxy(nats_server.address) as proxy:
            host, port = proxy.address
            bucket = Bucket(deployment_of(urlsplit(f"nats://{host}:{port}")))
            try:
                await bucket.read("lock.a", LONG)
                before = bucket._present()
                assert before is not None
                proxy.blackhole()
                with pytest.raises(tenure.StoreUnavailable):
                    await bucket.read("lock.a", 0.1)
                await soon(lambda: bucket._present() is not before, "that the connection is left", within=5)
            finally:
                proxy.heal()
                await bucket.close()

    asyncio.run(main())


@pytest.mark.parametrize("harm", ["kill", "pause"])
def test_no_update_is_lost_when_the_leader_is(harm: str, nats_cluster: NatsCluster, tmp_path: Path) -> None:
    """Clients add under a lock, while the server that leads the stream is killed, or stands still."""
    url = f"{nats_cluster.url}/{tmp_path.name}"
    tokens, inside, failed = list[int](), threading.Lock(), list[BaseException]()
    enough = threading.Event()

    def work() -> None:
        try:
            with tenure.Client(url, operation_timeout=60.0, retry_for=60.0) as client:  # an election may take long
                while not enough.is_set():
                    with client.lock("a", ttl=60, timeout=LONG * 3) as lease:
                        assert inside.acquire(blocking=False)
                        tokens.append(lease.token)
                        inside.release()
        except BaseException as error:
            failed.append(error)
            raise

    def await_tokens(number: int) -> None:
        wanted = len(tokens) + number
        while len(tokens) < wanted and not failed:
            enough.wait(0.02)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    await_tokens(20)
    leader = nats_cluster.leader(tmp_path.name)
    getattr(leader, harm)()
    await_tokens(20)
    nats_cluster.mend()
    await_tokens(20)
    enough.set()
    for thread in threads:
        thread.join(LONG * 3)
    assert not failed
    assert not any(thread.is_alive() for thread in threads)
    assert tokens == sorted(set(tokens))


def cancelled_at(turns: int, url: str, made: Any) -> None:  # noqa: ANN401 - a module, maybe with a bug
    """Cancel all tasks of a loop but one that waits for a connection, after so many turns of the loop."""

    async def main() -> None:
        bucket = made.Bucket(deployment_of(urlsplit(url)))
        call = asyncio.create_task(bucket.read("lock.a", LONG))
        for _ in range(turns):
            await asyncio.sleep(0.0001)
        await cancel_all(call)
        await asyncio.wait({call}, timeout=LONG)
        assert call.done()
        assert not call.cancelled()
        assert isinstance(call.exception(), tenure.StoreUnavailable | None)
        await bucket.close()

    asyncio.run(main())


def sockets_left(url: str, made: Any) -> int:  # noqa: ANN401 - a module, maybe with a bug
    """Return how many sockets stay open, before the objects that hold them are collected."""
    gc.collect()
    gc.disable()
    try:
        before = {*Path("/proc/self/fd").iterdir()}
        for turns in range(40):
            cancelled_at(turns, url, made)
        return len({*Path("/proc/self/fd").iterdir()} - before)
    finally:
        gc.enable()
        gc.collect()


def test_no_socket_is_left_of_a_connection_whose_tasks_others_cancelled(nats_server: NatsServer) -> None:
    """At whatever moment they do."""
    assert sockets_left(nats_server.url, module) == 0


def test_a_planted_bug_that_cancels_who_waits_is_found(nats_server: NatsServer) -> None:
    """With the task that connects."""
    with pytest.raises(AssertionError):
        sockets_left(nats_server.url, module_with(module, ("if opening.cancelled():", "if False:")))


def test_a_planted_bug_that_leaves_a_socket_is_found(nats_server: NatsServer) -> None:
    """The task that closes a connection is cancelled before it begins."""
    changed = module_with(module, ("        closing.add_done_callback(lambda _: close_socket(connection))", ""))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        assert sockets_left(nats_server.url, changed) > 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_has_a_connection_of_its_own(nats_server: NatsServer, tmp_path: Path) -> None:
    """The loop of the parent does not run in it, and its connection stays the parent's."""
    assert_a_forked_child_has_connections_of_its_own(f"{nats_server.url}/{tmp_path.name}")


def test_close_ends_the_loop_and_its_thread(nats_server: NatsServer, tmp_path: Path) -> None:
    """Nothing of a client is left."""
    before = set(threading.enumerate())
    with tenure.Client(f"{nats_server.url}/{tmp_path.name}") as client, client.lock("a"):
        assert set(threading.enumerate()) > before
    assert set(threading.enumerate()) <= before


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("nats://host/a.b", "letters, digits, - and _ only"),
        ("nats://host?replicas=2", "must be 1, 3 or 5"),
        ("nats://host?replica=3", "did you mean replicas"),
        ("nats://host?ssl_ca_certs=/x", "write natss:// instead of nats://"),
        ("natss://host?ssl_ca_certs=/not/there", "cannot be loaded"),
        ("nats://anna:secret@host?credentials=/x", "give one of them"),
        ("nats://host?credentials=/not/there", "is not there"),
        ("nats:host", "two slashes"),
    ],
)
def test_a_url_that_is_wrong_says_what_is_right(url: str, says: str) -> None:
    """Nothing of the URL is repeated that may be a password."""
    with pytest.raises(tenure.UsageError, match=says) as failure:
        tenure.Client(url)
    assert "secret" not in str(failure.value)


def login_in_the_clear(make: Any = module) -> bytes:  # noqa: ANN401 - a module, maybe with a bug
    """Connect with natss:// to a server that asks for no TLS; return what it was sent."""
    heard: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"server_id":"a","version":"2.15.0","max_payload":1048576,"headers":true}\r\n')
        heard.append(await reader.read(4096))
        writer.close()

    async def main() -> None:
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            bucket = make.Bucket(deployment_of(urlsplit(f"natss://locks:s3cr3t@127.0.0.1:{port}")))
            with pytest.raises(tenure.StoreError) as failed:
                await bucket.read("lock.a", LONG)
            await bucket.close()
        assert "s3cr3t" not in str(failed.value)
        if not b"".join(heard):
            assert f"{port} asks for no TLS" in str(failed.value)

    asyncio.run(main())
    return b"".join(heard)


def test_no_login_is_sent_without_the_tls_that_the_url_asks_for() -> None:
    """A server that asks for no TLS, or somebody before it who says so, is sent nothing."""
    assert login_in_the_clear() == b""


def test_a_planted_bug_that_sends_the_login_in_the_clear_is_found() -> None:
    """The connection of nats-py itself sends the password."""
    wrong = module_with(module, ("Connection() if where.tls is None else TlsConnection()", "Connection()"))
    assert b"s3cr3t" in login_in_the_clear(wrong)


def test_locks_over_tls(tmp_path: Path) -> None:
    """With natss:// clients verify the server and take locks; without its certificate they take none."""
    certificates = Certificates(tmp_path)
    options = ("--tls", "--tlscert", str(certificates.certificate), "--tlskey", str(certificates.key))
    with NatsServer(tmp_path / "server", options=options) as server:
        url = server.url.replace("nats://", "natss://")
        with (
            tenure.Client(f"{url}?ssl_ca_certs={certificates.authority}") as client,
            client.lock("a", timeout=LONG) as lease,
        ):
            lease.check()
        with tenure.Client(url, retry_for=0) as client, pytest.raises(tenure.StoreError):
            client.lock("a").acquire()
