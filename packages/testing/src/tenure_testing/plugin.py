"""The pytest plugin of Tenure: fixtures and a marker for tests of code that takes locks. See docs/testing.md.

The rule: this module imports only pytest, for pytest imports it wherever `tenure-testing` is installed. The import of
the package `tenure` costs a tenth of a second; each fixture imports what it needs when it is used.
"""

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any, cast

import pytest

if TYPE_CHECKING:
    from tenure import AsyncClient, Client
    from tenure_testing.pytest import Chaos, Sections

MARKER = "tenure_lose_lease"


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line(
        "markers",
        f"{MARKER}(runs=200): repeat the test, lose the lease at another point each time, and fail if the code goes on "
        "writing or if the test has more points than `runs`.",
    )


@pytest.fixture
def tenure_chaos(request: pytest.FixtureRequest) -> "Iterator[Chaos]":
    """Give this test a store of its own, with its URL in TENURE_URL, and control over its leases and its failures."""
    from tenure_testing.pytest.chaos import Chaos
    from tenure_testing.pytest.judging import CHAOS, judge_late
    from tenure_testing.pytest.reruns import RUN

    item = _item(request)
    run = item.stash.get(RUN, None)
    chaos = item.stash[CHAOS] = Chaos(None if run is None else run.number)
    yield chaos
    chaos.close()
    judge_late(item)


@pytest.fixture
def tenure_url(tenure_chaos: "Chaos") -> str:
    """Return the URL of this test's own store. It is also in TENURE_URL."""
    return tenure_chaos.url


@pytest.fixture
def tenure_client(tenure_chaos: "Chaos") -> "Iterator[Client]":
    """Return a client of this test's own store."""
    from tenure_testing.pytest.clients import client_of

    with client_of(tenure_chaos) as client:
        yield client


@pytest.fixture
def tenure_async_client(tenure_chaos: "Chaos") -> "Iterator[AsyncClient]":
    """Return an asyncio client of this test's own store, for any event loop."""
    from tenure_testing.pytest.clients import async_client_of

    with async_client_of(tenure_chaos) as client:
        yield client


@pytest.fixture
def assert_never_overlap(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> "Iterator[Sections]":
    """Make named critical sections, and fail the test if two threads, tasks or processes were in one at once."""
    from tenure_testing.pytest.judging import SECTIONS, judge_late
    from tenure_testing.pytest.sections import Sections

    item = _item(request)
    sections = item.stash[SECTIONS] = Sections(tmp_path_factory.mktemp("sections"))
    yield sections
    judge_late(item)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Repeat a marked test."""
    marker = item.get_closest_marker(MARKER)
    if marker is None or not isinstance(item, pytest.Function):
        return None
    from tenure_testing.pytest.reruns import refusal, repeat_test

    if refusal(item, marker):
        return None
    repeat_test(item, nextitem, marker)
    return True


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Fail a marked test that cannot be repeated: it would run only once, and find nothing."""
    if marker := item.get_closest_marker(MARKER):
        from tenure_testing.pytest.reruns import refusal

        if why := refusal(item, marker):
            pytest.fail(why, pytrace=False)


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, Any, None]:
    """Judge a marked test, or a test that used one of the fixtures, when it has ended."""
    if pyfuncitem.get_closest_marker(MARKER) is None and not FIXTURES.intersection(pyfuncitem.fixturenames):
        yield
        return
    from tenure_testing.pytest.judging import begin, judge

    begin(pyfuncitem)
    judge(pyfuncitem, (yield))


def _item(request: pytest.FixtureRequest) -> pytest.Item:
    return cast("pytest.Item", cast("Any", request).node)


FIXTURES = frozenset({"tenure_chaos", "assert_never_overlap"})
"""The fixtures that make a test be judged; the other fixtures use the first of them."""
