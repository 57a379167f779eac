"""What docs/testing.md shows is what happens: each example is run by pytest, and each report is the one shown."""

import re
from itertools import pairwise
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "testing.md"
BLOCKS = re.findall(r"^```(python|text)\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
REPORTED = {code: report for (kind, code), (then, report) in pairwise(BLOCKS) if (kind, then) == ("python", "text")}
EXAMPLES = [code for kind, code in BLOCKS if kind == "python"]


def without_tokens(text: str) -> str:
    """Return a report without what differs from run to run."""
    return re.sub(r"token \d+", "token", text)


@pytest.mark.parametrize("code", EXAMPLES, ids=range(len(EXAMPLES)))
def test_every_example_ends_as_the_page_says(pytester: pytest.Pytester, code: str) -> None:
    """An example that a report follows fails with this report; each other one passes, with warnings as errors."""
    named = re.match(r"# (\w+)\.py\n", code)
    pytester.makefile(".py", **{named[1] if named else "test_example": code})
    result = pytester.runpytest_inprocess(
        "-p", "no:cacheprovider", "-p", "no:valkey", "-W", "error", "--strict-markers"
    )
    if code not in REPORTED:
        result.assert_outcomes(passed=code.count("\ndef test_"))
        return
    result.assert_outcomes(failed=1)
    said = without_tokens(result.stdout.str())
    for line in without_tokens(REPORTED[code]).splitlines():
        assert line in said, said


def test_every_link_leads_somewhere() -> None:
    """No link of the page leads nowhere."""
    for link in re.findall(r"\]\(([^)#]+)\)", PAGE.read_text("utf-8")):
        assert (PAGE.parent / link).exists(), link


def test_there_are_bugs_and_their_mended_forms() -> None:
    """The page has a bug that is found in threads and one in asyncio, and each mended."""
    assert len(REPORTED) == 2
    assert len(EXAMPLES) > 2 * len(REPORTED)
