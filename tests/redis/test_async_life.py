"""The life of an asyncio link: how it connects, what it says when it cannot, and that it leaves nothing behind."""

import asyncio
import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tenure.errors import OutcomeUnknown, StoreError, StoreUnavailable
from tenure.runtimes.aio import AsyncioRuntime
from tenure.stores.redis.links.aio import RedisAsyncLink
from tenure.stores.redis.links.aio_line import RECONNECT_PAUSE
from tenure.stores.redis.links.link import RedisAccess, RedisAddress
from tests.redis.async_links import (
    COUNT,
    LOOPS,
    TEST_TIMEOUT,
    WHO,
    Ears,
    echo,
    happens,
    is_lost,
    link_to,
    pipe_of,
    run,
    sockets,
    soon,
)
from tests.servers import Clock, Proxy, RedisServer, RedisTlsServer
from tests.servers.ports import reserve
from tests.servers.waiting import wait_until

SECRET = "a-secret-that-nobody-may-see"  # noqa: S105


@pytest.fixture
def proxy(redis_server: RedisServer) -> Iterator[Proxy]:
    """Stand between the link and its server."""
    with Proxy(redis_server.address) as proxy:
        yield proxy


# -- connecting --------------------------------------------------------------------------------------------


def test_nobody_there() -> None:
    """Where nobody listens, the error names the place, keeps the secrets, and comes at once, to each its own."""

    async def main() -> None:
        access = RedisAccess({"username": "somebody", "password": SECRET})
        with_nobody = reserve()
        async with link_to(("127.0.0.1", with_nobody.port), access=access) as link:
            asking = [link.run(WHO, (), (), soon()) for _ in range(5)]
            ends = await asyncio.gather(*asking, return_exceptions=True)
            assert len({id(end) for end in ends}) == 5
            for end in ends:
                assert type(end) is StoreUnavailable
                assert f"127.0.0.1:{with_nobody.port}" in str(end)
                assert SECRET not in f"{end!r} {end.__cause__!r}"
        with_nobody.give_up()

    run(main)


def test_breath() -> None:
    """Whoever asks again and again where nobody listens does not keep the machine busy with connecting."""

    async def main() -> None:
        with_nobody = reserve()
        async with link_to(("127.0.0.1", with_nobody.port)) as link:
            began = soon(0)
            for _ in range(5):
                with pytest.raises(StoreUnavailable):
                    await echo(link, "in vain")
            assert soon(0) - began > 4 * RECONNECT_PAUSE * 0.95
        with_nobody.give_up()

    run(main)


def test_one_attempt_for_all(proxy: Proxy) -> None:
    """All who need a connection share one attempt, each waits no longer than it wants to, and no other pays."""

    async def main() -> None:
        async with link_to(proxy.address) as link:
            proxy.blackhole()
            patient = asyncio.ensure_future(echo(link, "patient"))
            hasty = [asyncio.ensure_future(link.run(COUNT, ("hasty",), (), soon(0.02))) for _ in range(20)]
            cancelled = asyncio.ensure_future(echo(link, "cancelled"))
            await asyncio.sleep(0)
            cancelled.cancel()
            for each in hasty:
                with pytest.raises(StoreUnavailable) as caught:
                    await each
                assert not isinstance(caught.value, OutcomeUnknown)
            proxy.heal()
            await patient
            assert proxy.counts.connections == 1
            assert (await link.run(COUNT, ("hasty",), (), soon())).value == 1

    run(main)


def test_slow_connection(proxy: Proxy) -> None:
    """Connecting ends after the time that it may take, whatever time the requests have."""

    async def main() -> None:
        async with link_to(proxy.address, access=RedisAccess(connect_timeout=0.4)) as link:
            proxy.blackhole()
            with pytest.raises(StoreUnavailable, match="timed out"):
                await echo(link, "in vain")
            proxy.heal()
            await insist(link, soon())

    run(main)


