"""Workers in processes of their own, every other one in asyncio. They end when told to, or are killed."""

import argparse
import asyncio
import json
import subprocess
import sys
import threading
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Self

from holdfast import AsyncClient, Client
from holdfast.runtimes.threads import drive
from holdfast.testing.conformance.faces import BlockingClient
from holdfast.testing.servers import RedisServer
from tests.redis.load import PATIENCE, Hold, Job, Record, Worker
from tests.redis.resource import SharedNumbers

ROOT = Path(__file__).parents[2]
COLOURS = ("threads", "asyncio")


class Processes:
    """Some workers, all for one job."""

    def __init__(self, url: str, job: Job, resource: RedisServer, space: str, *, count: int = 4) -> None:
        """Start them; they work on numbers at `resource` under keys that begin with `space`."""
        about = [url, json.dumps(asdict(job)), str(resource.port), space]
        self._processes = [_start([*about, COLOURS[number % 2]]) for number in range(count)]

    def await_start(self) -> None:
        """Return when each has had a lease."""
        for process in self._processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "at work\n"

    def end(self) -> Record:
        """Tell them to end, and return what they did."""
        record = Record()
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.close()
            process.stdin = None
        for process in self._processes:
            said, _ = process.communicate(timeout=PATIENCE)
            assert process.returncode == 0
            told = json.loads(said)
            record.merge(Record([Hold(**each) for each in told["holds"]], Counter(told["counts"])))
        return record

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()


def _start(arguments: list[str]) -> subprocess.Popen[str]:
    command = [sys.executable, "-W", "error", "-m", "tests.redis.processes", *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)


# -- what runs in each process -----------------------------------------------------------------------------------


def _heed(worker: Worker, stop: threading.Event) -> None:
    """Say when the first lease was had; stop when nobody is left to talk to."""
    while not worker.record.holds:
        stop.wait(0.002)
    _say("at work")
    sys.stdin.read()
    stop.set()


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _blocking(url: str, job: Job, numbers: SharedNumbers) -> Record:
    with Client(url) as client:
        worker = _worker(BlockingClient(client), job, numbers)
        drive(worker.work())
    return worker.record


async def _in_a_loop(url: str, job: Job, numbers: SharedNumbers) -> Record:
    async with AsyncClient(url) as client:
        worker = _worker(client, job, numbers)
        await worker.work()
    return worker.record


def _worker(client: BlockingClient | AsyncClient, job: Job, numbers: SharedNumbers) -> Worker:
    stop = threading.Event()
    worker = Worker(client, job, numbers, stop)
    threading.Thread(target=_heed, args=(worker, stop), daemon=True).start()
    return worker


def _main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("url", "job", "port", "space", "colour"):
        parser.add_argument(name)
    given = parser.parse_args()
    job, numbers = Job(**json.loads(given.job)), SharedNumbers(int(given.port), given.space)
    about = (given.url, job, numbers)
    record = _blocking(*about) if given.colour == COLOURS[0] else asyncio.run(_in_a_loop(*about))
    numbers.close()
    _say(json.dumps({"holds": [asdict(each) for each in record.holds], "counts": record.counts}))


if __name__ == "__main__":
    _main()
