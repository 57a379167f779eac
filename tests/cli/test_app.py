"""What all commands have in common: completion, and how they end."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import TEST_TIMEOUT, Command


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("tenure re", {"release", "renew", "revoke"}),
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


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize(
    ("words", "status"),
    [
        ("run job -- sh -c 'echo a line; exit 3'", 3),
        ("run job -- sh -c '[ -c /dev/fd/0 ] && [ -c /dev/fd/1 ] && [ -c /dev/fd/2 ]'", 0),
        ("once job --window daily -- true", 0),
        ("lock job", 0),
        ("jobs", 0),
        ("quarantine end", 64),
    ],
)
def test_a_closed_stream_is_dev_null(command: Command, words: str, status: int, closed: str) -> None:
    """Some supervisors close the standard streams. The status stays that of the command, which inherits /dev/null."""
    done = subprocess.run(
        ["/bin/sh", "-c", f"exec {sys.executable} -m tenure {words} {closed}"],
        env={**os.environ, "TENURE_URL": command.url},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=TEST_TIMEOUT,
        check=False,
    )
    assert done.returncode == status
