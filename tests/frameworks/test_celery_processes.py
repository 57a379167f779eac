"""Celery's own processes: workers of each pool, a worker that is killed, and two schedulers."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from tenure.runtimes.clocks import steady
from tests.faults.metronome import Metronome
from tests.hazards.helpers import eventually
from tests.servers import RedisServer

ROOT = Path(__file__).parents[2]
TTL = 2


@pytest.fixture
def environment(redis_server: RedisServer, tmp_path: Path) -> Iterator[dict[str, str]]:
    """Give Celery the test's server for messages and locks, and a folder for results; flush the server at the end."""
    url, results = redis_server.url, tmp_path / "results"
    results.mkdir()
    yield {
        **os.environ,
        "CELERY_BROKER_URL": url,
        "CELERY_RESULT_BACKEND": f"file://{results}",
        "TENURE_URL": f"{url}?guard=off&ttl={TTL}",
        "PYTHONPATH": f"{ROOT / 'examples'}{os.pathsep}{tmp_path}",
        "PYTHONWARNINGS": "default",
    }
    redis_server.command("FLUSHALL")


@contextmanager
def command(environment: dict[str, str], folder: Path, *words: str) -> Generator[subprocess.Popen[bytes]]:
    """Run a command of Celery in a folder."""
    with (folder / f"{words[2]}.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "celery", *words],
            cwd=folder,
            env=environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGCONT)
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise


@contextmanager
def sender(environment: dict[str, str]) -> Generator[Callable[..., Any]]:
    """Return what sends a task of the program, by its name."""
    with Celery(broker=environment["CELERY_BROKER_URL"], backend=environment["CELERY_RESULT_BACKEND"]) as app:

        def send(name: str, *args: str) -> Any:
            return app.send_task(name, args)

        yield send


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo", "gevent"])
def test_the_program_of_the_page_runs_in_each_pool(environment: dict[str, str], tmp_path: Path, pool: str) -> None:
    """No import is lost, though the messages of one customer come at once, and requests for reports are folded."""
    words = ("-A", "celery_imports", "worker", "-P", pool, "-c", "3", "-l", "INFO")
    with command(environment, tmp_path, *words), sender(environment) as send:
        imports = [send("celery_imports.import_orders", "ann") for _ in range(4)]
        assert sorted(each.get(timeout=60) for each in imports) == [1, 2, 3, 4]
        reports = [send("celery_imports.report", "ann").get(timeout=60) for _ in range(2)]
        assert reports == ["ann: 4 imports"] * 2
        assert send("celery_imports.clean_up").get(timeout=60) == 0
        assert send("celery_imports.pay_out", "ann").get(timeout=60).startswith("paid ann under token 1")


def test_the_page_shows_the_program() -> None:
    """The whole of it."""
    program = (ROOT / "examples" / "celery_imports.py").read_text("utf-8")
    assert f"```python\n{program}```" in (ROOT / "docs" / "celery.md").read_text("utf-8")


DYING = """
import os, time
from pathlib import Path
from celery import Celery

app = Celery(task_cls="tenure.celery:Task")
app.conf.update(task_acks_late=True, task_reject_on_worker_lost=True, worker_prefetch_multiplier=1)

def die_first(busy):
    ran = Path(f"{busy}.ran")
    if not ran.exists():
        ran.write_text("")
        os.kill(os.getpid(), 9)
    return busy

for busy in ("retry", "drop", "coalesce", "wait"):
    app.task(name=busy, lock="x:" + busy, busy=busy, busy_countdown=0.5, shared=False)(die_first)
"""


def test_the_task_of_a_killed_process_runs_again_after_the_ttl(environment: dict[str, str], tmp_path: Path) -> None:
    """It is delivered again while its own dead run still has the lock; no policy drops it or folds it for that."""
    (tmp_path / "dying.py").write_text(DYING)
    policies = ("retry", "drop", "coalesce", "wait")
    environment["TENURE_URL"] = environment["TENURE_URL"].replace(f"ttl={TTL}", f"ttl={5 * TTL}")
    with (
        command(environment, tmp_path, "-A", "dying", "worker", "-c", "4", "-l", "INFO"),
        sender(environment) as send,
    ):
        results = [send(busy, busy) for busy in policies]
        assert [each.get(timeout=120) for each in results] == [*policies]
    log = (tmp_path / "worker.log").read_text()
    assert all(f"'x:{busy}' is held" in log for busy in policies[:3]), log


BEAT = """
from celery import Celery
from celery.beat import BeatLazyFunc
from tenure.celery import client_of

app = Celery(task_cls="tenure.celery:Task")

def claimed():
    return client_of(app).counter("celery:beat:tick").get()

app.conf.beat_schedule = {"tick": {"task": "tick", "schedule": 1.0, "args": [BeatLazyFunc(claimed)]}}
"""


class Listener(threading.Thread):
    """Receives what schedulers send: when, from which process, and which run it is."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.app, self.ended = Celery(broker=url), threading.Event()
        self.heard: list[tuple[float, int, int]] = []

    def run(self) -> None:
        """Receive until it is ended."""
        with self.app.connection_for_read() as connection, connection.SimpleQueue("celery") as queue:
            while not self.ended.is_set():
                try:
                    message = queue.get(timeout=0.2)
                except queue.Empty:
                    continue
                message.ack()
                ((run,), _, _) = message.payload
                process = int(message.headers["origin"].partition("@")[0].removeprefix("gen"))
                self.heard.append((steady(), process, run))


def test_two_schedulers_send_each_run_once_though_the_leader_is_stopped(
    environment: dict[str, str], tmp_path: Path, metronome: Metronome
) -> None:
    """Stopped for two ttls and continued: the other one goes on after a ttl, and no run is sent twice."""
    (tmp_path / "ticking.py").write_text(BEAT)
    listener = Listener(environment["CELERY_BROKER_URL"])
    listener.start()

    def beat(name: str) -> Any:
        words = ("-A", "ticking", "beat", "-S", "tenure.celery:Scheduler", "-s", name, "--pidfile=", "-l", "INFO")
        return command(environment, tmp_path, *words)

    def hear(more: int) -> None:
        wanted = len(listener.heard) + more
        eventually(lambda: len(listener.heard) >= wanted, "the schedulers send", within=60)

    try:
        with beat("one") as one, beat("two") as two:
            hear(5)
            leader = listener.heard[-1][1]
            assert leader in (one.pid, two.pid)
            os.kill(leader, signal.SIGSTOP)
            time.sleep(2 * TTL)
            os.kill(leader, signal.SIGCONT)
            hear(5)
            assert listener.heard[-1][1] == one.pid + two.pid - leader
            os.kill(listener.heard[-1][1], signal.SIGTERM)
            hear(3)
            assert listener.heard[-1][1] == leader
            assert one.poll() is None or two.poll() is None
    finally:
        listener.ended.set()
        listener.join()
    runs = [run for _, _, run in listener.heard]
    times = [when for when, _, _ in listener.heard]
    assert len(set(runs)) == len(runs), listener.heard
    gaps = [later - earlier - metronome.missed(earlier, later) for earlier, later in pairwise(times)]
    assert max(gaps) < TTL + 2, gaps
