"""The entry point of the `tenure` command. It needs no other package; with the extra `cli` it draws tables."""

import io
import os
import sys


def main() -> None:
    """Run the command and exit with its status."""
    if "_ARGCOMPLETE" in os.environ:
        from tenure.cli.completion import complete

        complete()
    from tenure.cli.app import run_app

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a name may contain characters that the terminal lacks
    sys.exit(run_app())
