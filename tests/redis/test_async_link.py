"""The asyncio link: many requests on one connection, and each gets its own answer or an honest error."""

import asyncio
import os
import random
import socket
from collections.abc import Iterator
from contextlib import suppress

import hiredis
import pytest

from tenure.errors import OutcomeUnknown, StoreUnavailable
from tenure.stores.redis.links.aio import RedisAsyncLink
from tenure.stores.redis.links.link import ReplyError
from tests.redis.async_links import (
    COUNT,
    ECHO,
    FAIL,
    LOOPS,
    WHO,
    client_id,
    echo,
    happens,
    is_lost,
    link_to,
    pipe_of,
    run,
    soon,
)
from tests.servers import Proxy, RedisServer, wait_until


@pytest.fixture
def proxy(redis_server: RedisServer) -> Iterator[Proxy]:
    """Stand between the link and its server."""
    with Proxy(redis_server.address) as proxy:
        yield proxy


def test_run_id(redis_server: RedisServer) -> None:
    """The last argument of a script is the run id of the process that carries it out; the answer tells it too."""

    async def main() -> None:
        async with link_to(redis_server.address) as link:
            answer = await link.run(WHO, (), ("first",), soon())
            assert answer.value == answer.run_id == redis_server.info("server")["run_id"].encode() + b"@0"

    run(main)


def test_no_run_id(redis_server: RedisServer) -> None:
    """Without identification, no server is asked who it is."""

    async def main() -> None:
        async with link_to(redis_server.address, identify=None) as link:
            answer = await link.run(WHO, (), ("first",), soon())
            assert answer.value == answer.run_id == b""

    run(main)


@pytest.mark.parametrize("loop", LOOPS)
def test_concurrent_requests(proxy: Proxy, loop: str) -> None:
    """What is asked in one turn of the loop goes out together, and each caller gets its own reply."""

    async def main() -> None:
        async with link_to(proxy.address) as link:
            await echo(link, "warm")
            before = proxy.counts.requests
            await asyncio.gather(*(echo(link, f"word-{number}") for number in range(100)))
            assert proxy.counts.requests - before <= 2  # the first at once, the others at the end of the turn
            assert proxy.counts.connections == 1

    run(main, loop)


def test_script_flush(redis_server: RedisServer) -> None:
    """A server that has forgotten the scripts is sent them again, and nobody notices."""

    async def main() -> None:
        async with link_to(redis_server.address) as link:
            for turn in range(20):
                asking = [asyncio.ensure_future(echo(link, f"{turn}-{number}")) for number in range(20)]
                await asyncio.sleep(0)
                redis_server.command("SCRIPT", "FLUSH")
                await asyncio.gather(*asking, *(echo(link, f"{turn}-more-{number}") for number in range(20)))

    run(main)


def test_error_replies(redis_server: RedisServer) -> None:
    """An error is an answer: it goes to who asked, and disturbs nobody else."""

    async def fail(link: RedisAsyncLink, word: str) -> None:
        with pytest.raises(ReplyError) as caught:
            await link.run(FAIL, (), (word,), soon())
        assert (caught.value.code, str(caught.value)) == ("OUCH", f"OUCH {word}")

    async def main() -> None:
        async with link_to(redis_server.address) as link:
            number = await client_id(link)
            for _ in range(2):  # first by the text of the script, then by its digest
                await asyncio.gather(*(request(link, f"{n}") for n in range(50) for request in (echo, fail)))
            with pytest.raises(ReplyError, match="unknown command"):
                await link.command("NONSENSE", until=soon())
            assert await client_id(link) == number
            assert await link.command("GETDEL", "failures", until=soon()) == b"100"

    run(main)


def test_deadline(proxy: Proxy) -> None:
    """A request that is not answered in time ends with its outcome unknown; its late reply goes to nobody."""

    async def main() -> None:
        async with link_to(proxy.address) as link:
            link.silence.overdue = 3600.0
            number = await client_id(link)
            proxy.blackhole(up=False)
            late = [asyncio.ensure_future(echo(link, f"late-{n}", soon(0.1))) for n in range(5)]
            patient = [asyncio.ensure_future(echo(link, f"patient-{n}")) for n in range(5)]
            for each in late:
                with pytest.raises(OutcomeUnknown, match="timed out"):
                    await each
            proxy.heal()
            await asyncio.gather(*patient)
            assert await client_id(link) == number

    run(main)


