"""`@pytest.mark.tenure_lose_lease`: repeat a test, and lose the lease at another point each time.

The first run loses no lease: the test must pass, and the points are counted. Run k loses the lease at point k. The last
run is the first that does not reach its point. Each run sets up and tears down the test's own fixtures; fixtures of
wider scopes stay.
"""

import unittest
from collections.abc import Callable
from importlib import import_module
from typing import Any, cast

import pytest

from tenure.errors import LeaseLost, StaleTokenError
from tenure_testing.pytest.chaos import Chaos

Phase = Callable[..., pytest.TestReport]

RUNS = 200
"""How many points a test may have, unless its marker has `runs`."""

NO_LEASE = (
    "tenure_lose_lease: the test acquired no lease that could be lost. Give the code under test `tenure_client` or "
    "`tenure_async_client`, or use the fixture `tenure_url` and let the code make its own client of TENURE_URL."
)

NO_WRITE = (
    "tenure_lose_lease: the test called no function that is known to write, so it would find nothing. Name the "
    "functions that must not be called after a loss with `tenure_chaos.watch(owner, name)`."
)

NO_UNITTEST = (
    "tenure_lose_lease: a method of a unittest.TestCase cannot be repeated. Make the test a function, or a method of "
    "a class that is no TestCase."
)

WRONG_ARGUMENTS = (
    "tenure_lose_lease was given ({given}). It takes one argument, `runs`: how many points the test may have, an int "
    "of at least 1."
)

UNSEEN = (
    "tenure_lose_lease: a task acquired a lease or wrote at\n  {place}\nbut its awaits cannot be seen: the task was "
    "started before the test, or by an event loop that is not asyncio's own. Run the code with asyncio.run(), or in a "
    "task that the test starts. An async test may run in a task that an async fixture started: request "
    "`tenure_chaos` or a client fixture of Tenure before all async fixtures, and give no async fixture a wider "
    "scope."
)

WROTE_ON = """\
the code went on writing after the lease was lost.
  lost at    {lost}
  written at {written}
Call `lease.check()` between the two, right before the write. Or pass `lease.token` to a resource that refuses stale \
tokens, and name the parameter: `tenure_chaos.watch(..., token="token")`."""

WROTE = """\
the code wrote while it held no valid lease.
  written at {written}
Write inside the `with` of the lock, and call `lease.check()` right before the write."""


class Run:
    """One run of a marked test."""

    def __init__(self, number: int, limit: int) -> None:
        """Lose the lease at point `number`; with 0, lose no lease."""
        self.number = number
        self.limit = limit
        self.again = False
        """Whether another run follows."""

    def verdict(self, chaos: Chaos) -> str:
        """Return what is wrong with the run, or "", and decide whether another run follows."""
        points = chaos.points
        if points.unseen:
            return UNSEEN.format(place=points.unseen)
        if self.number == 0 and not points.leases.all():
            return NO_LEASE
        if self.number == 0 and not chaos.writes.count:
            return NO_WRITE
        if points.count > self.limit:
            return (
                f"tenure_lose_lease: the test has more than {self.limit} points at which a lease may be lost. Test a "
                "smaller piece of work, or allow more points with tenure_lose_lease(runs=...)."
            )
        self.again = bool(points.hit) if self.number else points.count > 0
        return ""


RUN = pytest.StashKey[Run]()


def repeat_test(item: pytest.Function, nextitem: pytest.Item | None, marker: pytest.Mark) -> None:
    """Repeat a marked test that `refusal` accepts until it fails or has no further point; report its last run."""
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    reports: list[pytest.TestReport] = []
    properties = list(item.user_properties)
    number, again = 0, True
    while again:
        item.user_properties[:] = properties
        run = item.stash[RUN] = Run(number, _limit(marker) or RUNS)
        reports = _run_once(item, nextitem, run)
        again, number = run.again, number + 1
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)


def refusal(item: pytest.Item, marker: pytest.Mark) -> str:
    """Return why a marked test cannot be repeated; "" if it can."""
    if issubclass(getattr(item, "cls", None) or object, unittest.TestCase):
        return NO_UNITTEST
    if _limit(marker) is None:
        given = [*map(repr, marker.args), *(f"{name}={value!r}" for name, value in marker.kwargs.items())]
        return WRONG_ARGUMENTS.format(given=", ".join(given))
    return ""


def _limit(marker: pytest.Mark) -> int | None:
    """Return how many points a test may have; None if the arguments of its marker are wrong."""

    def given(runs: object = RUNS) -> object:
        return runs

    try:
        runs = given(*marker.args, **marker.kwargs)
    except TypeError:
        return None
    return runs if isinstance(runs, int) and not isinstance(runs, bool) and runs >= 1 else None


def _run_once(item: pytest.Function, nextitem: pytest.Item | None, run: Run) -> list[pytest.TestReport]:
    """Run all phases of a test once. If another run follows, fixtures of wider scopes stay set up.

    This is pytest's own `runtestprotocol`, except that only the call shows which fixtures to tear down. All plugins
    that repeat tests use these parts of pytest, so they are unlikely to change.
    """
    phase: Phase = import_module("_pytest.runner").call_and_report
    inner = cast("Any", item)
    if item.cls is not None:  # without these, pytest makes a new instance of the class
        vars(item).pop("_instance", None)
        vars(item).pop("_obj", None)
    if not inner._request:  # noqa: SLF001
        inner._initrequest()  # noqa: SLF001
    inner._report_sections.clear()  # noqa: SLF001
    try:
        reports = [phase(item, "setup", log=False)]
        if reports[0].passed and not item.config.getoption("setuponly", default=False):
            reports.append(phase(item, "call", log=False))
        stopping = item.session.shouldfail or item.session.shouldstop
        run.again = run.again and not stopping and all(map(_passed, reports))
        stays = item.parent if run.again else None if stopping else nextitem
        reports.append(phase(item, "teardown", log=False, nextitem=stays))
        if run.again and not reports[-1].passed:
            run.again = False
            phase(item, "teardown", log=False, nextitem=nextitem)
    finally:
        inner._request = False  # noqa: SLF001
        inner.funcargs = None
    return reports


def _passed(report: pytest.TestReport) -> bool:
    """Tell whether a phase has passed. A test that is expected to fail passes too: its next run may fail."""
    return report.passed or str(report.longrepr).startswith("[XPASS(strict)]")


def told(error: BaseException) -> bool:
    """Tell whether an error says only that a lease was lost, as code under a lost lease should raise."""
    if isinstance(error, BaseExceptionGroup):
        return cast("BaseExceptionGroup[BaseException]", error).split((LeaseLost, StaleTokenError))[1] is None
    return isinstance(error, (LeaseLost, StaleTokenError))


def verdict_of_writes(chaos: Chaos) -> str:
    """Return which writes were unprotected; "" if none was."""
    written = "\n             ".join(dict.fromkeys(map(str, chaos.writes.unprotected)))
    if not written:
        return ""
    return (WROTE_ON if chaos.lost_at else WROTE).format(lost=chaos.lost_at, written=written)
