"""The timeline of a name: what stands where, and the bugs that its test must find."""

import re
from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from xml.etree import ElementTree as ET

import pytest

from tenure import HistoryEntry
from tenure.console import timeline
from tests.planting import module_with

NOW = datetime(2026, 11, 27, 12, 0, tzinfo=UTC)
HOSTILE = "<b>\" onload='x' \u202eevil"


def entry(before: float, ended: float | None, token: int = 7, how: str = "", owner: str = "web-1") -> HistoryEntry:
    """Return a lease that was granted so many seconds before NOW, after a wait of 6 s; without a token, a wait."""
    end = None if ended is None else NOW - timedelta(seconds=ended)
    what = "granted" if token else "not granted"
    return HistoryEntry(NOW - timedelta(seconds=before), what, token, owner, 6.0, end, how)


def drawn(module: object, *entries: HistoryEntry, held: Collection[int], span: int = 60) -> list[str]:
    """Return what is drawn of each entry: the places of its parts in seconds of the span, their looks, and texts."""
    page: str = vars(module)["timeline"](entries, NOW, f"{span}", held)
    svg = ET.fromstring(page[: page.index("</svg>") + 6])  # noqa: S314 - made here
    found: list[str] = []

    def at(percent: str) -> float:
        return round((float(percent.rstrip("%")) - 2) / 96 * span, 1)

    for group in svg.iter("g"):
        parts = [f"{group[0].text}"]
        for part in group[1:]:
            x = part.attrib.get("x1") or part.attrib["x"]
            to = part.attrib.get("x2") or f"{float(x[:-1]) + float(part.attrib.get('width', '0%')[:-1])}%"
            parts.append(f"{part.attrib['class']} {part.text or ''} {at(x):g}-{at(to):g}".replace("  ", " "))
        found.append("; ".join(parts))
    return found


AT = "2026-11-27 11:59"
GRANTED = f"web-1: granted at {AT}:{{}} UTC after a wait of 6.0 s (token 7), {{}}"
CASES: dict[str, tuple[list[HistoryEntry], set[int], list[str]]] = {
    "a lease with its wait and its token": (
        [entry(48, 18, how="released")],
        set(),
        [GRANTED.format(12, "released after 30.0 s") + "; wait 6-12; held 12-42; held 7 27-27"],
    ),
    "one that is held, beside a later one": (
        [entry(48, None), entry(18, None, 8)],
        {7, 8},
        [
            GRANTED.format(12, "still held") + "; wait 6-12; held 12-60; held 7 36-36",
            GRANTED.format(42, "still held").replace("token 7", "token 8") + "; wait 36-42; held 42-60; held 8 51-51",
        ],
    ),
    "one whose end was not recorded, until the next grant": (
        [entry(48, None), entry(30, None, 0, "timeout"), entry(18, None, 8)],
        {8},
        [
            GRANTED.format(12, "its end was not recorded") + "; wait 6-12; unknown 12-42; unknown 7 27-27",
            f"web-1: not granted at {AT}:30 UTC after a wait of 6.0 s: timeout; wait 24-30; sign \u25cb 30-30",
            GRANTED.format(42, "still held").replace("token 7", "token 8") + "; wait 36-42; held 42-60; held 8 51-51",
        ],
    ),
    "a loss, a forced take, and what is neither": (
        [entry(50, 48, how=how) for how in ("lost: expired", "lost: revoked", "lost: drained", "lost: adopted")],
        set(),
        [
            GRANTED.format(10, f"lost: {how} after 2.0 s") + f"; wait 4-10; {look} 10-12{sign}"
            for how, look, sign in (
                ("expired", "lost", "; sign \u2715 12-12"),
                ("revoked", "lost", "; sign \u25bc 12-12"),
                ("drained", "held", ""),
                ("adopted", "held", ""),
            )
        ],
    ),
    "one that began before the span, and one that ended before it": (
        [entry(500, 400, how="released"), entry(120, 30, how="released")],
        set(),
        [
            GRANTED.replace("59", "58").format("00", "released after 1 min 30 s")
            + "; wait 0-0; held 0-30; held 7 15-15",
        ],
    ),
}


def is_right(module: object) -> bool:
    """Tell whether each case is drawn as it should be."""
    return all(drawn(module, *entries, held=held) == expected for entries, held, expected in CASES.values())


@pytest.mark.parametrize("case", CASES)
def test_entries_are_drawn(case: str) -> None:
    """Each lease as a bar from its grant to its end, with its wait, and a sign where it was lost or not granted."""
    entries, held, expected = CASES[case]
    assert drawn(timeline, *entries, held=held) == expected


def test_owners_have_lanes_and_text_is_escaped() -> None:
    """The latest owners first, so many at most; all stand in the table."""
    entries = [entry(40 - at, 30 - at, at + 1, "released", f"web-{at:02}") for at in range(19)]
    page = timeline.timeline([*entries, entry(5, 2, 99, "released", HOSTILE)], NOW, "60", ())
    assert page.count("<g ") == timeline.MOST_LANES
    assert "8 more owners" in page
    assert all(page.count(f"<bdi>web-{at:02}</bdi>") == 1 for at in range(19))
    assert re.search(r'<text x="0" y="\d+">&lt;b&gt;&quot; onload=&#x27;x&#x27; \\u202eevil</text>', page)
    assert "onload='" not in page
    assert re.findall(r'<text x="0" y="(\d+)">', page) == [str(30 + 38 * lane) for lane in range(12)]


def test_the_latest_entries_are_drawn_unless_a_span_was_asked_for() -> None:
    """Twenty, and those that went on then."""
    entries = [entry(before, before - 1) for before in range(1000, 0, -10)]
    for asked, drawn_of in (("", 20), ("61", 20), ("60", 6), ("600", 60), ("3600", 100)):
        page = timeline.timeline(entries, NOW, asked, ())
        assert (page.count("<g "), page.count("<tr>")) == (drawn_of, 21), asked


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("or entry.token in tokens:", "or not tokens:"),
        ('if each.what == "granted"), now)', "if each), now)"),
        ('if entry.how == "lost: revoked"', 'if entry.how == "revoked"'),
        ("and entry.how not in WANTED", ""),
        ("min(1.0, max(0.0, part))", "part"),
        ("ends[at] >= now - timedelta(seconds=span)", "True"),
        ("/ self._span", "/ 3600"),
    ],
)
def test_a_planted_bug_is_found(right: str, wrong: str) -> None:
    """By the cases."""
    assert is_right(timeline)
    assert not is_right(module_with(timeline, (right, wrong)))
