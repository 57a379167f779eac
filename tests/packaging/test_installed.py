"""The packages as a user has them: installed from the wheels into an environment of their own."""

import pytest

import tenure
from tests.packaging.conftest import Environment
from tests.packaging.test_contents import SITE

pytestmark = pytest.mark.xdist_group("packages")  # they are built once

USE = """
import sys
import tenure

with tenure.Client("sqlite:locks.db") as client, client.lock("orders") as lease:
    assert lease.token > 0
    assert tenure.__file__.startswith(sys.prefix), tenure.__file__
"""

PLUGINS = """
from importlib.metadata import entry_points
print([point.name for point in entry_points(group="pytest11")])
"""

TESTS = """
import pytest
import tenure
from tenure_testing.conformance import check_store
from tenure_testing.pytest import Chaos

def test_the_fixtures(tenure_client, tenure_chaos, assert_never_overlap):
    assert isinstance(tenure_chaos, Chaos)
    with pytest.raises(tenure.LeaseLost), tenure_client.lock("orders") as lease, assert_never_overlap("orders"):
        tenure_chaos.lose(lease)

class Table:
    def save(self):
        pass

@pytest.mark.tenure_lose_lease
def test_the_marker(tenure_client, tenure_chaos):
    tenure_chaos.watch(Table, "save")
    with tenure_client.lock("orders") as lease:
        lease.check()
        Table().save()
"""


def test_a_lock_needs_nothing_but_the_package(bare: Environment) -> None:
    """On a lock file, with no other package installed."""
    done = bare.run("python", "-W", "error", "-c", USE)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_it_gives_pytest_no_plugin(bare: Environment) -> None:
    """A program that only uses locks makes no run of pytest slower."""
    assert bare.run("python", "-c", PLUGINS).stdout == "[]\n"


def test_the_command_is_there(bare: Environment) -> None:
    """It says its version."""
    assert bare.run("tenure", "--version").stdout == f"tenure {tenure.__version__}\n"


def test_the_command_says_where_the_demo_is(bare: Environment) -> None:
    """The package does not contain it."""
    done = bare.run("tenure", "demo")
    assert done.returncode == 64
    assert f"git clone {SITE}`" in done.stderr
    assert "make demo" in done.stderr


def test_the_tools_for_tests_work_beside_pytest(beside_pytest: Environment) -> None:
    """`pip install tenure-testing` brings Tenure, and pytest finds the fixtures and the marker by itself."""
    (beside_pytest.folder / "test_it.py").write_text(TESTS)
    done = beside_pytest.run("python", "-m", "pytest", "-W", "error", "--strict-markers", "-q", "test_it.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout
