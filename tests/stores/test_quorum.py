"""A quorum of tables in memory that are slow, silent or down, in threads."""

import asyncio
import contextlib
import errno
import socket
import threading
from collections.abc import Callable, Sequence
from functools import partial
from unittest.mock import patch

import pytest
from _pytest.outcomes import Failed

from tenure import (
    AsyncClient,
    Client,
    Lease,
    LeaseLost,
    LockTimeout,
    OutcomeUnknown,
    StoreError,
    StoreUnavailable,
    UsageError,
)
from tenure.contracts.messages import (
    AcquireRequest,
    NotGranted,
    Notification,
    ReleaseRequest,
    RenewReplies,
    RenewRequest,
    Reply,
    WithdrawRequest,
)
from tenure.contracts.runtime import Runtime
from tenure.contracts.store import StoreSource
from tenure.outcome import Outcome
from tenure.stores.memory import MemoryStore, MemoryTable
from tenure.stores.quorum import quorum_source
from tenure.stores.quorum.reasons import is_nobody_there
from tenure.stores.quorum.store import QuorumStore
from tests import virtual
from tests.hazards.helpers import soon
from tests.planting import planted
from tests.servers import wait_until

TTL = 4.0


class Node(MemoryStore):
    """A table that can be slow, lose replies, or be down."""

    gone = False
    turned_away = 0
    """How many came when it was gone."""
    refused = ""
    """A name that it will have nothing to do with."""
    meanwhile: Callable[[], object] = staticmethod(lambda: None)
    """What happens between a grant and the answer."""
    deaf = False
    """Whether what it is asked is carried out, and not answered."""

    async def acquire(self, request: AcquireRequest, until: float) -> Reply:
        """Grant, late or without a reply."""
        self._refuse(request.name)
        reply = await super().acquire(request, until)
        self.meanwhile()
        self._lose()
        return reply

    async def release(self, release: ReleaseRequest, until: float) -> Outcome:
        """Release."""
        self._refuse()
        return await super().release(release, until)

    async def withdraw(self, withdraw: WithdrawRequest, until: float) -> NotGranted:
        """Withdraw."""
        self._refuse(withdraw.name)
        return await super().withdraw(withdraw, until)

    async def renew(self, renewals: Sequence[RenewRequest], until: float) -> RenewReplies:
        """Renew."""
        self._refuse()
        return await super().renew(renewals, until)

    def _refuse(self, name: str = "") -> None:
        if self.gone:
            self.turned_away += 1
            raise StoreUnavailable("this node is gone")
        if name and name == self.refused:
            raise StoreError("this node has something else by this name")

    def _lose(self) -> None:
        if self.deaf:
            raise OutcomeUnknown("this node does not answer")


class Five:
    """Five tables, and one client's connections to them."""

    def __init__(self) -> None:
        self.tables = [virtual.table() for _ in range(5)]
        self.nodes: list[Node] = []

    def source(self) -> StoreSource:
        """Return the quorum of all tables."""

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

    async def cut_off(self, nodes: Sequence[Node]) -> None:
        """Take nodes down for their client, and return when it has noticed and no request is under way."""
        for node in nodes:
            node.gone = True
        await soon(lambda: all(node.turned_away for node in nodes), "a client that sees all nodes gone")

    def forget(self) -> None:
        """Make all tables forget everything."""
        for table in self.tables:
            table._states.clear()

    def holders(self) -> list[int]:
        """Return the number of holders at each table."""
        return [table.step("name", lambda step: len(step.view("name").holders)) for table in self.tables]


@pytest.fixture
def five() -> Five:
    """Return tables that only this test uses."""
    return Five()


def test_a_grant_that_is_hardly_valid_any_more_does_not_count(five: Five) -> None:
    """The ttl counts from before the first request: a late reply must not give a lease that is over."""
    with virtual.stopped_clock() as clock, Client(store=five.source()) as client:
        client.lock("name", ttl=TTL).acquire().release()
        five.nodes[4].meanwhile = partial(clock.advance, TTL * 0.75)  # the other tables have granted by then
        with pytest.raises(LockTimeout):
            client.lock("name", ttl=TTL).acquire(timeout=0)
        five.nodes[4].meanwhile = partial(clock.advance, 0.0)
        assert not any(five.holders()), "votes without a quorum are given back at once"
        with client.lock("name", ttl=TTL) as lease:
            assert lease.remaining() > TTL * 0.9


def test_a_vote_that_was_not_answered_is_given_back(five: Five) -> None:
    """It blocks no contender, not even the same client: the next attempt is a new request."""
    with Client(store=five.source()) as client, Client(store=five.source()) as other:
        client.lock("name", ttl=60.0).acquire().release()
        for node in five.nodes[:3]:
            node.deaf = True
        with pytest.raises((LockTimeout, StoreUnavailable)):
            client.lock("name", ttl=60.0).acquire(timeout=0)
        for node in five.nodes:
            node.deaf = False
        with other.lock("name", ttl=60.0, timeout=30.0) as lease:
            assert lease.token > 0


