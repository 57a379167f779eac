"""`python -m demo` runs the demo, from the top of a checkout."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from demo.show import show_demo
from demo.stories import STORIES


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo with `arguments` (default: those of the process) and return the status to exit with."""
    parser = argparse.ArgumentParser("python -m demo", description="See what a lock is good for: three stories.")
    parser.add_argument(
        "log", type=Path, nargs="?", help="an access log for the statistics (may be .gz); default: an invented one"
    )
    parser.add_argument(
        "--story", choices=STORIES, action="append", dest="stories", help="tell this story alone; may be repeated"
    )
    parser.add_argument(
        "--workers",
        type=int,
        choices=range(3, 65),
        default=8,
        metavar="N",
        help="from 3 to 64 processes count, half as many sell and push; default: 8",
    )
    parser.add_argument("--out", type=Path, help="folder for a file a day, and the page; default: a new one")
    parser.add_argument("--html", type=Path, metavar="PATH", help="the page; default: demo.html in that folder")
    parser.add_argument("--url", help="the store, which keeps an empty stock; default: a new lock file")
    parser.add_argument("--json", action="store_true", dest="as_json", help="print JSON")
    options = parser.parse_args(arguments)
    options.stories = options.stories or list(STORIES)
    if options.log and "statistics" not in options.stories:
        parser.error("only the story of the statistics reads a log: leave it out, or add `--story statistics`")
    return show_demo(**vars(options))


if __name__ == "__main__":
    sys.exit(main())