async def insist(link: RedisAsyncLink, until: float) -> None:
    """Ask again while connecting takes too long: this machine may be busy."""
    while True:
        try:
            await echo(link, "at last", until)
        except StoreUnavailable:
            assert soon(0) < until
        else:
            return


def test_lost_while_greeting(proxy: Proxy) -> None:
    """A connection that breaks before anything was asked of it means that the server was not reached."""

    async def main() -> None:
        async with link_to(proxy.address) as link:
            proxy.swallow(1, containing=b"INFO")
            with pytest.raises(StoreUnavailable) as caught:
                await echo(link, "in vain")
            assert type(caught.value) is StoreUnavailable
            await echo(link, "again")

    run(main)


@pytest.mark.parametrize(("loop", "extra"), [(loop, extra) for loop in LOOPS for extra in ("hang up", "+more\r\n")])
def test_odd_server(loop: str, extra: str) -> None:
    """A server that hangs up after the handshake, or says more than it was asked, is not trusted with a request."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(4096):
            if b"HELLO" in data:
                writer.write(b"%1\r\n$5\r\nproto\r\n:3\r\n")
            if b"LIB-VER" in data:
                writer.write(b"+OK\r\n+OK\r\n" + (b"" if extra == "hang up" else extra.encode()))
                if extra == "hang up":
                    break
        writer.close()

    async def main() -> None:
        before = sockets()
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server, link_to(server.sockets[0].getsockname()) as link:
            with pytest.raises(StoreUnavailable, match=r"closed|more than it was asked|lost at once") as caught:
                await echo(link, "in vain")
            assert type(caught.value) is StoreUnavailable
        await server.wait_closed()
        await happens(lambda: sockets() <= before)

    run(main, loop)


@pytest.mark.parametrize("unix", [False, True], ids=["tcp", "unix"])
def test_wrong_password(tmp_path: Path, unix: bool) -> None:
    """A server that refuses us is no passing trouble: the error says so, and keeps the secret."""
    path = tmp_path / "socket"

    async def main(server: RedisServer) -> None:
        address = RedisAddress("", 0, str(path)) if unix else RedisAddress(*server.address)
        async with link_to(address, access=RedisAccess({"password": SECRET})) as link:
            with pytest.raises(StoreError, match="credentials") as caught:
                await echo(link, "in vain")
            assert type(caught.value) is StoreError
            assert SECRET not in f"{caught.value!r} {caught.value.__cause__!r}"
            assert str(address) in str(caught.value)
        async with link_to(address, access=RedisAccess({"password": "right"})) as link:
            await echo(link, "right")

    options = ("--unixsocket", str(path), "--requirepass", "right")
    with RedisServer(tmp_path, options=options, login=("default", "right")) as server:
        run(lambda: main(server))


def test_forbidden_info(redis_acl: RedisServer) -> None:
    """A user that may not ask who the server is learns what to do; without identification it is not needed."""

    async def main() -> None:
        redis_acl.command("ACL", "SETUSER", "blind", "on", ">pass", "~*", "&*", "+@all", "-info")
        access = RedisAccess({"username": "blind", "password": "pass"})
        before = sockets()
        async with link_to(redis_acl.address, access=access) as link:
            with pytest.raises(StoreError, match=r'(?s)\+info.*guard="off"') as caught:
                await echo(link, "in vain")
            assert type(caught.value) is StoreError
            assert sockets() <= before
        async with link_to(redis_acl.address, access=access, identify=None) as link:
            await echo(link, "unguarded")

    run(main)


@pytest.mark.parametrize("loop", LOOPS)
def test_tls(redis_tls: RedisTlsServer, loop: str) -> None:
    """TLS is redis-py's; a server whose certificate is not trusted is refused."""

    async def main() -> None:
        before = sockets()
        ears = Ears()
        access = RedisAccess({"ssl_ca_certs": str(redis_tls.certificates.authority)}, tls=True)
        async with link_to(redis_tls.address, ears, access) as link:
            await asyncio.gather(link.listen("tls", soon()), *(echo(link, f"{n}" * 1000) for n in range(100)))
            await link.command("PUBLISH", "tls", "heard", until=soon())
            assert await ears.pushes.get() == b"heard"
        async with link_to(redis_tls.address, access=RedisAccess(tls=True)) as link:
            with pytest.raises(StoreError, match="certificate"):
                await echo(link, "in vain")
        await happens(lambda: sockets() <= before)

    run(main, loop)


