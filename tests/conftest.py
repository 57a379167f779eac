"""The common configuration of all tests."""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, settings

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

THOROUGH = (
    "bench/",
    "conformance/test_redis.py::TestReplicated",
    "conformance/test_redis.py::TestSocket",
    "conformance/test_redis.py::TestUser",
    "conformance/test_redis.py::TestValkey",
    "conformance/test_redis_clients.py::TestAsyncMaster",
    "conformance/test_redis_clients.py::TestAsyncRedisCluster",
    "conformance/test_redis_clients.py::TestMaster",
    "conformance/test_redis_clients.py::TestRedisCluster",
    "conformance/test_redis_groups.py",
    "conformance/test_etcd.py::TestEnsemble",
    "conformance/test_mysql.py::TestPolling",
    "conformance/test_postgresql.py::TestSocket",
    "conformance/test_postgresql.py::TestTls",
    "conformance/test_postgresql.py::TestUser",
    "conformance/test_zookeeper.py::TestEnsemble",
    "etcd/test_crowd.py",
    "etcd/test_faults.py",
    "memcached/test_replies.py::test_ten_thousand",
    "models/",
    "mysql/test_crowd.py",
    "mysql/test_promises.py::test_a_full_disk",
    "mysql/test_promises.py::test_a_restart_of_a_durable_server",
    "mysql/test_get_lock_orphans.py",
    "ordered/test_faults",
    "postgresql/test_advisory_orphans.py",
    "postgresql/test_channel.py::test_many_clients_behind_a_pooler_of_two",
    "postgresql/test_faults",
    "postgresql/test_interrupts.py",
    "postgresql/test_mutants.py",
    "docs/test_examples.py::test_a_scenario_loses_nothing_but_by_the_wrong_versions[redis",
    "postgresql/test_schema.py::test_old_rows_are_swept_in_parts",
    "postgresql/test_schema.py::test_processes_race_the_migration",
    "postgresql/test_schema.py::test_starters_race_the_migration[30]",
    "properties/test_barging.py::test_a_wrong",
    "properties/test_mutants.py",
    "properties/test_simulated_server.py",
    "properties/test_sql_stores.py::test_wrong_sql_is_noticed",
    "properties/test_stores.py::test_a_file_that_forgets_is_noticed",
    "properties/test_stores.py::test_a_process_that_is_noted_too_early_is_noticed",
    "properties/test_stores.py::test_a_store_with_a_wrong_table_is_noticed",
    "properties/test_stores.py::test_a_wrong_script_is_noticed",
    "properties/test_mysql.py::test_a_wrong_statement_is_noticed",
    "properties/test_sql_stores.py::test_wrong_sql_is_noticed",
    "redis/test_failover.py",
    "redis/test_faults",
    "redis/test_resharding.py",
    "servers/test_mariadb.py::test_a_full_disk",
    "servers/test_postgresql.py::test_a_full_disk",
    "simulated/test_mutants.py",
    "simulated/test_promises.py::test_every_fault_happens",
    "simulated/test_promises.py::test_what_is_not_promised_is_seen_to_break",
    "simulated/test_quorum.py",
    "simulated/test_replay.py::test_a_broken_promise_is_told_small",
    "simulated/test_replay.py::test_a_shrunk_run_still_fails",
    "simulated/test_replay.py::test_drift_beyond_the_allowance_is_seen",
    "zookeeper/test_faults.py",
)
"""The tests that only `make test-all` runs: of rare flaws of the protocol, of another deployment of the same server, of
the servers' faults, or of the tools."""

COMPUTING = ("simulated/", "properties/", "table/", "ordered/test_granting.py")
"""The tests that only compute. They have the same results on every version of Python, and run at low priority."""

SEEDED = ("simulated/test_promises.py::test_every_promise_is_kept",)
"""The tests that do more with more seeds."""

NICENESS = 10


def pytest_xdist_auto_num_workers() -> int:
    """Run more concurrent tests than there are cores, for most wait most of the time.

    With three for each core, requests of some tests now and then took longer than their second.
    """
    return 2 * (os.cpu_count() or 1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the thorough tests, those that only compute, and those that do more with more seeds, for -m."""
    for item in items:
        path = item.nodeid.removeprefix("tests/")
        if path.startswith(THOROUGH):
            item.add_marker(pytest.mark.thorough)
        if path.startswith(COMPUTING):
            item.add_marker(pytest.mark.computing)
        if path.startswith(SEEDED):
            item.add_marker(pytest.mark.seeds)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Check that one process runs the tests of a group: else each one would start the servers or repeat the work."""
    grouped = [item for item in session.items if item.get_closest_marker("xdist_group")]
    if getattr(session.config.option, "loadgroup", False) and not all("@" in item.nodeid for item in grouped):
        raise pytest.UsageError("pytest-xdist does not know groups with this version of pytest")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run tests that only compute at low priority, for concurrent tests have deadlines."""
    if pyfuncitem.get_closest_marker("computing") is None or "PYTEST_XDIST_WORKER" not in os.environ:
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    with ThreadPoolExecutor(1, "computing", _lower_priority) as thread:  # the niceness ends with the thread
        thread.submit(pyfuncitem.obj, **arguments).result()
    return True


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
