"""The scheduler of which one node ticks: two nodes in one process, whose ticks and clock are the test's own."""

from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import celery
import pytest
from celery import Celery, beat

import tenure.celery
from tenure import StoreUnavailable, UsageError
from tests.planting import module_with

NUMBERS = count()
EVERY = 60


class Nodes:
    """Two nodes that run the same schedule, and what they have sent."""

    def __init__(self, module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "LONGEST_WAIT", 0.01)
        self.module, self.namespace = module, f"beat-{next(NUMBERS)}"
        self.now, self.sent = datetime(2026, 1, 1, tzinfo=UTC), list[tuple[str, int]]()
        self.begin, self.all = self.now, list[Any]()
        self.a, self.b = self.node("a"), self.node("b")

    def node(self, name: str) -> Any:
        """Start a node."""
        app = Celery(name, broker="memory://")
        app.now = lambda: self.now
        app.conf.tenure_backend, app.conf.tenure_namespace = "memory://", self.namespace
        app.conf.tenure_beat_scheduler = "celery.beat:Scheduler"
        app.conf.beat_schedule = {"report": {"task": "report", "schedule": timedelta(seconds=EVERY)}}
        app.send_task = lambda *_args, **_options: self.sent.append((name, self.passed()))
        self.all.append(self.module.Scheduler(app))
        return self.all[-1]

    def close(self) -> None:
        """End what nodes still hold."""
        for node in self.all:
            node._client.close()

    def passed(self) -> int:
        """Return how many seconds have passed by the test's clock."""
        return int((self.now - self.begin).total_seconds())

    def at(self, seconds: int, *nodes: Any) -> None:
        """Set the clock, and let nodes tick until they have nothing to do."""
        self.now = self.begin + timedelta(seconds=seconds)
        for node in nodes:
            for _ in range(4):
                node.tick()

    def depose(self, node: Any) -> None:
        """Let the lease of a leader end, as if the node had been stopped for its ttl."""
        node._client.revoke(self.module.LEADER, force=True)
        assert node._election._term.lost.wait(30)


def check_leader(nodes: Nodes) -> None:
    """Let one node send; when it ends, the other one goes on with the next run, though it has ticked long since."""
    nodes.at(0, nodes.a, nodes.b)
    nodes.at(60, nodes.b, nodes.a, nodes.b)
    assert nodes.sent == [("a", 60)]
    nodes.a.close()
    nodes.at(90, nodes.b)
    nodes.at(121, nodes.b)
    assert nodes.sent == [("a", 60), ("b", 121)]


def check_stands_again(nodes: Nodes) -> None:
    """Send nothing that the next leader has sent, and lead again after that one."""
    nodes.at(0, nodes.a)
    nodes.at(60, nodes.a)
    nodes.depose(nodes.a)
    nodes.at(120, nodes.b, nodes.a)
    assert nodes.sent == [("a", 60), ("b", 120)]
    nodes.b.close()
    nodes.at(130, nodes.a)
    nodes.at(180, nodes.a)
    assert nodes.sent[2:] == [("a", 180)]


def check_stopped_within_a_tick(nodes: Nodes) -> None:
    """Send nothing that the next leader has sent, though the stop came after a look at the lease."""
    nodes.at(0, nodes.a)
    before = nodes.a._last_run

    def stopped(entry: object) -> object:
        nodes.a._last_run = before
        nodes.depose(nodes.a)
        nodes.at(60, nodes.b)
        return before(entry)

    nodes.a._last_run = stopped
    nodes.at(60, nodes.a)
    assert nodes.sent == [("b", 60)]
    nodes.at(120, nodes.a, nodes.b)
    assert nodes.sent[1:] == [("b", 120)]


def check_stopped_after_the_claim(nodes: Nodes) -> None:
    """Leave a run out if the lease is lost while it is claimed: the next leader has gone on after it."""
    nodes.at(0, nodes.a)
    before = nodes.a._last_run

    def slow(entry: Any) -> Any:
        nodes.a._last_run = before
        counter = before(entry)

        def claims(expected: int, value: int) -> bool:
            claimed = counter.compare_and_set(expected, value)
            nodes.depose(nodes.a)
            return bool(claimed)

        return SimpleNamespace(compare_and_set=claims)

    nodes.a._last_run = slow
    nodes.at(60, nodes.a)
    assert nodes.sent == []
    nodes.at(120, nodes.a)
    assert nodes.sent == [("a", 120)]