def test_many_deadlines(proxy: Proxy) -> None:
    """Each request ends by its own deadline, in whatever order they come; a partition leaves nothing out of order."""

    async def main() -> None:
        async with link_to(proxy.address) as link:
            link.silence.overdue = 3600.0
            number = await client_id(link)
            proxy.blackhole()
            deadlines = [soon(0.1 + 0.01 * place) for place in (9, 3, 6, 1, 7)]
            ends = await asyncio.gather(*(echo(link, "late", each) for each in deadlines), return_exceptions=True)
            assert [type(end) for end in ends] == [OutcomeUnknown] * 5
            proxy.heal()
            await echo(link, "in order")
            assert await client_id(link) == number

    run(main)


def hold_up(link: RedisAsyncLink, until: float) -> None:
    """Hold the event loop up until an instant, and until all replies have come, which nobody has read."""
    pipe = pipe_of(link)
    with socket.socket(fileno=os.dup(pipe._transport.get_extra_info("socket").fileno())) as peeked:
        wait_until(lambda: soon(0.0) > until and waiting_replies(peeked) == len(pipe._pending), "replies")


def waiting_replies(connection: socket.socket) -> int:
    """Count the replies that have come, and leave them there."""
    reader = hiredis.Reader()
    with suppress(BlockingIOError):
        reader.feed(connection.recv(1_000_000, socket.MSG_PEEK | socket.MSG_DONTWAIT))
    return sum(1 for _ in iter(reader.gets, False))


@pytest.mark.parametrize("loop", LOOPS)
def test_held_up_loop(redis_server: RedisServer, loop: str) -> None:
    """A reply that came while the event loop was held up is read before anybody is told that there was none."""

    async def main() -> None:
        async with link_to(redis_server.address) as link:
            link.silence.overdue = 0.0
            await echo(link, "warm")
            number = await client_id(link)
            for turn in range(3):
                until = soon(0.3)
                asking = [asyncio.ensure_future(echo(link, f"{turn}-{n}", until)) for n in range(5)]
                for _ in range(4):  # until all are on their way
                    await asyncio.sleep(0)
                hold_up(link, until)
                await asyncio.gather(*asking)
            assert await client_id(link) == number

    run(main, loop)


def test_no_time_left(redis_server: RedisServer) -> None:
    """A request whose time was over before it could go out is not sent."""

    async def main() -> None:
        async with link_to(redis_server.address) as link:
            await echo(link, "warm")
            with pytest.raises(StoreUnavailable) as caught:
                await link.run(COUNT, ("no-time-left",), (), soon(-1.0))
            assert not isinstance(caught.value, OutcomeUnknown)
            assert (await link.run(COUNT, ("no-time-left",), (), soon())).value == 1

    run(main)


def test_cancelled_callers(redis_server: RedisServer) -> None:
    """A caller that is cancelled takes nothing with it: the others on its connection get their own replies."""

    async def main() -> None:
        async with link_to(redis_server.address) as link:
            number = await client_id(link)
            asking = [asyncio.ensure_future(echo(link, f"{n}")) for n in range(60)]
            await asyncio.sleep(0)
            for each in asking[::3]:
                each.cancel()
            ends = await asyncio.gather(*asking, return_exceptions=True)
            assert all(isinstance(end, asyncio.CancelledError) for end in ends[::3])
            assert all(isinstance(end, bytes) for place, end in enumerate(ends) if place % 3)
            assert await client_id(link) == number

    run(main)


