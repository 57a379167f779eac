"""Imports of customers by Celery: one at a time for each customer, on any number of workers.

celery -A celery_imports worker
celery -A celery_imports beat -S tenure.celery:Scheduler
"""

import time
from pathlib import Path

from celery import Celery

from tenure.celery import Task

app = Celery("imports", broker="redis://localhost:6379/0", backend="redis://", task_cls="tenure.celery:Task")
app.conf.tenure_backend = None  # the URL of the store; None: TENURE_URL, or a lock file for the processes of one user
app.conf.task_acks_late = app.conf.task_reject_on_worker_lost = True  # a worker that dies loses no message
app.conf.beat_schedule = {"clean up": {"task": "celery_imports.clean_up", "schedule": 3600}}


@app.task(lock="import:{customer}", busy_countdown=0.5)  # busy="retry": a message that finds it held goes back
def import_orders(customer: str) -> int:
    """Import the orders of a customer."""
    imported = Path(f"{customer}.imported")
    count = int(imported.read_text() or 0) if imported.exists() else 0
    time.sleep(0.1)  # two at once would lose one here
    imported.write_text(str(count + 1))
    return count + 1


@app.task(lock="report:{customer}", busy="coalesce", busy_countdown=0.5)  # a hundred requests are one or two reports
def report(customer: str) -> str:
    """Write a report, which has all imports before it."""
    return f"{customer}: {Path(f'{customer}.imported').read_text()} imports"


@app.task(lock="clean-up", busy="drop")  # one at a time is enough; the result of another is {"dropped": "clean-up"}
def clean_up() -> int:
    """Remove old files."""
    old = list(Path().glob("*.old"))
    for path in old:
        path.unlink()
    return len(old)


@app.task(bind=True, lock="payout:{account}", busy="wait")  # keeps its slot of the worker until it has the lock
def pay_out(self: Task, account: str) -> str:
    """Pay what is due."""
    self.lease.check()  # raises LeaseLost: another worker may be at it
    return f"paid {account} under token {self.lease.token}"  # for a resource that refuses older tokens
