"""A quorum of independent nodes keeps every guarantee that it claims."""

from pathlib import Path

import pytest

from tenure.contracts.store import StoreSource
from tenure.stores.memory import MemoryStore, MemoryTable, memory_source
from tenure.stores.quorum import quorum_source
from tenure.stores.quorum.store import capabilities_of
from tenure_testing.conformance import StoreConformance
from tenure_testing.conformance.check import API_FORMS, Check
from tenure_testing.conformance.checks import deadlocks
from tenure_testing.conformance.suite import run_check


@pytest.fixture
def source() -> StoreSource:
    """Return tables that only one test uses."""
    return quorum_source([memory_source(MemoryTable(), f"table {number}") for number in range(5)])


class TestQuorumOfTables(StoreConformance):
    """Five tables in memory."""

    capabilities = capabilities_of([memory_source(MemoryTable())])


@pytest.mark.parametrize("form", API_FORMS)
@pytest.mark.parametrize(
    "check",
    [
        deadlocks.deadlock_of_two_is_detected,
        deadlocks.deadlock_of_four_is_detected,
        deadlocks.cancelled_deadlock_detection_leaves_nothing,
    ],
    ids=str,
)
def test_a_quorum_shows_its_waiters(check: Check, form: str, source: StoreSource) -> None:
    """A quorum does not grant by a queue, but a waiter stands in one at every node: so deadlocks are found."""
    run_check(check, source, form if form in check.forms else check.forms[0])


def test_a_quorum_has_no_semaphores() -> None:
    """With three nodes and two permits, three holders could be granted: each pair of nodes may grant another two."""
    assert MemoryStore.capabilities.weights
    assert not capabilities_of([memory_source(MemoryTable())]).weights


@pytest.mark.parametrize(
    ("nodes", "quorum", "says"),
    [(2, None, "at least 3"), (5, 2, "from 3 to 5"), (3, 4, "from 2 to 3")],
)
def test_invalid_nodes_are_refused(tmp_path: Path, nodes: int, quorum: int | None, says: str) -> None:
    """The error says which nodes are valid."""
    urls = [f"sqlite://{tmp_path}/{number}.db" for number in range(nodes)]
    with pytest.raises(ValueError, match=says):
        quorum_source(urls, quorum)


def test_a_node_votes_once(tmp_path: Path) -> None:
    """The same URL twice is refused."""
    with pytest.raises(ValueError, match="twice"):
        quorum_source([f"sqlite://{tmp_path}/{number % 2}.db" for number in range(3)])