def test_database(redis_server: RedisServer) -> None:
    """The database of the URL is the one that is used."""

    async def main() -> None:
        async with link_to(redis_server.address, access=RedisAccess({"db": 3})) as link:
            await link.command("SET", "key", "in three", until=soon())
        async with link_to(redis_server.address) as link:
            assert await link.command("GET", "key", until=soon()) is None

    run(main)


# -- replicas ----------------------------------------------------------------------------------------------


def test_replicas(redis_server: RedisServer, tmp_path: Path) -> None:
    """The answer counts the replicas that have the grant. Many requests share a WAIT, and no other waits for it."""

    async def main() -> None:
        async with link_to(redis_server.address) as link:
            nobody = asyncio.ensure_future(link.run_replicated(COUNT, ("alone",), (), soon(20.0), 1))
            await happens(lambda: waiting_clients(redis_server))
            await echo(link, "not held up")
            assert not nobody.done()
            host, port = redis_server.address
            with RedisServer(tmp_path, options=("--replicaof", host, str(port))) as replica:
                wait_until(lambda: replica.follows(redis_server), "a replica")
                answer = await nobody
                assert (answer.value, answer.acknowledged) == (1, 1)
                before = calls_of_wait(redis_server)
                asking = [link.run_replicated(COUNT, ("many",), (), soon(), 1) for _ in range(50)]
                answers = await asyncio.gather(*asking)
                assert sorted(answer.value for answer in answers) == list(range(1, 51))
                assert {answer.acknowledged for answer in answers} == {1}
                assert calls_of_wait(redis_server) - before == 1

    run(main)


def test_too_few_replicas(tmp_path: Path) -> None:
    """Where there are not enough replicas, that is known before the time is over, by the clock of the server."""

    async def main(server: RedisServer, clock: Clock) -> None:
        async with link_to(server.address) as link:
            await link.run(COUNT, ("few",), (), soon())  # so that the server knows the script
            hasty, patient = soon(40.0), soon()
            asking = asyncio.gather(
                link.run_replicated(COUNT, ("few",), (), patient, 1), link.run_replicated(COUNT, ("few",), (), hasty, 2)
            )
            await happens(lambda: waiting_clients(server))
            clock.step(36.0)
            assert [end.acknowledged for end in await asking] == [0, 0]

    with Clock(tmp_path / "clock") as clock, RedisServer(tmp_path / "server", clock=clock) as server:
        run(lambda: main(server, clock))


def test_strictest_wait(proxy: Proxy) -> None:
    """Requests that share a WAIT wait for the most replicas that one of them wants."""

    async def main() -> None:
        async with link_to(proxy.address) as link:
            await link.run_replicated(COUNT, ("strict",), (), soon(), 0)
            proxy.lose(1, containing=b"WAIT\r\n$1\r\n3\r\n")
            asking = [link.run_replicated(COUNT, ("strict",), (), soon(10), replicas) for replicas in (1, 3, 2)]
            ends = await asyncio.gather(*asking, return_exceptions=True)
            assert [type(end) for end in ends] == [OutcomeUnknown] * 3
            assert proxy.counts.lost == 1

    run(main)


def test_cancelled_wait(redis_server: RedisServer) -> None:
    """Whoever gives up while replicas are waited for disturbs nobody, and leaves nothing to complain of."""

    async def main() -> None:
        async with link_to(redis_server.address) as link:
            asking = [asyncio.ensure_future(link.run_replicated(COUNT, ("alone",), (), soon(), 1)) for _ in range(3)]
            await happens(lambda: waiting_clients(redis_server))
            asking[0].cancel()
            await happens(lambda: unblocked(redis_server) and all(each.done() for each in asking))
            assert [(await each).acknowledged for each in asking[1:]] == [0, 0]
            given_up = asyncio.ensure_future(link.run_replicated(COUNT, ("alone",), (), soon(), 1))
            await happens(lambda: waiting_clients(redis_server))
            given_up.cancel()

    run(main)


