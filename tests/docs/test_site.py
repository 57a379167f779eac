"""`make docs` builds the site without a warning: every link leads somewhere, and every page has its place."""

import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from tests.console.test_browser import chromium
from tests.docs.test_readme import ROOT, run_example
from tests.packaging.public import MODULES

DOCS = ROOT / "docs"

pytestmark = pytest.mark.xdist_group("site")  # it is built once


def build(pages: Path, site: Path) -> subprocess.CompletedProcess[str]:
    """Build a site from pages, with warnings as errors."""
    command = ["-m", "sphinx", "-q", "-W", "-b", "html", "-c", str(DOCS), str(pages), str(site)]
    environment = os.environ | {"NO_COLOR": "1"}
    return subprocess.run(
        [sys.executable, *command], env=environment, capture_output=True, text=True, timeout=280, check=False
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the site."""
    folder = tmp_path_factory.mktemp("site")
    done = build(DOCS, folder)
    assert (done.returncode, done.stderr) == (0, "")
    return folder


def test_every_public_name_has_its_reference(site: Path) -> None:
    """With its docstring, on one of the pages of the API."""
    text = "".join(page.read_text("utf-8") for page in (site / "api").glob("*.html"))
    names = {f"{module}.{name}" for module in MODULES for name in import_module(module).__all__}
    assert {name for name in names if f'id="{name}"' not in text} == set()
    assert "Args:" not in text


def test_programs_find_every_page(site: Path) -> None:
    """By its address and in the order of the contents; the decisions are behind one page. The whole text is one."""
    text = (site / "llms.txt").read_text("utf-8")
    listed = re.findall(r"^- \[[^]]+\]\(\S+/page/(\S+)\.html\): \S", text, re.MULTILINE)
    pages = {str(page.relative_to(DOCS).with_suffix("")) for page in DOCS.rglob("*.md") if page.parent.name != "adr"}
    assert sorted(listed) == sorted(pages - {"index"})
    whole = (site / "llms-full.txt").read_text("utf-8")
    assert all((DOCS / f"{page}.md").read_text("utf-8") in whole for page in listed)


CUT = "[...document.querySelectorAll('td .pre')].filter(e => e.getClientRects().length > 1).map(e => e.innerText)"
"""Returns the words of code in tables that a browser breaks."""
WITHOUT = "[...document.styleSheets].filter(e => /site.css/.test(e.href)).forEach(e => e.disabled = true)"


def test_no_table_shows_an_option_in_two_pieces(site: Path) -> None:
    """`?guard=observed` is one word. Without the stylesheet of the site it is not, which the test notices."""
    with chromium() as browser:
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        for name in ("stores", "cli", "doctor", "objects"):
            page.goto((site / f"{name}.html").as_uri())
            assert page.evaluate(CUT) == [], name
            page.evaluate(WITHOUT)
            assert page.evaluate(CUT) != [], name


PLANTED = {
    "index.md": "# Index\n\nAll pages.\n\n```{toctree}\nfirst\ngone\n```\n",
    "first.md": "# First\n\n[a](missing.md) [b](#no-such-part) [c](../MISSING.md) [d](../README.md#no-such-part)\n"
    "[e](../README.md#stores) [f](../examples)\n",
    "second.md": "# Second\n\n[g](first.md#no-such-part) [h](first.md#first)\n",
}


def test_planted_faults_of_pages_are_found(tmp_path: Path) -> None:
    """Broken links and anchors, inside and outside of docs/, a page that is missing and one that no contents name."""
    for name, text in PLANTED.items():
        (tmp_path / name).write_text(text, "utf-8")
    done = build(tmp_path, tmp_path / "site")
    assert done.returncode == 1
    warnings = re.findall(r"^(\S+?)(?::\d+)?: WARNING: (.*)$", done.stderr, re.MULTILINE)
    found = {(Path(page).stem, said) for page, said in warnings}
    wanted = {
        ("index", "nonexisting document 'gone'"),
        ("first", "'missing.md'"),
        ("first", "'no-such-part'"),
        ("first", "../MISSING.md leads nowhere"),
        ("first", "../README.md#no-such-part leads nowhere"),
        ("second", "isn't included in any toctree"),
        ("second", "'no-such-part'"),
    }
    assert {(page, part) for page, part in wanted if any(p == page and part in said for p, said in found)} == wanted
    assert len(found) == len(wanted), done.stderr


TUTORIAL = re.findall(
    r"^```python\n(.*?)^```$(?:\n\n(?:The client also logs[^\n]*\n\n)?```text\n(.*?)^```$)?",
    (DOCS / "tutorial.md").read_text("utf-8"),
    re.MULTILINE | re.DOTALL,
)


def test_the_tutorial_happens_as_it_is_told(tmp_path: Path) -> None:
    """Its programs print and log what stands there, one after another on one store."""
    assert len(TUTORIAL) == 4
    for code, logged in TUTORIAL:
        run_example(code, tmp_path, f"sqlite://{tmp_path}/locks.db", logged)


def test_every_figure_of_the_comparison_was_measured() -> None:
    """It stands in the table of the benchmark that its row links."""
    page = (DOCS / "compared.md").read_text("utf-8")
    rows = re.findall(r"^\|.*\[\w+\]\((benchmarks[\w-]*\.md)#(\w+)\) \|$", page, re.MULTILINE)
    assert len(rows) == 20
    for row in page.splitlines():
        links = re.findall(r"\((benchmarks[\w-]*\.md)#(\w+)\)", row)
        if not row.startswith("|") or not links:
            continue
        ((name, section),) = links
        measured = (DOCS / name).read_text("utf-8").partition(f"\n## {section}\n")[2].partition("\n## ")[0]
        figures = re.findall(r"\d[\d,.]*(?: [mu]?s)?(?=\b)", "".join(row.split("|")[2:5]))
        assert len(figures) >= 2
        assert [each for each in figures if f"| {each} |" not in measured] == [], row


@pytest.mark.parametrize(
    ("page", "section"),
    [("advisory", "postgresql_pair"), ("get_lock", "mysql_pair"), ("memcached", "memcached_pair")],
)
def test_every_ratio_of_a_pair_to_a_bare_one_was_measured(page: str, section: str) -> None:
    """It stands in the table that its line links, or in the note below it for one core."""
    text = (DOCS / f"{page}.md").read_text("utf-8")
    (said,) = re.findall(rf"^.*\(benchmarks-sql\.md#{section}\).*$", text, re.MULTILINE)
    measured = (DOCS / "benchmarks-sql.md").read_text("utf-8").partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    ratios = re.findall(r"\b\d+\.\d\d\b", said)
    assert len(ratios) >= 2
    assert [each for each in ratios if not re.search(rf"\| {each} \(|us, {each}[;.]", measured)] == []
