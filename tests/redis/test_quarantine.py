"""What people are shown of a quarantined server, and how they end its quarantine."""

import asyncio
import io
import json
import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from tenure import AsyncClient, Client, LockTimeout, StoreUnavailable, UsageError
from tenure.cli import run_app
from tenure.contracts.messages import NameView
from tenure.stores.quorum.views import view_of
from tests.servers import Cluster, RedisServer


def run(capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Run the command, and return its status, output and errors."""
    capfd.readouterr()
    status = run_app(list(arguments))
    captured = capfd.readouterr()
    return status, captured.out, captured.err


def test_a_quarantine_is_shown(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """`show`, `ls`, their JSON, `wait` and LockTimeout say that a server is quarantined, and for how long."""
    with RedisServer(tmp_path) as server:
        strict = f"{server.url}?guard=strict&max_ttl=40"
        with Client(strict) as client:
            assert client.inspect("orders").quarantined_for == 40.0  # it would begin now
            with pytest.raises(LockTimeout, match=r"is quarantined: it grants nothing for another (39\.\d|40\.0) s"):
                client.lock("orders").acquire(timeout=0)
            assert 0 < client.inspect("orders").quarantined_for < 40.0  # it has begun
        status, output, errors = run(capfd, "show", "orders", "--url", strict)
        word, left = output.rstrip("\n").split("\t")
        assert (status, word) == (0, "quarantined")
        assert "may have forgotten leases" in errors
        assert 0 < float(left) <= 40
        _, output, _ = run(capfd, "show", "orders", "--json", "--url", strict)
        assert 0 < json.loads(output)["quarantined_for"] <= 40
        status, output, errors = run(capfd, "ls", "--url", strict)
        assert (status, output) == (0, "")
        assert "may have forgotten leases" in errors
        status, _, errors = run(capfd, "wait", "orders", "--timeout", "0", "--url", strict)
        assert status == 75
        assert "may have forgotten leases" in errors
        assert run(capfd, "show", "orders", "--url", f"{server.url}?guard=off")[1] == "free\n"


@pytest.mark.parametrize(("options", "lasts"), [("", 30.0), ("?max_ttl=5", 5.0)])
def test_how_long_a_quarantine_lasts_is_told_truly(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, options: str, lasts: float
) -> None:
    """A server that comes back with its data is quarantined for max_ttl: error, log and `show` say so, and why."""
    why = r"may have forgotten leases.* nothing for another (\d+\.\d) s.* lasts for max_ttl or longer"
    with RedisServer(tmp_path, options=("--appendonly", "yes")) as server, Client(server.url + options) as client:
        client.lock("orders", ttl=2).acquire().release()
        server.kill()
        server.start()
        with pytest.raises(LockTimeout, match=why) as refused:
            client.lock("orders", ttl=2).acquire(timeout=1)
        _, _, errors = run(capfd, "show", "orders", "--url", server.url + options)
        for text in (str(refused.value), caplog.text, errors):
            told = re.search(why, text)
            assert told, text
            assert lasts - 5 < float(told[1]) <= lasts


def test_a_quorum_is_quarantined_until_enough_of_its_nodes_grant() -> None:
    """Not until the last does: a majority is enough."""
    views = [NameView("orders", 1, 7, quarantined_for=left) for left in (9.0, 0.0, 3.0)]
    assert view_of("orders", views, 2).quarantined_for == 3.0
    assert view_of("orders", views, 1).quarantined_for == 0.0


def test_a_quarantine_is_ended_for_everybody(tmp_path: Path) -> None:
    """Who waits is granted, and so is everybody after; nobody who knows the server takes it for another one."""
    with RedisServer(tmp_path) as server:
        strict = f"{server.url}?guard=strict&max_ttl=40"
        with Client(strict) as client, Client(strict) as other, Client(server.url) as observant:
            assert client.lock("orders").try_acquire() is None
            with ThreadPoolExecutor() as threads:
                waiting = threads.submit(client.lock("orders", ttl=5).acquire, timeout=30)
                assert 30 < other.end_quarantine() <= 40
                waiting.result().release()
            assert other.end_quarantine() == 0.0
            for each in (client, other, observant):
                each.lock("orders").acquire(timeout=0).release()
        with Client(strict) as newcomer:
            newcomer.lock("orders").acquire(timeout=0).release()
        server.kill()
        server.start()
        with Client(strict) as after:
            assert after.lock("orders").try_acquire() is None


def test_all_slots_of_a_cluster_grant_again(tmp_path: Path) -> None:
    """Each slot that was used has a quarantine of its own, and all are ended."""
    with (
        Cluster(tmp_path) as cluster,
        Client(f"{cluster.url}?guard=strict&max_ttl=40") as client,
        Client(cluster.url) as other,
    ):
        for name in map(str, range(20)):
            assert client.lock(name).try_acquire() is None
        assert 30 < other.end_quarantine() <= 40
        for name in map(str, range(20)):
            client.lock(name).acquire(timeout=0).release()


def test_all_nodes_of_a_quorum_vote_again(tmp_path: Path) -> None:
    """Those that answer, if they are a majority."""
    with ExitStack() as stack:
        servers = [stack.enter_context(RedisServer(tmp_path / f"{number}")) for number in range(3)]
        urls = [f"{server.url}?guard=strict&max_ttl=40" for server in servers]
        client, other = stack.enter_context(Client(quorum=urls)), stack.enter_context(Client(quorum=urls))
        assert client.lock("orders").try_acquire() is None
        servers[0].kill()
        assert 30 < other.end_quarantine() <= 40
        client.lock("orders").acquire(timeout=10).release()
        servers[1].kill()
        with pytest.raises(StoreUnavailable):
            other.end_quarantine()


def test_a_task_ends_a_quarantine(tmp_path: Path) -> None:
    """The same in asyncio."""

    async def main(url: str) -> None:
        async with AsyncClient(url) as client:
            assert await client.lock("orders").try_acquire() is None
            assert 30 < await client.end_quarantine() <= 40
            await (await client.lock("orders").acquire(timeout=0)).release()

    with RedisServer(tmp_path) as server:
        asyncio.run(main(f"{server.url}?guard=strict&max_ttl=40"))


def test_the_command_asks_before_it_ends_one(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a yes, or --yes, ends it; what it risks is said first."""
    with RedisServer(tmp_path) as server:
        strict = f"{server.url}?guard=strict&max_ttl=40"
        with Client(strict) as client:
            assert client.lock("orders").try_acquire() is None
        assert run(capfd, "quarantine", "end", strict)[::2] == (
            64,
            "tenure: the quarantine was not ended, for it was not confirmed. --yes ends it without a question.\n",
        )
        for said, status in [("n\n", 64), ("", 64), ("yes\n", 0)]:
            answers = io.StringIO(said)
            answers.isatty = lambda: True  # type: ignore[method-assign]
            monkeypatch.setattr("sys.stdin", answers)
            ended, _, errors = run(capfd, "quarantine", "end", strict)
            assert "at work beside it" in errors
            assert ended == status
        assert run(capfd, "quarantine", "end", strict, "--yes") == (1, "", "tenure: the store is not quarantined.\n")
        assert json.loads(run(capfd, "quarantine", "end", strict, "--yes", "--json")[1]) == {"ended": 0.0}


def test_a_store_that_never_forgets_has_none() -> None:
    """There is nothing to end, and the error says where there would be."""
    with Client("memory://") as client, pytest.raises(UsageError, match="only Redis"):
        client.end_quarantine()
