"""The benchmarks' statistics are right, they measure in turns, and every one of them runs."""

import json
import multiprocessing
from dataclasses import replace
from pathlib import Path

import pytest

import bench.harness as harness  # noqa: PLR0402 - pyright would look for the other form in tests/bench
from bench.__main__ import main
from bench.contenders import UNAWAITED, Share
from bench.harness import (
    Bound,
    Report,
    Row,
    Size,
    duration,
    interleave,
    percentile,
    ratios,
    spread,
    table,
)
from bench.hot import overlaps, summed, unfairness
from bench.page import UNKNOWN, page
from bench.workload import Workload
from bench.workloads import WORKLOADS
from tests.planting import module_with

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
    waiters=(2, 3),
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
        {
            "text": "limit",
            "value": 1.0,
            "limit": 2.0,
            "unit": "",
            "at_least": False,
            "why": "",
            "tenth": None,
            "kept": True,
        }
    ]


def share(grants: int, *held: float) -> Share:
    """Return the share of a member that held the lock in these periods."""
    found = Share(grants)
    found.held.extend(held)
    found.waits.extend([0.1] * grants)
    return found


def test_overlaps_are_seen() -> None:
    """A period that begins before any earlier one has ended is one, also of the same member; touching is none."""
    assert overlaps([]) == 0
    assert overlaps([share(2, 2.0, 3.0, 0.0, 1.0), share(1, 1.0, 2.0)]) == 0
    assert overlaps([share(2, 0.0, 9.0, 9.0, 10.0), share(2, 1.0, 2.0, 3.0, 4.0)]) == 2


def test_a_window_counts_grants_by_member_and_by_process() -> None:
    """The rate is of all, the fairness is between members, and between processes if there are several."""
    found = summed([[share(3), share(1)], [share(2), share(2)]], 2.0)
    assert (found["rate"], found["fairness"], found["even"], found["farthest"]) == (4.0, 1 / 3, 1.0, 0.0)
    assert "even" not in summed([[share(3), share(1)]], 2.0)
    assert summed([[share(0)], [share(0)]], 1.0)["fairness"] == 0


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


