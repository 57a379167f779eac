"""The accounts of the stories as one HTML page, with their timelines as SVG. It needs neither a script nor a network.

It has the style and the escaping of the console.
"""

from collections.abc import Iterator, Mapping

from demo.account import Account, Chapter
from demo.report import verdict
from demo.stories import STORIES
from demo.timeline import GLYPHS, Mark, Span, meanings, spans, ticks
from tenure.console.html import Html, document, joined, table, tag
from tenure.console.timeline import AXIS, BAR, LANE, OWNER

BARS = {Mark.HELD: "held", Mark.FROZEN: "unknown", Mark.SOLD: "held"}
"""The marks that are bars, and the class of each in the style of the console. The others are letters."""

TICKS = 6
"""At most so many instants stand above a timeline: more overlap on a telephone."""


def page(accounts: Mapping[str, Account]) -> str:
    """Return the page."""
    parts = [_story(STORIES[name].title, account) for name, account in accounts.items()]
    status = "Times are in seconds since the round began. All figures are what the processes recorded."
    return document("What a lock prevents", joined(parts), status, root="", nonce="")


def _story(title: str, account: Account) -> Html:
    rows = [
        [tag("span", cell.text, class_="bad") if cell.wrong else cell.text for cell in row]
        for row in (*account.rows, *filter(None, [account.sums]))
    ]
    headings = [name.replace("\n", ", ") for name in account.headings]
    figures = (tag("h3", account.caption), table(headings, rows, "")) if rows else ()
    return tag(
        "section",
        tag("h2", title),
        *(tag("p", sentence) for sentence in account.introduction),
        *(_chapter(chapter, account.workers) for chapter in account.chapters),
        *figures,
        tag("p", verdict(account), class_="bad" if account.wrong else "note"),
    )


def _chapter(chapter: Chapter, workers: int) -> Html:
    result = chapter.result
    meaning = meanings(result, chapter.held)
    parts = [
        tag("h3", chapter.seconds()) if chapter.title else "",
        *(tag("p", sentence) for sentence in chapter.sentences),
    ]
    if chapter.tale:
        parts.append(tag("ul", *(tag("li", f"{at - result.began:.1f} s: {told}") for at, told in chapter.tale)))
    if meaning:
        parts += [_timeline(chapter, meaning, workers), tag("p", _legend(meaning), class_="dim")]
    return joined(parts)


def _legend(meaning: Mapping[Mark, str]) -> str:
    looks = {Mark.HELD: "bar", Mark.FROZEN: "hollow bar", Mark.SOLD: "bar"}
    return "; ".join(f"{looks.get(mark, GLYPHS[mark][1])}: {words}" for mark, words in meaning.items()) + "."


def _timeline(chapter: Chapter, meaning: Mapping[Mark, str], workers: int) -> Html:
    result = chapter.result
    length = max(result.ended - result.began, 0.001)
    height = AXIS + LANE * workers
    names = (tag("text", f"worker {number + 1}", x="0", y=AXIS + number * LANE + OWNER) for number in range(workers))
    drawn = sorted(spans(result.events, result.ended), key=lambda span: span.mark)  # letters last, above the bars
    marks = (_mark(span, result.began, length, meaning) for span in drawn)
    label = f"Timeline of {chapter.title}: {workers} workers in {length:.1f} s"
    size = {"width": "100%", "height": height}
    axis = _axis(length, height)
    return tag("svg", *axis, *names, *marks, class_="timeline", role="group", aria_label=label, **size)


def _axis(length: float, height: int) -> Iterator[Html]:
    for tick in ticks(length, TICKS):
        x = f"{_place(tick, length):.2f}%"
        yield tag("line", x1=x, x2=x, y1=AXIS - 4, y2=height)
        yield tag("text", f"{tick:g} s", x=x, y=OWNER - 1, text_anchor="middle" if tick else "start", class_="dim")


def _mark(span: Span, began: float, length: float, meaning: Mapping[Mark, str]) -> Html:
    start, end = (_place(instant - began, length) for instant in (span.start, span.end))
    top = AXIS + span.worker * LANE + OWNER + 4
    told = f"worker {span.worker + 1}: {meaning[span.mark]} at {span.start - began:.2f} s"
    if look := BARS.get(span.mark):
        width = f"{max(0.5, end - start):.2f}%"
        shape = tag("rect", x=f"{start:.2f}%", y=top, width=width, height=BAR, rx=2, class_=look)
    else:
        x = f"{start:.2f}%"
        shape = tag("text", GLYPHS[span.mark][1], x=x, y=top + 12, text_anchor="middle", class_="sign")
    return tag("g", tag("title", told), shape, role="img")


def _place(after: float, length: float) -> float:
    """Return where an instant is drawn, in per cent; a margin is left for the letters at both ends."""
    return 2.0 + 96.0 * min(1.0, max(0.0, after / length))
