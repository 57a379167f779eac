"""Prometheus metrics: gauges go back to zero, however waits and leases end, and labels take few values."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, multiprocess

from tenure import Client, EventKind, LeaseLost, LockEvent, LockTimeout, Stop, Stopped, UsageError
from tenure.core.events import Events
from tenure.core.lease import CoreLease
from tenure.core.local_queue import LocalQueues
from tenure.core.renewer import Renewer
from tenure.metrics import prometheus
from tenure.metrics.recorder import MetricsRecorder
from tenure.stores.memory import MemoryTable, memory_source
from tests.hazards.helpers import TEST_TIMEOUT, eventually
from tests.metrics.scene import check_events, check_scene, scraped
from tests.planting import planted

pytestmark = pytest.mark.filterwarnings("ignore:.*dropped without release:ResourceWarning")

LOCKS = 'kind="lock",template="lock"'


def test_every_wait_and_every_lease_ends_once_in_asyncio() -> None:
    """By a grant, a timeout, a cancellation; a release, a hand-off, a loss, a drop; of every kind of primitive."""
    check_scene()


class Crowd:
    """200 threads: half of them time out, 20 are stopped, the leases of 5 are revoked, the others work."""

    def __init__(self, client: Client) -> None:
        """Prepare the threads."""
        self.client = client
        self.stop = Stop()
        self.revoked = threading.Event()
        self.failed: list[BaseException] = []
        works: list[Callable[[], None]] = [self.time_out] * 100 + [self.be_stopped] * 20
        works += [partial(self.lose, n) for n in range(5)] + [partial(self.work, n) for n in range(75)]
        self.threads = [threading.Thread(target=self.noting, args=(each,)) for each in works]

    def time_out(self) -> None:
        """Wait for a name in vain."""
        with pytest.raises(LockTimeout):
            self.client.lock("busy", timeout=1.0).acquire()

    def be_stopped(self) -> None:
        """Wait for a name until a `Stop` is set."""
        with pytest.raises(Stopped):
            self.client.lock("busy").acquire(stop=self.stop)

    def lose(self, n: int) -> None:
        """Hold a name until its lease is revoked."""
        with suppress(LeaseLost), self.client.lock(f"invoice-{n}"):
            assert self.revoked.wait(TEST_TIMEOUT)

    def work(self, n: int) -> None:
        """Take a name three times, among others."""
        for _ in range(3):
            with self.client.lock(f"shared-{n % 5}"):
                pass

    def noting(self, run: Callable[[], None]) -> None:
        """Note an error."""
        try:
            run()
        except BaseException as error:  # noqa: BLE001 - the test shows it
            self.failed.append(error)


def test_nothing_is_held_and_nobody_waits_after_a_crowd_of_threads() -> None:
    """However each of them ends, the gauges are zero at the end, and each end is counted once."""
    told: list[LockEvent] = []
    registry, source = CollectorRegistry(), memory_source(MemoryTable())
    client = Client(store=source, on_event=told.append)
    prometheus(client, registry)
    crowd = Crowd(client)
    with Client(store=source) as other, client, other.lock("busy"):
        for each in crowd.threads:
            each.start()
        eventually(lambda: scraped(registry).get("tenure_waiting", {}).get(LOCKS, 0.0) >= 20, "some wait")
        eventually(lambda: sum(len(other.inspect(f"invoice-{n}").holders) for n in range(5)) == 5, "five hold")
        for n in range(5):
            other.revoke(f"invoice-{n}", force=True)
        eventually(lambda: sum(each.event is EventKind.LOST for each in told) == 5, "five losses")
        crowd.revoked.set()
        crowd.stop.set()
        for each in crowd.threads:
            each.join(TEST_TIMEOUT)
    assert not crowd.failed
    check_events(told)
    samples = scraped(registry)
    assert samples["tenure_held"] == {LOCKS: 0.0}
    assert samples["tenure_waiting"] == {LOCKS: 0.0}
    assert samples["tenure_wait_seconds_count"] == {
        f'kind="lock",result="{result}",template="lock"': count
        for result, count in {"timeout": 100.0, "stopped": 20.0, "granted": 230.0}.items()
    }
    assert samples["tenure_leases_lost_total"] == {'cause="revoked",kind="lock",template="lock"': 5.0}
    assert sum(samples["tenure_leases_ended_total"].values()) == 230.0
    assert samples["tenure_hold_seconds_count"] == {LOCKS: 230.0}


def test_ten_thousand_names_are_one_series() -> None:
    """Labels are the template and the kind, never the name: by a decorator, by `template`, and without either."""
    registry = CollectorRegistry()
    client = Client("memory://")
    prometheus(client, registry)

    @client.lock("invoice-{n}")
    def decorated(n: int) -> int:
        return n

    with client:
        for n in range(10_000):
            decorated(n)
        for n in range(50):
            with client.lock(f"order-{n}", template="order-{n}"), client.lock(f"customer-{n}"):
                pass
    assert scraped(registry)["tenure_hold_seconds_count"] == {
        'kind="lock",template="invoice-{n}"': 10_000.0,
        'kind="lock",template="order-{n}"': 50.0,
        'kind="lock",template="lock"': 50.0,
    }


def test_clients_share_a_registry() -> None:
    """A second client of the process adds to the same metrics."""
    registry = CollectorRegistry()
    for _ in range(2):
        client = Client("memory://")
        prometheus(client, registry)
        with client, client.lock("name"):
            assert scraped(registry)["tenure_held"] == {LOCKS: 1.0}
    assert scraped(registry)["tenure_hold_seconds_count"] == {LOCKS: 2.0}
    check_levels = scraped(registry)
    assert check_levels["tenure_held"] == {LOCKS: 0.0}


def test_metrics_begin_before_the_client_is_used() -> None:
    """Else a gauge would fall below zero by the ends of leases whose beginnings it has not seen."""
    with Client("memory://") as client, client.lock("name"):
        with pytest.raises(UsageError, match="was used before"):
            prometheus(client, CollectorRegistry())
        with pytest.raises(UsageError, match="was used before"):
            client.listen(print)


BUGS: dict[str, tuple[object, str, str, str]] = {
    "a wait does not end by a cancellation": (
        Events,
        "follow",
        "except BaseException as error:",
        "except Exception as error:",
    ),
    "a lease ends twice": (Events, "_end_lease", "self._pass_once(use.holds, event)", "self._pass(event)"),
    "a wait begins twice": (Events, "contended", " and not use.contended", ""),
    "a wait that is not granted does not end": (
        Events,
        "follow",
        "if not quiet or use.contended:",
        "if use.contended and quiet:",
    ),
    "the probe of max_waiters counts as a refusal": (Events, "follow", "if not quiet or use.contended:", "if True:"),
    "the end of a lease is not reported": (Events, "_granted", "lease.told = use", "lease.told = None"),
    "a loss is not reported": (CoreLease, "_tell", "if self.told is not None:", "if self.told is None:"),
    "a loss does not lower the gauge": (MetricsRecorder, "_lost", "self._ended(event)", "pass"),
    "a wait does not lower the gauge if it fails": (
        MetricsRecorder,
        "_gave_up",
        "self._wait_ended(event, event.cause)",
        "pass",
    ),
    "a drop is not reported": (Renewer, "give_up", 'self._events.dropped(lease, where or "")', "pass"),
    "a hand-off is a release in the store": (
        LocalQueues,
        "hand_off",
        "self._access.events.handed_on(lease)",
        "self._access.events.ended(lease, Outcome.RELEASED)",
    ),
    "a lease that lingers is still held": (
        LocalQueues,
        "linger_on",
        "self._access.events.ended(lease, Outcome.RELEASED)",
        "pass",
    ),
    "a label is a name": (Events, "_event", "of.template or of.kind", "of.title"),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scene finds each of them."""
    owner, method, right, wrong = BUGS[bug]
    assert isinstance(owner, type)
    monkeypatch.setattr(owner, method, planted(owner, method, right, wrong))
    with pytest.raises((AssertionError, KeyError)):
        check_scene()


