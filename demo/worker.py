"""One worker of the demo: `python -m demo.worker PLAN NUMBER`.

The worker reads the shared record, adds a batch of lines, and writes the record back, without a lock or under it. The
record lists its batches, so under the lock no batch is lost or counted twice, even if a worker dies. The worker sends
events to its standard output. A line on its standard input lets it begin, or write after a planned pause.
"""

import itertools
import os
import signal
import sys
import time
from pathlib import Path

from demo.logs import lines
from demo.plan import DemoEvent, Plan, What, load_plan
from demo.record import SharedRecord
from demo.tally import Tally
from tenure import Client, Lease, LeaseLost, Lock, StaleTokenError

LIFETIME = 120
"""After this many seconds the kernel ends a worker, even if the process that started it has died."""


class Worker:
    """One process that updates the record."""

    def __init__(self, plan: Plan, number: int, record: SharedRecord) -> None:
        """Prepare to count a share of `plan`."""
        self._plan = plan
        self._number = number
        self._record = record
        self._share = plan.share(number)
        self._pause_at = plan.pause_at(number)
        self._updates = 0

    def without_lock(self) -> None:
        """Update the record for each batch of the share, without regard to other workers."""
        self._begin()
        for batch in self._share:
            tally = self._record.read()
            self._add(tally, batch)
            self._record.write(tally, None)
            self._say(What.WROTE, batch=batch)

    def under_lock(self, client: Client) -> None:
        """Update the record under the lock until no batch is missing."""
        lock = client.lock(self._plan.lock, self._plan.ttl, timeout=LIFETIME)
        client.inspect(self._plan.lock)  # connects
        self._begin()
        while self._hold(lock):
            pass

    def _hold(self, lock: Lock) -> bool:
        """Hold the lock for one update; return whether batches may still be missing."""
        lease = lock.acquire()
        self._say(What.GRANTED, lease.token)
        try:
            return self._update(lease)
        except StaleTokenError:
            self._say(What.REFUSED, lease.token)
        except LeaseLost:
            self._say(What.LOST, lease.token)
        finally:
            lease.release()
            self._say(What.RELEASED, lease.token)
        return True

    def _update(self, lease: Lease) -> bool:
        self._record.touch(lease.token)
        self._say(What.TOUCHED, lease.token)
        tally = self._record.read()
        batch = self._next(tally)
        if batch is None:
            return False
        self._add(tally, batch)
        lease.check()
        self._pause(lease.token, batch)  # between the last check and the write only the fence protects the record
        self._record.write(tally, lease.token)
        self._say(What.WROTE, lease.token, batch)
        return True

    def _next(self, tally: Tally) -> int | None:
        """Return a batch that is missing in the record: one of this worker's share, else one of another's."""
        for batch in itertools.chain(self._share, range(len(self._plan.pieces))):
            if batch not in tally.batches:
                return batch
        return None

    def _add(self, tally: Tally, batch: int) -> None:
        tally.add(lines(Path(self._plan.log), self._plan.pieces[batch]))
        tally.batches.add(batch)
        time.sleep(self._plan.work)

    def _pause(self, token: int, batch: int) -> None:
        self._updates += 1
        if self._updates == self._pause_at:
            self._say(What.PAUSED, token, batch)
            _wait_for_line()

    def _begin(self) -> None:
        self._say(What.READY)
        _wait_for_line()

    def _say(self, what: What, token: int = 0, batch: int = -1) -> None:
        os.write(sys.stdout.fileno(), DemoEvent(self._number, what, time.monotonic(), token, batch).line())


def _wait_for_line() -> None:
    if not sys.stdin.readline():
        sys.exit("the demo ended")


def main() -> None:
    """Run one worker."""
    signal.alarm(LIFETIME)
    plan, number = load_plan(Path(sys.argv[1])), int(sys.argv[2])
    with SharedRecord(Path(plan.record)) as record:
        worker = Worker(plan, number, record)
        if not plan.lock:
            worker.without_lock()
            return
        with Client(os.environ["TENURE_URL"], owner=f"worker {number + 1}") as client:
            worker.under_lock(client)


if __name__ == "__main__":
    main()
