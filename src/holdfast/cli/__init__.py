"""The `holdfast` command. This file only sees to it that what the command needs is installed."""

import io
import sys

NEEDS = ("rich", "typer")


def main() -> None:
    """Run the command and exit with its status."""
    try:
        from holdfast.cli.app import run_app
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in NEEDS:
            raise
        print(
            "holdfast: the command needs packages that are not installed: pip install 'holdfast[cli]'", file=sys.stderr
        )
        sys.exit(2)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a name may hold what the terminal can't show
    sys.exit(run_app())