def unblocked(server: RedisServer) -> bool:
    """End what a WAIT holds up, for not all of one client need share one; return whether nothing was left."""
    waiting = waiting_clients(server)
    for client in waiting:
        server.command("CLIENT", "UNBLOCK", client)
    return not waiting


def waiting_clients(server: RedisServer) -> list[str]:
    """Return the ids of the connections that a WAIT holds up."""
    clients = [
        dict(word.split("=", 1) for word in line.split()) for line in str(server.command("CLIENT", "LIST")).splitlines()
    ]
    return [client["id"] for client in clients if client["cmd"] == "wait" and "b" in client["flags"]]


def test_refused_wait(redis_acl: RedisServer) -> None:
    """An error instead of a count goes to all who asked for it."""

    async def main() -> None:
        redis_acl.command("ACL", "SETUSER", "hasty", "on", ">pass", "~*", "&*", "+@all", "-wait")
        access = RedisAccess({"username": "hasty", "password": "pass"})
        async with link_to(redis_acl.address, access=access) as link:
            asking = [link.run_replicated(COUNT, ("refused",), (), soon(), 1) for _ in range(3)]
            ends = await asyncio.gather(*asking, return_exceptions=True)
            assert len({id(end) for end in ends}) == 3
            assert all(getattr(end, "code", "") == "NOPERM" for end in ends)

    run(main)


def calls_of_wait(server: RedisServer) -> int:
    """Return how often the server was asked to WAIT."""
    said = server.info("commandstats").get("cmdstat_wait", "calls=0,")
    return int(said.removeprefix("calls=").partition(",")[0])


# -- the end -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loop", LOOPS)
def test_close(redis_server: RedisServer, loop: str) -> None:
    """Closing leaves no task and no socket, however far the link had come; and it may be done twice."""

    async def never_used(_link: RedisAsyncLink) -> None:
        pass

    async def connected(link: RedisAsyncLink) -> None:
        await asyncio.gather(echo(link, "here"), link.run_replicated(COUNT, ("close",), (), soon(), 0))

    async def listening(link: RedisAsyncLink) -> None:
        await link.listen("close", soon())

    async def just_ignored(link: RedisAsyncLink) -> None:
        await link.listen("close", soon())
        await link.ignore("close")

    async def cut_off(link: RedisAsyncLink) -> None:
        await link.listen("close", soon())
        pipe = pipe_of(link)
        redis_server.command("CLIENT", "KILL", "TYPE", "pubsub")
        await is_lost(pipe)

    async def main() -> None:
        for far in (never_used, connected, listening, just_ignored, cut_off):
            before = sockets()
            link = RedisAsyncLink(
                AsyncioRuntime(), RedisAccess(), RedisAddress(*redis_server.address), Ears().callbacks()
            )
            await far(link)
            await link.close()
            assert sockets() <= before, far.__name__
            assert asyncio.all_tasks() == {asyncio.current_task()}, far.__name__
            await link.close()
            with pytest.raises(StoreError, match="closed"):
                await echo(link, "too late")

    run(main, loop)


@pytest.mark.parametrize("loop", LOOPS)
def test_close_while_connecting(redis_server: RedisServer, loop: str) -> None:
    """Closing ends an attempt to connect at every step of it, and whoever waits for it."""

    async def main() -> None:
        for step in range(60):
            before = sockets()
            link = RedisAsyncLink(
                AsyncioRuntime(), RedisAccess(), RedisAddress(*redis_server.address), Ears().callbacks()
            )
            asking = asyncio.ensure_future(link.listen("step", soon()))
            for _ in range(step):
                await asyncio.sleep(0)
            await link.close()
            assert {task for task in asyncio.all_tasks() if task.get_name().startswith("tenure")} == set()
            assert sockets() <= before, step
            (end,) = await asyncio.gather(asking, return_exceptions=True)
            assert end is None or isinstance(end, StoreError)

    run(main, loop)


