"""A quorum of five real servers that are killed, emptied, stopped and whose clocks are set, under load.

What can be demanded, and why:

*   **Tokens** are unique, and greater for who began to acquire after somebody else had the lease. Always: all clients
    here share one wall clock, so their proposals are in order, and then it does not matter what nodes forget, or what
    their own clocks show (docs/tokens.md).
*   **No update is lost** at a resource that raises its fence at the first touch. Always, for tokens are unique.
*   **No two leases are valid at once**, by their holders' own reckoning, whatever is killed, emptied or stopped: a node
    that may have forgotten gives no vote before all leases have ended that it may have voted for, so two majorities
    have a node in common that remembers.

    A clock that is set back makes votes last longer, which does no harm. One that is set *forward* ends votes early,
    and quarantines. As long as the lease has a majority beside such nodes, it is safe: one that all five nodes voted
    for outlives two clocks set forward. But while two nodes are down, or gave their votes to somebody who came at the
    same moment, a lease has three votes and none to spare. Then one clock that is set forward is enough for a second
    majority: the node that both have in common has forgotten the first. This is the stated limit of leases by clocks,
    it is what tokens are for, and nobody who looks from outside can tell how many votes a lease had at that moment.
    So of the load exclusion is demanded for all pairs of leases, but for those where a clock was set forward at a
    living node between the moment when the first was asked for and that when the second was there. Of these we only
    count how many there are. (Forward steps of a node that is down are no exception: it is quarantined.) What can be
    demanded of such steps exactly has a test of its own.
*   **Progress**: whenever at least three nodes have certainly been voting, somebody acquires within five seconds. A
    node that was killed certainly votes again after the time that clients take to look for it and its quarantine; one
    that was stopped, after the former. Names count that are never held for long. A pause of the whole machine counts
    against it four times: a node that did not answer in time is left alone for a while.
*   **Errors**: workers meet only LockTimeout and StoreError, and end in order.
"""

import os
import random
import re
import signal
import statistics
import sys
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from uuid import uuid4

import pytest

from tenure import AsyncLease, Client, Fence, Outcome, StaleTokenError, StoreUnavailable
from tenure.contracts.deadlines import seconds
from tenure.core.access import INTERVAL
from tenure.runtimes.clocks import steady
from tenure_testing.conformance.kit import Kit
from tests.faults.judgement import disorder, overlaps, stalls, voting
from tests.faults.metronome import Metronome
from tests.faults.resource import total
from tests.faults.scenes import API_FORMS, client_at, play
from tests.faults.workers import Staff, Task, Tenure
from tests.hazards.helpers import Script
from tests.redis.chaos import Nemesis, Node
from tests.redis.servers import assert_mortal
from tests.servers import Clock, RedisServer, start_all, stop_all, wait_until

SECONDS = float(os.environ.get("TENURE_CHAOS_SECONDS", "0"))
"""For how long the nodes are hurt at least."""

ROUNDS = 2
"""How often each fault is done, each time in another order: twenty strikes are enough for most of them to coincide."""

TEST_TIMEOUT = 30.0
"""How long to wait, in seconds, for what must happen: only ever used up by a failure."""

QUORUM = 3

MAX_TTL = 2.0
"""The longest ttl in use, in seconds: for how long a node gives no vote that may have forgotten some."""

TTL = 1.5
"""A ttl that is often lost in all this."""

KEEPABLE = 3.0
"""A ttl, and the longest in use, of a lease that is never lost, also on a busy machine."""

PROGRESS = 5.0
"""Within how many seconds somebody acquires while a majority votes."""

SLOWED = 4.0
"""How many seconds a pause of the whole machine costs, for each that it lasts."""

AMPLE = 20.0
"""A ttl that surely outlives a test, where no node restarts and so none needs a guard."""

LEAP = 120.0
"""How far a clock is set, in seconds."""


