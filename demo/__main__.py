"""`python -m demo` runs the demo, from the top of a checkout."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from demo.show import show_demo


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo with `arguments` (default: those of the process) and return the status to exit with."""
    parser = argparse.ArgumentParser("python -m demo", description="See what a lock is good for.")
    parser.add_argument("log", type=Path, nargs="?", help="an access log (may be .gz); default: an invented one")
    parser.add_argument(
        "--workers", type=int, choices=range(3, 65), default=8, metavar="N", help="from 3 to 64 processes"
    )
    parser.add_argument("--out", type=Path, help="folder for a file a day; default: a new temporary one")
    parser.add_argument("--url", help="the store; default: a new lock file")
    parser.add_argument("--json", action="store_true", dest="as_json", help="print JSON")
    return show_demo(**vars(parser.parse_args(arguments)))


if __name__ == "__main__":
    sys.exit(main())