def test_overdue(proxy: Proxy) -> None:
    """A server that owes an answer for too long is cut off, with all who wait on that connection, and tried anew."""

    async def main() -> None:
        async with link_to(proxy.address) as link:
            link.silence.overdue = 0.05
            await echo(link, "warm")
            proxy.blackhole()
            until = soon(3600)
            hasty, patient = echo(link, "hasty", soon(0.1)), echo(link, "patient", until)
            ends = await asyncio.gather(hasty, patient, return_exceptions=True)
            assert [type(end) for end in ends] == [OutcomeUnknown, OutcomeUnknown]
            proxy.heal()
            await echo(link, "again")
            assert proxy.counts.connections == 2

    run(main)


def test_lost_replies(proxy: Proxy) -> None:
    """A request whose reply is lost with its connection is not repeated: that is for the store to decide."""

    async def main() -> None:
        async with link_to(proxy.address) as link:
            await link.run(COUNT, ("so that the server knows the script",), (), soon())
            for turn in range(1, 6):
                await echo(link, "warm")
                proxy.swallow(1)
                with pytest.raises(OutcomeUnknown):
                    await link.run(COUNT, ("lost-replies",), (), soon())
                assert await link.command("GET", "lost-replies", until=soon()) == b"%d" % turn
            assert proxy.counts.connections == 6

    run(main)


def test_not_sent(redis_server: RedisServer) -> None:
    """A request that had certainly not gone out when the connection was lost goes out on the next one."""

    async def main() -> None:
        async with link_to(redis_server.address) as link:
            first = await client_id(link)
            sent = asyncio.ensure_future(link.run(ECHO, (), ("sent",), soon()))
            unsent = [asyncio.ensure_future(echo(link, f"unsent-{n}")) for n in range(5)]
            replicated = asyncio.ensure_future(link.run_replicated(COUNT, ("not-sent",), (), soon(), 0))
            asking = asyncio.ensure_future(link.run_after_asking(ECHO, ("key",), ("asking",), soon()))
            command = asyncio.ensure_future(link.command("ECHO", "word", until=soon()))
            listening = asyncio.ensure_future(link.listen("channel", soon()))
            await asyncio.sleep(0)
            pipe_of(link).cut(ConnectionResetError("cut by the test"))
            with pytest.raises(OutcomeUnknown, match="cut by the test"):
                await sent
            await asyncio.gather(*unsent)
            assert (await replicated).value == 1
            assert (await asking).value == [b"asking", b"key"]
            assert await command == b"word"
            await listening
            assert await client_id(link) != first

    run(main)


def test_closed_while_idle(redis_server: RedisServer) -> None:
    """A connection that the server closed while nothing was under way costs nobody an error."""

    async def main() -> None:
        async with link_to(redis_server.address) as link:
            for _ in range(5):
                number, pipe = await client_id(link), pipe_of(link)
                redis_server.command("CLIENT", "KILL", "ID", number)
                await is_lost(pipe)
                await echo(link, "again")

    run(main)