@pytest.fixture
def nodes(tmp_path: Path) -> Generator[list[Node]]:
    """Run five servers, each with a clock of its own."""
    with ExitStack() as closing:
        made: list[Node] = []
        for number in range(5):
            clock = closing.enter_context(Clock(tmp_path / f"clock-{number}"))
            made.append(Node(number, RedisServer(tmp_path / f"node-{number}", clock=clock), clock))
        servers = [node.server for node in made]
        closing.callback(stop_all, servers, timeout=0)
        start_all(servers)
        yield made
        for node in made:
            node.server.mend()
        assert_mortal(*servers)


def url_of(nodes: Sequence[Node], **options: object) -> str:
    """Return the URL of the quorum."""
    query = "&".join(f"{key}={value}" for key, value in options.items())
    return "redlock://" + ",".join(f"127.0.0.1:{node.server.port}" for node in nodes) + (f"?{query}" if query else "")


# -- the judgement ---------------------------------------------------------------------------------------------------


def held(token: int, asked: float, since: float, until: float, *, name: str = "name", process: int = 0) -> Tenure:
    """Make a tenure."""
    return Tenure(name, token, process, asked, since, until)


def test_two_at_once_are_seen() -> None:
    """Of one name, however many came between; excused by a clock set forward after the first was asked for, alone."""
    first, between, last = held(1, 0, 1, 9), held(2, 1.5, 2, 3, process=1), held(3, 3.5, 4, 5, process=2)
    elsewhere = held(1, 0, 1, 9, name="other", process=1)

    def pairs(*steps: float) -> list[tuple[int, int, bool]]:
        found = overlaps([last, elsewhere, first, between], steps)
        return [(each.first.token, each.second.token, each.excused) for each in found]

    assert pairs() == [(1, 2, False), (1, 3, False)]
    assert pairs(1.5) == [(1, 2, True), (1, 3, True)]
    assert pairs(3.5) == [(1, 2, False), (1, 3, True)]
    assert pairs(4.5) == [(1, 2, False), (1, 3, False)]
    assert not overlaps([held(1, 0, 1, 2), held(2, 1, 2, 3, process=1)], [])


def test_disorder_is_seen() -> None:
    """A token that is no greater though it was asked for later; not one that was asked for at the same time."""
    assert disorder([held(5, 0, 1, 2), held(4, 1.5, 3, 4)])
    assert disorder([held(5, 0, 1, 2), held(5, 0.5, 3, 4)])
    assert disorder([held(5, 0, 1, 2), held(6, 1.5, 3, 4), held(5, 3.5, 5, 6)])
    assert not disorder([held(5, 0, 1, 2), held(4, 0.5, 3, 4), held(6, 3.5, 5, 6), held(1, 9, 9, 9, name="other")])


def test_stalls_are_seen() -> None:
    """Only while a quorum was sure to vote."""
    spans = [*voting([[(0.0, 9.0)], [(1.0, 4.0), (5.0, 9.0)], [(2.0, 9.0)], [], []], QUORUM)]
    assert spans == [(2.0, 4.0), (5.0, 9.0)]
    assert stalls([0.5, 2.5, 6.0, 8.5], spans) == [(2.5, 6.0), (1.5, 2.5), (1.0, 5.0), (0.5, 8.5), (0.5, 2.0)]


# -- under load ------------------------------------------------------------------------------------------------------


