"""Print where the time of the tests goes: the number of tests and their total seconds for each folder.

Concurrent tests overlap, so the sum is longer than the run. `--files` prints a row for each file instead, and
`--slowest` also names so many single tests.

Usage: python -m scripts.minutes [--files] [--slowest 10] REPORT...   (reports written by pytest --junitxml)
"""

import argparse
import xml.etree.ElementTree as ET
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

ROW = "{:<34} {:>6} {:>8}"


def cases_of(reports: Sequence[Path]) -> list[tuple[str, str, float]]:
    """Return module, name and seconds of each test."""
    roots = [ET.parse(report) for report in reports]  # noqa: S314 - our own pytest wrote them
    return [
        (case.get("classname", ""), case.get("name", ""), float(case.get("time", "0")))
        for root in roots
        for case in root.iter("testcase")
    ]


def place_of(module: str, *, files: bool) -> str:
    """Return the folder of a test, or its file."""
    parts = [part for part in module.split(".") if part.islower()]  # the names of classes are not lower-case
    return "/".join(parts if files else parts[:2])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--files", action="store_true", help="a row for each file")
    parser.add_argument("--slowest", type=int, default=0, metavar="N", help="also name the N slowest tests")
    parser.add_argument("reports", nargs="+", type=Path)
    options = parser.parse_args()
    if missing := [str(each) for each in options.reports if not each.is_file()]:
        parser.error(f"no such report: {', '.join(missing)}; `make test-all` writes build/junit-*.xml")
    cases = cases_of(options.reports)
    seconds: defaultdict[str, float] = defaultdict(float)
    tests: defaultdict[str, int] = defaultdict(int)
    for module, _, took in cases:
        place = place_of(module, files=options.files)
        seconds[place] += took
        tests[place] += 1
    print(ROW.format("where", "tests", "seconds"))
    for place, took in sorted(seconds.items(), key=lambda item: -item[1]):
        print(ROW.format(place, tests[place], f"{took:.0f}"))
    print(ROW.format("in all", len(cases), f"{sum(took for *_, took in cases):.0f}"))
    for module, name, took in sorted(cases, key=lambda case: -case[2])[: options.slowest]:
        print(f"{took:7.1f}  {module}::{name}")


if __name__ == "__main__":
    main()