def test_unasked_reply(redis_server: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    """A server that answers what was not asked is cut off before that could answer somebody."""

    async def main() -> None:
        async with link_to(redis_server.address) as link:
            for nonsense in (b"+OK\r\n", b"?\r\n"):
                number = await client_id(link)
                pipe = pipe_of(link)
                pipe.data_received(nonsense)
                assert pipe.lost
                await echo(link, "again")
                assert await client_id(link) != number

    run(main)
    assert "answers what was not asked" in caplog.text


def test_restart(redis_server: RedisServer) -> None:
    """A server that dies and comes back: every request ends, those after it are answered by the new process."""

    async def insist(link: RedisAsyncLink, word: str, run_ids: set[bytes], new: asyncio.Event) -> None:
        while not new.is_set() or len(run_ids) < 2:
            try:
                run_ids.add(await echo(link, word, soon(5)))
            except StoreUnavailable:
                await asyncio.sleep(0.001)

    async def main() -> None:
        async with link_to(redis_server.address) as link:
            run_ids: set[bytes] = set()
            new = asyncio.Event()
            async with asyncio.TaskGroup() as group:
                for number in range(20):
                    group.create_task(insist(link, f"{number}", run_ids, new))
                await happens(lambda: run_ids)
                await asyncio.to_thread(redis_server.kill)
                await asyncio.to_thread(redis_server.start)
                new.set()
            assert len(run_ids) == 2
            assert redis_server.info("server")["run_id"].encode() + b"@0" in run_ids

    run(main)


@pytest.mark.parametrize("loop", LOOPS)
def test_hammer(redis_server: RedisServer, loop: str) -> None:
    """Callers cancelled at random, in haste, or patient, and a server that pauses: no reply ever goes astray."""
    chance = random.Random(7)

    async def ask_often(link: RedisAsyncLink, name: str, good: list[str]) -> None:
        for turn in range(40):
            word = f"{name}-{turn}"
            haste = chance.choice((0.0005, 0.005, 10.0, 10.0))
            asking = asyncio.ensure_future(echo(link, word, soon(haste)))
            if chance.random() < 0.3:
                await asyncio.sleep(chance.choice((0.0, 0.0, 0.001, 0.01)))
                asking.cancel()
            with suppress(StoreUnavailable, asyncio.CancelledError):
                await asking
                good.append(word)

    async def disturb() -> None:
        with redis_server.connect() as wire:
            for turn in range(10):
                wire.send(*(("CLIENT", "PAUSE", 30), ("DEBUG", "SLEEP", 0.05))[turn % 2])
                await asyncio.sleep(0.05)

    async def main() -> None:
        async with link_to(redis_server.address) as link:
            link.silence.overdue = 0.02
            good: list[str] = []
            await asyncio.gather(disturb(), *(ask_often(link, f"task-{n}", good) for n in range(200)))
            assert good
            await echo(link, "afterwards")

    run(main, loop)


@pytest.mark.parametrize("loop", LOOPS)
def test_backpressure(redis_server: RedisServer, loop: str) -> None:
    """While the server takes nothing, requests wait unsent instead of filling memory, and go out when it does."""

    async def main() -> None:
        async with link_to(redis_server.address) as link:
            start = (await link.run(COUNT, ("backpressure",), (), soon())).value
            redis_server.pause()
            loads = [asyncio.ensure_future(link.command("ECHO", "x" * 10_000_000, until=soon())) for _ in range(3)]
            await happens(lambda: pipe_of(link).clogged)
            with pytest.raises(StoreUnavailable) as caught:
                await link.run(COUNT, ("backpressure",), (), soon(0.01))
            assert not isinstance(caught.value, OutcomeUnknown)
            patient = asyncio.ensure_future(link.run(COUNT, ("backpressure",), (), soon()))
            await asyncio.sleep(0)
            redis_server.resume()
            assert (await patient).value == start + 1
            assert [len(load) for load in await asyncio.gather(*loads)] == [10_000_000] * 3

    run(main, loop)


def test_lost_under_backpressure(redis_server: RedisServer) -> None:
    """Requests that wait for room when the connection is lost have not gone out: they do so on the next one."""

    async def main() -> None:
        async with link_to(redis_server.address) as link:
            start = (await link.run(COUNT, ("lost-room",), (), soon())).value
            redis_server.pause()
            load = asyncio.ensure_future(link.command("ECHO", "x" * 30_000_000, until=soon()))
            await happens(lambda: pipe_of(link).clogged)
            patient = asyncio.ensure_future(link.run(COUNT, ("lost-room",), (), soon()))
            await asyncio.sleep(0)
            pipe_of(link).cut(ConnectionResetError("cut by the test"))
            redis_server.resume()
            with pytest.raises(OutcomeUnknown):
                await load
            assert (await patient).value == start + 1

    run(main)


def test_asking(redis_server: RedisServer) -> None:
    """An ASKING goes right before its script, and its own answer to nobody."""

    async def request(link: RedisAsyncLink, word: str) -> None:
        assert (await link.run_after_asking(ECHO, (word,), (word,), soon())).value == [word.encode()] * 2

    async def main() -> None:
        redis_server.command("SCRIPT", "FLUSH")
        async with link_to(redis_server.address) as link:
            await asyncio.gather(*(each(link, f"{n}") for n in range(20) for each in (request, echo)))

    run(main)
