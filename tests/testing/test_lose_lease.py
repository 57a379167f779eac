"""A test marked `tenure_lose_lease` finds code that writes after a loss, says where, and accuses no other code.

The tests of users that are run here are in samples.py.
"""

import re
from collections.abc import Callable

import pytest

from tenure_testing.pytest.chaos import Chaos
from tenure_testing.pytest.leases import Leases
from tenure_testing.pytest.points import Points
from tenure_testing.pytest.stores import TestTable
from tests.testing.samples import HEAD, MISTAKEN, RIGHT, WRONG

OPTIONS = ("-p", "no:cacheprovider", "-p", "no:valkey", "-W", "error", "--strict-markers")


REFUSED = """
pytestmark = []

def test_it(tenure_client, tenure_chaos, database):
    lease = tenure_client.lock("name").acquire()
    tenure_chaos.lose(lease)
    with pytest.raises(tenure.StaleTokenError, match="stale"):
        database.save(1, token=lease.token)
    assert not database.rows
"""


FREED = """
pytestmark = []

def test_it(tenure_client, tenure_chaos):
    with pytest.raises(tenure.LeaseLost), tenure_client.lock("name") as lease:
        tenure_chaos.lose(lease)
        tenure_client.lock("name").acquire(timeout=0).release()
"""


AMONG_OTHERS = """
pytestmark = []

def test_it(tenure_client, tenure_chaos):
    class Store:
        def put(self, **values):
            raise AssertionError("the token is stale")

    store = Store()
    tenure_chaos.watch(store, "put", token="fence")
    lease = tenure_client.lock("name").acquire()
    tenure_chaos.lose(lease)
    with pytest.raises(tenure.StaleTokenError, match="stale"):
        store.put(value=1, fence=lease.token)
"""


MISSPELT = """
pytestmark = []

def test_it(tenure_chaos, database):
    with pytest.raises(tenure.UsageError, match="fetch.* has no parameter of this name"):
        tenure_chaos.watch(database, "fetch", token="tokn")
"""


def run(pytester: pytest.Pytester, code: str) -> pytest.RunResult:
    """Run a file with one test, as a user does, with warnings as errors."""
    pytester.makepyfile(test_it=HEAD + code)
    return pytester.runpytest_inprocess(*OPTIONS)


def line_of(code: str, word: str) -> int:
    """Return the number of the line that is marked with a word."""
    return next(number for number, line in enumerate((HEAD + code).strip().splitlines(), 1) if word in line)


@pytest.mark.parametrize("code", RIGHT.values(), ids=RIGHT)
def test_right_code_passes(pytester: pytest.Pytester, code: str) -> None:
    """Code that is told of every loss before it writes, or whose late writes are refused, passes as one test."""
    outcomes = run(pytester, code).parseoutcomes()
    assert outcomes == {"xfailed" if "xfail" in code else "passed": 1}


@pytest.mark.parametrize("code", WRONG.values(), ids=WRONG)
def test_wrong_code_is_told_where(pytester: pytest.Pytester, code: str) -> None:
    """The report names the line at which the lease was lost, that of the write after it, and what to do."""
    result = run(pytester, code)
    result.assert_outcomes(failed=1)
    report = result.stdout.str()
    assert re.search(rf"lost at    test_it\.py:{line_of(code, 'LOST')} in \w+: \S.*\(.*\)", report), report
    assert re.search(
        rf"written at test_it\.py:{line_of(code, 'WRITTEN')} in \w+: .*\((Database|Shop)\.\w+: ", report
    ), report
    assert "Call `lease.check()`" in report
    assert "lease.token" in report


@pytest.mark.parametrize(("code", "said"), MISTAKEN.values(), ids=MISTAKEN)
def test_a_test_that_could_find_nothing_fails(pytester: pytest.Pytester, code: str, said: str) -> None:
    """A test that is wrong in itself fails, and says what to do; so does one that fails by itself."""
    result = run(pytester, code)
    result.assert_outcomes(failed=1)
    assert re.search(said, result.stdout.str()), result.stdout.str()


