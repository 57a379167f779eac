"""The common configuration of all tests."""

import contextlib
import gc
import importlib
import os
import signal
import threading
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, settings

from scripts.minutes import PROCESSOR
from tests import stages
from tests.faults.metronome import Metronome

pytest_plugins = ["pytester", "tests.servers.fixtures"]

settings.register_profile(
    "tenure",
    deadline=None,  # a machine may stall
    derandomize=bool(os.environ.get("CI")),
    database=None,
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("tenure")

NICENESS = 10

COMPUTING_TIMEOUT = 1800
"""For how many seconds a test that only computes may run, at low priority beside others."""

BEGAN = pytest.StashKey[float]()
"""When a test began, in seconds of the processor."""


def pytest_xdist_auto_num_workers() -> int:
    """Run more concurrent tests than there are cores, for most wait most of the time.

    With three for each core, requests of some tests now and then took longer than their second.
    """
    return 2 * (os.cpu_count() or 1) + 1


def pytest_collection(session: pytest.Session) -> None:
    """Stop the garbage collector: all modules and tests that pytest is about to load stay until the end.

    Of several processes that will load all tests, each loads its share first, so that not all compile all of them.
    """
    gc.disable()
    if "PYTEST_XDIST_WORKER" in os.environ and session.config.args == session.config.getini("testpaths"):
        _load_share(session.config, int(os.environ["PYTEST_XDIST_WORKER"].removeprefix("gw")))


def _load_share(config: pytest.Config, worker: int) -> None:
    top = Path(__file__).parent
    files = sorted(each for each in top.rglob("test_*.py") if not stages.is_left_out(each, config.option.markexpr))
    for file in files[worker :: int(os.environ["PYTEST_XDIST_WORKER_COUNT"])]:
        with contextlib.suppress(Exception, pytest.skip.Exception):  # pytest will load it again, and tell
            importlib.import_module(".".join(file.relative_to(top.parent).with_suffix("").parts))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out the files of later stages, which would take a second of each process to import."""
    return stages.is_left_out(collection_path, config.option.markexpr) or None


def pytest_itemcollected(item: pytest.Item) -> None:
    """Note the id of a test before pytest-xdist appends to it."""
    item.stash[stages.PATH] = item.nodeid.removeprefix("tests/")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark each test with its stage and its part, for -m. Leave out the rotated tests of other quarters."""
    everything = config.args == config.getini("testpaths") and not stages.is_of_change(config.option.markexpr)
    if everything and (stale := stages.unused(items)):
        raise pytest.UsageError(f"tests/stages.py names what is no test any more: {', '.join(stale)}")
    for item in items:
        for mark in stages.marks_of(item):
            item.add_marker(mark)
        if _computes(item):
            item.add_marker(pytest.mark.timeout(COMPUTING_TIMEOUT))
    if quarter := os.environ.get(stages.QUARTER):
        others = {each for each in items if stages.is_of_another_quarter(each, int(quarter))}
        config.hook.pytest_deselected(items=[*others])
        items[:] = [each for each in items if each not in others]


def pytest_collection_finish(session: pytest.Session) -> None:
    """Start the garbage collector again. It skips what pytest has loaded, which took it half a second each time.

    Also check that one process runs the tests of a group: else each one would start the servers or repeat the work.
    """
    gc.freeze()
    gc.enable()
    grouped = [item for item in session.items if item.get_closest_marker("xdist_group")]
    if getattr(session.config.option, "loadgroup", False) and not all("@" in item.nodeid for item in grouped):
        raise pytest.UsageError("pytest-xdist does not know groups with this version of pytest")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Note when the test begins."""
    item.stash[BEGAN] = _processor_seconds()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note what the test took of the processor, for scripts/minutes.py; if it failed, say how to repeat it alone."""
    if call.when == "call":  # what follows may stop servers that other tests used
        item.user_properties.append((PROCESSOR, f"{_processor_seconds() - item.stash[BEGAN]:.2f}"))
    report = yield
    if report.failed:
        report.sections.append(("To repeat it alone", stages.command_for(item)))
    return report


def _processor_seconds() -> float:
    """Return what this process, and those that it waited for, have used of the processor."""
    return sum(os.times()[:4])


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run tests that only compute at low priority, for concurrent tests have deadlines."""
    if not _computes(pyfuncitem) or "PYTEST_XDIST_WORKER" not in os.environ:
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    with ThreadPoolExecutor(1, "computing", _lower_priority) as thread:  # the niceness ends with the thread
        thread.submit(pyfuncitem.obj, **arguments).result()
    return True


def _computes(item: pytest.Item) -> bool:
    return any(item.get_closest_marker(part) for part in stages.COMPUTING_PARTS)


def _lower_priority() -> None:
    with contextlib.suppress(OSError):  # only on Linux a thread has a niceness of its own
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)


@pytest.fixture
def metronome() -> Iterator[Metronome]:
    """Measure how long the machine stalls in this test, so that deadlines can be extended by it."""
    with Metronome() as metronome:
        yield metronome


@pytest.fixture(scope="session", autouse=True)
def received_signals() -> Iterator[None]:
    """Let the processes that tests start receive signals, even if the tests run under nohup or in the background.

    A started process inherits ignored signals, but gets the default of a signal with a handler.
    """
    ending = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)
    ignored = [number for number in ending if signal.getsignal(number) == signal.SIG_IGN]
    for number in ignored:
        signal.signal(number, _do_nothing)
    yield
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)


def _do_nothing(_number: int, _frame: FrameType | None) -> None:
    """Do nothing, as if the signal were ignored."""


@pytest.fixture
def space() -> str:
    """Return a namespace for this test alone."""
    return uuid4().hex
