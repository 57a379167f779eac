"""Several names at once: what is refused, what is told, and that nothing is left behind, whatever goes wrong."""

import asyncio
import itertools
import random
import threading
from collections import Counter
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from tenure import (
    AsyncClient,
    AsyncMultiLease,
    Client,
    LeaseLost,
    LeaseState,
    LockTimeout,
    MultiLease,
    Outcome,
    OutcomeUnknown,
    SelfDeadlock,
    StoreUnavailable,
    UsageError,
)
from tenure.contracts.messages import (
    AcquireRequest,
    Granted,
    NotGranted,
    Queued,
    ReleaseRequest,
    Reply,
    Withdrawn,
    WithdrawRequest,
)
from tenure.contracts.runtime import Runtime
from tenure.contracts.store import StoreSource
from tenure.reentry import outside
from tenure.runtimes import clocks
from tenure.runtimes.threads import drive
from tenure.stores.memory import MemoryStore, MemoryTable, memory_source
from tenure.table.step import Step
from tests import virtual
from tests.hazards.helpers import TEST_TIMEOUT, disturbed, eventually

TTL = 20.0


@pytest.fixture
def table() -> MemoryTable:
    """Return a table of the test's own."""
    return MemoryTable()


@pytest.fixture
def client(table: MemoryTable) -> Client:
    """Return a client of it."""
    return Client(store=memory_source(table), owner="test")


# -- faces -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("names", [[], "name", ["a", "b", "a"], ["a", ""], ["a", 5], ["a", "x" * 513], ["a"] * 1001])
def test_names_that_cannot_be_locked_together_are_refused(client: Client, names: Any) -> None:  # noqa: ANN401 - wrong
    """A multilock takes a list of different names, each of which could be locked."""
    with pytest.raises(UsageError):
        client.multilock(names)


def test_names_are_taken_in_the_order_of_their_bytes(client: Client) -> None:
    """Whatever order they are given in, and from whatever iterable, all users take them in the same one."""
    expected = ("a", "z", "\u00e9", "\uffff", "\U00010000")
    for names in itertools.islice(itertools.permutations(expected), 0, 120, 7):
        lock = client.multilock(iter(names))
        assert lock.names == expected
        assert "\uffff" in lock.name


def test_a_decorated_function_runs_under_all_names(client: Client) -> None:
    """The names are filled from the call, and equal ones are one; a function of the wrong kind is refused."""

    @client.multilock(["to:{{{source}", "to:{{{target}", "all"], ttl=5)
    def work(source: int, target: int = 7) -> list[str]:
        """Work."""
        return [str(source), *client.names()]

    assert work(8) == ["8", "all", "to:{7", "to:{8"]
    assert work(7) == ["7", "all", "to:{7"]
    assert work.__doc__ == "Work."
    for name, message in (("{missing}", "has no such parameter"), ("b{", "not a format string")):
        with pytest.raises(UsageError, match=message):
            client.multilock(["a", name])(work)
    with pytest.raises(UsageError, match="may have up to 512 bytes"):
        client.multilock(["a", "{source:600}"])(work)(9)
    with client.lock("to:{9"), pytest.raises(LockTimeout, match=r"'to:\{9' was not granted"):
        client.multilock(["a", "to:{{{source}"], timeout=0)(work)(9)
    assert client.names() == []

    async def coroutine() -> None:
        """Do nothing."""

    with pytest.raises(UsageError, match="is async"):
        client.multilock(["a"])(coroutine)
    with pytest.raises(UsageError, match="is not async"):
        AsyncClient("memory://").multilock(["a"])(work)  # type: ignore[arg-type]
    client.close()


