"""Workers in processes of their own, every other one in asyncio. They end when told to, or are killed."""

import argparse
import asyncio
import json
import logging
import signal
import sys
import threading
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, replace

from tenure import AsyncClient, Client
from tenure.runtimes.threads import complete
from tenure_testing.conformance.adapter import adapt
from tests.faults.children import API_FORMS, Children
from tests.faults.resource import SharedNumbers
from tests.redis.load import TEST_TIMEOUT, Hold, Job, Record, Worker
from tests.servers import RedisServer


class Processes(Children):
    """Some workers, all for one job."""

    def __init__(self, url: str, job: Job, resource: RedisServer, space: str, *, count: int = 4) -> None:
        """Start them; they work on numbers at `resource` under keys that begin with `space`.

        Each worker keeps to one name, which it has in common with workers of other processes.
        """
        about = [url, json.dumps(asdict(job)), str(resource.port), space]
        super().__init__(__name__, ([*about, str(number), API_FORMS[number % 2]] for number in range(count)))
        self._frozen = self._processes[:0]

    def rest(self) -> None:
        """Tell them to acquire nothing more, until they are told to keep."""
        self._tell("rest")

    def keep(self) -> None:
        """Tell them to hold whatever they get from now on to the end."""
        self._tell("keep")

    def freeze(self, owners: Iterable[str]) -> None:
        """Stop those half of the processes that hold more, given who holds what."""
        halves = self._processes[::2], self._processes[1::2]
        names = [owner.rpartition("/")[2] for owner in owners]
        self._frozen = max(halves, key=lambda half: sum(names.count(str(process.pid)) for process in half))
        for process in self._frozen:
            process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let them go on."""
        for process in self._frozen:
            process.send_signal(signal.SIGCONT)

    def _tell(self, what: str) -> None:
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(f"{what}\n")
            process.stdin.flush()

    def end(self) -> Record:
        """Tell them to end, and return what they did."""
        record = Record()
        for told in self._end(TEST_TIMEOUT):
            record.merge(Record([Hold(**each) for each in told["holds"]], Counter(told["counts"])))
        return record


# -- what runs in each process -----------------------------------------------------------------------------------


class _Shift:
    """The workers of one process. They stop when nobody is left to talk to."""

    def __init__(self, given: argparse.Namespace) -> None:
        self._url: str = given.url
        self._job = Job(**json.loads(given.job))
        self._number = int(given.number)
        self._numbers = SharedNumbers(int(given.port), given.space)
        self._stop = threading.Event()
        self._workers: list[Worker] = []

    def block(self) -> None:
        with Client(self._url) as client:
            threads = [threading.Thread(target=complete, args=(each.work(),)) for each in self._hire(adapt(client))]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

    async def loop(self) -> None:
        async with AsyncClient(self._url) as client:
            await asyncio.gather(*(each.work() for each in self._hire(client)))

    def report(self) -> None:
        self._numbers.close()
        record = Record()
        for worker in self._workers:
            record.merge(worker.record)
        _say(json.dumps({"holds": [asdict(each) for each in record.holds], "counts": record.counts}))

    def _hire(self, client: AsyncClient) -> list[Worker]:
        self._workers = [Worker(client, job, self._numbers, self._stop) for job in self._jobs()]
        threading.Thread(target=self._heed, daemon=True).start()
        return self._workers

    def _jobs(self) -> list[Job]:
        """Return a job of one name for each worker; every name falls to processes of both forms of the API."""
        job, first = self._job, self._number * self._job.workers + self._number // 2 * self._job.workers
        names = (job.names[(first + number) % len(job.names)] for number in range(job.workers))
        return [replace(job, names=[name]) for name in names]

    def _heed(self) -> None:
        while not any(worker.record.holds for worker in self._workers):
            self._stop.wait(0.002)
        _say("at work")
        for line in sys.stdin:
            for worker in self._workers:
                worker.rest() if line == "rest\n" else worker.keep()
        self._stop.set()


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _main() -> None:
    logging.disable()
    parser = argparse.ArgumentParser()
    for name in ("url", "job", "port", "space", "number", "form"):
        parser.add_argument(name)
    given = parser.parse_args()
    shift = _Shift(given)
    if given.form == API_FORMS[0]:
        shift.block()
    else:
        asyncio.run(shift.loop())
    shift.report()


if __name__ == "__main__":
    _main()
