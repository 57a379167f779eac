"""`python -m tenure.demo` runs the demo, with the options of `tenure demo`."""

import argparse
import sys
from pathlib import Path

from tenure.demo.show import show_demo

parser = argparse.ArgumentParser("python -m tenure.demo", description="See what a lock is good for.")
parser.add_argument("log", type=Path, nargs="?", help="an access log (may be .gz); default: an invented one")
parser.add_argument("--workers", type=int, choices=range(3, 65), default=8, metavar="N", help="from 3 to 64 processes")
parser.add_argument("--out", type=Path, help="folder for a file a day; default: a new temporary one")
parser.add_argument("--url", help="the store; default: a new lock file")
parser.add_argument("--json", action="store_true", dest="as_json", help="print JSON")
sys.exit(show_demo(**vars(parser.parse_args())))