WORKER = """
import os, sys, tenure
from tenure.metrics import prometheus
client = tenure.Client("memory://")
prometheus(client)
lease = client.lock("name").acquire()
client.lock("other").acquire().release()
print("held", flush=True)
sys.stdin.readline()
lease.release()
print("released", flush=True)
sys.stdin.readline()
client.close()
"""


def test_processes_add_up_in_the_multiprocess_mode(tmp_path: Path) -> None:
    """A scrape by another process shows what all living ones hold, and counts what dead ones have done."""
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    command = [sys.executable, "-c", WORKER]
    with ExitStack() as stack:
        workers = [
            stack.enter_context(
                subprocess.Popen(command, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            )
            for _ in range(3)
        ]

        def step(worker: subprocess.Popen[str], said: str) -> None:
            assert worker.stdout is not None
            assert worker.stdout.readline() == f"{said}\n"

        def go_on(worker: subprocess.Popen[str]) -> None:
            assert worker.stdin is not None
            worker.stdin.write("\n")
            worker.stdin.flush()

        for worker in workers:
            step(worker, "held")
        assert sum_of(tmp_path, "tenure_held") == 3.0
        go_on(workers[0])
        step(workers[0], "released")
        assert sum_of(tmp_path, "tenure_held") == 2.0
        workers[1].kill()
        workers[1].wait(TEST_TIMEOUT)
        multiprocess.mark_process_dead(workers[1].pid, str(tmp_path))  # type: ignore[no-untyped-call]
        assert sum_of(tmp_path, "tenure_held") == 1.0
        assert sum_of(tmp_path, "tenure_hold_seconds_count") == 4.0
        go_on(workers[2])
        step(workers[2], "released")
        go_on(workers[0])
        go_on(workers[2])
    assert sum_of(tmp_path, "tenure_hold_seconds_count") == 5.0


def sum_of(folder: Path, name: str) -> float:
    """Return the sum of a metric over the processes that keep theirs in a folder."""
    registry = CollectorRegistry()
    multiprocess.MultiProcessCollector(registry, str(folder))  # type: ignore[no-untyped-call]
    return sum(scraped(registry)[name].values())