@pytest.mark.parametrize("loop", LOOPS)
def test_close_before_an_answer(redis_server: RedisServer, loop: str) -> None:
    """Closing does not wait for a server that does not answer, and neither do those who wait for a connection."""

    async def main() -> None:
        redis_server.pause()
        for access in (RedisAccess(connect_timeout=3600), RedisAccess({"password": SECRET}, connect_timeout=3600)):
            before = sockets()
            async with link_to(redis_server.address, access=access) as link:
                asking = [asyncio.ensure_future(echo(link, f"{n}")) for n in range(3)]
                await happens(lambda: has_socket(link))
            assert sockets() <= before
            ends = await asyncio.gather(*asking, return_exceptions=True)
            assert all(isinstance(end, StoreError) for end in ends)
        redis_server.resume()

    run(main, loop)


def has_socket(link: RedisAsyncLink) -> bool:
    """Tell whether a link is connected, be it that nobody has answered yet."""
    dialled: Any = link._line._dialled
    return link._line.pipe is not None or (dialled is not None and dialled._writer is not None)


def test_close_ends_requests(proxy: Proxy) -> None:
    """Whoever waits for an answer when the link is closed is told that there will be none."""

    async def main() -> None:
        async with link_to(proxy.address) as link:
            await echo(link, "warm")
            proxy.blackhole()
            asking: list[asyncio.Future[Any]] = [asyncio.ensure_future(echo(link, f"{n}")) for n in range(3)]
            asking.append(asyncio.ensure_future(link.run_replicated(COUNT, ("close",), (), soon(), 1)))
            await asyncio.sleep(0)
            await link.close()
            ends = await asyncio.gather(*asking, return_exceptions=True)
            assert all(isinstance(end, StoreError) for end in ends)

    run(main)


def test_cancelled_loop(redis_server: RedisServer) -> None:
    """A link can still be closed when its loop is about to end, and all tasks were cancelled."""
    closed: list[bool] = []

    async def hold(link: RedisAsyncLink, ready: asyncio.Event) -> None:
        try:
            await link.listen("ending", soon())
            ready.set()
            await asyncio.Event().wait()
        finally:
            await link.close()
            closed.append(True)

    async def main() -> None:
        ready = asyncio.Event()
        link = RedisAsyncLink(AsyncioRuntime(), RedisAccess(), RedisAddress(*redis_server.address), Ears().callbacks())
        holding.append(asyncio.ensure_future(hold(link, ready)))
        await ready.wait()

    holding: list[asyncio.Task[None]] = []
    before = sockets()
    asyncio.run(main())
    assert closed
    assert sockets() <= before


# -- forks -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("far", ["connected", "connecting"])
def test_fork(redis_server: RedisServer, loop: str, far: str) -> None:
    """A forked child lets go of the connection without a word, and the parent goes on with it."""

    def child_keeps(link: RedisAsyncLink, inherited: set[tuple[int, int]]) -> int:
        child = os.fork()
        if child == 0:
            try:
                link.abandon()
                link.abandon()
                gc.collect()
                os._exit(len(sockets() & inherited))
            finally:
                os._exit(99)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    async def main() -> None:
        before = sockets()
        ears = Ears()
        async with link_to(redis_server.address, ears, RedisAccess(connect_timeout=TEST_TIMEOUT)) as link:
            if far == "connecting":
                redis_server.pause()
            connecting = asyncio.ensure_future(link.listen("fork", soon()))
            await happens(lambda: has_socket(link))
            if far == "connected":
                await connecting
            inherited = sockets() - before
            assert len(inherited) == 1
            assert child_keeps(link, inherited) == 0
            redis_server.resume()
            await connecting
            await echo(link, "parent again")
            await link.command("PUBLISH", "fork", "heard", until=soon())
            assert await ears.pushes.get() == b"heard"
            assert ears.gaps.empty()

    run(main, loop)
