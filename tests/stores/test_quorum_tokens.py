"""The two rounds in which a quorum agrees on a token: its kind, and the proposal of the second round."""

# ruff: noqa: ANN401 - each bug replaces a method of any type
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest.mock import patch

import pytest

from tenure import Client, LockTimeout
from tenure.contracts.messages import AcquireRequest, Granted, Reply
from tenure.contracts.runtime import Runtime
from tenure.contracts.store import StoreSource
from tenure.stores.memory import MemoryStore, MemoryTable
from tenure.stores.quorum import quorum_source
from tenure.stores.quorum import store as quorum_store
from tenure.stores.quorum.store import QuorumStore
from tenure.stores.quorum.votes import KINDS, SPAN, STEP, Votes, next_of_kind
from tenure.table.step import Step
from tests import virtual

ROUNDS = 20
FAR = 3_000_000
"""By how much counters are ahead of the clock, in microseconds: no proposal is as large."""


class Node(MemoryStore):
    """A table that records the proposals."""

    def __init__(self, runtime: Runtime, table: MemoryTable, proposed: list[int]) -> None:
        super().__init__(runtime, table)
        self._proposed = proposed

    async def acquire(self, request: AcquireRequest, until: float) -> Reply:
        """Record the proposal."""
        self._proposed.append(request.proposal)
        return await super().acquire(request, until)


class Three:
    """Three tables whose counters are ahead of the clock and of each other: each acquisition takes two rounds."""

    def __init__(self) -> None:
        self.tables = [virtual.table() for _ in range(3)]
        self.proposed: list[int] = []

    def source(self) -> StoreSource:
        """Return the quorum of all tables."""

        def maker(table: MemoryTable) -> Callable[[Runtime], Node]:
            return lambda runtime: Node(runtime, table, self.proposed)

        return quorum_source(
            [
                StoreSource(f"table {number}", MemoryStore.capabilities, maker(table))
                for number, table in enumerate(self.tables)
            ]
        )

    def drift_apart(self, number: int) -> int:
        """Let the counters be far ahead, each farther than the one before; return the least but one.

        Any majority has issued more than that.
        """
        for place, table in enumerate(self.tables):
            wall = table._wall()

            def raise_it(step: Step, to: int = wall + FAR * (number + 1) + 977 * (place + number % 2)) -> int:
                step.state.counter = max(step.state.counter, to)
                return step.state.counter

            table.step("name", raise_it)
        return sorted(table.step("name", lambda step: step.state.counter) for table in self.tables)[1]

    def tokens(self) -> list[int]:
        """Return the tokens by which the name is held."""
        return [holder.token for table in self.tables for holder in table.step("name", lambda step: step.state.holders)]


def kind_of(token: int) -> int:
    """Return the kind of a token, or of the first one of a range; -1 if it is not at its place in a range."""
    return token % STEP // SPAN if token % SPAN == 0 else -1


def agree_many_times() -> None:
    """Acquire in two rounds repeatedly, and check each token."""
    three, kinds, last = Three(), set[int](), 0
    with virtual.stopped_clock(), Client(store=three.source()) as client:
        for number in range(ROUNDS):
            ahead = three.drift_apart(number)
            three.proposed.clear()
            lease = client.lock("name", ttl=60.0).acquire(timeout=0)
            assert three.tokens().count(lease.token) >= 2, "a majority has issued the token"
            assert lease.token > last, "tokens increase"
            assert lease.token > ahead, "it is above the tokens of the tables that decided"
            proposals = {kind_of(proposal) for proposal in three.proposed}
            assert len(proposals) == 1, "one proposal for each attempt"
            assert kind_of(lease.token) == proposals.pop() >= 0, "the second round keeps the low bits of the first"
            kinds.add(kind_of(lease.token))
            last = lease.token
            assert lease.release().kept
    assert len(kinds) > 2, "attempts draw their low bits"


def test_an_attempt_keeps_its_low_bits_in_the_second_round() -> None:
    """Its token has them, is above all earlier tokens, and a majority has issued it."""
    agree_many_times()


# -- bugs ------------------------------------------------------------------------------------------------------------

Agree = Callable[[QuorumStore, Votes, Sequence[Granted], float], Any]


def _agreeing(change: Callable[[Agree, QuorumStore, Votes, Sequence[Granted], float], Any]) -> Any:
    original = QuorumStore._agree

    async def agree(self: QuorumStore, votes: Votes, granted: Sequence[Granted], until: float) -> int:
        return int(await change(original, self, votes, granted, until))

    return patch.object(QuorumStore, "_agree", agree)


async def _another_kind(original: Agree, self: QuorumStore, votes: Votes, *rest: Any) -> int:
    votes.kind = (votes.kind + 1) % KINDS
    return int(await original(self, votes, *rest))


def _of_no_kind(least: int, kind: int) -> int:
    return least + 0 * kind


async def _no_kind(original: Agree, *rest: Any) -> int:
    with patch.object(quorum_store, "next_of_kind", _of_no_kind):
        return int(await original(*rest))


async def _first_proposal(original: Agree, self: QuorumStore, votes: Votes, *rest: Any) -> int:
    def propose(least: int, kind: int) -> int:
        return votes.request.proposal + 0 * (least + kind)

    with patch.object(quorum_store, "next_of_kind", propose):
        return int(await original(self, votes, *rest))


async def _lowest_counts(
    original: Agree, self: QuorumStore, votes: Votes, granted: Sequence[Granted], *rest: Any
) -> int:
    least = min(granted, key=lambda reply: reply.token)
    return int(await original(self, votes, [least] * len(granted), *rest))


async def _nobody_is_asked(
    original: Agree, self: QuorumStore, votes: Votes, granted: Sequence[Granted], *_: Any
) -> int:
    token = next_of_kind(max(reply.token for reply in granted) + 1, votes.kind)
    return token + votes.request.span - 1


@contextmanager
def _proposal_of_no_kind() -> Generator[None]:
    original = QuorumStore._propose

    def propose(self: QuorumStore, request: AcquireRequest) -> Votes:
        votes = original(self, request)
        votes.request.proposal += 7
        votes.proposed += 7
        return votes

    with patch.object(QuorumStore, "_propose", propose):
        yield


BUGS: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "the second round is of another kind": lambda: _agreeing(_another_kind),
    "the second round is of no kind": lambda: _agreeing(_no_kind),
    "the second round proposes the first proposal again": lambda: _agreeing(_first_proposal),
    "the second round goes by the least of the tokens": lambda: _agreeing(_lowest_counts),
    "the second round asks nobody": lambda: _agreeing(_nobody_is_asked),
    "the proposal is of no kind": _proposal_of_no_kind,
    "all attempts are of one kind": lambda: patch.object(quorum_store, "KINDS", 1),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_caught(bug: str) -> None:
    """Planted bugs: no majority has issued the token, or it is not the right one."""
    with BUGS[bug](), pytest.raises((AssertionError, LockTimeout)):
        agree_many_times()