@pytest.mark.parametrize("name", WORKLOADS)
def test_every_benchmark_runs(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    """Each benchmark prints its table and leaves its figures in the file."""
    if not name.startswith("quorum_"):  # whose workers import clients of their own
        request.getfixturevalue("ready_workers")
    file, size = tmp_path / "found.json", replace(TINY, ensembles=name in ENSEMBLES)
    status = main(["--json", str(file), name], size)
    printed = capsys.readouterr().out
    assert f"\n{name}: " in printed
    assert ("ensemble of 3, " in printed) == (name in ENSEMBLES)
    found = json.loads(file.read_text(encoding="utf-8"))["benches"]
    assert list(found) == [name]
    assert found[name]["figures"]
    assert status == (not all(bound["kept"] for bound in found[name]["bounds"]))
    lacking = [bound["why"] for bound in found[name]["bounds"] if "was not measured" in bound["why"]]
    assert set(lacking) <= {f"{UNAWAITED} was not measured"}, "a bound names a row that is not there"


def having(name: str, *bounds: Bound) -> Workload:
    """Return a workload that measures nothing and has these bounds."""
    return Workload(name, lambda workload, _size, _folder: Report(workload.name, "nothing", [], [], list(bounds)), "")


def test_all_benchmarks_run_if_none_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In their order."""
    for name in WORKLOADS:
        monkeypatch.setitem(WORKLOADS, name, having(name))
    assert main([], TINY) == 0
    printed = capsys.readouterr().out.splitlines()
    assert [line.removesuffix(": nothing") for line in printed if line.endswith(": nothing")] == list(WORKLOADS)


def test_an_unknown_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """The message says what there is."""
    with pytest.raises(SystemExit):
        main(["pears"], TINY)
    assert "choose from pair, handoff" in capsys.readouterr().err


def test_the_exit_status_tells_of_a_missed_bound(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The bound is named again at the end."""
    monkeypatch.setitem(WORKLOADS, "pair", having("pair", Bound("limit", 2.0, 1.0), Bound("other", 1.0, 1.0)))
    assert main(["pair"], TINY) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "pair: MISSED: limit: 2 (bound: at most 1)"
    monkeypatch.setitem(WORKLOADS, "pair", having("pair", Bound("other", 1.0, 1.0)))
    assert main(["pair"], TINY) == 0


def test_the_page_shows_what_was_missed_and_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every table is there, and no bound that was missed goes without a reason."""

    def found(_workload: Workload, _size: Size, _folder: Path) -> Report:
        rows = [Row("a", ["1 us"], "this | that", {})]
        bounds = [
            Bound("kept", 1.0, 1.0, tenth=0.5),
            Bound("late", 2.0, 1.0, " s", why="it slept"),
            Bound("odd", 2.0, 1.0),
        ]
        return Report("pair", "a pair", ["median"], rows, bounds)

    monkeypatch.setitem(WORKLOADS, "pair", Workload("pair", found, ""))
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
        "|  | bound | measured | p10 | must be |",
        "| --- | --- | --: | --: | --: |",
        "| **OK** | kept | 1 | 0.5 | at most 1 |",
        "| **MISSED** | late | 2 s |  | at most 1 s |",
        "| **MISSED** | odd | 2 |  | at most 1 |",
        "",
        "Missed:",
        "",
        "- *late*: it slept.",
        f"- *odd*: {UNKNOWN}.",
    ]


def test_notes_are_shown() -> None:
    """On the terminal, on the page and for machines."""
    report = Report("pair", "a pair", [], notes=["it rained"])
    assert str(report).splitlines()[-1] == "NOTE: it rained"
    assert page([report], "", "", quick=False).splitlines()[-3:] == ["Notes:", "", "- It rained."]
    assert report.to_json()["notes"] == ["it rained"]


# -- bounds -------------------------------------------------------------------------------------------------------

ROUNDS = {
    "tenure": [{"seconds": 2.0, "rate": 9.0}, {"seconds": 30.0, "rate": 9.0}, {"seconds": 4.0, "rate": 12.0}],
    "lucky": [{"seconds": 1.0, "rate": 1.0}, {"seconds": 90.0, "rate": 1.0}, {"seconds": 80.0, "rate": 70.0}],
    "steady": [{"seconds": 2.0, "rate": 3.0}, {"seconds": 20.0, "rate": 3.0}, {"seconds": 8.0, "rate": 3.0}],
    "floor": [{"seconds": 1.0}, {"seconds": 10.0}, {"seconds": 1.0}],
}


def bounds_are_right() -> bool:
    """Return whether bounds compare what they say, within each round, and tell why they are missed."""
    limits = [
        harness.Limit("tenure", 1.0, "steady", floor="floor"),
        harness.Limit("tenure", 3.0, ("lucky", "steady"), "rate", at_least=True),
        harness.Limit("tenure", 30.0, pick=max, unit=" ms", scale=1e3),
        harness.Limit("steady", 2.0, "tenure, new", at_least=True),
        harness.Limit(("lucky", "steady"), 1.0, "tenure", at_least=True),
        harness.Limit("tenure", 1.0, "a peer that was left out"),
    ]
    found = [bound for limit in limits if (bound := limit.bound(ROUNDS))]
    shown = [(each.text, each.measured, each.tenth, each.kept, each.why) for each in found]
    return shown == [
        ("tenure / steady", "1", 0.5, True, "the floor (floor) itself has 0.50"),
        ("tenure / steady: a second", "3", 3.0, True, ""),
        ("tenure: duration", "3e+04 ms", None, False, ""),
        ("steady / tenure, new", "nan", None, False, "tenure, new was not measured"),
        ("steady / tenure", "1", pytest.approx(2 / 3), True, ""),
    ]


def test_a_bound_compares_what_it_says() -> None:
    """With the best of several by its median, within each round, and with no peer that was left out."""
    assert bounds_are_right()


PLANTED = {
    "the ratio of the medians": (
        "return spread(one / other for one, other in zip(over, under, strict=True))",
        "return spread([statistics.median(over) / statistics.median(under)] * 3)",
    ),
    "the 90th percentile": ("percentile(found, 0.1)", "percentile(found, 0.9)"),
    "the luckiest round": ("row: statistics.median(figures", "row: min(figures"),
    "the slowest peer by its time": ("pick = min if self.figure", "pick = max if self.figure"),
    "a minimum is a maximum": ("self.limit if self.at_least else", "self.limit if not self.at_least else"),
    "no bound without Tenure's row": ('return nothing if "tenure" in missing[0] else None', "return None"),
    "a bound with a peer that was left out": ('return nothing if "tenure" in missing[0] else None', "return nothing"),
    "the floor in place of the peer": ("self.floor if each == ours else each", "each if each == ours else self.floor"),
    "milliseconds are seconds": ("* self.scale", ""),
}


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_in_bounds_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above finds what a maintainer could get wrong."""
    monkeypatch.setattr(f"{__name__}.harness", module_with(harness, PLANTED[bug]))
    assert not bounds_are_right()
