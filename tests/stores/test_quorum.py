"""A quorum of tables in memory that are slow, silent or gone, in threads."""

import asyncio
import contextlib
import errno
import socket
import threading
from collections.abc import Callable, Sequence
from functools import partial

import pytest

from holdfast import AsyncClient, Client, LockTimeout, OutcomeUnknown, StoreError, StoreUnavailable, UsageError
from holdfast.contracts.messages import (
    AcquireRequest,
    NotGranted,
    Notification,
    ReleaseRequest,
    RenewReply,
    RenewRequest,
    Reply,
    WithdrawRequest,
)
from holdfast.contracts.runtime import Runtime
from holdfast.contracts.store import StoreSource
from holdfast.outcome import Outcome
from holdfast.stores.memory import MemoryStore, MemoryTable
from holdfast.stores.quorum import quorum_source
from holdfast.stores.quorum.reasons import is_nobody_there
from tests import virtual
from tests.hazards.helpers import soon
from tests.servers import wait_until

TTL = 4.0


class Node(MemoryStore):
    """A table that can be slow, or lose replies, or be gone."""

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
        """Grant, late or silently."""
        self._refuse(request.name)
        reply = await super().acquire(request, until)
        self.meanwhile()
        self._lose()
        return reply

    async def release(self, release: ReleaseRequest, until: float) -> Outcome:
        """Let go."""
        self._refuse()
        return await super().release(release, until)

    async def withdraw(self, withdraw: WithdrawRequest, until: float) -> NotGranted:
        """Let go."""
        self._refuse(withdraw.name)
        return await super().withdraw(withdraw, until)

    async def renew(self, renewals: Sequence[RenewRequest], until: float) -> list[RenewReply]:
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
    """Five tables, and what one client's ways to them are like."""

    def __init__(self) -> None:
        self.tables = [virtual.table() for _ in range(5)]
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

    async def cut_off(self, nodes: Sequence[Node]) -> None:
        """Have nodes gone for the client whose they are, and return when it has seen that: nothing is under way."""
        for node in nodes:
            node.gone = True
        await soon(lambda: all(node.turned_away for node in nodes), "a client that sees all nodes gone")

    def forget(self) -> None:
        """Have all tables forget everything."""
        for table in self.tables:
            table._states.clear()

    def holders(self) -> list[int]:
        """Return how many hold the name at each table."""
        return [table.step("name", lambda step: len(step.view("name").holders)) for table in self.tables]


@pytest.fixture
def five() -> Five:
    """Return tables that this test alone uses."""
    return Five()


def test_a_grant_that_is_hardly_valid_any_more_is_none(five: Five) -> None:
    """Counted from before the first node was asked: who is told late must not believe in what is over."""
    with virtual.stopped_clock() as clock, Client(store=five.source()) as client:
        client.lock("name", ttl=TTL).acquire().release()
        five.nodes[4].meanwhile = partial(clock.advance, TTL * 0.75)  # the others have granted by then
        with pytest.raises(LockTimeout):
            client.lock("name", ttl=TTL).acquire(timeout=0)
        five.nodes[4].meanwhile = partial(clock.advance, 0.0)
        assert not any(five.holders()), "votes that came to nothing are given back at once"
        with client.lock("name", ttl=TTL) as lease:
            assert lease.remaining() > TTL * 0.9


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
        with other.lock("name", ttl=60.0, timeout=30.0) as lease:
            assert lease.token > 0


def test_who_has_waited_long_gets_a_token_of_its_own_time(five: Five) -> None:
    """Nodes that forget do not give it one smaller than what was granted while it waited: it proposes anew."""

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
            await five.cut_off(nodes[0])  # else its holder might take up again what was forgotten
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


@pytest.mark.parametrize("extended", [False, True])
def test_a_vote_that_was_given_again_lasts_as_long_as_the_others(five: Five, extended: bool) -> None:
    """Two nodes forget, and are healed by the next renewal; before the one after that, two others die."""

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


