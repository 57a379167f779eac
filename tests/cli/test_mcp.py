"""`tenure mcp`: coding agents share names over the protocol, with clients of its SDK."""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO, Any, cast

import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

import tenure
from tenure.cli.mcp import Tools, _server
from tests import virtual
from tests.cli.conftest import TEST_TIMEOUT, Command, until
from tests.planting import planted

ROUNDS = 500


@asynccontextmanager
async def agent(command: Command, owner: str, errors: Path) -> AsyncGenerator[Client]:
    """Yield a client of `tenure mcp`, in a process of its own, which writes nothing to its standard error."""
    arguments = ["-m", "tenure", "mcp", *(["--owner", owner] if owner else [])]
    parameters = StdioServerParameters(command=sys.executable, args=arguments, env={"TENURE_URL": command.url})
    with errors.open("a+", encoding="utf-8") as file:
        async with Client(stdio_client(parameters, file)) as client:
            yield client
        file.seek(0)
        assert not file.read()


async def call(client: Client, tool: str, **arguments: object) -> dict[str, Any]:
    """Call a tool, and return its result. Raises AssertionError with the text if it failed."""
    done = await client.call_tool(tool, arguments)
    assert not done.is_error, done.content
    assert done.structured_content is not None
    return cast("dict[str, Any]", done.structured_content)


async def refusal(client: Client, tool: str, **arguments: object) -> str:
    """Call a tool that fails, and return the text."""
    done = await client.call_tool(tool, arguments)
    assert done.is_error, done.structured_content
    return str(done.content)


def test_two_agents_never_hold_a_name_at_once(command: Command, tmp_path: Path) -> None:
    """In each race one gets the name, and the other is told by whom, why, and until when it is held."""
    counter, tokens = tmp_path / "counter", [0]
    counter.write_text("0")

    async def race() -> None:
        async with agent(command, "ann", tmp_path / "ann") as ann, agent(command, "bob", tmp_path / "bob") as bob:
            for number in range(ROUNDS):
                tries = [
                    each.call_tool(
                        "acquire", {"name": "file:a.py", "seconds": 600, "reason": f"{name}'s task {number}"}
                    )
                    for each, name in ((ann, "ann"), (bob, "bob"))
                ]
                answers = await asyncio.gather(*tries)
                (winner,) = [place for place, each in enumerate(answers) if not each.is_error]
                told = str(answers[1 - winner].content)
                owner = ("ann", "bob")[winner]
                assert f"{owner} holds it" in told
                assert f"reason: {owner}'s task {number};" in told
                ends_in = float(told.partition("ends in ")[2].split()[0])
                assert 500 < ends_in <= 600
                lease: Any = answers[winner].structured_content
                tokens.append(lease["token"])
                counter.write_text(str(int(counter.read_text()) + 1))
                await call((ann, bob)[winner], "release", handle=lease["handle"])

    asyncio.run(race())
    assert counter.read_text() == str(ROUNDS)
    assert tokens == sorted(set(tokens))


def test_the_lease_of_a_killed_agent_is_free_after_its_time(command: Command, tmp_path: Path) -> None:
    """Neither before nor after, though its process had the client that acquired it."""

    async def kill() -> None:
        async with agent(command, "", tmp_path / "ann") as ann, agent(command, "bob", tmp_path / "bob") as bob:
            begun = time.monotonic()
            lease = await call(ann, "acquire", name="x", seconds=2, reason="a long task")
            os.kill(int(lease["owner"].rpartition("/")[2]), signal.SIGKILL)
            assert "a long task" in await refusal(bob, "acquire", name="x", seconds=60, reason="the next one")
            assert (await call(bob, "wait", name="x", wait=60))["free"]
            assert time.monotonic() - begun >= 2
            await call(bob, "acquire", name="x", seconds=60, reason="the next one")

    asyncio.run(kill())


ME = {"name": "test", "version": "1"}


