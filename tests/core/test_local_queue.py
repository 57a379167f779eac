"""Local hand-off: within one client a lease passes from holder to holder without the store."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, cast

import pytest

from tenure import AsyncClient, AsyncLease, AsyncLock, Client, Lease, LeaseLost, LeaseState, LockTimeout, Outcome
from tenure.contracts.deadlines import NEVER
from tenure.contracts.messages import AcquireRequest, Notification, NotificationKind, ReleaseRequest, Reply
from tenure.contracts.runtime import Runtime
from tenure.contracts.store import StoreSource
from tenure.core.lease import REFUSED
from tenure.core.local_queue import STILL_CONTENDED, LocalQueue, LocalQueues
from tenure.errors import StoreUnavailable, UsageError
from tenure.runtimes import clocks
from tenure.runtimes.threads import ThreadEvent
from tenure.stores.memory import MemoryStore, MemoryTable, memory_source
from tests import virtual
from tests.hazards.helpers import TEST_TIMEOUT, disturbed, eventually, soon
from tests.planting import planted


class Counting(MemoryStore):
    """A memory store that counts its requests."""

    asked: list[str]

    async def acquire(self, request: AcquireRequest, until: float) -> Reply:
        """Count a request."""
        self.asked.append("acquire")
        return await super().acquire(request, until)

    async def release(self, release: ReleaseRequest, until: float) -> Outcome:
        """Count a release."""
        self.asked.append("release")
        return await super().release(release, until)


def counting(table: MemoryTable, asked: list[str]) -> StoreSource:
    """Return a source of stores that count."""

    def make(runtime: Runtime) -> MemoryStore:
        store = Counting(runtime, table)
        store.asked = asked
        return store

    return StoreSource("counting", MemoryStore.capabilities, make)


def run(work: Callable[[AsyncClient, list[str]], Coroutine[Any, Any, None]], owner: str | None = None) -> None:
    """Run a coroutine in virtual time with a client whose store counts."""

    async def main() -> None:
        asked: list[str] = []
        async with AsyncClient(store=counting(virtual.table(), asked), owner=owner) as client:
            await work(client, asked)

    virtual.run(main)


def all_wait(client: Client, count: int) -> bool:
    """Tell whether this many contenders wait."""
    return len(client.inspect("name").waiters) == count


async def lined_up(client: AsyncClient, name: str, count: int) -> None:
    """Let tasks run until this many contenders wait."""
    while len((await client.inspect(name)).waiters) != count:  # noqa: ASYNC110 - there is no event for it
        await asyncio.sleep(0)


def test_local_hand_offs_send_no_requests() -> None:
    """A hundred tasks acquire a name a thousand times, with growing tokens, and the store gets a few requests."""

    async def work(client: AsyncClient, asked: list[str]) -> None:
        tokens: list[int] = []

        async def worker() -> None:
            for _ in range(10):
                async with client.lock("name") as lease:
                    tokens.append(lease.token)
                    await asyncio.sleep(0)

        await asyncio.gather(*(worker() for _ in range(100)))
        assert tokens == sorted(set(tokens))
        assert len(tokens) == 1000
        assert len(asked) <= 8

    run(work)


def test_contenders_of_threads_are_served_in_order() -> None:
    """Threads of one client are served in the order of their arrival."""
    with Client(store=memory_source(MemoryTable())) as client:
        lock = client.lock("name")
        served: list[int] = []

        def wait(number: int) -> None:
            with lock:
                served.append(number)

        lease = lock.acquire()
        threads = [threading.Thread(target=wait, args=(number,)) for number in range(8)]
        for number, thread in enumerate(threads):
            thread.start()
            eventually(partial(all_wait, client, number + 1), "it waits")
        lease.release()
        for thread in threads:
            thread.join(10)
        assert served == list(range(8))


@pytest.mark.parametrize("leaver", range(4))
def test_a_contender_that_leaves_the_queue_leaves_nothing(leaver: int) -> None:
    """The queue skips a contender that is cancelled at the head, in the middle or at the end."""

    async def work(client: AsyncClient, asked: list[str]) -> None:
        held = await client.lock("name").acquire()
        tasks = [asyncio.create_task(client.lock("name").acquire()) for _ in range(4)]
        await lined_up(client, "name", 4)
        tasks[leaver].cancel()
        await asyncio.gather(tasks[leaver], return_exceptions=True)
        await held.release()
        for number, task in enumerate(tasks):
            if number != leaver:
                await (await task).release()
        view = await client.inspect("name")
        assert not view.holders
        assert not view.waiters

    run(work)


def test_a_lease_for_a_contender_that_is_cancelled_is_handed_off() -> None:
    """A contender that was handed the lease, but is cancelled before it runs, hands it off to the next."""

    async def work(client: AsyncClient, asked: list[str]) -> None:
        first = await client.lock("name").acquire()
        second, third = (asyncio.create_task(client.lock("name").acquire()) for _ in range(2))
        await lined_up(client, "name", 2)
        await first.release()  # the second is the head now: it requests a range of tokens
        lease = await second
        fourth = asyncio.create_task(client.lock("name").acquire())
        await lined_up(client, "name", 2)
        await lease.release()  # handed off to the third, which has not run yet
        third.cancel()
        await asyncio.gather(third, return_exceptions=True)
        assert third.cancelled()
        await (await asyncio.wait_for(fourth, 5)).release()
        assert not (await client.inspect("name")).holders

    run(work)


def test_a_contender_that_times_out_names_the_holder() -> None:
    """A timeout ends a local wait like any other, and the error names this client as the holder."""

    async def work(client: AsyncClient, asked: list[str]) -> None:
        async with client.lock("name"):
            with pytest.raises(LockTimeout, match="me"):
                await client.lock("name").acquire(0.02)
            assert await client.lock("name").try_acquire() is None
        assert asked == ["acquire", "release"]

    run(work, owner="me")


def test_a_contender_that_times_out_counts_the_waiters_before_it() -> None:
    """The waiters behind it are not counted."""

    async def work(client: AsyncClient, asked: list[str]) -> None:
        async with client.lock("name"):
            crowd = [asyncio.create_task(client.lock("name").acquire()) for _ in range(2)]
            await lined_up(client, "name", 2)
            third = asyncio.create_task(client.lock("name").acquire(0.1))
            await lined_up(client, "name", 3)
            crowd += [asyncio.create_task(client.lock("name").acquire()) for _ in range(3)]
            with pytest.raises(LockTimeout, match="2 waited before us"):
                await third
        for task in crowd:
            await (await task).release()

    run(work)


def test_nobody_is_handed_a_lost_lease() -> None:
    """When a lease is lost while others wait for it here, the next of them sends a request to the store."""
    table = MemoryTable()

    async def main() -> None:
        async with AsyncClient(store=memory_source(table)) as client, AsyncClient(store=memory_source(table)) as other:
            held = await client.lock("name").acquire()
            waiting = [asyncio.create_task(client.lock("name").acquire()) for _ in range(2)]
            await lined_up(client, "name", 2)
            await other.revoke("name", force=True)
            first = await asyncio.wait_for(waiting[0], 5)  # although the victim has not released it
            assert first.token > held.token
            with pytest.raises(LeaseLost):
                held.check()
            assert not (await held.release()).kept
            assert first.remaining() > 0
            await first.release()
            await (await waiting[1]).release()

    asyncio.run(main())


def test_a_lease_is_renewed_for_all_its_holders() -> None:
    """A lease that is handed off many times outlives its ttl many times: it is renewed for all its holders."""

    async def work(client: AsyncClient, asked: list[str]) -> None:
        lock = client.lock("name", ttl=1.5)
        request_ids: set[str] = set()

        async def take_again_and_again() -> None:
            for _ in range(100):
                async with lock as lease:
                    request_ids.add(lease._core.grant.request_id)
                    await asyncio.sleep(0.2)
                    lease.check()

        await asyncio.gather(*(take_again_and_again() for _ in range(3)))
        assert len(request_ids) < 60, "most were handed off"

    run(work)


@pytest.mark.parametrize(("count", "order"), [(0, "here there here here"), (32, "here here here there")])
def test_the_next_holder_depends_on_the_fairness_count(count: int, order: str) -> None:
    """A name that is contended here and outside is handed off here fairness_count times, then outside."""
    table = MemoryTable()

    async def main() -> None:
        here = AsyncClient(store=memory_source(table), fairness_count=count)
        async with here, AsyncClient(store=memory_source(table)) as there:
            served: list[str] = []
            gate = asyncio.Event()

            async def take(client: AsyncClient, who: str) -> None:
                async with client.lock("name"):
                    served.append(who)
                    await gate.wait()

            lease = await here.lock("name").acquire()
            crowd = [asyncio.create_task(take(here, "here")) for _ in range(3)]
            await lined_up(here, "name", 3)
            await lease.release()  # the first of the crowd requests a range of tokens from the store
            await lined_up(here, "name", 2)
            outside = asyncio.create_task(take(there, "there"))
            await lined_up(here, "name", 3)
            await asyncio.sleep(0)  # the holder learns that the name is contended
            gate.set()
            await asyncio.gather(*crowd, outside)
            assert " ".join(served) == order

    asyncio.run(main())


class Untimely(ThreadEvent):
    """A flag that is raised at the worst moment: when a contender is about to wait for it."""

    def __init__(self, lease: Lease) -> None:
        super().__init__()
        self._lease = lease

    def _hand_over(self) -> None:
        self._lease.release()

    def clear(self) -> None:
        """Raise the flag just before it is lowered."""
        self._hand_over()
        super().clear()

    async def wait(self, until: float | None) -> bool:
        """Raise the flag just before a contender waits for it."""
        self._hand_over()
        return await super().wait(until)


def test_a_lease_that_comes_just_when_its_contender_begins_to_wait_is_not_missed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A contender that gets the lease between its check and its wait does not wait."""
    with Client(store=memory_source(MemoryTable())) as client:
        lease = client.lock("name").acquire()
        monkeypatch.setattr(client.session().runtime, "event", lambda: Untimely(lease))
        thread = threading.Thread(target=lambda: client.lock("name").acquire().release(), daemon=True)
        thread.start()
        thread.join(TEST_TIMEOUT)
        assert not thread.is_alive()


