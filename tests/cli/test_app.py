"""What all commands have in common: completion, and how they end."""

import os
import subprocess
import sys

import pytest

from tests.cli.conftest import TEST_TIMEOUT


@pytest.mark.parametrize(
    ("typed", "completed"), [("holdfast re", {"release", "revoke"}), ("holdfast run --sh", {"--shared"})]
)
def test_the_shell_completes_commands_and_options(typed: str, completed: set[str]) -> None:
    """As the scripts ask for it that `--install-completion` installs."""
    asked = {
        "_HOLDFAST_COMPLETE": "complete_bash",
        "COMP_WORDS": typed,
        "COMP_CWORD": str(len(typed.split()) - 1),
    }
    script = "import sys; sys.argv = ['holdfast']; from holdfast.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | asked,
        capture_output=True,
        text=True,
        timeout=TEST_TIMEOUT,
        check=False,
    )
    assert set(done.stdout.split()) == completed, done.stderr