def check_store_away(nodes: Nodes) -> None:
    """Send nothing while the store does not answer, and what was due when it does."""
    nodes.at(0, nodes.a)

    def fail(*_args: object, **_options: object) -> None:
        raise StoreUnavailable("the store does not answer")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nodes.a, "_last_run", fail)
        nodes.at(60, nodes.a)
        patch.setattr(nodes.a._election, "campaign", fail)
        nodes.at(70, nodes.a)
    assert nodes.sent == []
    nodes.at(80, nodes.a)
    assert nodes.sent == [("a", 80)]


def check_first_run(nodes: Nodes) -> None:
    """Begin a schedule once: nodes that come and go before its first run do not put it off."""
    nodes.at(0, nodes.a)
    nodes.a.close()
    nodes.at(50)
    late = nodes.node("late")
    nodes.at(59, late)
    assert nodes.sent == []
    nodes.at(60, late)
    assert nodes.sent == [("late", 60)]


def check_older_entries(nodes: Nodes) -> None:
    """Send nothing twice, though the wrapped scheduler reads its entries anew in an older state."""
    nodes.at(0, nodes.a)
    nodes.at(60, nodes.a)
    nodes.a.schedule["report"].last_run_at, nodes.a._heap = nodes.begin, None
    nodes.at(70, nodes.a)
    nodes.at(120, nodes.a)
    assert nodes.sent == [("a", 60), ("a", 120)]


CHECKS = (
    check_leader,
    check_stands_again,
    check_stopped_within_a_tick,
    check_stopped_after_the_claim,
    check_store_away,
    check_older_entries,
    check_first_run,
)

BUGS = [
    (check_leader, "(self._election.is_leader or self._elected())", "True"),
    (check_leader, "            self._read_last_runs()\n", ""),
    (check_leader, "            self._election.resign()\n\n\ndef", "            pass\n\n\ndef"),
    (check_stands_again, "entry.last_run_at = (EPOCH", "_ = (EPOCH"),
    (check_store_away, "        self._heap = None\n", ""),
    (check_stands_again, "if not (self._election.is_leader or", "if not (self._election._term or"),
    (check_stopped_within_a_tick, "if claimed and self._election.is_leader:", "if True:"),
    (check_older_entries, ".compare_and_set(\n                _micros(entry), ", ".reset(\n                "),
    (check_stopped_after_the_claim, "if claimed and self._election.is_leader:", "if claimed:"),
    (
        check_store_away,
        "        except StoreError as error:\n            claimed, why = False, error\n",
        "        finally:\n            pass\n",
    ),
    (check_store_away, "            claimed, why = False, error", "            claimed, why = True, error"),
    (check_first_run, "(counter.compare_and_set(0, own) and own)", "own"),
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
def test_a_schedule(check: Callable[[Nodes], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each run is sent at most once, and the schedule goes on with whichever node is left."""
    with closing(Nodes(tenure.celery, monkeypatch)) as nodes:
        check(nodes)


@pytest.mark.parametrize(("check", "right", "wrong"), BUGS, ids=lambda part: None)
def test_a_planted_bug_in_the_scheduler_is_found(
    check: Callable[[Nodes], None], right: str, wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a maintainer may get it wrong."""
    monkeypatch.setattr(celery.Task, "on_bound", vars(celery.Task)["on_bound"])
    with (
        closing(Nodes(module_with(tenure.celery, (right, wrong)), monkeypatch)) as nodes,
        pytest.raises((AssertionError, StoreUnavailable)),
    ):
        check(nodes)


def test_it_is_the_scheduler_that_it_wraps(tmp_path: Path) -> None:
    """Its file, its settings and its entries: only the ticks are elected."""
    app = Celery("shop", broker="memory://")
    app.conf.tenure_backend = "memory://"
    scheduler = tenure.celery.Scheduler(app, schedule_filename=str(tmp_path / "schedule"))
    assert isinstance(scheduler, beat.PersistentScheduler)
    assert str(tmp_path) in scheduler.info
    scheduler.close()


def test_a_store_without_counters_is_refused() -> None:
    """When the scheduler starts, not when the first task is due."""
    app = Celery("shop", broker="memory://")
    app.conf.tenure_backend = "memcached://127.0.0.1:1"
    app.conf.tenure_beat_scheduler = "celery.beat:Scheduler"
    with pytest.raises(UsageError, match="keeps no counters"):
        tenure.celery.Scheduler(app)


def test_the_url_of_the_store_is_not_shown() -> None:
    """Celery shows the settings of an app in `celery report` and `celery inspect conf`."""
    app = Celery("shop", broker="memory://")
    app.conf.tenure_backend = "redis://user:a-secret@localhost:6379/0"
    assert "a-secret" not in app.conf.humanize()
