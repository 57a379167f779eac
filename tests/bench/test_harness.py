"""The benchmarks' statistics are right, they measure in turns, and every one of them runs."""

import json
import multiprocessing
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from bench.__main__ import BENCHES, main
from bench.crowd import Crowd
from bench.fair import unfairness
from bench.harness import Bound, Report, Row, Size, duration, interleave, percentile, ratios, spread, table
from bench.page import UNKNOWN

TINY = Size(
    rounds=1,
    pair_rounds=1,
    pairs=10,
    passes=1,
    threads=2,
    tasks=2,
    processes=2,
    seconds=0.02,
    kills=1,
    ttl=0.2,
    hot=(2,),
    hot_rounds=1,
    window=0.05,
    leases=5,
    leases_ttl=0.3,
    tasks_waiting=2,
    threads_waiting=2,
    queue=2,
    drains=1,
    crowds=2,
    ensembles=False,
    buyers=4,
    units=200,
    settle=0.02,
)

ENSEMBLES = ("zookeeper_queue", "etcd_pair")
"""Which of the benchmarks of ensembles run on one: the others start one in the same way."""


def test_contenders_are_measured_in_turns() -> None:
    """No contender is measured twice before every other was measured once."""
    order: list[str] = []

    def measure(label: str) -> int:
        order.append(label)
        return len(order)

    results = interleave({"a": lambda: measure("a"), "b": lambda: measure("b")}, 3)
    assert order == ["a", "b"] * 3
    assert results == {"a": [1, 3, 5], "b": [2, 4, 6]}


def test_a_ratio_is_taken_within_each_round() -> None:
    """A machine that was slow for a whole round does not show in the ratio."""
    found = ratios([2.0, 20.0, 3.0], [1.0, 10.0, 1.0])
    assert (found.median, found.low, found.high) == (2.0, 2.0, 3.0)
    assert str(found) == "2.00 (2.00..3.00)"


def test_a_ratio_over_a_contender_that_got_nothing_done_keeps_no_bound() -> None:
    """On a busy machine a short window may be too short for one acquisition."""
    for under in ([0.0, 1.0, 1.0], [1.0, 0.0, 1.0]):
        assert not Bound("rate", ratios([2.0, 2.0, 2.0], under).median, 1.0, at_least=True).kept


def test_rounds_that_do_not_match_are_refused() -> None:
    """A ratio across rounds would compare two moments."""
    with pytest.raises(ValueError, match="zip"):
        ratios([1.0, 2.0], [1.0])


def test_spread_and_percentile() -> None:
    """The percentile is a value that was measured (nearest rank)."""
    values = [float(each) for each in range(100, 0, -1)]
    assert spread(values).median == 50.5
    assert percentile(values, 0.5) == 50.0
    assert percentile(values, 0.99) == 99.0
    assert percentile([7.0], 0.99) == 7.0


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (1.5, "1.50 s"),
        (0.0123, "12.3 ms"),
        (50.12e-6, "50.1 us"),
        (161e-9, "161 ns"),
        (0.0, "0 ns"),
        (0.9999, "1000 ms"),
    ],
)
def test_duration(seconds: float, text: str) -> None:
    """A duration has three digits and a unit."""
    assert duration(seconds) == text


def test_bound() -> None:
    """A bound is kept up to its limit, and never by what is not a number."""
    assert str(Bound("pair", 3.0, 3.0)) == "OK: pair: 3 (bound: at most 3)"
    assert str(Bound("late", 51.0, 50.0, " ms")) == "MISSED: late: 51 ms (bound: at most 50 ms)"
    assert str(Bound("times", 2.0, 2.5, at_least=True)) == "MISSED: times: 2 (bound: at least 2.5)"
    assert not Bound("nothing measured", float("nan"), 3.0).kept
    assert not Bound("nothing measured", float("nan"), 3.0, at_least=True).kept


def test_table_lines_up() -> None:
    """Figures stand to the right, words to the left, and no line ends in blanks."""
    assert table(["", "n", "what"], [["a", "100", "x"], ["long", "7", "yy"]]) == [
        "          n  what",
        "  a     100  x",
        "  long    7  yy",
    ]