def test_a_lease_that_lingers_is_let_go_when_somebody_else_waits(five: Five) -> None:
    """A holder on a quorum is told, too."""
    with Client(store=five.source()) as client, Client(store=five.source()) as other:
        with client.lock("name", ttl=60.0, linger=30.0) as lease:
            first = lease.token
        with client.lock("name", ttl=60.0, linger=30.0) as lease:
            assert lease.token == first + 1, "it went on without a word to the nodes"
        with other.lock("name", ttl=60.0, timeout=30.0) as lease:
            assert lease.token > first + 1


def test_what_the_nodes_refuse_concerns_one_name_alone(five: Five) -> None:
    """And is an error at once, for asking again would not mend it."""
    with Client(store=five.source()) as client:
        client.lock("name", ttl=TTL).acquire().release()
        for node in five.nodes[:3]:
            node.refused = "bad"
        with pytest.raises(StoreError, match="of 5 nodes 2 vote") as refused:
            client.lock("bad", ttl=TTL).acquire(timeout=30.0)
        assert not isinstance(refused.value, StoreUnavailable)
        with client.lock("name", ttl=TTL, timeout=0) as lease:
            assert lease.token > 0


def test_whoever_is_asked_for_a_lease_hears_it_each_time(five: Five) -> None:
    """From how many nodes so ever."""
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
    """Wait for the name, and let it go."""
    client.lock("name", ttl=60.0, timeout=20.0).acquire().release()


def test_waiters_of_one_owner_are_told_apart(five: Five) -> None:
    """Several clients of one name stand in the queue."""
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
    "redlock://a,b,c?quorum=1": "from 2 to 3",
    "redlock://a,b,c?replicas=1": "leave out replicas",
    "redlock://:pa?s3cr3t@a,b,c": "in a password write",
    "redlock://a,b,b": "listed twice",
}


@pytest.mark.parametrize("url", WRONG)
def test_a_url_that_cannot_be_right_is_refused(url: str) -> None:
    """With what to do about it, and without its secrets."""
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
def test_nodes_that_cannot_be_right_are_refused(nodes: Sequence[object], says: str) -> None:
    """A node is one server that nobody promotes."""
    with pytest.raises(UsageError, match=says) as refused:
        Client(quorum=nodes)
    assert "cr3t" not in str(refused.value)


def test_two_of_five_may_be_gone_and_three_not(five: Five) -> None:
    """The error says which."""
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
    """A table whose machine says that nobody listens there, while it does."""

    present = False

    async def open(self, deliver: Callable[[Notification], None], until: float) -> str:
        """Open it, if it is there."""
        if not self.present:
            raise StoreUnavailable("nobody listens") from ConnectionRefusedError(errno.ECONNREFUSED, "refused")
        return await super().open(deliver, until)


def test_nodes_that_are_there_by_now_are_found_at_once() -> None:
    """Whoever asks again does not stand for the pause after the last attempt, nor believe in what it said."""
    nodes: list[Absent] = []

    def make(runtime: Runtime) -> Absent:
        nodes.append(Absent(runtime, MemoryTable()))
        return nodes[-1]

    sources = [StoreSource(f"table {number}", MemoryStore.capabilities, make) for number in range(3)]
    with Client(store=quorum_source(sources), retry_for=0.0) as client:
        for _ in range(8):  # the pause grows
            with pytest.raises(StoreUnavailable, match=r"\(table 0, table 1, table 2: nobody listens\)$"):
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
def test_for_whom_it_is_worth_to_wait(error: Exception, nobody: bool) -> None:
    """Whoever is certainly not there is not worth it, however deep that is in an error."""
    outer = StoreUnavailable("it failed")
    outer.__cause__ = RuntimeError("the client failed")
    outer.__cause__.__context__ = error
    assert is_nobody_there(outer) == nobody