def test_a_decorated_coroutine_runs_under_all_names(table: MemoryTable) -> None:
    """The same for async functions."""

    async def main() -> None:
        async with AsyncClient(store=memory_source(table)) as client:

            @client.multilock(["b:{number}", "a:{other}", "b:{other}"], ttl=5)
            async def work(number: int, other: int) -> list[str]:
                return [str(number), *await client.names()]

            assert await work(7, 7) == ["7", "a:7", "b:7"]
            assert await work(7, 8) == ["7", "a:8", "b:7", "b:8"]
            assert await client.names() == []

    asyncio.run(main())


def test_one_multilock_may_be_entered_by_many_threads(client: Client) -> None:
    """Each `with` releases what its own thread entered; leaving without having entered is refused."""
    lock = client.multilock(["a", "b"], ttl=TTL, timeout=TEST_TIMEOUT)
    inside = 0

    def work(_number: int) -> None:
        nonlocal inside
        with lock:
            inside += 1
            assert inside == 1
            inside -= 1

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(40)))
    with pytest.raises(UsageError, match="not entered"):
        lock.__exit__(None, None, None)
    client.close()


def test_a_lease_shows_all_names(client: Client) -> None:
    """Tokens by name, the shortest remaining time, one state, one ttl; released, it says so."""
    lease = client.multilock(["b", "a"], ttl=TTL).acquire()
    assert isinstance(lease, MultiLease)
    assert lease.names == ("a", "b")
    assert lease.tokens == {name: client.inspect(name).holders[0].token for name in ("a", "b")}
    assert (lease.ttl, lease.state) == (TTL, LeaseState.HELD)
    assert 0 < lease.remaining() <= TTL
    assert not lease.lost
    assert not lease.lost.wait(0.01)
    assert lease.release() is Outcome.RELEASED
    assert lease.state is LeaseState.RELEASED
    assert not lease.lost
    with pytest.raises(LeaseLost, match="released"):
        lease.check()
    with pytest.raises(LeaseLost, match="released"):
        lease.extend()
    client.close()


def test_who_would_wait_for_itself_for_ever_is_refused(client: Client) -> None:
    """A thread that holds a multilock and wants one of its names, or the other way round, is told, and keeps it."""
    with client.multilock(["a", "b"], ttl=TTL) as lease:
        with pytest.raises(SelfDeadlock):
            client.lock("b", ttl=TTL).acquire()
        with pytest.raises(SelfDeadlock):
            client.multilock(["b", "c"], ttl=TTL).acquire()
        lease.check()
        assert client.names() == ["a", "b"]
    with client.lock("b", ttl=TTL), pytest.raises(SelfDeadlock):
        client.multilock(["a", "b"], ttl=TTL).acquire()
    assert client.names() == []
    client.close()


def test_a_dropped_lease_warns_and_ends(client: Client) -> None:
    """A lease that nobody holds any more is renewed no more, and there is a warning."""
    lock = client.multilock(["a", "b"], ttl=0.2)
    with pytest.warns(ResourceWarning, match="'a', 'b' were dropped without release"):
        lock.acquire()
    with client.multilock(["b", "a"], ttl=TTL, timeout=TEST_TIMEOUT):
        pass
    client.close()


def test_a_loss_is_told_once(client: Client, table: MemoryTable) -> None:
    """`on_lost` is called once, with the error of the name that was lost, however many go with it."""
    told: list[LeaseLost] = []
    with Client(store=memory_source(table)) as other:
        lease = client.multilock(["a", "b", "c"], ttl=TTL, on_lost=told.append).acquire()
        other.revoke("b", force=True)
        other.revoke("c", force=True)
        assert lease.lost.wait(TEST_TIMEOUT)
        eventually(lambda: told, "told")
        late: list[LeaseLost] = []
        lease.on_lost(late.append)
        assert [str(each) for each in told] == [str(each) for each in late]
        assert "'b'" in str(told[0])
        assert lease.state is LeaseState.LOST
        assert lease.release() is Outcome.TAKEN_OVER
        assert other.names() == []
    client.close()


