"""The plugin is found by pytest, costs nothing unless it is used, and disturbs no test."""

import subprocess
import sys
from importlib.metadata import entry_points

import pytest

IMPORTS = """
import sys
import pytest
before = set(sys.modules)
import tenure_testing.plugin
print(sorted(set(sys.modules) - before))
"""

UNUSED = """
import sys

def test_it():
    assert "tenure_testing.plugin" in sys.modules
    assert not [name for name in sys.modules if name.split(".")[0] == "tenure"]
    assert "tenure_testing.pytest" not in sys.modules
"""

UNITTEST = """
import unittest

import pytest

class Database:
    def save(self):
        pass

class TestIt(unittest.TestCase):
    @pytest.fixture(autouse=True)
    def chaos(self, tenure_chaos):
        self.database = Database()
        tenure_chaos.watch(self.database, "save")

    def test_it(self):
        self.database.save()
"""

MARKED = """
import unittest

import pytest

class TestIt(unittest.TestCase):
    @pytest.mark.tenure_lose_lease
    def test_it(self):
        pass
"""

SIMPLE = """
import pytest

@pytest.mark.parametrize("row", range(6))
@pytest.mark.tenure_lose_lease
def test_it(tenure_client, tenure_chaos, row):
    class Table:
        rows = []
        @staticmethod
        def save(row):
            Table.rows.append(row)

    tenure_chaos.watch(Table, "save")
    with tenure_client.lock("name") as lease:
        lease.check()
        Table.save(row)
"""


def test_pytest_is_told_of_it() -> None:
    """Whoever has `tenure-testing` installed has the plugin."""
    found = [each.value for each in entry_points(group="pytest11") if each.name == "tenure"]
    assert found == ["tenure_testing.plugin"]


def test_its_import_costs_nothing() -> None:
    """Pytest imports the plugin for everybody: it imports nothing else, least of all Tenure."""
    done = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "['tenure_testing', 'tenure_testing.plugin']"


def test_who_does_not_use_it_does_not_import_it(pytester: pytest.Pytester) -> None:
    """In a process of pytest in which no test uses a fixture of Tenure, Tenure is not imported."""
    pytester.makepyfile(UNUSED)
    pytester.runpytest_subprocess("-W", "error", "--strict-markers").assert_outcomes(passed=1)


def test_the_marker_is_registered(pytester: pytest.Pytester) -> None:
    """`pytest --markers` explains it."""
    pytester.runpytest_subprocess("--markers").stdout.fnmatch_lines(["@pytest.mark.tenure_lose_lease(runs=200):*"])


def test_a_test_of_unittest_is_judged_too(pytester: pytest.Pytester) -> None:
    """It fails when it is torn down, for pytest does not call it by itself."""
    pytester.makepyfile(UNITTEST)
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", "-p", "no:valkey")
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(
        ["*wrote while it held no valid lease*", "*written at*in test_it: self.database.save()*"]
    )


def test_a_marked_test_of_unittest_is_refused(pytester: pytest.Pytester) -> None:
    """It would run only once: so it fails, and says what to do."""
    pytester.makepyfile(UNITTEST.replace("    def test_it", "    @pytest.mark.tenure_lose_lease\n    def test_it"))
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", "-p", "no:valkey")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*a method of a unittest.TestCase cannot be repeated*"])


def test_a_marked_test_of_unittest_is_refused_without_a_fixture(pytester: pytest.Pytester) -> None:
    """A user who only marks it must not believe that it finds anything."""
    pytester.makepyfile(MARKED)
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", "-p", "no:valkey")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*a method of a unittest.TestCase cannot be repeated*"])


def test_processes_of_xdist_do_not_disturb_each_other(pytester: pytest.Pytester) -> None:
    """Marked tests run side by side, each counted once."""
    pytester.makepyfile(SIMPLE)
    result = pytester.runpytest_subprocess("-n", "2", "-W", "error", "-p", "no:valkey", "--strict-markers")
    result.assert_outcomes(passed=6)