def test_report_shows_and_keeps_everything() -> None:
    """What is printed is also there for machines."""
    report = Report("pair", "a pair", ["median"], [Row("a", ["1 us"], "a lock", {"seconds": [1e-6]})], [])
    assert str(report).splitlines()[0] == "pair: a pair"
    report.bounds.append(Bound("limit", 1.0, 2.0))
    assert str(report).splitlines()[-1] == "OK: limit: 1 (bound: at most 2)"
    found = report.to_json()
    assert found["figures"] == {"a": {"seconds": [1e-6]}}
    assert found["bounds"] == [
        {"text": "limit", "value": 1.0, "limit": 2.0, "unit": "", "at_least": False, "why": "", "kept": True}
    ]


def test_crowd_sees_two_at_once() -> None:
    """A lock that lets two in at once is found out."""
    crowd = Crowd(2, 0.0, 2.0)
    for member in (0, 0, 1):
        crowd.enter(member)
        crowd.withdraw()
    assert (crowd.overlaps, crowd.rate(), crowd.fairness()) == (0, 1.5, 0.5)
    crowd.enter(0)
    crowd.enter(1)
    assert crowd.overlaps == 1


def test_unfairness() -> None:
    """It is how far the farthest is from the mean; nobody having got anything is as unfair as can be."""
    assert unfairness([8, 10, 12]) == 20.0
    assert unfairness([0, 0]) == float("inf")


@pytest.fixture
def ready_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have workers forked from a process that has imported all: to import it is most of what a tiny run takes."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["bench.__main__"])
    monkeypatch.setattr("bench.workers.CONTEXT", context)


@pytest.mark.parametrize("name", BENCHES)
def test_every_benchmark_runs(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    """Each benchmark prints its table and leaves its figures in the file."""
    if not name.startswith("quorum_"):  # whose workers import clients of their own
        request.getfixturevalue("ready_workers")
    file, size = tmp_path / "found.json", replace(TINY, ensembles=name in ENSEMBLES)
    assert main(["--json", str(file), name], size) == 0
    printed = capsys.readouterr().out
    assert f"\n{name}: " in printed
    assert ("ensemble of 3, " in printed) == (name in ENSEMBLES)
    found = json.loads(file.read_text(encoding="utf-8"))["benches"]
    assert list(found) == [name]
    assert found[name]["figures"]


def _nothing(name: str, _size: Size, _folder: Path) -> Report:
    return Report(name, "nothing", [])


def test_all_benchmarks_run_if_none_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In their order."""
    for name in BENCHES:
        monkeypatch.setitem(BENCHES, name, partial(_nothing, name))
    assert main([], TINY) == 0
    printed = capsys.readouterr().out.splitlines()
    assert [line.removesuffix(": nothing") for line in printed if line.endswith(": nothing")] == list(BENCHES)


def test_an_unknown_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """The message says what there is."""
    with pytest.raises(SystemExit):
        main(["pears"], TINY)
    assert "choose from pair, handoff" in capsys.readouterr().err


def test_check_fails_on_a_missed_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without --check a missed bound is only printed."""

    def missing(_size: Size, _folder: Path) -> Report:
        return Report("pair", "a pair", [], [], [Bound("limit", 2.0, 1.0)])

    monkeypatch.setitem(BENCHES, "pair", missing)
    assert main(["pair"], TINY) == 0
    assert main(["pair", "--check"], TINY) == 1


def test_the_page_shows_what_was_missed_and_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every table is there, and no bound that was missed goes without a reason."""

    def found(_size: Size, _folder: Path) -> Report:
        rows = [Row("a", ["1 us"], "this | that", {})]
        bounds = [Bound("kept", 1.0, 1.0), Bound("late", 2.0, 1.0, " s", why="it slept"), Bound("odd", 2.0, 1.0)]
        return Report("pair", "a pair", ["median"], rows, bounds)

    monkeypatch.setitem(BENCHES, "pair", found)
    file = tmp_path / "page.md"
    main(["pair", "--quick", "--write", str(file)], TINY)
    lines = file.read_text(encoding="utf-8").splitlines()
    assert any("a quick run" in line for line in lines)
    assert "Kept: 1 of 3 bounds." in lines
    assert lines[lines.index("## pair") :] == [
        "## pair",
        "",
        "A pair.",
        "",
        "|  | median | what it is |",
        "| --- | --: | --- |",
        "| a | 1 us | this \\| that |",
        "",
        "|  | bound | measured | must be |",
        "| --- | --- | --: | --: |",
        "| **OK** | kept | 1 | at most 1 |",
        "| **MISSED** | late | 2 s | at most 1 s |",
        "| **MISSED** | odd | 2 | at most 1 |",
        "",
        "Missed:",
        "",
        "- *late*: it slept.",
        f"- *odd*: {UNKNOWN}.",
    ]
