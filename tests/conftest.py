"""What all tests start from."""

import signal
from collections.abc import Iterator
from types import FrameType

import pytest

pytest_plugins = ["tests.servers.fixtures"]


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