def test_a_waiter_gets_a_token_of_the_time_of_its_grant(five: Five) -> None:
    """The waiter makes a new proposal, so forgetful nodes grant no token below one that was granted while it waited."""

    async def main() -> None:
        async with contextlib.AsyncExitStack() as stack:
            clients = [AsyncClient(store=five.source(), retry_for=60.0) for _ in range(3)]
            first, second, third = [await stack.enter_async_context(client) for client in clients]
            held = await first.lock("name", ttl=60.0).acquire()
            await (await second.lock("other").acquire()).release()
            waits = asyncio.create_task(third.lock("name", ttl=60.0).acquire(timeout=90.0))
            while not (await first.inspect("name")).waiters:  # noqa: ASYNC110 - it is in the store
                await asyncio.sleep(0.01)
            nodes = [five.nodes[number : number + 5] for number in (0, 5, 10)]
            await five.cut_off(nodes[2])
            await five.cut_off(nodes[0])  # else its holder might reacquire what was forgotten
            five.forget()
            between = await second.lock("name", ttl=60.0).acquire(timeout=0)
            assert between.token > held.token
            await five.cut_off(nodes[1])
            five.forget()
            for node in nodes[2]:
                node.gone = False
            assert (await waits).token > between.token
            for node in five.nodes:
                node.gone = False

    virtual.run(main)


def test_a_node_that_was_down_gets_the_releases_that_it_missed(five: Five) -> None:
    """A node that was down at a release gets the release when it is back, before it votes again."""
    with Client(store=five.source()) as client:
        lease = client.lock("name", ttl=60.0).acquire()
        assert five.holders() == [1] * 5
        five.nodes[0].gone = True
        assert lease.release().kept
        assert five.holders() == [1, 0, 0, 0, 0]
        five.nodes[0].gone = False
        wait_until(lambda: five.holders() == [0] * 5, "all have let go")


def test_a_renewal_restores_votes(five: Five) -> None:
    """A node that has lost the lease gets it back."""
    with Client(store=five.source()) as client, client.lock("name", ttl=60.0) as lease:
        for table in five.tables[:2]:
            table.step("name", lambda step: step.state.holders.clear())
        assert five.holders() == [0, 0, 1, 1, 1]
        assert lease.extend() > 30
        assert five.holders() == [1] * 5
    assert five.holders() == [0] * 5


# -- a renewal is a vote ------------------------------------------------------------------------------------------


def two_that_know(five: Five, client: Client) -> Lease:
    """Return a lease that two of five nodes have: two gave no vote for it, and one has come back empty."""
    lease = client.lock("name", ttl=60.0).acquire()
    for table in five.tables[2:]:
        table._states.clear()
    return lease


def renewed_by_nodes_that_were_free() -> None:
    """Renew a lease at a majority, whichever nodes these are."""
    five = Five()
    with Client(store=five.source()) as client:
        lease = two_that_know(five, client)
        assert lease.extend() > 30
        assert five.holders() == [1] * 5
        assert lease.release().kept


def renewed_while_a_node_is_away() -> None:
    """Renew a lease though a node is down, and does not say what it knows."""
    five = Five()
    with Client(store=five.source()) as client:
        lease = two_that_know(five, client)
        five.nodes[2].gone = True
        assert lease.extend() > 30
        assert five.holders() == [1, 1, 0, 1, 1]
        five.nodes[2].gone = False
        assert lease.release().kept


def not_renewed_after_a_later_lease() -> None:
    """Refuse a lease at nodes that gave their votes to a later one, though they are free again; leave no vote there."""
    five = Five()
    with Client(store=five.source()) as client, Client(store=five.source()) as other:
        lease = two_that_know(five, client)
        with other.lock("name", ttl=60.0, timeout=30.0) as later:
            assert later.token > lease.token
        with pytest.raises(LeaseLost):
            lease.extend()
        assert not any(five.holders()[2:]), "votes that do not count are given back"


def not_renewed_after_a_revocation() -> None:
    """Refuse a lease that was revoked at a majority, though its holder has not heard of that."""
    five = Five()
    with Client(store=five.source()) as client:
        lease = client.lock("name", ttl=60.0).acquire()
        for table in five.tables[:3]:
            table._channels.clear()  # no push arrives
            table.step("name", lambda step: step.revoke())
        with pytest.raises(LeaseLost):
            lease.extend()


@pytest.mark.parametrize(
    "check",
    [
        renewed_by_nodes_that_were_free,
        renewed_while_a_node_is_away,
        not_renewed_after_a_later_lease,
        not_renewed_after_a_revocation,
    ],
)
def test_a_renewal_is_a_vote(check: Callable[[], None]) -> None:
    """It counts like the vote of an acquisition, if the node has issued no larger token."""
    check()


