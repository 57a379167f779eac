"""The channel of the asyncio link: subscriptions that outlive connections, and say so when something may be missed."""

import asyncio
from collections.abc import Iterator

import pytest

from tenure.errors import OutcomeUnknown, StoreUnavailable
from tenure.runtimes.aio import AsyncioRuntime
from tenure.stores.redis.links.aio import RedisAsyncLink
from tenure.stores.redis.links.link import RedisAccess, RedisAddress, RedisCallbacks, ReplyError
from tests.redis.async_links import LOOPS, Ears, client_id, echo, happens, is_lost, link_to, pipe_of, run, soon
from tests.redis.test_resharding import Move
from tests.servers import Cluster, Proxy, RedisServer


@pytest.fixture
def proxy(redis_server: RedisServer) -> Iterator[Proxy]:
    """Stand between the link and its server."""
    with Proxy(redis_server.address) as proxy:
        yield proxy


def listeners(server: RedisServer, channel: str, *, sharded: bool = False) -> int:
    """Return how many listen to a channel."""
    reply = server.command("PUBSUB", "SHARDNUMSUB" if sharded else "NUMSUB", channel)
    assert isinstance(reply, list)
    assert isinstance(reply[1], int)
    return reply[1]


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("sharded", [False, True], ids=["plain", "sharded"])
def test_messages(redis_server: RedisServer, loop: str, sharded: bool) -> None:
    """What is published comes in, in order, between the replies; a channel that is given up is heard no more."""
    publish = "SPUBLISH" if sharded else "PUBLISH"

    async def main() -> None:
        ears = Ears()
        async with link_to(redis_server.address, ears, sharded=sharded) as link:
            await asyncio.gather(link.listen("news", soon()), link.listen("news", soon()), echo(link, "between"))
            await link.listen("news", soon())
            sending = [link.command(publish, "news", f"{n}", until=soon()) for n in range(50)]
            assert await asyncio.gather(*sending, *(echo(link, f"{n}") for n in range(50)))
            assert [await ears.pushes.get() for _ in range(50)] == [b"%d" % n for n in range(50)]
            await link.ignore("news")
            await link.ignore("news")
            assert await link.command(publish, "news", "more", until=soon()) == 0
            await link.listen("news", soon())
            assert await link.command(publish, "news", "last", until=soon()) == 1
            assert await ears.pushes.get() == b"last"
            assert ears.gaps.empty()

    run(main, loop)


def test_refused_channel(redis_acl: RedisServer) -> None:
    """An error is the answer to the subscription that it is for, and the replies around it stay where they belong."""

    async def main() -> None:
        redis_acl.command("ACL", "SETUSER", "half-deaf", "on", ">pass", "+@all", "~*", "resetchannels", "&ours:*")
        access = RedisAccess({"username": "half-deaf", "password": "pass"})
        async with link_to(redis_acl.address, access=access) as link:
            number = await client_id(link)
            ends = await asyncio.gather(
                echo(link, "before"),
                link.listen("theirs", soon()),
                link.listen("ours:1", soon()),
                echo(link, "after"),
                return_exceptions=True,
            )
            assert isinstance(ends[1], ReplyError)
            assert ends[1].code == "NOPERM"
            assert ends[2] is None
            assert isinstance(ends[0], bytes)
            assert isinstance(ends[3], bytes)
            assert await client_id(link) == number

    run(main)


def test_subscription_in_haste(proxy: Proxy) -> None:
    """A subscription that was not confirmed in time, or whose caller was cancelled, does not disturb the order."""

    async def main() -> None:
        async with link_to(proxy.address) as link:
            link.silence.overdue = 3600.0
            number = await client_id(link)
            proxy.blackhole(up=False)
            cancelled = asyncio.ensure_future(link.listen("cancelled", soon()))
            late = asyncio.ensure_future(link.listen("late", soon(0.1)))
            behind = asyncio.ensure_future(echo(link, "behind"))
            await asyncio.sleep(0)
            cancelled.cancel()
            with pytest.raises(OutcomeUnknown):
                await late
            proxy.heal()
            await behind
            await link.listen("late", soon())
            assert await client_id(link) == number

    run(main)


