"""What is public stays as it is, and only what is public is shown."""

import difflib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tenure
from tests.packaging.public import FILE, INTERNAL, MODULES, SOURCES, lines

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "stable.md").read_text("utf-8")

SHOWN = """
import sys
import tenure

def shown():
    assert dir(tenure) == sorted([*tenure.__all__, "__version__"]), dir(tenure)

shown()
with tenure.Client("memory://") as client, client.lock("a name"):
    client.semaphore("another name", 2)
    client.stock("a stock")
shown()
for name in tenure.__all__:
    assert getattr(tenure, name).__name__ == name
shown()
import tenure.fencing, tenure.stores.urls
shown()
"""

HOW = """
docs/stable.md promises to keep the public names as they are, and they have changed:

{}

If that is intended: python -m tests.packaging.public writes the new names into tests/packaging/public.txt. Commit that
file, and say in CHANGELOG.md what is new, or what a program that used the old name does now.
"""


def test_public_names_and_the_command_are_as_they_were() -> None:
    """No name, parameter, default, type, option of the command or exit status changes by accident."""
    before, now = FILE.read_text("utf-8").splitlines(), lines()
    changes = [line for line in difflib.ndiff(before, now) if line.startswith(("+ ", "- "))]
    assert not changes, HOW.format("\n".join(changes))


def test_the_list_has_what_programs_use() -> None:
    """It is not emptied by accident, either."""
    found = lines()
    names = {line.split(":")[0] for line in found}
    assert {f"tenure.{name}" for name in tenure.__all__} - names == {"tenure.release_on_sigterm"}
    for part in ("Client: def lock(", "Lease: def check(", "run --ttl SECONDS", "release_on_sigterm(*clients"):
        assert any(part in line for line in found), part


def test_only_the_api_is_shown() -> None:
    """`dir(tenure)` lists no module and no helper: not at first, and not after modules were imported by use."""
    subprocess.run([sys.executable, "-c", SHOWN], check=True, timeout=60)


@pytest.mark.parametrize("name", [*MODULES, *SOURCES.values(), *sorted(INTERNAL)])
def test_the_page_says_of_each_name_whether_it_is_stable(name: str) -> None:
    """The modules and functions that are, and the names that look public and are not."""
    assert f"`{name}`" in PAGE


def test_every_environment_variable_is_on_the_page() -> None:
    """Those that Tenure reads, and those that it sets for a command."""
    files = (path.read_text("utf-8") for path in (ROOT / "src").rglob("*.py"))
    used = {name for text in files for name in re.findall(r"\bTENURE_[A-Z_]+\b", text)}
    assert used == set(re.findall(r"`(TENURE_[A-Z_]+)`", PAGE))