def test_a_loss_is_seen_at_the_local_deadline_of_any_name() -> None:
    """Whichever lease is over first, the whole is over; who waits for the loss is woken."""

    async def main() -> None:
        async with AsyncClient(store=virtual.source()) as client:
            lease = await client.multilock(["a", "b", "c"], ttl=TTL).acquire()
            deadline = lease._group.leases[1].valid_until = clocks.steady() + 0.05
            assert lease.remaining() == pytest.approx(0.05)
            assert await lease.lost.wait(TEST_TIMEOUT)
            assert clocks.steady() == pytest.approx(deadline)
            with pytest.raises(LeaseLost, match="'b'"):
                lease.check()
            await lease.release()

    virtual.run(main)


def test_names_that_go_with_a_lost_one_are_renewed_no_more() -> None:
    """A holder that does not let go after a loss keeps the other names from nobody for longer than its ttl."""

    async def main() -> None:
        source = virtual.source()
        async with AsyncClient(store=source) as client, AsyncClient(store=source) as other:
            lease = await client.multilock(["a", "b"], ttl=TTL).acquire()
            await other.revoke("b", force=True)
            assert await lease.lost.wait(TEST_TIMEOUT)
            async with other.lock("a", timeout=TTL + 0.1):
                assert lease.state is LeaseState.LOST
            assert await lease.release() is Outcome.TAKEN_OVER

    virtual.run(main)


def test_an_async_body_is_cancelled_when_a_name_is_lost(table: MemoryTable) -> None:
    """The body stops, LeaseLost is raised, and the other names are released in the background."""

    async def main() -> None:
        async with AsyncClient(store=memory_source(table)) as client, AsyncClient(store=memory_source(table)) as other:

            async def body() -> None:
                async with client.multilock(["a", "b"], ttl=TTL) as lease:
                    await other.revoke("b", force=True)
                    assert await lease.lost.wait(TEST_TIMEOUT)
                    await asyncio.sleep(TEST_TIMEOUT)

            with pytest.raises(LeaseLost, match="'b'"):
                await body()
            async with other.multilock(["a", "b"], timeout=TEST_TIMEOUT):
                pass

    asyncio.run(main())


def test_a_bodys_own_error_is_not_masked(client: Client) -> None:
    """A body that fails after a loss raises its own error, with a note."""

    def body() -> None:
        client.revoke("a", force=True)
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine") as caught, client.multilock(["a", "b"]):
        body()
    assert any("is lost" in note for note in caught.value.__notes__)
    client.close()


def test_max_hold_counts_from_when_all_are_held() -> None:
    """A name that was held while others were waited for does not use up max_hold; then all end together."""

    async def main() -> None:
        async with AsyncClient(store=virtual.source()) as client:
            lease = await client.lock("b").acquire()
            waiting = asyncio.create_task(client.multilock(["a", "b"], ttl=TTL, max_hold=30).acquire())
            await asyncio.sleep(40)
            assert (await client.inspect("a")).holders
            assert (await client.inspect("b")).waiters
            await lease.release()
            both, since = await waiting, clocks.steady()
            assert await both.lost.wait(60)
            assert 29.9 < clocks.steady() - since <= 30
            async with client.multilock(["b", "a"], ttl=TTL, timeout=1):
                pass
            await both.release()

    virtual.run(main)


def test_a_name_lost_while_others_are_waited_for_is_taken_anew(client: Client, table: MemoryTable) -> None:
    """What is returned is held, all of it: if an earlier name was lost meanwhile, it begins again."""
    lease = client.lock("b").acquire()
    with ThreadPoolExecutor(1) as pool, Client(store=memory_source(table)) as other:
        waiting = pool.submit(client.multilock(["a", "b"], ttl=TTL).acquire)
        eventually(lambda: client.inspect("b").waiters, "waiting")
        (lost,) = other.revoke("a", force=True)
        lease.release()
        both = waiting.result(TEST_TIMEOUT)
    both.check()
    assert both.tokens["a"] > lost.token
    both.release()
    client.close()