@pytest.mark.parametrize("loop", LOOPS)
def test_gap(redis_server: RedisServer, loop: str) -> None:
    """When the connection is lost, the link subscribes again by itself, and only then tells of the gap."""

    async def main() -> None:
        counts: asyncio.Queue[int] = asyncio.Queue()
        pushes: asyncio.Queue[bytes] = asyncio.Queue()
        callbacks = RedisCallbacks(pushes.put_nowait, lambda: counts.put_nowait(listeners(redis_server, "gap")))
        link = RedisAsyncLink(AsyncioRuntime(), RedisAccess(), RedisAddress(*redis_server.address), callbacks)
        await link.listen("gap", soon())
        await link.listen("gap-too", soon())
        await link.listen("no-more", soon())
        await link.ignore("no-more")
        for _ in range(3):
            redis_server.command("CLIENT", "KILL", "TYPE", "pubsub")
            assert await counts.get() == 1
            assert listeners(redis_server, "no-more") == 0
            redis_server.command("PUBLISH", "gap", "one")
            redis_server.command("PUBLISH", "gap-too", "two")
            assert [await pushes.get(), await pushes.get()] == [b"one", b"two"]
        assert counts.empty()
        await link.close()

    run(main, loop)


def test_gap_by_a_request(redis_server: RedisServer) -> None:
    """A request that needs the connection first makes it again, and subscribes before it goes out itself."""

    async def main() -> None:
        ears = Ears()
        async with link_to(redis_server.address, ears) as link:
            await link.listen("requested", soon())
            for _ in range(5):
                pipe = pipe_of(link)
                redis_server.command("CLIENT", "KILL", "TYPE", "pubsub")
                await is_lost(pipe)
                assert await link.command("PUBLISH", "requested", "heard", until=soon()) == 1
                assert ears.gaps.qsize() == 1
                await ears.gaps.get()
                assert await ears.pushes.get() == b"heard"

    run(main)


def test_refused_again(redis_acl: RedisServer) -> None:
    """A channel that is refused when it should be heard again keeps no request back, and is tried until it is not."""

    async def main() -> None:
        redis_acl.command("ACL", "SETUSER", "moody", "on", ">pass", "+@all", "~*", "&*")
        ears = Ears()
        access = RedisAccess({"username": "moody", "password": "pass"})
        async with link_to(redis_acl.address, ears, access) as link:
            await link.listen("moods", soon())
            pipe = pipe_of(link)
            redis_acl.command("ACL", "SETUSER", "moody", "resetchannels")  # this also ends the connection
            await is_lost(pipe)
            await echo(link, "not kept back")
            assert ears.gaps.empty()
            redis_acl.command("ACL", "SETUSER", "moody", "&*")
            await ears.gaps.get()
            assert await link.command("PUBLISH", "moods", "heard", until=soon()) == 1

    run(main)


def test_dead_server(redis_server: RedisServer) -> None:
    """While the server is away, the link tries again and again; when it is back, it is heard again."""

    async def main() -> None:
        ears = Ears()
        async with link_to(redis_server.address, ears) as link:
            await link.listen("dead", soon())
            await asyncio.to_thread(redis_server.kill)
            with pytest.raises(StoreUnavailable):
                await link.listen("other", soon())
            await asyncio.to_thread(redis_server.start)
            await ears.gaps.get()
            assert listeners(redis_server, "dead") == 1
            assert listeners(redis_server, "other") == 0

    run(main)


