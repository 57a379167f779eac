"""The `holdfast` command. This file only sees to it that what the command needs is installed."""

import io
import sys
from importlib.util import find_spec

NEEDS = ("rich", "typer")


def main() -> None:
    """Run the command and exit with its status."""
    if any(find_spec(needed) is None for needed in NEEDS):
        print(
            "holdfast: the command needs packages that are not installed: pip install 'holdfast[cli]'", file=sys.stderr
        )
        sys.exit(2)
    from holdfast.cli.app import run_app

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a name may hold what the terminal can't show
    sys.exit(run_app())