def test_whatever_happens_to_two_of_five_nodes(
    nodes: list[Node], redis_server: RedisServer, metronome: Metronome
) -> None:
    """Tokens grow, no update is lost, nobody holds beside another, and it goes on: exactly as said above."""
    seed = int(os.environ.get("TENURE_CHAOS_SEED") or random.SystemRandom().getrandbits(32))
    names, space = ["long", "short", "brief"], f"chaos-{uuid4().hex}"
    url = url_of(nodes, max_ttl=MAX_TTL)
    with Staff(Task(url, names, TTL, redis_server.port, space, seed)) as staff:
        staff.await_start()
        nemesis = Nemesis(nodes, staff, MAX_TTL, seed)
        history = nemesis.history
        nemesis.rage(ROUNDS, SECONDS)
        sys.stdout.write(f"{history}\n")
        account = staff.end()
    with Client(url) as client:
        for name in names:
            client.lock(name, ttl=TTL).acquire(timeout=TEST_TIMEOUT).release()
    tenures = account.tenures
    spans = [*voting([node.sure for node in nodes], QUORUM)]
    quick = [each.since for each in tenures if each.name != names[0]]
    standing = stalls(quick, spans)
    together = overlaps(tenures, history.forward)
    watched = sum(end - begin for begin, end in spans)
    longest = [round(each, 2) for each, _ in standing[:3]]
    excused = [round(each.seconds, 3) for each in together if each.excused]
    sys.stdout.write(
        f"{len(tenures)} leases; {dict(account.counts)}\n{dict(history.kinds)}\nerrors {dict(account.errors)}\n"
        f"a majority certainly voted for {watched:.1f} s; longest stalls {longest}\n"
        f"overlaps that clocks set forward excuse: {excused}\n"
    )
    assert not disorder(tenures)
    assert not [each for each in together if not each.excused]
    assert total(redis_server, space, names) == account.counts["written"]
    late = [(length, since, metronome.missed(since, since + length)) for length, since in standing]
    assert [each for each in late if each[0] - SLOWED * each[2] > PROGRESS] == []
    assert watched > 0, "the test has never watched for progress"
    assert tenures


# -- one fault at a time ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", API_FORMS)
def test_it_goes_on_with_three_nodes_and_stops_with_two(nodes: list[Node], form: str) -> None:
    """One node is killed, one stopped: all goes on. With a third that is stopped, an error tells the vote of each.

    A lease is kept until its end even so, and when a node is back all goes on again.
    """
    killed, stopped, third, *rest = nodes

    async def scene(kit: Kit) -> None:
        client = client_at(kit, url_of(nodes, guard="off"), retry_for=2.0, operation_timeout=1.0)
        held = await client.lock("held", ttl=AMPLE).acquire()
        killed.server.kill()
        stopped.server.pause()
        for _ in range(10):
            assert await (await client.lock("name", ttl=AMPLE).acquire(timeout=10)).release() is Outcome.RELEASED

        async def extended() -> bool:
            with suppress(StoreUnavailable):  # one of the three may have been too slow: then one asks again
                await held.extend()
                return True
            return False

        await kit.until(extended, "a lease extended by three nodes")
        third.server.pause()

        async def told_the_vote_of_each() -> bool:
            """Tell whether those that live had answered: the error is told soon after it is certain, without them."""
            asked = steady()
            with pytest.raises(StoreUnavailable, match=r"of 5 nodes \d vote, and 3 must") as caught:
                await client.lock("other", ttl=AMPLE).acquire(timeout=60)
            assert steady() - asked < 30.0, "no later than retry_for and two requests; not the whole timeout"
            said = str(caught.value)
            for node in nodes:
                assert re.search(rf"127\.0\.0\.1:{node.server.port}\b[^;]*: \w", said), said
            granted = [re.search(rf"127\.0\.0\.1:{node.server.port}\b[^;]*: granted it", said) for node in rest]
            return "of 5 nodes 2 vote" in said and all(granted)

        await kit.until(told_the_vote_of_each, "an error that tells the vote of each", TEST_TIMEOUT)
        held.check()
        third.server.resume()
        async with client.lock("other", ttl=AMPLE, timeout=10):
            assert await held.release() is Outcome.RELEASED

    play(form, url_of(nodes), scene)


