"""Each Chinese page shows and links what its English page does.

A code block may differ in what is written for people, and in nothing else: the comments behind code, and docstrings of
one line. A comment at the beginning of a line is the name of a file. A link leads to the Chinese page where there is
one. The paragraph that leads to the other language has no counterpart.
"""

import re
from pathlib import Path

import pytest

from tests.docs.test_readme import LINKED, ROOT

CHINESE = [page for page in LINKED if page.name.endswith(".zh-CN.md")]
FENCED = re.compile(r"^```(.*?)^```$", re.MULTILINE | re.DOTALL)
FOR_PEOPLE = re.compile(r' +# .*$|(?<=""").*(?="""$)', re.MULTILINE)
OTHER_LANGUAGE = re.compile(r"^\[(?:English|中文)\]\(.*$\n\n?", re.MULTILINE)


def english(page: Path) -> Path:
    """Return the English page of a Chinese one."""
    return page.with_name(page.name.replace(".zh-CN.md", ".md"))


def code(text: str) -> list[str]:
    """Return the code blocks of a page, with their languages, without what is written for people."""
    return [FOR_PEOPLE.sub("", block) for block in FENCED.findall(text)]


def links(text: str) -> list[str]:
    """Return where the links of a page lead, but for the one to the other language, in alphabetical order."""
    return sorted(re.findall(r"\]\(([^)\s]+)\)", OTHER_LANGUAGE.sub("", FENCED.sub("", text))))


def in_chinese(link: str, folder: Path) -> str:
    """Return the Chinese page that has the text of a linked one, else the link."""
    page = link.replace(".md", ".zh-CN.md")
    return page if folder.joinpath(page).is_file() else link


def rows(text: str) -> list[tuple[int, list[str]]]:
    """Return the rows of all tables, each as the number of its cells and its code spans in alphabetical order."""
    lines = [line for line in FENCED.sub("", text).splitlines() if line.startswith("|")]
    return [(line.count("|") - 1, sorted(re.findall(r"`[^`]+`", line))) for line in lines]


def names(text: str) -> set[str]:
    """Return the code spans of a page."""
    return set(re.findall(r"`([^`]+)`", FENCED.sub("", text)))


def differences(chinese: str, original: str, folder: Path) -> list[str]:
    """Return what a Chinese page in a folder has otherwise than its English page."""
    leads = [link for line in OTHER_LANGUAGE.findall(chinese) for link in re.findall(r"\]\(([^)\s]+)\)", line)]
    same = {
        "code": code(chinese) == code(original),
        "links": links(chinese) == sorted(in_chinese(link, folder) for link in links(original)),
        "rows": rows(chinese) == rows(original),
        "names": names(chinese) == names(original),
        "other language": bool(leads) and all(folder.joinpath(link).is_file() for link in leads),
    }
    return [part for part, is_same in same.items() if not is_same]


@pytest.mark.parametrize("page", CHINESE, ids=lambda page: page.name)
def test_a_chinese_page_has_what_the_english_one_has(page: Path) -> None:
    """The same code, links and rows; and the way back to the English page."""
    text, original = page.read_text("utf-8"), english(page).read_text("utf-8")
    assert differences(text, original, page.parent) == []
    assert f"[English]({english(page).name})" in text


def test_the_readme_leads_to_the_chinese_pages() -> None:
    """The first line below its title leads to the Chinese one, and that one to the scenarios in Chinese."""
    assert (ROOT / "README.md").read_text("utf-8").splitlines()[2] == "[中文](README.zh-CN.md)"
    chinese = (ROOT / "README.zh-CN.md").read_text("utf-8")
    names = [str(page.relative_to(ROOT)) for page in CHINESE if page.parent != ROOT]
    assert len(names) == 3
    assert [name for name in names if f"({name})" not in chinese] == []


@pytest.mark.parametrize(
    ("right", "wrong", "found"),
    [
        ("ttl=30, timeout=5", "ttl=30, timeout=6", ["code"]),
        ("$ pip install tenure-testing  ", "$ pip install tenure-tests  ", ["code"]),
        ("# test_reminders.py", "# test_reminder.py", ["code"]),
        ("```console", "```shell", ["code"]),
        ("(docs/tutorial.md)只需", "(docs/tutorials.md)只需", ["links"]),
        ("#throughput-instead-of-order", "#throughput", ["links"]),
        ("(docs/scenario-push.zh-CN.md)", "(docs/scenario-push.zh.md)", ["other language"]),
        ("| `client.rwlock(name)` |", "`client.rwlock(name)`", ["rows"]),
        ("`acquire(weight=)`", "`acquire(weights=)`", ["rows", "names"]),
        ("`fair_after`", "`fair_before`", ["names"]),
    ],
)
def test_a_planted_difference_is_found(right: str, wrong: str, found: list[str]) -> None:
    """A changed option, command, file, language, link or anchor, a row that is missing, and a changed code span."""
    page = ROOT / "README.zh-CN.md"
    text, original = page.read_text("utf-8"), english(page).read_text("utf-8")
    assert right in text
    assert differences(text.replace(right, wrong), original, ROOT) == found