@pytest.mark.parametrize("arguments", ["'500'", "runs=0", "runs=True", "run=500", "5, 6", "5, runs=6"])
def test_a_marker_that_says_something_else_is_refused(pytester: pytest.Pytester, arguments: str) -> None:
    """An argument that the marker does not know fails the test, and the report says which there is."""
    result = run(pytester, f"@pytest.mark.tenure_lose_lease({arguments})\ndef test_it():\n    pass\n")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([f"*was given ({arguments}). It takes one argument, `runs`*"])


@pytest.mark.parametrize(
    "code", [REFUSED, FREED, AMONG_OTHERS, MISSPELT], ids=["refused", "freed", "among others", "misspelt"]
)
def test_a_loss_can_be_looked_at_without_the_marker(pytester: pytest.Pytester, code: str) -> None:
    """A watched function whose token is stale is not called; what is lost is free."""
    run(pytester, code).assert_outcomes(passed=1)


def test_each_run_has_fixtures_of_its_own(pytester: pytest.Pytester) -> None:
    """What is made for a test is made for each run; what is made for a module once, and torn down once, at its end."""
    pytester.makepyfile(
        HEAD
        + """
pytestmark = []
LOG = []

@pytest.fixture(scope="module")
def server():
    LOG.append("server up")
    yield
    LOG.append("server down")

@pytest.fixture
def table(server):
    LOG.append("table")
    yield []
    LOG.append("no table")

@pytest.mark.tenure_lose_lease
def test_first(tenure_client, database, table):
    with tenure_client.lock("name") as lease:
        for row in range(2):
            lease.check()
            table.append(row)
            database.save(row)
            assert len(table) == row + 1

def test_second(table):
    assert LOG == ["server up"] + 6 * ["table", "no table"] + ["table"]
""",
        test_next="""
from test_each_run_has_fixtures_of_its_own import LOG

def test_it():
    assert LOG[-1] == "server down" and LOG.count("server down") == 1
""",
    )
    pytester.runpytest_inprocess(*OPTIONS).assert_outcomes(passed=3)


def test_a_skipped_test_is_run_once(pytester: pytest.Pytester) -> None:
    """A test that skips itself, or fails when it is set up, is not run again."""
    pytester.makepyfile(
        HEAD
        + """
def test_skipped(database):
    pytest.skip("not here")

@pytest.fixture
def broken():
    raise RuntimeError

def test_broken(broken):
    pass
"""
    )
    pytester.runpytest_inprocess(*OPTIONS).assert_outcomes(skipped=1, errors=1)


def nothing(*_arguments: object, **_options: object) -> None:
    """Do nothing: what a broken plugin does."""


def never(*_arguments: object) -> str:
    """Find nothing wrong."""
    return ""


BROKEN: list[tuple[type, str, Callable[..., object], str, str]] = [
    (Chaos, "_declare_lost", nothing, WRONG["one_check_before_a_loop"], "passed"),
    (Leases, "objection", never, WRONG["one_check_before_a_loop"], "passed"),
    (Leases, "is_stale", nothing, REFUSED, "failed"),
    (Points, "suspended", nothing, WRONG["an_await_between_check_and_write"], "passed"),
    (Points, "spent", nothing, WRONG["a_slow_call_after_the_check"], "passed"),
    (Points, "look", nothing, WRONG["a_write_although_it_is_told"], "passed"),
    (Points, "request", nothing, WRONG["another_lock_after_the_check"], "passed"),
    (TestTable, "expire", nothing, FREED, "failed"),
    (Points, "freshen", nothing, RIGHT["a_loss_at_the_look_of_another_thread"], "failed"),
    (Points, "must_see", nothing, MISTAKEN["its code runs in a task of an earlier run"][0], "passed"),
    (Leases, "of_caller", list, WRONG["one_of_two_leases_is_checked"], "passed"),
]


@pytest.mark.parametrize("broken", BROKEN, ids=[each[1] for each in BROKEN])
def test_a_broken_plugin_is_noticed(
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    broken: tuple[type, str, Callable[..., object], str, str],
) -> None:
    """Each part of the plugin is needed: if it does nothing, a sample ends otherwise than it should."""
    owner, method, instead, code, ends = broken
    monkeypatch.setattr(owner, method, instead)
    assert run(pytester, code).parseoutcomes() == {ends: 1}