def talk(pipe: IO[str], number: int, method: str, **parameters: object) -> None:
    """Send a request as the protocol writes it."""
    pipe.write(json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": parameters}) + "\n")
    pipe.flush()


def call_by_hand(pipe: IO[str], number: int, tool: str, **arguments: object) -> None:
    """Say that the handshake is over, and call a tool."""
    pipe.write(json.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"}) + "\n")
    talk(pipe, number, "tools/call", name=tool, arguments=arguments)


@pytest.mark.parametrize("how", ["end of the input", "SIGTERM", "SIGINT"])
def test_an_agent_that_goes_away_waits_no_longer(command: Command, client: tenure.Client, how: str) -> None:
    """Its place in the queue is gone with the process; only the protocol is on its standard output."""
    lease = client.lock("x").acquire()
    process = command.start("mcp")
    assert process.stdin is not None
    talk(process.stdin, 1, "initialize", protocolVersion="2025-06-18", capabilities={}, clientInfo=ME)
    call_by_hand(process.stdin, 2, "acquire", name="x", seconds=9, reason="", wait=500)
    until(lambda: client.inspect("x").waiters, "it waits")
    if how.startswith("SIG"):
        process.send_signal(signal.Signals[how])
        assert process.wait(TEST_TIMEOUT) == 128 + signal.Signals[how]
        assert not client.inspect("x").waiters
    output, errors = process.communicate(timeout=TEST_TIMEOUT)
    assert not client.inspect("x").waiters
    assert process.returncode == (128 + signal.Signals[how] if how.startswith("SIG") else 0), errors
    assert not errors
    assert {each["jsonrpc"] for each in map(json.loads, output.splitlines())} == {"2.0"}
    lease.release()


def test_a_wait_that_is_cancelled_leaves_no_waiter(command: Command, client: tenure.Client, tmp_path: Path) -> None:
    """Neither in the queue, nor as a holder; the server goes on."""
    lease = client.lock("x").acquire()

    async def cancel() -> None:
        async with agent(command, "ann", tmp_path / "ann") as ann, agent(command, "bob", tmp_path / "bob") as bob:
            waiting = asyncio.create_task(call(ann, "acquire", name="x", seconds=9, reason="", wait=500))
            await soon(ann, waiters=1)
            waiting.cancel()
            await asyncio.wait({waiting})
            await soon(ann, waiters=0)
            watching = asyncio.create_task(call(ann, "wait", name="x", wait=500))
            watching.cancel()
            await asyncio.wait({watching})
            lease.release()
            assert (await call(bob, "acquire", name="x", seconds=9, reason=""))["owner"] == "bob"
            assert (await call(bob, "list"))["names"][0]["waiters"] == []

    asyncio.run(cancel())


async def soon(client: Client, *, waiters: int) -> None:
    """Wait until so many wait for the one name."""
    async with asyncio.timeout(TEST_TIMEOUT):
        while len((await call(client, "list"))["names"][0]["waiters"]) != waiters:  # noqa: ASYNC110 - of another process
            await asyncio.sleep(0.01)


async def _shared(make: Callable[[], tenure.AsyncClient], root: Path, work: Callable[[Client], Any]) -> None:
    async with make() as client, Client(_server(Tools(client, root))) as agent_:
        await work(agent_)


def test_a_file_has_one_name(tmp_path: Path) -> None:
    """However its path is spelled; one elsewhere has its whole path. Other names are what they say."""
    (tmp_path / "link").symlink_to(tmp_path)

    async def work(client: Client) -> None:
        for path in ("a.py", "./a.py", "b/../a.py", "link/a.py", str(tmp_path / "a.py")):
            lease = await call(client, "acquire", name=f"file:{path}", seconds=9, reason="")
            assert lease["name"] == "file:a.py"
            await call(client, "release", handle=lease["handle"])
        lease = await call(client, "acquire", name=f"file:{tmp_path.parent}/x", seconds=9, reason="")
        assert lease["name"] == f"file:{tmp_path.parent}/x"
        assert (await call(client, "acquire", name="./a.py", seconds=9, reason=""))["name"] == "./a.py"
        assert "no path" in await refusal(client, "acquire", name="file:\0", seconds=9, reason="")

    asyncio.run(_shared(lambda: tenure.AsyncClient("memory://"), tmp_path.resolve(), work))


def test_errors_say_what_to_do(tmp_path: Path) -> None:
    """What the store does not grant, what is no handle, and a store that does not answer, without its password."""

    async def redis(client: Client) -> None:
        assert "?max_ttl=7200" in await refusal(client, "acquire", name="x", seconds=7200, reason="")
        assert "from 0 to 600" in await refusal(client, "wait", name="x", wait=601)
        assert "no handle" in await refusal(client, "renew", handle="x", seconds=9)
        text = await refusal(client, "acquire", name="x", seconds=9, reason="")
        assert "localhost:1" in text
        assert "hunter2" not in text

    async def zookeeper(client: Client) -> None:
        assert "connection or session" in await refusal(client, "acquire", name="x", seconds=9, reason="")

    for url, work in (("redis://u:hunter2@localhost:1", redis), ("etcd://localhost:1", zookeeper)):
        asyncio.run(_shared(lambda url=url: tenure.AsyncClient(url, advice=False, retry_for=0.1), tmp_path, work))  # type: ignore[misc]


def check_the_time_of_a_lease() -> None:
    """Check that a lease lasts for its seconds, or until it is renewed or released, and its end is told."""

    async def work() -> None:
        async with tenure.AsyncClient(store=virtual.source(), owner="ann") as client:
            tools = Tools(client, Path.cwd())
            lease = await tools.acquire("x", 50, "a task")
            await asyncio.sleep(49)
            with pytest.raises(tenure.LockTimeout, match=r"ann holds it .* reason: a task; the lease ends in 1\.0 s"):
                await tools.acquire("x", 50, "another")
            assert (await tools.renew(lease["handle"], 100))["seconds"] == 100
            with pytest.raises(tenure.LockTimeout, match=r"ends in 90\.0 s"):
                await tools.wait("x", 10)
            await asyncio.sleep(91)
            with pytest.raises(tenure.LeaseLost):
                await tools.renew(lease["handle"], 100)
            with pytest.raises(tenure.UsageError, match="nothing was released"):
                await tools.release(lease["handle"])
            assert (await tools.wait("x", 0))["free"]
            first, begun = await tools.acquire("x", 5, "a task"), asyncio.get_running_loop().time()
            second = await tools.acquire("x", 5, "another", 60)
            assert 4.9 < asyncio.get_running_loop().time() - begun < 6
            assert second["token"] > first["token"] > lease["token"]
            assert (await tools.release(second["handle"]))["outcome"] == "released"
            assert not (await tools.list())["names"]

    virtual.run(work)


def test_a_lease_has_its_time_and_no_more() -> None:
    """It is not renewed in the background, and each refusal says how long it lasts."""
    check_the_time_of_a_lease()


def test_a_lease_without_a_handle_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store did not answer, or the agent has cancelled its call: nobody could renew or release it."""

    async def fail(*_: object, **__: object) -> str:
        raise tenure.StoreUnavailable("the store is away")

    monkeypatch.setattr(tenure.AsyncLease, "detach", fail)

    async def work() -> None:
        async with tenure.AsyncClient(store=virtual.source(), owner="ann") as client:
            tools = Tools(client, Path.cwd())
            with pytest.raises(tenure.StoreUnavailable):
                await tools.acquire("x", 3600, "a task")
            assert not (await tools.list())["names"]

    virtual.run(work)


PLANTED = {
    "it is renewed in the background": (
        "acquire",
        "token = read_handle(handle).token",
        "token = (await self._client.adopt(handle)).token",
    ),
    "a renewal is forgotten": ("renew", "found.name, seconds)", "found.name, 1.0)"),
    "the wait has no end": ("wait", "(left := give_up_at - loop.time()) <= 0", "(left := give_up_at) <= 0"),
    "the end of a lease is not told": ("release", "if outcome is not Outcome.RELEASED", "if False"),
}


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("bug", sorted(PLANTED))
def test_a_planted_bug_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the check of the time of a lease."""
    method, right, wrong = PLANTED[bug]
    monkeypatch.setattr(Tools, method, planted(Tools, method, right, wrong))
    with pytest.raises((AssertionError, pytest.fail.Exception, tenure.TenureError)):
        check_the_time_of_a_lease()