@pytest.mark.parametrize(
    ("check", "right", "wrong"),
    [
        (renewed_by_nodes_that_were_free, "if counted() < self._quorum", "if kept < self._quorum"),
        (not_renewed_after_a_later_lease, "await self._give_back(votes, until, lacking)", "pass"),
        (renewed_while_a_node_is_away, "kept + len(lacking) < self._quorum", "kept + len(lacking) < len(self._nodes)"),
        (not_renewed_after_a_later_lease, "and reply.token == votes.token", ""),
        (not_renewed_after_a_revocation, "reply.token == votes.token", "reply.token >= votes.token"),
    ],
)
def test_a_planted_bug_of_renewals_is_caught(check: Callable[[], None], right: str, wrong: str) -> None:
    """A vote that does not count, or one of another token that does, is noticed."""
    broken = planted(QuorumStore, "_vote_again", right, wrong)
    with (
        patch.object(QuorumStore, "_vote_again", broken),
        pytest.raises((AssertionError, LeaseLost, StoreError, Failed)),
    ):
        check()


@pytest.mark.parametrize("extended", [False, True])
def test_a_restored_vote_lasts_as_long_as_the_others(five: Five, extended: bool) -> None:
    """Two nodes forget, and the next renewal restores their votes; before the one after that, two others fail."""

    async def main() -> None:
        async with AsyncClient(store=five.source()) as client:
            lease = await client.lock("name", ttl=6.0 if extended else 60.0).acquire()
            if extended:
                await lease.extend(60.0)
            for table in five.tables[:2]:
                table._states.clear()
            await soon(lambda: five.holders() == [1] * 5, "a renewal that heals", within=60.0)
            await asyncio.sleep(15.0)  # leases of 60 s are renewed every 20 s
            assert five.holders() == [1] * 5
            for node in five.nodes[2:4]:
                node.gone = True
            await asyncio.sleep(300.0)
            assert (await lease.release()).kept

    virtual.run(main)


def test_a_lease_that_lingers_is_released_for_another_waiter(five: Five) -> None:
    """A quorum notifies the holder, too."""
    with Client(store=five.source()) as client, Client(store=five.source()) as other:
        with client.lock("name", ttl=60.0, linger=30.0) as lease:
            first = lease.token
        with client.lock("name", ttl=60.0, linger=30.0) as lease:
            assert lease.token == first + 1, "the lease was handed off without a request to the nodes"
        with other.lock("name", ttl=60.0, timeout=30.0) as lease:
            assert lease.token > first + 1


def test_an_error_of_the_nodes_concerns_one_name_alone(five: Five) -> None:
    """It is raised at once, because a repeated request would not help."""
    with Client(store=five.source()) as client:
        client.lock("name", ttl=TTL).acquire().release()
        for node in five.nodes[:3]:
            node.refused = "bad"
        with pytest.raises(StoreError, match="of 5 nodes 2 vote") as refused:
            client.lock("bad", ttl=TTL).acquire(timeout=30.0)
        assert not isinstance(refused.value, StoreUnavailable)
        with client.lock("name", ttl=TTL, timeout=0) as lease:
            assert lease.token > 0


def test_each_revocation_request_is_delivered_once(five: Five) -> None:
    """The number of nodes that deliver it does not matter."""
    asked: list[int] = []
    with (
        Client(store=five.source()) as client,
        Client(store=five.source()) as other,
        client.lock("name", ttl=60.0, on_revoke=lambda lease: asked.append(lease.token)) as lease,
    ):
        other.revoke("name")
        wait_until(lambda: asked == [lease.token], "it is asked")
        assert lease.revoking


def take_and_release(client: Client) -> None:
    """Wait for the name, and release it."""
    client.lock("name", ttl=60.0, timeout=20.0).acquire().release()


def test_waiters_of_one_owner_are_told_apart(five: Five) -> None:
    """Several clients of one owner stand in the queue."""
    with contextlib.ExitStack() as stack:
        holder = stack.enter_context(Client(store=five.source(), owner="holder"))
        alike = [stack.enter_context(Client(store=five.source(), owner="web")) for _ in range(3)]
        lease = holder.lock("name", ttl=60.0).acquire()
        threads = [threading.Thread(target=take_and_release, args=(client,)) for client in alike]
        for thread in threads:
            thread.start()
        wait_until(lambda: [each.owner for each in holder.inspect("name").waiters] == ["web"] * 3, "three wait")
        lease.release()
        for thread in threads:
            thread.join(20.0)
            assert not thread.is_alive()


