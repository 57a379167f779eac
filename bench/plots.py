"""The plots on docs/benchmarks.md: bar charts in SVG of the tables that the benchmarks wrote.

`python -m bench.plots` writes them anew, as the benchmarks do when they write a page. A bar is in proportion to its
figure, from zero; the bars of one panel have one scale, those of another panel another.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path

DOCS = Path("docs")

UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "": 1.0}
FIGURE = re.compile(r"(\d[\d,.]*)(?: (us|ms|s))?")

WIDTH, LABELS, BARS, ROW, BAR = 480, 212, 196, 22, 14

STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#24292f}.head{font-weight:600}.note{fill:#57606a}"
    ".page{fill:#fff}.tenure{fill:#1a6fd4}.peer{fill:#9aa4af}.floor{fill:none;stroke:#9aa4af;stroke-dasharray:3 2}"
    "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.note{fill:#9da7b3}"
    ".page{fill:#161b22}.tenure{fill:#58a6ff}.peer{fill:#6b7480}.floor{stroke:#8b949e}}"
)


@dataclass
class Panel:
    """The first figures of the rows of one table: of all, or of those whose names begin with `only`."""

    page: str
    table: str
    head: str = ""
    only: str = ""


@dataclass
class Bar:
    """One row of a table."""

    name: str
    figure: str
    kind: str

    @property
    def value(self) -> float:
        """Return the figure, in seconds if it is a time."""
        found = FIGURE.fullmatch(self.figure)
        if not found:
            raise ValueError(f"{self.name}: {self.figure!r} is not a number or a time: plot another table")
        return float(found[1].replace(",", "")) * UNITS[found[2] or ""]


PAIR = "One acquire and release: less is better"
PLOTS = {
    "pair": (PAIR, [Panel("redis", "redis_pair")]),
    "handoff": ("From a release to the next process: less is better", [Panel("redis", "redis_handoff", only="0 ms, ")]),
    "tasks": ("64 tasks, pairs a second: more is better", [Panel("redis", "redis_tasks64")]),
    "databases": (PAIR, [Panel("sql", "postgresql_pair", "PostgreSQL"), Panel("sql", "mysql_pair", "MySQL")]),
    "groups": (
        PAIR,
        [
            Panel("groups", "quorum_pair", "Five Redis servers", "5 nodes, "),
            Panel("groups", "zookeeper_pair", "ZooKeeper, three servers", "ensemble of 3, "),
            Panel("groups", "etcd_pair", "etcd, three servers", "ensemble of 3, "),
        ],
    ),
}


def plots(folder: Path = DOCS) -> dict[str, str]:
    """Return all plots of the tables in `folder` as SVG, by the names of their files."""
    return {
        f"benchmarks-{name}.svg": draw(title, [(panel.head, bars(panel, folder)) for panel in panels])
        for name, (title, panels) in PLOTS.items()
    }


def bars(panel: Panel, folder: Path) -> list[Bar]:
    """Return the rows of a panel, as they stand in the table; raise ValueError if there are none."""
    page = (folder / f"benchmarks-{panel.page}.md").read_text("utf-8")
    table = page.partition(f"\n## {panel.table}\n")[2].partition("\n| --- ")[2].partition("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table.splitlines()[1:]]
    found = [Bar(row[0].removeprefix(panel.only), row[1], _kind(row)) for row in rows if row[0].startswith(panel.only)]
    if not found:
        raise ValueError(f"benchmarks-{panel.page}.md has no table {panel.table} with rows {panel.only!r}: measure it")
    return found


def _kind(row: list[str]) -> str:
    if row[-1].startswith("floor:"):
        return "floor"
    return "tenure" if "tenure" in (row[0] + row[-1][:7]) else "peer"


def draw(title: str, panels: list[tuple[str, list[Bar]]]) -> str:
    """Return horizontal bars in SVG, readable on a light and a dark page."""
    lines = [f'<text x="10" y="21" class="head">{escape(title)}</text>']
    y = 34
    for head, rows in panels:
        if head:
            lines.append(f'<text x="10" y="{y + 18}" class="note">{escape(head)}</text>')
            y += ROW + 4
        longest = max(bar.value for bar in rows)
        for bar in rows:
            lines += _row(bar, y, BARS * bar.value / longest)
            y += ROW
    return framed(title, lines, y + 8)


def framed(title: str, lines: Iterable[str], height: float, told: str = "", style: str = "") -> str:
    """Return a whole SVG of such a look; `told` is its description, for those who hear it."""
    size = f'width="{WIDTH}" height="{height}"'
    start = f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="0 0 {WIDTH} {height}" role="img">'
    heard = f"<title>{escape(title)}</title>{told and f'<desc>{escape(told)}</desc>'}"
    page = f'{heard}\n<style>{STYLE}{style}</style>\n<rect class="page" {size} rx="6"/>'
    return "\n".join([start, page, *lines, "</svg>", ""])


def _row(bar: Bar, y: int, length: float) -> Iterator[str]:
    yield f'<text x="{LABELS}" y="{y + 12}" text-anchor="end">{escape(bar.name)}</text>'
    yield f'<rect class="{bar.kind}" x="{LABELS + 8}" y="{y}" width="{length:.2f}" height="{BAR}"/>'
    yield f'<text x="{LABELS + 14 + length:.2f}" y="{y + 12}" class="note">{escape(bar.figure)}</text>'


def main() -> None:
    """Write all plots into docs/."""
    for name, drawn in plots().items():
        (DOCS / name).write_text(drawn, encoding="utf-8")


if __name__ == "__main__":
    main()