@pytest.mark.parametrize("form", API_FORMS)
def test_a_stopped_node_costs_little(nodes: list[Node], form: str, metronome: Metronome) -> None:
    """An acquisition ends as soon as the quorum is certain: with one or two nodes stopped, it waits for neither.

    Until that is noticed, when a request has gone unanswered for as long as it may, one may have to wait for it: if
    another node is not done yet with the release before. But most do not.
    """
    silence = 1.0

    async def scene(kit: Kit) -> None:
        client = client_at(kit, url_of(nodes, guard="off"), operation_timeout=silence)

        async def rounds(seconds: float) -> list[float]:
            took: list[float] = []
            begun = asked = steady()
            while asked < begun + seconds:
                lease = await client.lock("name", ttl=AMPLE).acquire()
                took.append(metronome.elapsed(asked))
                await lease.release()
                asked = steady()
            return took

        healthy = await rounds(0.3)
        for node in nodes[:2]:
            node.server.pause()
            unnoticed, noticed = await rounds(1.2 * silence), await rounds(0.3)
            sys.stdout.write(f"{form}, longest: {max(healthy):.4f} {max(unnoticed):.4f} {max(noticed):.4f}\n")
            assert statistics.median(unnoticed) < 10 * statistics.median(healthy)
            assert max(unnoticed) < 2 * silence
            assert statistics.median(noticed) < 10 * statistics.median(healthy)
            assert max(noticed) < silence

    play(form, url_of(nodes), scene)


HOLDER = """
import sys, tenure
from tenure.runtimes.clocks import steady
with tenure.Client(sys.argv[1]) as client:
    with client.lock("seen", ttl=1):
        print("ready", flush=True)
    sys.stdin.readline()
    lease = client.lock("name", ttl=float(sys.argv[2])).acquire()
    print(lease.token, steady() + lease.remaining(), flush=True)
    sys.stdin.readline()
"""


def start_late_in_a_second(nodes: Sequence[Node]) -> None:
    """Start them so that their clocks show a new second soon: who counts whole seconds then has one too many."""
    for node in nodes:
        node.clock.step(0.8 - node.clock.now() % 1)
        node.server.start()
    wait_until(lambda: all(node.clock.now() % 1 < 0.5 for node in nodes), "a new second of all clocks")


@pytest.mark.parametrize(("guarded", "ttl"), [(True, MAX_TTL), (False, AMPLE)])
def test_a_node_that_restarts_empty_gives_no_vote_before_old_leases_end(
    nodes: list[Node], guarded: bool, ttl: float
) -> None:
    """Though of the three that voted for a silent holder only two remember, nobody else gets the name while it lasts.

    Without the guard somebody does: so the test sees what it is for.
    """
    url = url_of(nodes, max_ttl=MAX_TTL, **({} if guarded else {"guard": "off"}))
    with Client(url) as client:
        for _ in range(5):  # so that it has seen all nodes
            client.lock("seen", ttl=ttl).acquire().release()
        script = Script(HOLDER, url, str(ttl))
        try:
            assert script.hear() == "ready"
            for node in nodes[3:]:
                node.server.kill()
            script.say()
            token, ends = script.hear().split()
            script.send(signal.SIGSTOP)
            nodes[2].server.kill()
            start_late_in_a_second(nodes[2:])
            with client.lock("name", ttl=ttl, timeout=30) as lease:
                assert (steady() < float(ends)) is not guarded
                assert lease.token > int(token)
        finally:
            script.kill()


async def renewed(lease: AsyncLease) -> None:
    """Renew a lease now, as is done in the background by and by. It must last."""
    with suppress(StoreUnavailable):
        await lease.extend()
    lease.check()


def looker(kit: Kit, nodes: Sequence[Node], owner: str, lease: AsyncLease) -> Callable[[], Awaitable[bool]]:
    """Return what tells whether all nodes, each asked alone, know this owner as the holder. The lease must last."""
    alone = [client_at(kit, f"{node.server.url}?max_ttl={KEEPABLE}") for node in nodes]

    async def all_voted() -> bool:
        await renewed(lease)
        try:
            views = [await each.inspect("name") for each in alone]
        except StoreUnavailable:
            return False
        return all([holder.owner for holder in view.holders] == [owner] for view in views)

    return all_voted