WRONG = {
    "redlock://a,,c": "a host of the quorum is empty",
    "redlock://a,b,": "a host of the quorum is empty",
    "redlock://": "a host of the quorum is empty",
    "redlock://a,b": "at least 3",
    "redlock://a,b,c?quorum=x": "must be a number of nodes",
    "redlock://a,b,c?quorum=²": "must be a number of nodes",
    f"redlock://a,b,c?quorum={'9' * 5000}": "must be a number of nodes",
    "redlock://a,b,c?quorum=1": "from 2 to 3",
    "redlock://a,b,c?replicas=1": "leave out replicas",
    "redlock://:pa?s3cr3t@a,b,c": "in a password write",
    "redlock://a,b,b": "listed twice",
}


@pytest.mark.parametrize("url", WRONG)
def test_a_url_that_cannot_be_right_is_refused(url: str) -> None:
    """The error says what to do, and shows no secrets."""
    with pytest.raises(UsageError, match=WRONG[url]) as refused:
        Client(url)
    assert "s3cr3t" not in str(refused.value)


@pytest.mark.parametrize(
    ("nodes", "says"),
    [
        ("redis://x", "must be a list of nodes"),
        (5, "must be a list of nodes"),
        ([], "at least 3"),
        (["", "redis://a", "redis://b"], "not an empty one"),
        ([None, "redis://a", "redis://b"], "not a NoneType"),
        (["redis+sentinel://a/main", "redis://b", "redis://c"], "a node must be one server"),
        (["redis+cluster://a", "redis://b", "redis://c"], "a node must be one server"),
        (["redlock://a,b,c", "redis://b", "redis://c"], "a node must be one server"),
        (["redis://a?replicas=1", "redis://b", "redis://c"], "never a replica"),
        (["redis://:s3℀cr3t@a", "redis://b", "redis://c"], "is not valid"),
    ],
)
def test_invalid_nodes_are_refused(nodes: Sequence[object], says: str) -> None:
    """A node is one server without a replica to promote."""
    with pytest.raises(UsageError, match=says) as refused:
        Client(quorum=nodes)
    assert "cr3t" not in str(refused.value)


def test_two_of_five_may_be_down_but_not_three(five: Five) -> None:
    """The error names them."""
    with Client(store=five.source(), retry_for=0.3) as client:
        client.lock("name", ttl=TTL).acquire().release()
        for node in five.nodes[:2]:
            node.gone = True
        client.lock("name", ttl=TTL).acquire(timeout=30.0).release()
        five.nodes[2].gone = True
        with pytest.raises(StoreUnavailable, match="of 5 nodes 2 vote, and 3 must") as refused:
            client.lock("name", ttl=TTL).acquire(timeout=2.0)
        assert [vote.said for vote in refused.value.votes].count("this node is gone") == 3


class Absent(MemoryStore):
    """A table whose machine refuses connections while it is down."""

    present = False

    async def open(self, deliver: Callable[[Notification], None], until: float) -> str:
        """Open the table, if it is up."""
        if not self.present:
            raise StoreUnavailable("nobody listens") from ConnectionRefusedError(errno.ECONNREFUSED, "refused")
        return await super().open(deliver, until)


def test_nodes_that_are_up_again_are_found_at_once() -> None:
    """A new request waits for no pause after the last attempt, and does not rely on its result."""
    nodes: list[Absent] = []

    def make(runtime: Runtime) -> Absent:
        nodes.append(Absent(runtime, MemoryTable()))
        return nodes[-1]

    sources = [StoreSource(f"table {number}", MemoryStore.capabilities, make) for number in range(3)]
    with Client(store=quorum_source(sources), retry_for=0.0) as client:
        for _ in range(8):  # the pause grows
            with pytest.raises(StoreUnavailable, match=r"\(table 0, table 1, table 2: nobody listens\)\n"):
                client.lock("name", ttl=TTL).acquire()
        for node in nodes:
            node.present = True
        client.lock("name", ttl=TTL).acquire().release()


@pytest.mark.parametrize(
    ("error", "nobody"),
    [
        (ConnectionRefusedError(errno.ECONNREFUSED, "Connect call failed ('127.0.0.1', 1)"), True),
        (OSError("Multiple exceptions: [Errno 111] Connect call failed ('::1', 1), [Errno 111] Connect (1)"), True),
        (OSError("Multiple exceptions: [Errno 111] Connect call failed ('::1', 1), [Errno 113] No route"), False),
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), True),
        (socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"), False),
        (TimeoutError(), False),
        (ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"), False),
        (ValueError(), False),
    ],
)
def test_which_nodes_are_worth_waiting_for(error: Exception, nobody: bool) -> None:
    """A node that certainly refuses is not, however deep the refusal is in an error."""
    outer = StoreUnavailable("it failed")
    outer.__cause__ = RuntimeError("the client failed")
    outer.__cause__.__context__ = error
    assert is_nobody_there(outer) == nobody
