"""The pytest plugin of Holdfast: fixtures and a marker for tests of code that takes locks. See docs/testing.md.

pytest imports this module for everybody who has Holdfast installed. So it imports nothing but pytest, and stands beside
the package `holdfast`, whose import would cost a tenth of a second; whoever uses a fixture imports what it needs.
"""

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any, cast

import pytest

if TYPE_CHECKING:
    from holdfast import AsyncClient, Client
    from holdfast.testing.pytest import Chaos, Sections

MARKER = "holdfast_lose_lease"


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line(
        "markers",
        f"{MARKER}(runs=200): run the test again and again, lose the lease at another point each time, and fail if the "
        "code goes on writing; with more points than `runs` it fails, too.",
    )


@pytest.fixture
def holdfast_chaos(request: pytest.FixtureRequest) -> "Iterator[Chaos]":
    """Give this test a store of its own, whose URL is in HOLDFAST_URL, and let it lose leases and take it down."""
    from holdfast.testing.pytest.chaos import Chaos
    from holdfast.testing.pytest.judging import CHAOS, judge_late
    from holdfast.testing.pytest.reruns import RUN

    item = _item(request)
    run = item.stash.get(RUN, None)
    chaos = item.stash[CHAOS] = Chaos(None if run is None else run.number)
    yield chaos
    chaos.close()
    judge_late(item)


@pytest.fixture
def holdfast_url(holdfast_chaos: "Chaos") -> str:
    """Return the URL of this test's own store, which is also in HOLDFAST_URL."""
    return holdfast_chaos.url


@pytest.fixture
def holdfast_client(holdfast_chaos: "Chaos") -> "Iterator[Client]":
    """Return a client of this test's own store."""
    from holdfast.testing.pytest.clients import client_of

    with client_of(holdfast_chaos) as client:
        yield client


@pytest.fixture
def holdfast_async_client(holdfast_chaos: "Chaos") -> "Iterator[AsyncClient]":
    """Return an asyncio client of this test's own store, for one event loop."""
    from holdfast.testing.pytest.clients import async_client_of

    with async_client_of(holdfast_chaos) as client:
        yield client


@pytest.fixture
def assert_never_overlap(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> "Iterator[Sections]":
    """Make critical sections by name, and fail the test if two threads, tasks or processes were in one at once."""
    from holdfast.testing.pytest.judging import SECTIONS, judge_late
    from holdfast.testing.pytest.sections import Sections

    item = _item(request)
    sections = item.stash[SECTIONS] = Sections(tmp_path_factory.mktemp("sections"))
    yield sections
    judge_late(item)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Run a marked test again and again."""
    marker = item.get_closest_marker(MARKER)
    if marker is None or not isinstance(item, pytest.Function):
        return None
    from holdfast.testing.pytest.reruns import refusal, run_again_and_again

    if refusal(item, marker):
        return None
    run_again_and_again(item, nextitem, marker)
    return True


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Refuse a marked test that cannot be run again and again: it would run only once, and find nothing."""
    if marker := item.get_closest_marker(MARKER):
        from holdfast.testing.pytest.reruns import refusal

        if why := refusal(item, marker):
            pytest.fail(why, pytrace=False)


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, Any, None]:
    """Judge a test that used one of the fixtures, or is marked, when it has ended."""
    if pyfuncitem.get_closest_marker(MARKER) is None and not FIXTURES.intersection(pyfuncitem.fixturenames):
        yield
        return
    from holdfast.testing.pytest.judging import begin, judge

    begin(pyfuncitem)
    judge(pyfuncitem, (yield))


def _item(request: pytest.FixtureRequest) -> pytest.Item:
    return cast("pytest.Item", cast("Any", request).node)


FIXTURES = frozenset({"holdfast_chaos", "assert_never_overlap"})
"""Those that a test is judged by; the others use the first."""
