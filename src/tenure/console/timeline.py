"""The timeline of a name: its history as an SVG that the server draws.

Places along the time are percentages, so that bars fill any width while texts keep their size. Each entry that is drawn
has a title, for those who hear the page or point at it; the latest stand in a table, too.
"""

from collections.abc import Collection, Iterator, Sequence
from datetime import datetime, timedelta

from tenure.cli.names import entry_fields
from tenure.cli.output import seconds
from tenure.console.html import Html, joined, table, tag
from tenure.escaping import shown
from tenure.primitives.history import HistoryEntry

SPANS = {60: "1 minute", 600: "10 minutes", 3_600: "1 hour", 86_400: "1 day", 604_800: "1 week", 2_678_400: "1 month"}
"""The stretches of time that a visitor may ask for, in seconds."""

LATEST = 20
"""So many entries stand in the table. The timeline begins with the first of them, unless a span was asked for."""

MOST_LANES = 12
"""How many owners it shows: those that were granted the name last."""

LANE, BAR, OWNER, AXIS = 38, 14, 12, 18
"""Heights in pixels: of an owner's lane, of the bar in it, of the owner's name, of the axis."""

DIGIT = 2.3
"""How many per cent of the width of a telephone a digit of a token takes at most."""

LOST, TAKEN, IN_VAIN = "\u2715", "\u25bc", "\u25cb"
LEGEND = (
    f"A bar is a lease with its token, or the end of it; a dotted line is a wait. {LOST} lost, {TAKEN} taken by force, "
    f"{IN_VAIN} not granted; a hollow bar: its end was not recorded."
)
HEADINGS = ("When (UTC)", "What", "Token", "Owner", "Waited (s)", "Held (s)", "End")
WANTED = {"lost: drained", "lost: adopted"}
"""Losses that the holder's own program has caused: they are no failures."""


def timeline(entries: Sequence[HistoryEntry], now: datetime, asked: str, tokens: Collection[int]) -> Html:
    """Return the latest part of a history as an SVG and a table.

    `asked` is one of SPANS, or anything else: the latest entries. `tokens` are those of the present holders.
    """
    first = min(each.at - timedelta(seconds=each.waited) for each in entries[-LATEST:])
    span = float(asked) if asked in map(str, SPANS) else max(1.0, (now - first).total_seconds())
    ends = {at: _end(entries, at, now, tokens) for at in range(len(entries))}
    inside = [at for at in ends if ends[at] >= now - timedelta(seconds=span)]
    owners = list(dict.fromkeys(entries[at].owner for at in reversed(inside)))
    lanes = {owner: AXIS + place * LANE for place, owner in enumerate(owners[:MOST_LANES])}
    scale = _Scale(now, span)
    marks = [
        _mark(entries[at], ends[at], lanes[entries[at].owner], scale, tokens)
        for at in inside
        if entries[at].owner in lanes
    ]
    height = AXIS + LANE * len(lanes)
    names = (tag("text", shown(owner, 44), x="0", y=y + OWNER) for owner, y in lanes.items())
    label = f"Timeline of the last {seconds(span)}: {len(marks)} entries of {len(lanes)} owners"
    size = {"width": "100%", "height": height}
    drawing = tag("svg", *scale.axis(height), *names, *marks, class_="timeline", role="group", aria_label=label, **size)
    rest = f" {len(owners) - MOST_LANES} more owners are not drawn." if len(owners) > MOST_LANES else ""
    rows = [
        (*first, owner and tag("bdi", owner), waited, held, how)
        for *first, owner, waited, held, how in map(entry_fields, entries[: -LATEST - 1 : -1])
    ]
    return joined([drawing, tag("p", LEGEND + rest, class_="dim"), table(HEADINGS, rows, "")])


class _Scale:
    """Where the instants of a span are drawn."""

    def __init__(self, now: datetime, span: float) -> None:
        self._begin = now - timedelta(seconds=span)
        self._span = span

    def at(self, instant: datetime) -> float:
        """Return the place of an instant in per cent; a margin is left for the marks at both ends."""
        part = (instant - self._begin).total_seconds() / self._span
        return 2.0 + 96.0 * min(1.0, max(0.0, part))

    def axis(self, height: int) -> Iterator[Html]:
        """Yield lines at the ends and in the middle, with their instants."""
        form = "%H:%M:%S" if self._span <= 86_400 else "%m-%d %H:%M"  # noqa: PLR2004 - a day
        for part, anchor in ((0.0, "start"), (0.5, "middle"), (1.0, "end")):
            instant = self._begin + timedelta(seconds=part * self._span)
            x = f"{self.at(instant):.2f}%"
            yield tag("line", x1=x, x2=x, y1=AXIS - 4, y2=height)
            yield tag("text", f"{instant:{form}}", x=x, y=OWNER - 1, text_anchor=anchor, class_="dim")


def _end(entries: Sequence[HistoryEntry], at: int, now: datetime, tokens: Collection[int]) -> datetime:
    """Return until when an entry is drawn: a lease whose end is not known, until the next grant."""
    entry = entries[at]
    if entry.what != "granted":
        return entry.at
    if entry.ended is not None or entry.token in tokens:
        return entry.ended or now
    return next((each.at for each in entries[at + 1 :] if each.what == "granted"), now)


def _mark(entry: HistoryEntry, end: datetime, y: int, scale: _Scale, tokens: Collection[int]) -> Html:
    """Return what is drawn of an entry: the wait, the lease with its token, and how it ended."""
    granted, known = entry.what == "granted", entry.ended is not None or entry.token in tokens
    start, stop = scale.at(entry.at), scale.at(end)
    top, middle = y + OWNER + 4, y + OWNER + 4 + BAR // 2
    lost = entry.how.startswith("lost") and entry.how not in WANTED
    sign = (TAKEN if entry.how == "lost: revoked" else LOST if lost else "") if granted else IN_VAIN
    parts = [tag("title", f"{shown(entry.owner)}: {_story(entry, known=known)}")]
    if entry.waited > 0:
        began = scale.at(entry.at - timedelta(seconds=entry.waited))
        parts.append(tag("line", x1=f"{began:.2f}%", x2=f"{start:.2f}%", y1=middle, y2=middle, class_="wait"))
    if granted:
        look = "lost" if lost else "held" if known else "unknown"
        width = f"{max(0.5, stop - start):.2f}%"
        parts.append(tag("rect", x=f"{start:.2f}%", y=top, width=width, height=BAR, rx=2, class_=look))
        fits = [
            text
            for text in (str(entry.token), f"\u2026{str(entry.token)[-4:]}")
            if stop - start >= DIGIT * (len(text) + 1)
        ]
        x = f"{(start + stop) / 2:.2f}%"
        parts += [tag("text", each, x=x, y=top + 11, text_anchor="middle", class_=look) for each in fits[:1]]
    if sign:
        parts.append(tag("text", sign, x=f"{stop:.2f}%", y=top + 12, text_anchor="middle", class_="sign"))
    return tag("g", *parts, role="img")


def _story(entry: HistoryEntry, *, known: bool) -> str:
    """Return an entry as a sentence."""
    at = f"{entry.at:%Y-%m-%d %H:%M:%S} UTC"
    waited = f" after a wait of {seconds(entry.waited)}" if entry.waited > 0 else ""
    if entry.what != "granted":
        return f"not granted at {at}{waited}: {entry.how}"
    end = "still held" if known else "its end was not recorded"
    if entry.ended is not None:
        end = f"{entry.how} after {seconds((entry.ended - entry.at).total_seconds())}"
    return f"granted at {at}{waited} (token {entry.token}), {end}"
