"""Print where the minutes of the tests go, and which folder takes more than its budget.

`seconds` is how long the tests of a folder took, one after another: concurrent tests overlap, so the sum is longer than
the run. `processor` is what they took of the processor, without servers that outlive a test; it depends little on what
else the machine does, so the budget is for this one. `--files` prints a row for each file instead, `--slowest` also
names so many single tests, and `--write` puts the table into CONTRIBUTING.md.

Usage: python -m scripts.minutes [--files] [--slowest 10] [--write] REPORT...   (reports written by pytest --junitxml;
`make test` writes build/junit-test.xml)
"""

import argparse
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

PROCESSOR = "processor"
"""The name of the property of a test in a report: the seconds of the processor that it took."""

BUDGETS = {
    "cli": 36,
    "compat": 4,
    "conformance": 45,
    "console": 4,
    "core": 20,
    "demo": 8,
    "docs": 26,
    "doctor": 6,
    "etcd": 5,
    "faults": 2,
    "fencing": 22,
    "folder": 3,
    "forms": 15,
    "frameworks": 6,
    "hazards": 32,
    "jobs": 5,
    "memcached": 8,
    "metrics": 8,
    "mysql": 20,
    "nats": 8,
    "objects": 6,
    "ordered": 5,
    "packaging": 15,
    "postgresql": 5,
    "primitives": 10,
    "properties": 32,
    "redis": 50,
    "rows": 2,
    "runtimes": 2,
    "simulated": 90,
    "sqlite": 7,
    "stores": 10,
    "table": 12,
    "testing": 12,
    "transport": 5,
    "zookeeper": 5,
}
"""How many seconds of the processor the tests of each folder may take in `make test`."""

PAGE = Path("CONTRIBUTING.md")
PLACE = re.compile(r"(<!-- minutes -->\n).*(?=<!-- end of minutes -->)", re.DOTALL)
COLUMNS = ("tests of", "tests", "seconds", "processor", "budget")


@dataclass
class Row:
    """The tests of one folder or file: their number, seconds and processor seconds."""

    place: str
    tests: int = 0
    seconds: float = 0.0
    processor: float = 0.0

    def add(self, seconds: float, processor: float) -> None:
        """Add a test."""
        self.tests, self.seconds, self.processor = self.tests + 1, self.seconds + seconds, self.processor + processor

    def cells(self) -> tuple[str, ...]:
        """Return the cells of the row in a table."""
        budget = BUDGETS.get(self.place)
        over = " (over)" if budget is not None and self.processor > budget else ""
        return (
            self.place,
            str(self.tests),
            f"{self.seconds:.0f}",
            f"{self.processor:.0f}{over}",
            "" if budget is None else str(budget),
        )


def cases_of(reports: Iterable[Path]) -> list[tuple[str, str, float, float]]:
    """Return module, name, seconds and processor seconds of each test."""
    roots = [ET.parse(report) for report in reports]  # noqa: S314 - our own pytest wrote them
    return [
        (case.get("classname", ""), case.get("name", ""), float(case.get("time", "0")), processor_of(case))
        for root in roots
        for case in root.iter("testcase")
    ]


def processor_of(case: ET.Element) -> float:
    """Return the processor seconds of a test."""
    return sum(float(each.get("value", "0")) for each in case.iter("property") if each.get("name") == PROCESSOR)


def place_of(module: str, *, files: bool) -> str:
    """Return the folder of a test, or its file."""
    parts = [part for part in module.split(".") if part.islower()][1:]  # the names of classes are not lower-case
    return "/".join(parts if files else parts[:1])


def rows_of(cases: Iterable[tuple[str, str, float, float]], *, files: bool) -> list[Row]:
    """Return a row for each place, the one that takes most first, and their sum."""
    rows: dict[str, Row] = {}
    everything = Row("in all")
    for module, _, seconds, processor in cases:
        place = place_of(module, files=files)
        rows.setdefault(place, Row(place)).add(seconds, processor)
        everything.add(seconds, processor)
    return [*sorted(rows.values(), key=lambda row: -row.processor), everything]


def table(rows: Iterable[Row]) -> str:
    """Return the rows as a table in Markdown."""
    lines = [COLUMNS, ("---", "--:", "--:", "--:", "--:"), *(row.cells() for row in rows)]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def main(words: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--files", action="store_true", help="a row for each file")
    parser.add_argument("--slowest", type=int, default=0, metavar="N", help="also name the N slowest tests")
    parser.add_argument("--write", action="store_true", help=f"put the table into {PAGE}")
    parser.add_argument("reports", nargs="+", type=Path)
    options = parser.parse_args(words)
    if missing := [str(each) for each in options.reports if not each.is_file()]:
        parser.error(f"no such report: {', '.join(missing)}; `make test` and `make test-all` write build/junit-*.xml")
    cases = cases_of(options.reports)
    shown = table(rows_of(cases, files=options.files))
    print(shown, end="")
    for module, name, seconds, processor in sorted(cases, key=lambda case: -case[2])[: options.slowest]:
        print(f"{seconds:7.1f} {processor:7.1f}  {module}::{name}")
    if options.write:
        PAGE.write_text(PLACE.sub(lambda found: found[1] + "\n" + shown + "\n", PAGE.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
