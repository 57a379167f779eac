"""The page in Markdown: the tables of all reports, their bounds, and whether each bound was kept."""

from collections.abc import Iterable, Sequence

from bench.harness import Bound, Report

HEAD = """# Benchmarks

`python -m bench {names}--write {file}` measured this and wrote it; do not edit it.
{quick}
- {machine}
- {software}

## How to read it

**Compare ratios, not times.** Other work on the machine comes and goes, and mostly lasts longer than one round. So all
contenders of a table were measured in turns, A B C A B C, and each ratio compares two contenders within one round. The
table has the median of the rounds, with the least and the greatest ratio in brackets. A ratio that spreads far says
little. A time holds for this machine and this run only. A p99 or a maximum depends on the machine as much as on the
lock. Clients and servers share the cores: where many processes contend, a lock that wakes fewer of them looks faster.

**A floor** is no lock: it is the least work that a lock of this kind needs, and shows how much could be gained. Other
libraries are used with their defaults unless the table says otherwise. Most of them have no order, no renewal and no
fencing token.

**A bound** is a goal, and is not changed to fit a measurement. Its p10 is the 10th percentile of the ratios of all
rounds. The page names each missed bound, and the reason.

{summary}
"""

UNKNOWN = "the reason is not known; measure again on an idle machine"


def page(
    reports: Sequence[Report],
    machine: str,
    software: str,
    *,
    quick: bool,
    names: Sequence[str] = (),
    file: str = "docs/benchmarks-redis.md",
) -> str:
    """Render all reports: of some benchmarks by `names`, or of all."""
    bounds = [bound for report in reports for bound in report.bounds]
    kept = sum(bound.kept for bound in bounds)
    head = HEAD.format(
        names="".join(f"{name} " for name in names),
        file=file,
        quick="It was a quick run: few rounds, each of them short.\n" if quick else "",
        machine=machine,
        software=software,
        summary=f"Kept: {kept} of {len(bounds)} bounds.",
    )
    return "\n".join([head, *map(_section, reports)])


def _section(report: Report) -> str:
    lines = [f"## {report.name}", "", f"{report.title[:1].upper()}{report.title[1:]}.", ""]
    lines += markdown_table(report.heads, report.lines, figures=range(1, len(report.heads) - 1))
    if report.bounds:
        rows = [
            [f"**{bound.verdict}**", bound.text, bound.measured, bound.p10, bound.demand] for bound in report.bounds
        ]
        lines += ["", *markdown_table(["", "bound", "measured", "p10", "must be"], rows, figures=(2, 3, 4))]
    missed = [bound for bound in report.bounds if not bound.kept]
    lines += ["", "Missed:", "", *map(_reason, missed)] if missed else []
    lines += ["", "Notes:", "", *(f"- {note[:1].upper()}{note[1:]}." for note in report.notes)] if report.notes else []
    return "\n".join([*lines, ""])


def _reason(bound: Bound) -> str:
    return f"- *{bound.text}*: {bound.why or UNKNOWN}."


def markdown_table(heads: Sequence[str], rows: Sequence[Sequence[str]], figures: Iterable[int]) -> list[str]:
    """Lay out a table, with the columns of `figures` to the right."""
    rule = ["--:" if at in set(figures) else "---" for at in range(len(heads))]
    return [_line(heads), _line(rule), *map(_line, rows)]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