def test_timeout_counts_for_all_together() -> None:
    """Waiting for one name leaves less time for the next."""

    async def main() -> None:
        async with AsyncClient(store=virtual.source()) as client:
            first, second = await client.lock("a").acquire(), await client.lock("b").acquire()
            begun = clocks.steady()
            waiting = asyncio.create_task(client.multilock(["a", "b"], ttl=TTL).acquire(timeout=8))
            await asyncio.sleep(5)
            await first.release()
            with pytest.raises(LockTimeout, match=r"'b' was not granted within 8 s"):
                await waiting
            assert clocks.steady() - begun == pytest.approx(8)
            assert await client.names() == ["b"]
            await second.release()

    virtual.run(main)


# -- one at a time -----------------------------------------------------------------------------------------


def one_by_one(table: MemoryTable) -> StoreSource:
    """Return a store that cannot grant several names in one step."""

    class Apart(MemoryStore):
        capabilities = replace(MemoryStore.capabilities, multi_acquire=False)

        async def acquire_many(self, requests: Any, until: float) -> list[Reply]:  # noqa: ANN401 - is not called
            raise AssertionError

    return StoreSource("apart", Apart.capabilities, lambda runtime: Apart(runtime, table))


@pytest.mark.parametrize("make", [memory_source, one_by_one])
def test_local_contenders_and_multilocks_never_starve_each_other(
    table: MemoryTable, make: Callable[[MemoryTable], StoreSource]
) -> None:
    """Threads of one client that want single names, which they hand on among them, and some that want both."""
    counts = {"a": 0, "b": 0}
    with Client(store=make(table)) as client, Client(store=make(table)) as other:

        def work(each: Client, names: str) -> None:
            for _ in range(15):
                with each.multilock(list(names), ttl=TTL, timeout=TEST_TIMEOUT):
                    read = dict(counts)
                    threading.Event().wait(0.0002)
                    for name in names:
                        counts[name] = read[name] + 1

        def work_alone(each: Client, names: str) -> None:
            name = names
            for _ in range(15):
                with each.lock(name, ttl=TTL, timeout=TEST_TIMEOUT):
                    read = counts[name]
                    threading.Event().wait(0.0002)
                    counts[name] = read + 1

        jobs = [(work, names) for names in ("ab", "ba", "a")] + [(work_alone, name) for name in "aaabbb"]
        with ThreadPoolExecutor(2 * len(jobs)) as pool:
            running = [pool.submit(job, each, names) for each in (client, other) for job, names in jobs]
            for each in running:
                each.result(6 * TEST_TIMEOUT)
        assert client.names() == []
    assert counts == {"a": 2 * 15 * 6, "b": 2 * 15 * 5}


# -- lost replies ------------------------------------------------------------------------------------------


