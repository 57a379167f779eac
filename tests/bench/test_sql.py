"""The benchmarks of the SQL stores measure what they say."""

import dataclasses
from pathlib import Path

import pytest

from bench.contenders import Handle
from bench.contest import Share
from bench.harness import QUICK, Report
from bench.sql import contenders, floor, handoff, hot, pair
from bench.sql.contenders import AWAITED, OPENERS, PALS, PEERS, ROWS, SESSION_LOCK, SESSIONS, THREADS, lineup, url_of
from bench.sql.servers import MEMCACHED, MYSQL, POSTGRESQL
from tenure import Client
from tests.servers import PostgresServer

FEW = dataclasses.replace(
    QUICK, rounds=1, pair_rounds=1, pairs=10, passes=2, threads=4, processes=2, hot_rounds=1, window=0.2
)

SERVERS = {POSTGRESQL: "postgres_server", MYSQL: "mariadb_server", MEMCACHED: "memcached_server"}
"""The fixture of each kind."""

URLS = {POSTGRESQL: "postgresql://host/locks", MYSQL: "mysql://host/locks", MEMCACHED: "memcached://host"}


@pytest.mark.parametrize("kind", [POSTGRESQL, MYSQL, MEMCACHED])
def test_every_contender_is_described_and_can_be_opened(kind: str) -> None:
    """Its peers and its floors are among those that are measured."""
    meanings = contenders.MEANINGS | floor.MEANINGS
    labels = {*ROWS, *SESSIONS[kind], *PEERS[kind]}
    assert {*labels, *pair.FLOORS.get(kind, ()), *contenders.POLLS[kind]} <= set(meanings)
    assert {*labels, *contenders.POLLS[kind]} - set(AWAITED) <= set(OPENERS[kind])
    assert kind not in SESSION_LOCK or SESSION_LOCK[kind] in OPENERS[kind]


def test_what_this_version_cannot_open_is_left_out_and_named() -> None:
    """A store or a mode that does not exist yet."""
    found = lineup(POSTGRESQL, "nosuch://host", (THREADS, PALS))
    assert found.labels == [PALS]
    assert [note.partition(":")[0] for note in found.notes] == [f"{THREADS} is left out on {POSTGRESQL}"]


def test_a_mode_is_an_option_of_the_url() -> None:
    """Rows are the default."""
    url = URLS[POSTGRESQL]
    assert url_of(THREADS, url) == url
    assert url_of(contenders.ADVISORY, url) == url_of(contenders.ADVISORY_ASYNCIO, url) == f"{url}?mode=advisory"


def test_contests_count_grants_by_client_and_by_process() -> None:
    """The rate is of all, the fairness is between clients."""
    contest = hot.Contest([[Share(3, [0.1]), Share(1, [0.2])], [Share(2, [0.3]), Share(2)]], 2.0)
    assert (contest.rate(), contest.of_processes(), contest.waits()) == (4.0, [4, 4], [0.1, 0.2, 0.3])
    assert contest.fairness() == pytest.approx(1 / 3)
    assert hot.Contest([[Share()], [Share()]], 1.0).fairness() == 0


def test_as_many_clients_contend_in_three_ways() -> None:
    """And then the processes that are to be fair."""
    found = hot.crowds(QUICK)
    assert [(each.processes, each.clients) for each in found] == [(1, 32), (4, 8), (32, 1), (8, 1)]
    assert [bool(each.hold) for each in found] == [False, False, False, True]


@pytest.mark.parametrize(
    ("kind", "label"),
    [(kind, label) for kind, url in URLS.items() for label in lineup(kind, url, tuple(OPENERS[kind])).labels],
)
def test_every_lock_excludes_others(request: pytest.FixtureRequest, kind: str, label: str) -> None:
    """Two members take turns, and each of them more than once."""
    order: list[str] = []
    with OPENERS[kind][label](request.getfixturevalue(SERVERS[kind]).url, 2) as (first, second):
        for handle in (first, second, first):
            _take(handle, order)
    assert order == ["taken", "released"] * 3


def _take(handle: Handle, order: list[str]) -> None:
    got = handle.acquire()
    order.append("taken")
    assert handle.release() >= got
    order.append("released")


def test_the_bare_calls_are_those_of_the_client(postgres_server: PostgresServer) -> None:
    """Else the floor would be another lock's: each call is checked to have granted and released."""
    with Client(postgres_server.url) as client, floor.libpq(postgres_server.url) as pgconn:
        client.names()  # makes the tables
        work = floor.calls_pair(pgconn)
        work()
        work()


@pytest.mark.parametrize(
    ("bench", "bounds"),
    [(pair.postgresql, 2), (handoff.postgresql, 2), (hot.postgresql, 4)],
    ids=["pair", "handoff", "hot"],
)
def test_a_few_rounds(bench: "pair.Bench", bounds: int, tmp_path: Path) -> None:
    """Every contender that can be opened has a row, and the bounds of rows are shown."""
    report: Report = bench(FEW, tmp_path)
    labels = {row.label.rpartition(", ")[2] for row in report.rows}
    assert {*ROWS, *PEERS[POSTGRESQL], floor.ADVISORY} <= {*labels, *(row.label for row in report.rows)}
    assert len(report.bounds) >= bounds
