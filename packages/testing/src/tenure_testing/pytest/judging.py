"""The judgement of a test: overlaps and unprotected writes fail a test that passed by itself."""

from typing import Protocol

import pytest

from tenure_testing.pytest.chaos import Chaos
from tenure_testing.pytest.reruns import NO_LEASE, RUN, told, verdict_of_writes
from tenure_testing.pytest.sections import Sections

CHAOS = pytest.StashKey[Chaos]()
SECTIONS = pytest.StashKey[Sections]()
_JUDGED = pytest.StashKey[bool]()


class PluggyOutcome(Protocol):
    """The outcome of a test, with pluggy's interface."""

    @property
    def exception(self) -> BaseException | None:
        """The exception that the test raised, if any."""
        ...

    def force_result(self, result: object) -> None:
        """Make the test pass."""

    def force_exception(self, exception: BaseException) -> None:
        """Make the test raise `exception`."""


def begin(item: pytest.Function) -> None:
    """Begin to count points: the fixtures are set up, and the test itself begins."""
    item.stash[_JUDGED] = True
    if chaos := item.stash.get(CHAOS, None):
        chaos.points.begin()


def judge(item: pytest.Function, outcome: PluggyOutcome) -> None:
    """Fail the test if there is a verdict against it; pass it if its only error is the loss of its lease."""
    run, chaos = item.stash.get(RUN, None), item.stash.get(CHAOS, None)
    if chaos is not None:
        chaos.points.end()
    error = outcome.exception
    verdict = _verdict(item)
    if run is not None and chaos is not None and not verdict and (error is None or (chaos.lost_at and told(error))):
        verdict = run.verdict(chaos)
        outcome.force_result(None)
    elif run is not None and chaos is None:
        verdict = NO_LEASE
    if verdict and (error is None or isinstance(error, Exception)):
        failure = pytest.fail.Exception(_in_run(item, verdict), pytrace=False)
        failure.__cause__ = None if error is None or told(error) else error
        outcome.force_exception(failure)
    elif chaos is not None and chaos.lost_at and outcome.exception is not None:
        item.add_report_section("call", "tenure", f"This run lost the lease at\n  {chaos.lost_at}\n")


def judge_late(item: pytest.Item) -> None:
    """Judge a test that was not judged at its end, such as one of unittest, when its fixtures are torn down."""
    verdict = "" if item.stash.get(_JUDGED, False) else _verdict(item)
    if CHAOS in item.stash:
        del item.stash[CHAOS]
    if SECTIONS in item.stash:
        del item.stash[SECTIONS]
    if verdict:
        pytest.fail(verdict, pytrace=False)


def _verdict(item: pytest.Item) -> str:
    chaos, sections = item.stash.get(CHAOS, None), item.stash.get(SECTIONS, None)
    verdicts = [verdict_of_writes(chaos) if chaos else "", sections.verdict() if sections else ""]
    return "\n\n".join(filter(None, verdicts))


def _in_run(item: pytest.Item, verdict: str) -> str:
    run = item.stash.get(RUN, None)
    if run is None or verdict.startswith("tenure_lose_lease"):
        return verdict
    return f"tenure_lose_lease, run {run.number}: {verdict}"
