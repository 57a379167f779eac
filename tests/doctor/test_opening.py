"""What a client logs of its store's settings when it is connected: at most two findings, once, at no further cost."""

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from tenure import AsyncClient, Client
from tenure.contracts.findings import Finding, Severity
from tenure.contracts.store import Examinable
from tenure.core.access import StoreAccess
from tenure.core.requests import Requests, Settings
from tenure.doctor.redis import RedisFacts, eviction
from tenure.runtimes.threads import ThreadsRuntime, drive
from tenure.stores.sqlite import sqlite_source
from tests.doctor.cases import MEGABYTE, facts_of
from tests.planting import planted
from tests.servers import MemcachedServer, RedisServer, ZooKeeperServer

EVICTS = ("--maxmemory", "64mb", "--maxmemory-policy", "allkeys-lru")


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """Keep what is logged."""
    with caplog.at_level(logging.WARNING, "tenure"):
        yield caplog


def use(url: str, form: str, *, advice: bool = True) -> None:
    """Use a lock three times."""
    if form == "threads":
        with Client(url, operation_timeout=5.0, advice=advice) as client:
            for _ in range(3):
                client.lock("name").acquire().release()
            client.inspect("name")
        return

    async def main() -> None:
        async with AsyncClient(url, operation_timeout=5.0, advice=advice) as client:
            for _ in range(3):
                await (await client.lock("name").acquire()).release()
            await client.inspect("name")

    asyncio.run(main())


def test_a_client_names_what_is_wrongly_set_once(tmp_path: Path, form: str, log: pytest.LogCaptureFixture) -> None:
    """The text is that of the doctor, and no further request or connection repeats it. It can be turned off."""
    with RedisServer(tmp_path, options=EVICTS) as server:
        use(server.url, form, advice=False)
        assert not log.records
        use(server.url, form)
        facts = facts_of(RedisFacts, {"maxmemory": 64 * MEGABYTE, "policy": "allkeys-lru"})
        facts.place = ":".join(map(str, server.address))
        expected = eviction(facts)
        assert expected is not None
        (record,) = log.records
        assert record.message == f"{expected.text()} (`tenure doctor` shows all findings)"


def test_a_client_of_a_sound_store_logs_nothing(tmp_path: Path, form: str, log: pytest.LogCaptureFixture) -> None:
    """Notes are for the doctor alone: a server without persistence is one."""
    with RedisServer(tmp_path / "redis") as redis, MemcachedServer(tmp_path / "memcached") as memcached:
        use(redis.url, form)
        use(memcached.url, form)
    use(f"sqlite://{tmp_path}/locks.db", form)
    assert not log.records


def test_advice_costs_no_request(tmp_path: Path, form: str) -> None:
    """A client that may give advice sends the same commands as one that may not."""
    with RedisServer(tmp_path, options=EVICTS) as server:
        use(server.url, form)  # which loads the scripts
        sent: list[dict[str, str]] = []
        for advice in (False, True):
            server.command("CONFIG", "RESETSTAT")
            use(server.url, form, advice=advice)
            stats = server.info("commandstats")
            sent.append({name: value.partition(",")[0] for name, value in stats.items() if "config" not in name})
        assert sent[0] == sent[1]


def test_other_stores_tell_what_they_see(
    tmp_path: Path, zookeeper_server: ZooKeeperServer, form: str, log: pytest.LogCaptureFixture
) -> None:
    """Memcached tells its options with its greeting, ZooKeeper the session timeout when a session begins."""
    with MemcachedServer(tmp_path, options=("-M",)) as server:
        use(server.url, form)
    use(f"{zookeeper_server.url}?session_timeout=3600", form)
    assert [record.message.partition(": ")[2][:30] for record in log.records] == [
        "It was started with -M, so it ",
        "The URL asks for a session tim",
    ]


def _finding(severity: Severity) -> Finding:
    return Finding(f"some-{severity}", severity, "here", f"A {severity}.", "It matters.", "change it")


MANY = [*map(_finding, (Severity.ERROR, Severity.ERROR, Severity.WARNING, Severity.NOTE))]


def _say(tmp_path: Path, advice: int, *batches: list[Finding]) -> None:
    """Have the store of a client tell of its settings."""
    runtime = ThreadsRuntime()
    store = sqlite_source(tmp_path / "locks.db").make(runtime)
    assert isinstance(store, Examinable)
    StoreAccess(runtime, store, Settings("owner", advice=advice), lambda _: None)
    for batch in batches:
        store.on_findings(batch)
    drive(store.close())


def _is_right(tmp_path: Path, log: pytest.LogCaptureFixture) -> bool:
    """Tell whether the two worst findings are logged, whatever comes when, and no note."""
    log.clear()
    _say(tmp_path, 0, MANY)
    _say(tmp_path, 2, MANY[3:], MANY[:1], MANY, MANY)
    return [record.message[:14] for record in log.records] == ["here: A error."] * 2


def test_the_two_worst_findings_are_logged(tmp_path: Path, log: pytest.LogCaptureFixture) -> None:
    """At most two in the life of a client, and never a note."""
    assert _is_right(tmp_path, log)


BUGS = {
    "each connection logs again": ("self._settings.advice -= 1", "pass"),
    "notes are logged": ("is not Severity.NOTE", "is not None"),
    "advice that is off is given": ("findings[: self._settings.advice]", "findings[:2]"),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(
    bug: str, tmp_path: Path, log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Advice that is given again and again, or that nobody wanted."""
    monkeypatch.setattr(Requests, "log_findings", planted(Requests, "log_findings", *BUGS[bug]))
    assert not _is_right(tmp_path, log)