async def led(client: AsyncClient, ttl: float = 30.0, max_hold: float | None = None) -> AsyncLease:
    """Return a lease that can be handed off: it was requested while another contender held the name."""
    held = await client.lock("name", ttl=ttl).acquire()
    asking = await in_line(client, client.lock("name", ttl=ttl, max_hold=max_hold))
    await held.release()
    return await asking


async def in_line(client: AsyncClient, lock: AsyncLock) -> "asyncio.Task[AsyncLease]":
    """Return a task that waits for a lock."""
    task = asyncio.create_task(lock.acquire())
    await lined_up(client, lock.name, 1)
    return task


@pytest.mark.parametrize("released_first", [False, True])
def test_a_lease_that_is_lost_while_it_is_released_is_not_handed_off(
    released_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loss and a release coincide: in either order, the next contender sends a request to the store."""

    async def work(client: AsyncClient, asked: list[str]) -> None:
        lease = await led(client)
        waiting = await in_line(client, client.lock("name"))
        await client.revoke("name", force=True)  # and its notification comes at the same moment as the release
        notification = Notification("", NotificationKind.REVOKED, lease._core.grant.request_id, lease._core.grant.last)
        if released_first:
            may_hand_off = LocalQueues._may_hand_off

            def meanwhile(*arguments: Any) -> bool:  # noqa: ANN401
                client.session().deliver(notification)
                return may_hand_off(*arguments)

            monkeypatch.setattr(LocalQueues, "_may_hand_off", meanwhile)
        else:
            client.session().deliver(notification)
        assert not (await lease.release()).kept
        following = await asyncio.wait_for(waiting, TEST_TIMEOUT)
        assert following.token > lease._core.grant.last
        following.check()
        await following.release()

    run(work)


def test_a_loss_that_is_found_just_after_a_hand_off_is_the_successors() -> None:
    """The client finds that the store has ended the lease, and reports the loss to its present holder."""

    async def work(client: AsyncClient, asked: list[str]) -> None:
        lease = await led(client)
        waiting = await in_line(client, client.lock("name"))
        await lease.release()
        client.session().renewer.lose(lease._core, REFUSED)  # as the answer to a renewal that was under way
        following = await waiting
        with pytest.raises(LeaseLost):
            following.check()
        assert lease.state is LeaseState.RELEASED

    run(work)


def test_a_lease_that_was_no_longer_to_be_renewed_is_renewed_after_a_hand_off() -> None:
    """A contender that is handed a lease near the end of its holder's max_hold keeps it for as long as it likes."""

    async def work(client: AsyncClient, asked: list[str]) -> None:
        lease = await led(client, 1.0, 0.8)
        waiting = await in_line(client, client.lock("name", ttl=1.0))
        await soon(lambda: lease._core.due_at == NEVER, "it is renewed for the last time")
        await lease.release()
        following = await waiting
        assert following._core.grant.request_id == lease._core.grant.request_id
        await asyncio.sleep(1.2)
        following.check()
        await following.release()

    run(work)


@pytest.mark.parametrize("max_hold", [None, 0.5])
def test_a_lease_that_outlives_the_next_contenders_limits_is_not_handed_off(max_hold: float | None) -> None:
    """The store would keep the lease for longer than the ttl or max_hold of the next contender."""

    async def work(client: AsyncClient, asked: list[str]) -> None:
        lease = await led(client, 2.0)
        waiting = await in_line(client, client.lock("name", ttl=2.0, max_hold=max_hold))
        if max_hold is None:
            await lease.extend(100.0)
        await lease.release()
        following = await waiting
        assert following.ttl == 2.0
        assert (await client.inspect("name")).holders[0].expires_in <= (max_hold or 2.0)
        await following.release()

    run(work)


def test_a_lease_handed_off_after_a_shorter_extension_has_the_ttl_of_its_lock() -> None:
    """An `extend` of one holder does not apply to the next."""

    async def work(client: AsyncClient, asked: list[str]) -> None:
        lease = await led(client, 20.0)
        waiting = await in_line(client, client.lock("name", ttl=20.0))
        await lease.extend(1.0)
        await lease.release()
        following = await waiting
        assert following._core.grant.request_id == lease._core.grant.request_id
        assert following.ttl == 20.0
        await following.release()

    run(work)


@pytest.mark.parametrize("handed_on", [False, True])
def test_a_lease_that_is_dropped_ends_for_local_waiters_too(handed_on: bool) -> None:
    """The waiters of the same process get a lease that is dropped without release at its ttl."""

    async def work(client: AsyncClient, asked: list[str]) -> None:
        lease = await (led(client, 1.5) if handed_on else client.lock("name", ttl=0.3).acquire())
        if handed_on:
            waiting = await in_line(client, client.lock("name", ttl=1.5))
            await lease.release()
            lease = await waiting
        token = lease.token
        waiting = await in_line(client, client.lock("name", ttl=1.5))
        box = [lease]
        del lease
        with pytest.warns(ResourceWarning, match="dropped without release"):
            box.clear()
        following = await asyncio.wait_for(waiting, TEST_TIMEOUT)
        assert following.token > token
        await following.release()

    run(work)


def test_a_lease_that_a_thread_drops_ends_for_the_others_too() -> None:
    """The same in threads."""
    with virtual.stopped_clock() as clock, Client(store=virtual.source()) as client:
        lock = client.lock("name", ttl=20)
        box = [lock.acquire()]
        thread = threading.Thread(target=lambda: lock.acquire().release(), daemon=True)
        thread.start()
        eventually(partial(all_wait, client, 1), "it waits")
        clock.advance(19.7)
        with pytest.warns(ResourceWarning, match="dropped without release"):
            box.clear()
        clock.advance(0.4)
        thread.join(TEST_TIMEOUT)
        assert not thread.is_alive()


def test_a_contender_that_is_torn_down_just_when_it_was_handed_the_lease_blocks_nobody() -> None:
    """A coroutine that is closed cannot await: the lease that it was handed ends at its ttl, for all waiters."""

    async def work(client: AsyncClient, asked: list[str]) -> None:
        lease = await led(client, 1.5)
        torn = client.lock("name", ttl=1.5).acquire()
        torn.send(None)
        waiting = asyncio.create_task(client.lock("name", ttl=1.5).acquire())
        await lined_up(client, "name", 2)
        await lease.release()
        torn.close()
        await (await asyncio.wait_for(waiting, TEST_TIMEOUT)).release()

    run(work)


def test_a_closed_client_holds_nothing_despite_waiters() -> None:
    """The close of a client releases its leases instead of handing them off; its waiters get an error."""
    table = MemoryTable()

    async def main() -> None:
        client = AsyncClient(store=memory_source(table))
        lease = await led(client)
        crowd = [asyncio.create_task(client.lock("name").acquire()) for _ in range(3)]
        await lined_up(client, "name", 3)
        await client.close()
        for told in await asyncio.gather(*crowd, return_exceptions=True):
            assert isinstance(told, UsageError)
        assert lease.state is LeaseState.RELEASED
        async with AsyncClient(store=memory_source(table)) as other:
            assert not (await other.inspect("name")).holders

    asyncio.run(main())


def test_contenders_wait_together_for_a_store_that_does_not_answer() -> None:
    """The contenders behind one whose request gets no answer fail together with it, not one after another."""

    async def cut(operation: str, done: bool) -> None:
        if operation == "acquire":
            raise StoreUnavailable("the connection is cut")

    async def main() -> None:
        source = disturbed(virtual.source(), cut)
        async with AsyncClient(store=source, retry_for=5) as client:
            await lined_up(client, "name", 0)
            start = clocks.steady()
            crowd = [asyncio.create_task(client.lock("name").acquire()) for _ in range(20)]
            later = asyncio.create_task(_after(3, client.lock("name").acquire()))
            took: list[float] = []
            for task in [*crowd, later]:
                with pytest.raises(StoreUnavailable, match="the connection is cut"):
                    await task
                took.append(clocks.steady() - start)
            late = 0.25  # the last try is put off by up to half of the longest delay between two
            assert max(took[:-1]) <= 5 + late
            assert took[-1] <= 3 + 5 + late

    virtual.run(main)


async def _after(delay: float, work: Coroutine[Any, Any, AsyncLease]) -> AsyncLease:
    await asyncio.sleep(delay)
    return await work


def test_local_waiters_go_on_when_the_store_answers_again() -> None:
    """A request that fails fails for its caller alone if the others have time left: the next of them sends its own."""
    broken = True

    async def cut(operation: str, done: bool) -> None:
        if broken and operation == "acquire":
            raise StoreUnavailable("the connection is cut")

    async def main() -> None:
        nonlocal broken
        async with AsyncClient(store=disturbed(virtual.source(), cut), retry_for=TEST_TIMEOUT) as client:
            await lined_up(client, "name", 0)  # it is open: from now on, first come is first served
            first = asyncio.create_task(client.lock("name").acquire(0.1))
            waiting = [asyncio.create_task(client.lock("name").acquire()) for _ in range(2)]
            with pytest.raises(StoreUnavailable):
                await first
            broken = False
            for task in waiting:
                await (await task).release()

    virtual.run(main)


def test_a_fairness_count_is_a_number() -> None:
    """An invalid fairness_count is refused when the client is made."""
    with pytest.raises(UsageError, match="fairness_count"):
        Client("memory://", fairness_count=-1)


def test_an_interrupt_before_the_request_leaves_no_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C just before the request to the store leaves the name to others of this process."""
    with Client(store=memory_source(MemoryTable())) as client:
        client.lock("name").acquire().release()
        runtime = client.session().runtime

        def interrupt() -> str:
            raise KeyboardInterrupt

        monkeypatch.setattr(runtime, "new_id", interrupt)
        with pytest.raises(KeyboardInterrupt):
            client.lock("name").acquire()
        monkeypatch.undo()
        client.lock("name", timeout=TEST_TIMEOUT).acquire().release()


def test_an_interrupt_before_a_hand_off_keeps_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in the middle of a release leaves the name to others of this process after its ttl."""
    source = virtual.source()
    with virtual.stopped_clock() as clock, Client(store=source) as client, ThreadPoolExecutor() as pool:
        lock = client.lock("name", ttl=1.5)
        lease = lock.acquire()
        waiting = pool.submit(lock.acquire)
        eventually(lambda: client.inspect("name").waiters, "somebody waits here")

        def interrupt(_core: object) -> bool:
            raise KeyboardInterrupt

        monkeypatch.setattr(client.session().local_queues, "hand_off", interrupt)
        with pytest.raises(KeyboardInterrupt):
            lease.release()
        monkeypatch.undo()
        assert not waiting.done()
        eventually(lambda: clock.advance(0.01) and waiting.done(), "the ttl is over")
        waiting.result().release()


def shares(crowds: Sequence[int], hold: float, turns: int = 40) -> list[float]:
    """Return the grants of a task, by client, if these many tasks of each client contend all the time."""
    counts = [0] * len(crowds)

    async def main() -> None:
        table = virtual.table()
        clients = [AsyncClient(store=memory_source(table)) for _ in crowds]
        end = clocks.steady() + turns * hold * sum(crowds)

        async def contend(number: int) -> None:
            while clocks.steady() < end:
                async with clients[number].lock("name"):
                    await asyncio.sleep(hold)
                    counts[number] += 1

        await asyncio.gather(*(contend(number) for number, crowd in enumerate(crowds) for _ in range(crowd)))
        for client in clients:
            await client.close()

    virtual.run(main)
    return [count / crowd for count, crowd in zip(counts, crowds, strict=True)]


FAIR = 1.5
"""How many times as many grants as a task of one client a task of another may have."""

CROWDS = [(4, 1, 1, 1), (16, 4, 1), (33, 1)]


@pytest.mark.parametrize("hold", [0.001, 0.02, 1.0])
@pytest.mark.parametrize("crowds", CROWDS)
def test_tasks_of_different_clients_have_equal_shares(crowds: tuple[int, ...], hold: float) -> None:
    """A task gets as much of the lock in a client with many as in a client with one, however long it is held."""
    found = shares(crowds, hold)
    assert max(found) <= FAIR * min(found), found


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("waiter.turn < local_queue.turn and ", ""),
        ("waiter.turn < local_queue.turn", "waiter.turn <= local_queue.turn"),
        ("waiter.turn < local_queue.turn", "False"),
    ],
)
def test_a_planted_bug_in_the_rule_of_turns_is_found(right: str, wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks of different clients have unequal shares if newcomers are handed the lease, or if nobody is."""
    monkeypatch.setattr(LocalQueues, "_may_hand_off", planted(LocalQueues, "_may_hand_off", right, wrong))
    assert any(max(found) > FAIR * min(found) for found in (shares(crowds, 0.02) for crowds in CROWDS))


async def served_in_a_turn(count: int) -> str:
    """Return who is served, if others of this client join before and after another client waits."""
    table = virtual.table()
    here = AsyncClient(store=memory_source(table), fairness_count=count)
    async with here, AsyncClient(store=memory_source(table)) as there:
        served: list[str] = []
        lease = await led(here)

        async def take(client: AsyncClient, who: str) -> None:
            async with client.lock("name"):
                served.append(who)

        tasks: list[asyncio.Task[None]] = []
        for who in ("a", "b", "c", "there", "late"):
            tasks.append(asyncio.create_task(take(there if who == "there" else here, who)))
            await lined_up(here, "name", len(tasks))
            await asyncio.sleep(0.01)
        await lease.release()
        await asyncio.gather(*tasks)
        return " ".join(served)


SERVED = {0: "there a b c late", 2: "a b there c late", 3: "a b c there late", 32: "a b c there late"}


def test_a_turn_begins_when_another_client_waits() -> None:
    """Waiters of this client that came before are served before it, up to `fairness_count`; a newcomer is not."""
    assert {count: virtual.run(partial(served_in_a_turn, count)) for count in SERVED} == SERVED


@pytest.mark.parametrize(
    ("owner", "method", "right", "wrong"),
    [
        (LocalQueues, "_may_hand_off", "waiter.turn < local_queue.turn and ", ""),
        (LocalQueues, "_may_hand_off", " and local_queue.passed < self._fairness_count", ""),
        (LocalQueues, "_may_hand_off", "passed < self", "passed <= self"),
        (LocalQueue, "note_contended", "self.begin_turn(now, contended=True)", "self.bounded = True"),
        (LocalQueues, "_join", "waiter.turn = local_queue.turn", "pass"),
    ],
)
def test_a_planted_bug_in_a_turn_is_found(
    owner: type, method: str, right: str, wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order of service differs if a newcomer counts as a waiter, the count has no bound, or no turn begins."""
    monkeypatch.setattr(owner, method, planted(owner, method, right, wrong))
    assert {count: virtual.run(partial(served_in_a_turn, count)) for count in SERVED} != SERVED


def test_a_turn_after_a_contended_one_has_its_bound() -> None:
    """Another client that is not back yet when the turn begins has a bounded turn before it; later there is none."""
    local_queue = LocalQueue(cast("LocalQueues", None), ("name", 0, 0, 0))
    local_queue.begin_turn(10.0, contended=True)
    for now, bounded in ((10.0, True), (10.0 + STILL_CONTENDED / 2, True), (10.0 + 2 * STILL_CONTENDED, False)):
        local_queue.begin_turn(now, contended=False)
        assert (local_queue.contended, local_queue.bounded) == (False, bounded)
