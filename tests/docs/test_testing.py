"""What docs/testing.md and the README show is what happens: pytest runs each example, and reports what is shown."""

import re
from itertools import pairwise
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "testing.md"
BLOCKS = re.findall(r"^```(python|text)\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
EXAMPLES = [code for kind, code in BLOCKS if kind == "python"]
README = (PAGE.parents[1] / "README.md").read_text("utf-8")
FIRST = re.findall(r"^```python\n(# test_.*?)^```$.*?^```text\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
REPORTED = dict(FIRST) | {
    code: report for (kind, code), (then, report) in pairwise(BLOCKS) if (kind, then) == ("python", "text")
}


def without_tokens(text: str) -> str:
    """Return a report without what differs from run to run."""
    return re.sub(r"token \d+", "token", text)


@pytest.mark.parametrize("code", [*EXAMPLES, *dict(FIRST)], ids=range(len(EXAMPLES) + len(FIRST)))
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
    """The page has a bug that is found in threads and one in asyncio, each mended; the README has one more."""
    assert len(REPORTED) == 2 + len(FIRST) == 3
    assert len(EXAMPLES) > 4
    (code,) = dict(FIRST)
    assert README.index(code) < README.index("## In twenty lines")