class Lossy(MemoryStore):
    """A store across a network: replies get lost, and so do requests, and some requests arrive late and again."""

    capabilities = replace(MemoryStore.capabilities, runs_in_caller=False)

    def __init__(self, runtime: Runtime, table: MemoryTable, chance: random.Random) -> None:
        """Lose what `chance` says."""
        super().__init__(runtime, table)
        self.late: list[Callable[[], Coroutine[Any, Any, object]]] = []
        self._chance = chance
        self._releases: Counter[str] = Counter()

    async def _lose(self, request: Callable[[], Coroutine[Any, Any, Any]]) -> Any:  # noqa: ANN401 - of any operation
        fate = self._chance.random()
        if self.late and fate < 0.5:
            await self.late.pop(self._chance.randrange(len(self.late)))()
        if fate < 0.15:
            self.late.append(request)
            raise OutcomeUnknown("the request is late")
        if fate < 0.25:
            raise StoreUnavailable("it was not sent")
        reply = await request()
        if fate < 0.4:
            raise OutcomeUnknown("the reply was lost")
        return reply

    async def acquire(self, request: AcquireRequest, until: float) -> Reply:
        """Lose it, or not."""
        answer: Reply = await self._lose(lambda: super(Lossy, self).acquire(request, until))
        return answer

    async def acquire_many(self, requests: Any, until: float) -> list[Reply]:  # noqa: ANN401 - as of the store
        """Lose it, or not."""
        requests = list(requests)
        answer: list[Reply] = await self._lose(lambda: super(Lossy, self).acquire_many(requests, until))
        return answer

    async def release(self, release: ReleaseRequest, until: float) -> Outcome:
        """Lose it, or not, but not all three times that it is tried."""
        self._releases[release.request_id] += 1
        if self._releases[release.request_id] > 2:
            return await super().release(release, until)
        answer: Outcome = await self._lose(lambda: super(Lossy, self).release(release, until))
        return answer

    async def withdraw(self, withdraw: WithdrawRequest, until: float) -> NotGranted:
        """Never lose it: who cannot leave is a matter of time alone."""
        return await super().withdraw(withdraw, until)


@pytest.mark.parametrize("seed", range(25))
def test_whatever_is_lost_it_is_all_or_nothing(seed: int) -> None:
    """With replies lost and requests that come late, leases cover all names, and nothing is left in the end."""
    table = virtual.table()
    chance = random.Random(seed)
    stores: list[Lossy] = []

    def make(runtime: Runtime) -> Lossy:
        stores.append(Lossy(runtime, table, chance))
        return stores[-1]

    source = StoreSource("lossy", Lossy.capabilities, make)

    async def work(client: AsyncClient, names: list[str], watching: AsyncClient) -> None:
        for _ in range(4):
            try:
                lease = await client.multilock(names, ttl=TTL).acquire(timeout=chance.choice([0, 0.02, TEST_TIMEOUT]))
            except (LockTimeout, StoreUnavailable):
                continue
            for name, token in lease.tokens.items():
                holders = (await watching.inspect(name)).holders
                assert [each.token for each in holders] == [token]
            await lease.release()

    async def main() -> None:
        async with AsyncClient(store=memory_source(table)) as watching:
            clients = [AsyncClient(store=source) for _ in range(3)]
            names = list("abcd")
            jobs = [work(each, chance.sample(names, 3), watching) for each in clients for _ in range(2)]
            await asyncio.gather(*jobs)
            for store in stores:
                while store.late:
                    await store.late.pop()()
            for each in clients:
                await each.close()
            held = [name for name in names for _ in (await watching.inspect(name)).holders]
            waiting = [name for name in names for _ in (await watching.inspect(name)).waiters]
            assert (held, waiting) == ([], [])

    virtual.run(main)


class Interfering(MemoryStore):
    """A store that loses one reply, and lets others act before it is asked again."""

    capabilities = replace(MemoryStore.capabilities, runs_in_caller=False)

    def __init__(self, runtime: Runtime, table: MemoryTable, then: Callable[[MemoryTable], None]) -> None:
        """Have `then` act."""
        super().__init__(runtime, table)
        self.replies: list[list[Reply]] = []
        self._shared = table
        self._then: Callable[[MemoryTable], None] | None = then

    async def acquire_many(self, requests: Any, until: float) -> list[Reply]:  # noqa: ANN401 - as of the store
        """Lose the first reply."""
        replies = await super().acquire_many(requests, until)
        self.replies.append(replies)
        if self._then is not None:
            then, self._then = self._then, None
            then(self._shared)
            raise OutcomeUnknown("lost")
        return replies