def test_pauses(redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pauses between attempts to connect again double, up to a second."""

    async def main() -> None:
        pauses: list[float] = []

        async def pause(seconds: float) -> None:
            pauses.append(seconds)
            await asyncio.sleep(0)

        runtime = AsyncioRuntime()
        monkeypatch.setattr(runtime, "random", lambda: 0.5)
        monkeypatch.setattr(runtime, "sleep", pause)
        ears = Ears()
        link = RedisAsyncLink(runtime, RedisAccess(), RedisAddress(*redis_server.address), ears.callbacks())
        await link.listen("pauses", soon())
        await asyncio.to_thread(redis_server.kill)
        await happens(lambda: len(pauses) >= 10)
        assert pauses[:8] == [0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.0, 1.0]
        await asyncio.to_thread(redis_server.start)
        await ears.gaps.get()
        await link.close()

    run(main)


def test_half_open(proxy: Proxy) -> None:
    """A peer that is gone without a word is noticed, and left for a new connection."""

    async def main() -> None:
        ears = Ears()
        async with link_to(proxy.address, ears) as link:
            link.silence.overdue, link.silence.quiet, link.silence.sign = 3600.0, 0.05, 0.5
            await link.listen("half-open", soon())
            pipe = pipe_of(link)
            proxy.blackhole()
            await is_lost(pipe)
            link.silence.quiet = 3600.0
            proxy.heal()
            await ears.gaps.get()
            assert await link.command("PUBLISH", "half-open", "heard", until=soon()) == 1

    run(main)


def test_quiet_server(proxy: Proxy) -> None:
    """A server that is quiet but answers when asked keeps its connection."""

    async def main() -> None:
        ears = Ears()
        async with link_to(proxy.address, ears) as link:
            link.silence.quiet = 0.01
            await link.listen("quiet", soon())
            before = proxy.counts.replies
            await happens(lambda: proxy.counts.replies >= before + 5)
            assert proxy.counts.connections == 1
            assert ears.gaps.empty()

    run(main)


def test_deaf_callback(redis_server: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    """Whoever cannot take a message does not break the connection for the others."""

    def refuse(*_payload: bytes) -> None:
        raise LookupError("not mine")

    async def main() -> None:
        link = RedisAsyncLink(
            AsyncioRuntime(), RedisAccess(), RedisAddress(*redis_server.address), RedisCallbacks(refuse, refuse)
        )
        await link.listen("deaf", soon())
        number = await client_id(link)
        assert await link.command("PUBLISH", "deaf", "?", until=soon()) == 1
        assert await client_id(link) == number
        await link.close()

    run(main)
    assert "could not be taken" in caplog.text


def test_subscription_taken_away(redis_server: RedisServer) -> None:
    """A subscription that the server ends by itself, as when a slot moves, is made again, and the gap is told."""

    async def main() -> None:
        ears = Ears()
        async with link_to(redis_server.address, ears, sharded=True) as link:
            link.silence.quiet = 3600.0
            await link.listen("taken", soon())
            with redis_server.connect() as wire:
                pipe = pipe_of(link)
                await happens(lambda: pipe.stirred._waiting)
                pipe.data_received(b">3\r\n$12\r\nsunsubscribe\r\n$5\r\ntaken\r\n:0\r\n")
                await ears.gaps.get()
                assert wire.command("SPUBLISH", "taken", "heard") == 1
            assert await ears.pushes.get() == b"heard"
            assert link._line.pipe is pipe

    run(main)


def test_moved_channel(redis_cluster: Cluster) -> None:
    """In a Cluster, the answer to a channel of another node is MOVED; one that moves away is told as a gap."""
    slot = redis_cluster.nodes[0].command("CLUSTER", "KEYSLOT", "moving")
    assert isinstance(slot, int)
    move = Move(redis_cluster, slot)

    async def main() -> None:
        ears = Ears()
        async with link_to(move.target.address, sharded=True) as link:
            with pytest.raises(ReplyError) as caught:
                await link.listen("moving", soon())
            assert caught.value.code == "MOVED"
        async with link_to(move.source.address, ears, sharded=True) as link:
            await link.listen("moving", soon())
            assert listeners(move.source, "moving", sharded=True) == 1
            move.begin()
            move.carry()
            move.end()
            await ears.gaps.get()
            assert link._line._channels == set()

    run(main)
