"""The entry point of the `holdfast` command: checks that the packages of the extra `cli` are there, then runs it."""

import io
import sys
from importlib.util import find_spec

NEEDS = ("rich", "typer")


def main() -> None:
    """Run the command and exit with its status."""
    if any(find_spec(needed) is None for needed in NEEDS):
        print(
            "holdfast: packages that the command needs are missing. Install them: pip install 'holdfast[cli]'",
            file=sys.stderr,
        )
        sys.exit(2)
    from holdfast.cli.app import run_app

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a name may contain characters that the terminal lacks
    sys.exit(run_app())
