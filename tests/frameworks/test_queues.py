"""The programs in docs/queues.md do what the page says, each with the real library."""

import os
import re
import subprocess
import sys
from pathlib import Path

import psycopg.conninfo
import pytest

from tests.servers import PostgresServer, RedisServer

PAGE = (Path(__file__).parents[2] / "docs" / "queues.md").read_text("utf-8")
PROGRAMS = dict[str, str](re.findall(r"^## (\w+)\n.*?^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))

WITHIN = """
import sys, time
from datetime import UTC, datetime
import tenure

def until(condition):
    give_up_at = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < give_up_at
        time.sleep(0.01)
"""

DRIVERS = {
    "APScheduler": """
from jobs import client, scheduler
for job in scheduler.get_jobs():
    job.modify(next_run_time=datetime.now(UTC))
scheduler.start()
until(lambda: client.jobs() and client.jobs()[0].runs)
scheduler.shutdown()
""",
    "Dramatiq": """
import dramatiq
from dramatiq.brokers.stub import StubBroker
broker = StubBroker()
dramatiq.set_broker(broker)
from jobs import client, import_orders
worker = dramatiq.Worker(broker, worker_timeout=100)
worker.start()
with tenure.Client() as other, other.lock("import:ann"):
    import_orders.send("ann")
    until(lambda: broker.delay_queues and broker.queues["default.DQ"].unfinished_tasks)
    print("held", flush=True)
broker.join("default")
worker.stop()
""",
    "RQ": """
import subprocess
from redis import Redis
from rq import Queue
url = sys.argv[1]
queue = Queue(connection=Redis.from_url(url))
with tenure.Client() as other, other.lock("import:ann"):
    job = queue.enqueue("jobs.import_orders", "ann")
    worker = subprocess.Popen([sys.executable, "-m", "rq.cli", "worker", "--with-scheduler", "--url", url])
    until(lambda: job.get_status() == "scheduled")
    print("held", flush=True)
until(lambda: job.get_status() == "finished")
worker.terminate()
worker.wait(30)
""",
    "taskiq": """
import asyncio
from jobs import broker, client, import_orders
async def main():
    async with tenure.AsyncClient() as other:
        async with other.lock("import:ann"):
            task = await import_orders.kiq("ann")
            while not (await other.inspect("import:ann")).waiters:
                await asyncio.sleep(0.01)
            print("held", flush=True)
        await task.wait_result(timeout=60)
    await client.close()
asyncio.run(main())
""",
    "procrastinate": """
import asyncio
from jobs import app, client, import_orders
async def main():
    async with app.open_async(), tenure.AsyncClient() as other:
        await app.schema_manager.apply_schema_async()
        async with other.lock("import:ann"):
            number = await import_orders.defer_async(customer="ann")
            await app.run_worker_async(wait=False, install_signal_handlers=False)
            (job,) = await app.job_manager.list_jobs_async(id=number)
            assert job.attempts == 1 and job.status == "todo", job
            print("held", flush=True)
        while (await app.job_manager.get_job_status_async(number)).value != "succeeded":
            await app.run_worker_async(wait=False, install_signal_handlers=False)
    await client.close()
asyncio.run(main())
""",
    "Airflow": """
from jobs import load
assert [load("2026-01-01"), load("2026-01-01")] == ["ran", "done"]
""",
}
"""What runs each program: but for APScheduler and Airflow, with a lock that another program has at first."""


NAMES = {"HOST": "host", "PORT": "port", "USER": "user", "PASSWORD": "password", "DATABASE": "dbname"}
"""The variables by which PostgreSQL's clients find a database."""


def run(title: str, folder: Path, url: str, *arguments: str, **settings: str) -> str:
    """Run the program of a section in a process, and return what it has printed."""
    (folder / "jobs.py").write_text(PROGRAMS[title], "utf-8")
    (folder / "drive.py").write_text(WITHIN + DRIVERS[title], "utf-8")
    done = subprocess.run(
        [sys.executable, "drive.py", *arguments],
        cwd=folder,
        env={**os.environ, "TENURE_URL": url, "PYTHONPATH": str(folder), **settings},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_each_section_has_a_driver() -> None:
    """No program of the page is left out."""
    assert set(PROGRAMS) == set(DRIVERS)


def test_one_node_runs_a_job_of_apscheduler(tmp_path: Path) -> None:
    """Two nodes, one report."""
    url = f"sqlite://{tmp_path}/locks.db"
    assert run("APScheduler", tmp_path, url) + run("APScheduler", tmp_path, url) == "report written\n"


@pytest.mark.parametrize("title", ["Dramatiq", "taskiq"])
def test_a_message_runs_when_the_lock_is_free(title: str, tmp_path: Path) -> None:
    """Not before, and not never."""
    assert run(title, tmp_path, f"sqlite://{tmp_path}/locks.db") == "held\nimporting ann\n"


def test_a_job_of_rq_runs_when_the_lock_is_free(redis_server: RedisServer, tmp_path: Path) -> None:
    """With the worker of its command, which forks for each job."""
    printed = run("RQ", tmp_path, f"{redis_server.url}?guard=off", redis_server.url)
    assert [line for line in printed.splitlines() if line in ("held", "importing ann")] == ["held", "importing ann"]


def test_a_job_of_procrastinate_runs_when_the_lock_is_free(postgres_server: PostgresServer, tmp_path: Path) -> None:
    """Jobs and locks are in one database."""
    url = postgres_server.create_database("procrastinate")
    settings = psycopg.conninfo.conninfo_to_dict(url)
    named = {f"PG{part}": str(settings[key]) for part, key in NAMES.items() if key in settings}
    assert run("procrastinate", tmp_path, f"{url}?guard=strict", **named) == "held\nimporting ann\n"


def test_a_task_of_airflow_does_a_day_once(tmp_path: Path) -> None:
    """Its function, without Airflow."""
    assert run("Airflow", tmp_path, f"sqlite://{tmp_path}/locks.db") == "loading 2026-01-01\n"