def test_names_of_a_lost_reply_are_left_before_an_earlier_one_is_waited_for(
    table: MemoryTable,
) -> None:
    """If an earlier name went to somebody else meanwhile, no later one is held while that is waited for."""
    other = Client(store=memory_source(table), owner="other")
    taken: list[Any] = []

    def take_the_first(shared: MemoryTable) -> None:
        shared.step("a", Step.revoke)
        taken.append(outside(other.lock("a", ttl=TTL).acquire))  # another process would take it

    stores: list[Interfering] = []

    def make(runtime: Runtime) -> Interfering:
        stores.append(Interfering(runtime, table, take_the_first))
        return stores[-1]

    with Client(store=StoreSource("interfering", Interfering.capabilities, make)) as client:
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(client.multilock(["a", "b", "c"], ttl=TTL).acquire, TEST_TIMEOUT)
            eventually(lambda: other.inspect("a").waiters, "waiting for the first")
            kinds = [[type(reply) for reply in replies] for replies in stores[0].replies]
            assert kinds == [[Granted] * 3, [Queued]]
            eventually(lambda: other.names() == ["a"], "nothing else is held")
            taken[0].release()
            lease = waiting.result(TEST_TIMEOUT)
        lease.check()
        lease.release()
    assert other.names() == []
    other.close()


def test_a_request_that_comes_after_the_release_finds_nothing(table: MemoryTable) -> None:
    """An unanswered request for several names that arrives when all is over is refused, name by name."""
    late: list[Callable[[], Coroutine[Any, Any, list[Reply]]]] = []

    class Late(MemoryStore):
        capabilities = replace(MemoryStore.capabilities, runs_in_caller=False)

        async def acquire_many(self, requests: Any, until: float) -> list[Reply]:  # noqa: ANN401 - as of the store
            if not late:
                copies = [replace(request) for request in requests]
                arrive = super().acquire_many
                late.extend(partial(arrive, some, until) for some in [copies, *([copy] for copy in copies)])
                raise OutcomeUnknown("late")
            return await super().acquire_many(requests, until)

    source = StoreSource("late", Late.capabilities, lambda runtime: Late(runtime, table))
    with Client(store=source) as client, Client(store=memory_source(table)) as other:
        client.multilock(["a", "b", "c"], ttl=TTL).acquire().release()
        other.multilock(["a", "b", "c"], ttl=TTL).acquire().release()
        replies = [drive(each()) for each in late]
        assert [[type(reply) for reply in each] for each in replies] == [[Withdrawn]] * 4
        assert other.names() == []


# -- cancellation ------------------------------------------------------------------------------------------


Act = Callable[[AsyncClient, AsyncClient], Coroutine[Any, Any, AsyncMultiLease | None]]


async def uncontended(victim: AsyncClient, _other: AsyncClient) -> AsyncMultiLease | None:
    """Acquire free names."""
    return await victim.multilock(["a", "b", "c"], ttl=TTL).acquire()


async def contended(victim: AsyncClient, other: AsyncClient) -> AsyncMultiLease | None:
    """Acquire names of which one is held, and released meanwhile."""
    held = await other.lock("b", ttl=TTL).acquire()

    async def let_go() -> None:
        for _ in range(30):
            await asyncio.sleep(0)
            if (await other.inspect("b")).waiters:
                break
        await held.release()

    releasing = asyncio.ensure_future(let_go())
    try:
        return await victim.multilock(["a", "b", "c"], ttl=TTL).acquire()
    finally:
        await asyncio.shield(releasing)


async def in_vain(victim: AsyncClient, other: AsyncClient) -> AsyncMultiLease | None:
    """Wait in vain."""
    async with other.lock("b", ttl=TTL):
        try:
            return await victim.multilock(["a", "b", "c"], ttl=TTL).acquire(timeout=0.005)
        except LockTimeout:
            return None


async def within(victim: AsyncClient, _other: AsyncClient) -> AsyncMultiLease | None:
    """Enter, extend, leave."""
    async with victim.multilock(["a", "b", "c"], ttl=TTL) as lease:
        await lease.extend()
    return None


