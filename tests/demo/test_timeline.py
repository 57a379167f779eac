"""The timeline of a round as text."""

from demo.plan import DemoEvent, What
from demo.rounds import RoundResult
from demo.timeline import Mark, chart, legend, meanings, spans

EVENTS = [
    DemoEvent(0, What.GRANTED, 0.0, 1),
    DemoEvent(0, What.RELEASED, 1.0, 1),
    DemoEvent(1, What.GRANTED, 1.0, 2),
    DemoEvent(1, What.KILLED, 2.0, 2),
    DemoEvent(2, What.GRANTED, 3.0, 3),
    DemoEvent(2, What.STOPPED, 4.0, 3),
    DemoEvent(0, What.GRANTED, 6.0, 4),
    DemoEvent(2, What.CONTINUED, 7.0, 3),
    DemoEvent(2, What.REFUSED, 7.5, 3),
    DemoEvent(2, What.RELEASED, 7.6, 3),
    DemoEvent(0, What.RELEASED, 8.0, 4),
]


def test_a_hold_ends_where_it_ends() -> None:
    """By release, by being killed, by being stopped; what a stopped worker does later is no hold."""
    held = [(span.worker, span.start, span.end) for span in spans(EVENTS, 10.0) if span.mark is Mark.HELD]
    assert held == [(0, 0.0, 1.0), (1, 1.0, 2.0), (2, 3.0, 4.0), (0, 6.0, 8.0)]


def test_the_chart() -> None:
    """A row a worker, a column a stretch of time, an axis below."""
    result = RoundResult(events=EVENTS, began=0.0, ended=10.0)
    drawn = chart(result, 3, 29, ascii_only=True).plain.splitlines()
    assert drawn[:3] == [
        "worker 1 ###.........#####...",
        "worker 2 ..##K...............",
        "worker 3 ......##S======R....",
    ]
    assert drawn[3].split()[0] == "0s"
    assert drawn[3].isascii()
    assert legend(meanings(result, "holds"), ascii_only=True).plain.split("   ") == [
        "# holds",
        "K killed",
        "S stopped",
        "= frozen",
        "R late write refused",
    ]


def test_the_chart_fits() -> None:
    """No row is wider than it may be."""
    result = RoundResult(events=EVENTS, began=0.0, ended=10.0)
    for width in (40, 80, 120):
        assert all(len(row) <= width for row in chart(result, 3, width, ascii_only=False).plain.splitlines())
