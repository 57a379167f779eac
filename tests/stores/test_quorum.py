"""A quorum of tables in memory that are slow, silent or gone, in threads."""

import time
from collections.abc import Callable, Sequence

import pytest

from holdfast import Client, LockTimeout, OutcomeUnknown, StoreUnavailable
from holdfast.core.messages import Ask, Leave, Left, Release, Renewal, RenewReply, Reply
from holdfast.outcome import Outcome
from holdfast.runtimes.runtime import Runtime
from holdfast.stores.memory import MemoryStore, MemoryTable
from holdfast.stores.quorum import quorum_source
from holdfast.stores.store import StoreSource
from holdfast.testing.servers import wait_until

TTL = 1.0


class Node(MemoryStore):
    """A table that can be slow, or lose replies, or be gone."""

    slow = 0.0
    gone = False
    deaf = False
    """Whether what it is asked is carried out, and not answered."""

    async def acquire(self, ask: Ask, until: float) -> Reply:
        """Grant, late or silently."""
        self._refuse()
        reply = await super().acquire(ask, until)
        time.sleep(self.slow)  # noqa: ASYNC251 - a store of the threads runtime blocks
        self._lose()
        return reply

    async def release(self, release: Release, until: float) -> Outcome:
        """Let go."""
        self._refuse()
        return await super().release(release, until)

    async def leave(self, leave: Leave, until: float) -> Left:
        """Let go."""
        self._refuse()
        return await super().leave(leave, until)

    async def renew(self, renewals: Sequence[Renewal], until: float) -> list[RenewReply]:
        """Renew."""
        self._refuse()
        return await super().renew(renewals, until)

    def _refuse(self) -> None:
        if self.gone:
            raise StoreUnavailable("this node is gone")

    def _lose(self) -> None:
        if self.deaf:
            raise OutcomeUnknown("this node does not answer")


class Five:
    """Five tables, and what one client's ways to them are like."""

    def __init__(self) -> None:
        self.tables = [MemoryTable() for _ in range(5)]
        self.nodes: list[Node] = []

    def source(self) -> StoreSource:
        """Return the quorum of all."""

        def maker(table: MemoryTable) -> Callable[[Runtime], Node]:
            def make(runtime: Runtime) -> Node:
                self.nodes.append(node := Node(runtime, table))
                return node

            return make

        titles = [f"table {number}" for number in range(5)]
        sources = [
            StoreSource(title, MemoryStore.capabilities, maker(table))
            for title, table in zip(titles, self.tables, strict=True)
        ]
        return quorum_source(sources)

    def holders(self) -> list[int]:
        """Return how many hold the name at each table."""
        return [table.step("name", lambda step: len(step.view("name").holders)) for table in self.tables]


@pytest.fixture
def five() -> Five:
    """Return tables that this test alone uses."""
    return Five()


def test_a_grant_that_is_hardly_valid_any_more_is_none(five: Five) -> None:
    """Counted from before the first node was asked: who is told late must not believe in what is over."""
    with Client(store=five.source()) as client:
        client.lock("name", ttl=TTL).acquire().release()
        for node in five.nodes:
            node.slow = TTL * 0.15  # one after another, for these block
        with pytest.raises(LockTimeout):
            client.lock("name", ttl=TTL).acquire(timeout=0)
        for node in five.nodes:
            node.slow = 0.0
        assert not any(five.holders()), "votes that came to nothing are given back at once"
        with client.lock("name", ttl=TTL) as lease:
            assert lease.remaining() > TTL / 2


def test_a_vote_that_was_not_answered_is_given_back(five: Five) -> None:
    """And blocks nobody, oneself included: the next attempt is another one."""
    with Client(store=five.source()) as client, Client(store=five.source()) as other:
        client.lock("name", ttl=60.0).acquire().release()
        for node in five.nodes[:3]:
            node.deaf = True
        with pytest.raises((LockTimeout, StoreUnavailable)):
            client.lock("name", ttl=60.0).acquire(timeout=0)
        for node in five.nodes:
            node.deaf = False
        with other.lock("name", ttl=60.0, timeout=5.0) as lease:
            assert lease.token > 0


def test_a_node_that_was_gone_hears_what_it_missed(five: Five) -> None:
    """What it granted, and could not be told to let go, it lets go when it is back, before it votes again."""
    with Client(store=five.source()) as client:
        lease = client.lock("name", ttl=60.0).acquire()
        assert five.holders() == [1] * 5
        five.nodes[0].gone = True
        assert lease.release().kept
        assert five.holders() == [1, 0, 0, 0, 0]
        five.nodes[0].gone = False
        wait_until(lambda: five.holders() == [0] * 5, "all have let go")


def test_a_renewal_heals(five: Five) -> None:
    """Where a node has lost the lease, it gets it back."""
    with Client(store=five.source()) as client, client.lock("name", ttl=60.0) as lease:
        for table in five.tables[:2]:
            table.step("name", lambda step: step.state.holders.clear())
        assert five.holders() == [0, 0, 1, 1, 1]
        assert lease.extend() > 30
        assert five.holders() == [1] * 5
    assert five.holders() == [0] * 5


def test_two_of_five_may_be_gone_and_three_not(five: Five) -> None:
    """The error says which."""
    with Client(store=five.source(), retry_for=0.3) as client:
        client.lock("name", ttl=TTL).acquire().release()
        for node in five.nodes[:2]:
            node.gone = True
        client.lock("name", ttl=TTL).acquire(timeout=5.0).release()
        five.nodes[2].gone = True
        with pytest.raises(StoreUnavailable, match="of 5 nodes 2 vote, and 3 must") as refused:
            client.lock("name", ttl=TTL).acquire(timeout=2.0)
        assert [vote.said for vote in refused.value.votes].count("this node is gone") == 3
