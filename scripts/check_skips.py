"""Fail if a test was skipped without permission.

A skipped test proves nothing, but looks like a passed one. So each skip (and each expected failure) must be allowed
here, by name and with a reason. The script prints nothing if there is no complaint.

Usage: python scripts/check_skips.py REPORT...   (reports written by pytest --junitxml)
"""

import sys
import xml.etree.ElementTree as ET
from pathlib import Path

# "tests.test_module::test_name[parameters]" -> why it may be skipped.
ALLOWED: dict[str, str] = {
    "tests.sqlite.test_removed_log::test_a_removed_log_is_not_copied_over_what_others_wrote": (
        "sqlite3 has the option from Python 3.12 on, where the smoke tests run it"
    ),
    "tests.postgresql.test_faults_sessions::test_a_full_disk_is_named_and_passes": "only root can mount a small disk",
}


SHOWN = 25
"""How many lines of a failed test are shown."""


def complaints(report: Path) -> list[str]:
    """Return a message for each skip in the report that is not allowed, and for a report without tests that ran."""
    try:
        cases = list(ET.parse(report).iter("testcase"))  # noqa: S314 - our own pytest wrote it
    except (OSError, ET.ParseError) as error:
        return [f"{report} is not a readable test report: {error}"]
    skipped = {_test_id(case): skip for case in cases if (skip := case.find("skipped")) is not None}
    found = [
        f"{test} was skipped ({skip.get('message') or 'no reason given'}): make it run, or allow it by name."
        for test, skip in skipped.items()
        if test not in ALLOWED
    ]
    if len(cases) == len(skipped):
        found.append(f"{report} contains no test that ran: check the arguments of pytest.")
    return found


def failures(report: Path) -> list[str]:
    """Return the end of what each failed test of a report says; nothing if the report cannot be read."""
    try:
        cases = list(ET.parse(report).iter("testcase"))  # noqa: S314 - our own pytest wrote it
    except (OSError, ET.ParseError):
        return []
    found = [(case, each) for case in cases for kind in ("failure", "error") if (each := case.find(kind)) is not None]
    return [
        f"-- {report.stem}, {_test_id(case)}:\n" + "\n".join((each.text or "").splitlines()[-SHOWN:]) + "\n"
        for case, each in found
    ]


def _test_id(case: ET.Element) -> str:
    return f"{case.get('classname', '')}::{case.get('name', '')}"


def main(arguments: list[str]) -> int:
    """Print every complaint about the given reports; return the exit status."""
    if not arguments:
        print(__doc__, file=sys.stderr)
        return 2
    found = [complaint for argument in arguments for complaint in complaints(Path(argument))]
    for complaint in found:
        print(complaint, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