@pytest.mark.parametrize("form", ["threads"])
def test_restarting_all_nodes_in_turn_costs_no_lease(nodes: list[Node], form: str) -> None:
    """A holder that lives has its votes again at nodes that forgot them, so in the end none is left of the first five.

    Nobody else gets the name meanwhile; the first who waits gets it when it is released.
    """

    async def scene(kit: Kit) -> None:
        lease = await kit.client(owner="holder").lock("name", ttl=KEEPABLE).acquire()
        all_voted = looker(kit, nodes, "holder", lease)
        await kit.until(all_voted, "five votes")
        waiting = kit.start(lambda: kit.client().lock("name", ttl=KEEPABLE).acquire())
        for pair in (nodes[:2], nodes[2:4], nodes[4:]):
            for node in pair:
                node.server.kill()
            for node in pair:
                node.server.start()
            await kit.until(all_voted, "the votes of nodes that restarted")
            assert not waiting.done()
        assert await lease.release() is Outcome.RELEASED
        assert (await waiting.result(TEST_TIMEOUT)).token > lease.token

    play(form, url_of(nodes, max_ttl=KEEPABLE), scene)


@pytest.mark.parametrize("form", ["asyncio"])
def test_two_clocks_set_forward_end_no_lease_and_all_do(nodes: list[Node], form: str) -> None:
    """A lease that all nodes voted for keeps a majority beside two clocks. Beside all it can't: then tokens help.

    Two clocks are set back before, which keeps nobody out for longer.
    """

    async def scene(kit: Kit) -> None:
        lease = await kit.client(owner="holder").lock("name", ttl=KEEPABLE).acquire()
        all_voted = looker(kit, nodes, "holder", lease)
        await kit.until(all_voted, "five votes")
        waiting = kit.start(lambda: kit.client().lock("name", ttl=KEEPABLE).acquire())
        for node in nodes[3:]:
            node.clock.step(-LEAP)
        for node in nodes[:2]:
            node.clock.step(LEAP)
        stepped = steady()
        while steady() < stepped + 2 * seconds(INTERVAL):  # in which who waits asks again
            lease.check()
            assert not waiting.done()
            await kit.pause(0.02)
        await kit.until(all_voted, "five votes again")
        for node in nodes:
            node.clock.step(LEAP)
        second = await waiting.result(TEST_TIMEOUT)
        fence = Fence()
        fence.touch(second.token)
        with pytest.raises(StaleTokenError):
            fence.touch(lease.token)
        assert await lease.lost.wait(TEST_TIMEOUT), "its renewal is refused"
        assert await lease.release() in {Outcome.TAKEN_OVER, Outcome.EXPIRED}
        second.check()

    play(form, url_of(nodes, max_ttl=KEEPABLE), scene)


@pytest.mark.parametrize("leap", [LEAP, -LEAP])
def test_clocks_set_before_anybody_came_keep_nobody_out(nodes: list[Node], leap: float) -> None:
    """Nodes whose clocks were set just after they started vote like others, once their quarantine is over, if any."""
    for node in nodes:
        node.clock.step(leap)
    with Client(url_of(nodes, max_ttl=MAX_TTL)) as client, client.lock("name", ttl=TTL, timeout=TEST_TIMEOUT):
        pass


@pytest.mark.parametrize("leap", [300.0, -300.0])
def test_a_wrong_clock_and_a_node_that_forgets_disorder_no_tokens(nodes: list[Node], leap: float) -> None:
    """Tokens are proposed by clients and owe nothing to clocks of nodes: so an empty node alone loses no order.

    Of the three nodes that gave the first token, of which one has a wrong clock, the second client finds only one, and
    that has forgotten it.
    """
    url = url_of(nodes, max_ttl=MAX_TTL)
    nodes[0].clock.step(leap)
    with Client(url) as first, Client(url) as second:
        for client in (first, second):
            for number in range(5):
                client.lock(f"seen {number}", ttl=TTL).acquire().release()
        for node in nodes[3:]:
            node.server.kill()
        with first.lock("name", ttl=TTL, timeout=30) as lease:
            token = lease.token
        for node in nodes[2:]:
            node.server.kill()
            node.server.start()
        for node in nodes[:2]:
            node.server.kill()
        with second.lock("name", ttl=TTL, timeout=30) as lease:
            assert lease.token > token
