"""The plots of the benchmarks show the figures of the tables, and planted errors in them are found."""

import re
import shutil
from contextlib import suppress
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

import bench.plots as plots  # noqa: PLR0402 - pyright would look for the other form in tests/bench
from tests.planting import module_with

DOCS = Path(__file__).parents[2] / "docs"
SVG = "{http://www.w3.org/2000/svg}"

TABLE = """
## redis_pair

A pair.

|  | median | what it is |
| --- | --: | --- |
| tenure threads | 500 us | tenure.Client |
| a <b> & "c" | 1.50 ms | another lock |
| bare socket | 0.002 s | floor: no lock |
| tenure uvloop | 1,000 us | the same on uvloop |

|  | bound | measured |
| --- | --- | --: |
| **OK** | tenure threads | 7 |
"""
SHOWN = [
    ("tenure threads", "tenure", 0.0005, "500 us"),
    ('a <b> & "c"', "peer", 0.0015, "1.50 ms"),
    ("bare socket", "floor", 0.002, "0.002 s"),
    ("tenure uvloop", "tenure", 0.001, "1,000 us"),
]


def stale(folder: Path) -> list[str]:
    """Return the plots in a folder that its tables do not give."""
    return [name for name, drawn in plots.plots(folder).items() if (folder / name).read_text("utf-8") != drawn]


def drawn(folder: Path) -> list[tuple[str | None, str, float, str | None]]:
    """Draw TABLE; return the name, the look, the length and the figure of each bar."""
    (folder / "benchmarks-redis.md").write_text(TABLE, encoding="utf-8")
    made = plots.draw("A & B", [("", plots.bars(plots.Panel("redis", "redis_pair"), folder))])
    root = ET.fromstring(made)  # noqa: S314 - made here
    _title, *texts = (each.text for each in root.iter(f"{SVG}text"))
    _page, *bars = (each.attrib for each in root.iter(f"{SVG}rect"))
    return [
        (name, bar["class"], float(bar["width"]), figure)
        for name, bar, figure in zip(texts[::2], bars, texts[1::2], strict=True)
    ]


def is_right(folder: Path) -> bool:
    """Return whether the bars are those of SHOWN, and the longest has all the width that bars have."""
    found, scale = drawn(folder), plots.BARS / max(value for _, _, value, _ in SHOWN)
    texts = [(name, look, figure) for name, look, _, figure in found]
    return texts == [(name, look, figure) for name, look, _, figure in SHOWN] and all(
        abs(bar[2] - shown[2] * scale) < 0.006 for bar, shown in zip(found, SHOWN, strict=True)
    )


def test_the_plots_show_the_figures_of_the_tables() -> None:
    """Run `.venv/bin/python -m bench.plots` if this fails."""
    assert stale(DOCS) == []


@pytest.mark.parametrize(
    ("page", "table", "row", "plot"),
    [
        ("redis", "redis_pair", "tenure asyncio", "pair"),
        ("redis", "redis_handoff", "0 ms, tenure asyncio", "handoff"),
        ("redis", "redis_tasks64", "tenure asyncio", "tasks"),
        ("sql", "mysql_pair", "sqlalchemy-dlock", "databases"),
        ("groups", "etcd_pair", "ensemble of 3, aetcd Lock", "groups"),
    ],
)
def test_a_planted_figure_is_found(page: str, table: str, row: str, plot: str, tmp_path: Path) -> None:
    """A plot is stale if the first digit of one figure has changed in its table, and no other plot is."""
    for each in DOCS.glob("benchmarks-*"):
        shutil.copy(each, tmp_path)
    path = tmp_path / f"benchmarks-{page}.md"
    before, heading, after = path.read_text("utf-8").partition(f"\n## {table}\n")
    changed = re.sub(rf"(?<=\| {row} \| )\d", lambda digit: f"{int(digit[0]) % 9 + 1}", after, count=1)
    assert changed != after
    path.write_text(before + heading + changed, encoding="utf-8")
    assert stale(tmp_path) == [f"benchmarks-{plot}.svg"]


def test_a_bar_has_the_length_the_look_and_the_text_of_its_row(tmp_path: Path) -> None:
    """Times of all units stand in proportion, floors and peers look different, hostile names stay text."""
    assert is_right(tmp_path)


PLANTED = {
    "milliseconds are read as microseconds": ('"ms": 1e-3', '"ms": 1e-6'),
    "bars begin at half the width": ("BARS * bar.value / longest)", "BARS * (1 + bar.value / longest) / 2)"),
    "each bar is as long as the longest": ("longest = max(bar.value for bar in rows)", "longest = rows[0].value"),
    "a floor looks like a lock": ('return "floor"', 'return "peer"'),
    "the second column is drawn": ("row[1], _kind", "row[2], _kind"),
    "the first row is left out": ("table.splitlines()[1:]", "table.splitlines()[2:]"),
    "a name is not escaped": ("{escape(bar.name)}", "{bar.name}"),
}


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_found(bug: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above finds what a maintainer could get wrong."""
    monkeypatch.setattr(f"{__name__}.plots", module_with(plots, PLANTED[bug]))
    with suppress(ET.ParseError, ValueError):  # found as well
        assert not is_right(tmp_path)


def test_a_table_that_is_not_there_is_named(tmp_path: Path) -> None:
    """The error names the page and the table, and says what to do."""
    (tmp_path / "benchmarks-redis.md").write_text("# Benchmarks\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"benchmarks-redis\.md has no table redis_pair .*: measure it"):
        plots.plots(tmp_path)
