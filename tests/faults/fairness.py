"""A race of processes for one lock: how often each of them holds it."""

import subprocess
import sys

PROCESS = """
import sys, time, tenure
url, seconds = sys.argv[1], float(sys.argv[2])
with tenure.Client(url, namespace="fair", advice=False) as client:
    client.names()
    print("ready", flush=True)
    sys.stdin.readline()
    count, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        with client.lock("hot", ttl=30, timeout=60):
            time.sleep(0.002)
            count += 1
    print(count, flush=True)
"""


ENOUGH = 30
"""Of fewer turns, one more or less at the beginning or the end is too large a part."""


def race(url: str, processes: int = 8, seconds: float = 8.0) -> list[int]:
    """Let processes contend for a lock, each of which holds it for two milliseconds; return how often each held it.

    On a slow machine the race is longer.
    """
    counts = _race(url, processes, seconds)
    most = max(counts)
    return counts if most >= ENOUGH else _race(url, processes, min(seconds * ENOUGH / max(most, 1), 60.0))


def _race(url: str, processes: int, seconds: float) -> list[int]:
    command = [sys.executable, "-W", "error", "-c", PROCESS, url, str(seconds)]
    racers = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(processes)
    ]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()
    said = [racer.communicate(timeout=120) for racer in racers]
    assert [errors for _, errors in said] == [""] * processes
    return [int(out) for out, _ in said]
