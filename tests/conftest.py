"""What all tests start from."""

import signal
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest

pytest_plugins = ["tests.servers.fixtures"]

THOROUGH = (
    "conformance/test_redis_clients.py",
    "conformance/test_redis_groups.py",
    "properties/test_mutants.py",
    "redis/test_failover.py",
    "redis/test_faults",
    "redis/test_resharding.py",
    "simulation/test_mutants.py",
)
"""What need not run on every version of Python: these look for flaws of the protocol and at the servers' faults."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is thorough, so that it can be left out with -m 'not thorough'."""
    for item in items:
        where = item.path.relative_to(Path(__file__).parent).as_posix()
        if where.startswith(THOROUGH):
            item.add_marker(pytest.mark.thorough)


@pytest.fixture(scope="session", autouse=True)
def heeded_signals() -> Iterator[None]:
    """Have the processes that tests start heed signals, even if the tests run under nohup or in the background.

    A signal that is ignored stays ignored in a process that is started; one that has a handler gets its default.
    """
    ending = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)
    ignored = [number for number in ending if signal.getsignal(number) == signal.SIG_IGN]
    for number in ignored:
        signal.signal(number, _do_nothing)
    yield
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)


def _do_nothing(_number: int, _frame: FrameType | None) -> None:
    """Go on, as if the signal were ignored."""
