"""What all commands have in common: completion, and how they end."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import TEST_TIMEOUT


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("tenure re", {"release", "revoke"}),
        ("tenure run --sh", {"--shared"}),
        ("tenure job p", {"pause"}),
    ],
)
def test_the_shell_completes_commands_and_options(typed: str, completed: set[str], tmp_path: Path) -> None:
    """As the function asks for it that argcomplete adds to a shell."""
    found = tmp_path / "completed"
    asked = {
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(found),
        "_ARGCOMPLETE_IFS": "\n",
        "COMP_LINE": typed,
        "COMP_POINT": str(len(typed)),
    }
    script = "import sys; sys.argv = ['tenure']; from tenure.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | asked,
        capture_output=True,
        text=True,
        timeout=TEST_TIMEOUT,
        check=False,
    )
    assert set(found.read_text().split()) == completed, done.stderr