@pytest.mark.parametrize("local", [True, False], ids=["local", "remote"])
@pytest.mark.parametrize("multi_acquire", [True, False], ids=["together", "apart"])
@pytest.mark.parametrize("act", [uncontended, contended, in_vain, within], ids=lambda act: act.__name__)
def test_cancelled_at_any_await_nothing_is_left_behind(act: Act, multi_acquire: bool, local: bool) -> None:
    """Whenever a multilock is cancelled, once or twice, it leaves no holder and no waiter of any name."""

    async def run(*cancel_at: int) -> int:
        table = virtual.table()
        count = 0
        task: asyncio.Task[AsyncMultiLease | None] | None = None

        async def hook(_operation: str, _done: bool) -> None:
            nonlocal count
            if task is not None and not task.done():
                count += 1
                if count in cancel_at:
                    task.cancel()
            await asyncio.sleep(0)

        source = memory_source(table) if multi_acquire else one_by_one(table)
        victim, other = AsyncClient(store=disturbed(source, hook, local=local)), AsyncClient(store=memory_source(table))
        task = asyncio.ensure_future(act(victim, other))
        try:
            lease = await asyncio.wait_for(asyncio.shield(task), TEST_TIMEOUT)
            if lease is not None:
                lease.check()
                await lease.release()
        except asyncio.CancelledError:
            pass
        seen = count
        async with asyncio.timeout(TEST_TIMEOUT):
            while await other.names() or victim.session().attempts:  # noqa: ASYNC110 - it ends beside the cancelled task
                await asyncio.sleep(0.001)
        await victim.close()
        await other.close()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left
        return seen

    points = virtual.run(run)
    assert points >= 2
    for at in range(1, points + 1):
        for cancel_at in ((at,), (at, at + 1), (at, at + 2)):
            virtual.run(partial(run, *cancel_at))


def test_a_grant_that_overtakes_the_reply_is_heard(table: MemoryTable) -> None:
    """A name that is granted by a push before the reply says that it is waited for is entered without asking again."""

    async def main() -> None:
        requests: list[str] = []

        async def hook(operation: str, done: bool) -> None:
            if operation == "acquire" and done and not requests:
                requests.append(operation)
                await held.release()
                await asyncio.sleep(0.05)
            elif operation == "acquire" and done:
                requests.append(operation)

        async with (
            AsyncClient(store=memory_source(table)) as other,
            AsyncClient(store=disturbed(memory_source(table), hook)) as client,
        ):
            held = await other.lock("b", ttl=TTL).acquire()
            async with client.multilock(["a", "b"], ttl=TTL):
                assert requests == ["acquire"]

    asyncio.run(main())


def test_closing_the_client_during_the_request_leaves_nothing(table: MemoryTable) -> None:
    """A client that is closed while its one request is under way gives back every name that it brought."""

    async def main() -> None:
        closing: list[asyncio.Task[None]] = []

        async def hook(operation: str, done: bool) -> None:
            if operation == "acquire" and done and not closing:
                closing.append(asyncio.create_task(victim.close()))
            await asyncio.sleep(0.01)

        victim = AsyncClient(store=disturbed(memory_source(table), hook))
        async with AsyncClient(store=memory_source(table)) as other:
            with pytest.raises(UsageError, match="closed"):
                await victim.multilock(["a", "b", "c"], ttl=TTL).acquire()
            await closing[0]
            assert await other.names() == []

    asyncio.run(main())


def test_closing_the_client_ends_the_wait_and_leaves_nothing(client: Client, table: MemoryTable) -> None:
    """A multilock that waits is told that its client was closed, and holds nothing."""
    other = Client(store=memory_source(table))
    lease = other.lock("b").acquire()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.multilock(["a", "b", "c"]).acquire)
        eventually(lambda: other.inspect("b").waiters, "waiting")
        client.close()
        with pytest.raises(UsageError, match="closed"):
            waiting.result(TEST_TIMEOUT)
    assert other.names() == ["b"]
    lease.release()
    other.close()
