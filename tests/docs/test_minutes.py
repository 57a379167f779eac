"""The table of where the minutes of the tests go has a row for each folder, and shows what exceeds its budget."""

from pathlib import Path

import pytest

from scripts.minutes import BUDGETS, PAGE, main
from tests.stages import LISTED

TESTS = Path(__file__).parents[1]

LATER = {place.rstrip("/") for places in LISTED.values() for place in places if place.endswith("/")}
"""The folders of which `make test` runs nothing."""


def test_each_folder_has_a_budget_and_a_row() -> None:
    """A new folder of tests gets a budget, and the page shows what it takes."""
    folders = {path.parent.name for path in TESTS.glob("*/test_*.py")} - LATER
    assert BUDGETS.keys() == folders
    page = (TESTS.parent / PAGE).read_text("utf-8")
    assert {folder for folder in folders if f"\n| {folder} | " in page} == folders


def test_what_exceeds_its_budget_is_marked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The processor seconds of a folder are added up, and compared with its budget."""
    most = BUDGETS["runtimes"]
    cases = "".join(
        f'<testcase classname="tests.{place}.test_it" name="test_{place}" time="1.5"><properties>'
        f'<property name="processor" value="{seconds}"/></properties></testcase>'
        for place, seconds in (("runtimes", most), ("runtimes", 0.6), ("faults", 0.5))
    )
    report = tmp_path / "junit.xml"
    report.write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>", "utf-8")
    main([str(report)])
    shown = capsys.readouterr().out
    assert f"| runtimes | 2 | 3 | {most + 0.6:.0f} (over) | {most} |" in shown
    assert f"| faults | 1 | 2 | 0 | {BUDGETS['faults']} |" in shown
    assert f"| in all | 3 | 4 | {most + 1.1:.0f} |" in shown
