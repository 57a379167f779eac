"""How locks are called: which arguments are accepted, and what the error says for others."""

import asyncio
import logging
import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from tenure import (
    AsyncClient,
    BlockedEventLoop,
    Client,
    Lease,
    LeaseLost,
    LeaseState,
    LockTimeout,
    MultiLease,
    SelfDeadlock,
    Stop,
    Stopped,
    StoreUnavailable,
    TenureError,
    UnknownArgument,
)
from tenure.runtimes.threads import drive
from tenure.stores.memory import MemoryTable, memory_source
from tests import virtual
from tests.core.test_losses import Broken
from tests.hazards.helpers import TEST_TIMEOUT, disturbed, eventually


def client_in_memory() -> Client:
    """Return a client of a table of its own."""
    return Client(store=memory_source(MemoryTable()))


# -- asyncio: both forms -----------------------------------------------------------------------------------------

KINDS: dict[str, Callable[[AsyncClient], Any]] = {
    "lock": lambda client: client.lock("name").acquire(timeout=5),
    "reentrant": lambda client: client.lock("name", reentrant=True).acquire(),
    "semaphore": lambda client: client.semaphore("name", 5).acquire(weight=3),
    "read": lambda client: client.rwlock("name").read().acquire(),
    "write": lambda client: client.rwlock("name").write().acquire(timeout=5),
    "multilock": lambda client: client.multilock(["name", "other"]).acquire(timeout=5),
    "election": lambda client: client.election("name").campaign("value"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_an_acquisition_is_awaited_or_entered(kind: str) -> None:
    """Both give the same lease; `async with` releases it at the end, and a loss cancels the body."""

    async def main() -> None:
        async with AsyncClient(store=virtual.source()) as client:
            acquire = KINDS[kind]
            lease = await acquire(client)
            assert lease.state is LeaseState.HELD
            await lease.release()
            async with acquire(client) as entered:
                assert entered.state is LeaseState.HELD
            assert entered.remaining() == 0
            async with asyncio.timeout(60), await acquire(client):
                assert await client.names()
            task = asyncio.create_task(acquire(client))
            await (await asyncio.wait_for(task, 60)).release()
            with pytest.raises(ZeroDivisionError):
                await in_body(acquire(client), ZeroDivisionError())
            assert not await client.names(), "released, although the body raised"

    virtual.run(main)


async def in_body(acquiring: Any, error: Exception) -> None:  # noqa: ANN401 - an acquisition of any kind
    """Raise inside a body."""
    async with acquiring:
        raise error


def test_a_body_that_was_entered_by_its_acquisition_is_cancelled_by_a_loss() -> None:
    """A loss cancels the body just as if its lock or lease had been entered."""

    async def main() -> None:
        async with AsyncClient(store=virtual.source()) as client:
            reached: list[str] = []

            async def work() -> None:
                async with client.lock("name", ttl=10).acquire(timeout=1):
                    await client.revoke("name", force=True)
                    await asyncio.sleep(1000)
                    reached.append("the end")

            with pytest.raises(LeaseLost, match="it was revoked by force"):
                await work()
            assert not reached

            async def fail() -> None:
                async with client.lock("name", ttl=10).acquire(timeout=1):
                    await client.revoke("name", force=True)
                    raise ZeroDivisionError

            with pytest.raises(ZeroDivisionError):
                await fail()

    virtual.run(main)


def test_an_acquisition_that_is_not_awaited_warns() -> None:
    """It warns like any coroutine: the lock was not acquired."""

    async def main() -> None:
        async with AsyncClient(store=virtual.source()) as client:
            acquiring = client.lock("name").acquire()
            with pytest.warns(RuntimeWarning, match="never awaited"):
                del acquiring
            client.lock("name").acquire().close()

    virtual.run(main)


# -- keywords ----------------------------------------------------------------------------------------------------

CALLS: dict[str, tuple[Callable[[Any], object], str]] = {
    "expire": (lambda client: client.lock("name", expire=5), "'expire': give the lock a ttl"),
    "lease_time": (lambda client: client.lock("name", lease_time=5), "'lease_time': give the lock a ttl"),
    "blocking_timeout": (lambda client: client.lock("name", blocking_timeout=5), "give a timeout, in seconds"),
    "blocking": (lambda client: client.lock("name").acquire(blocking=False), "give timeout=0, or call try_acquire"),
    "expire of acquire": (lambda client: client.lock("name").acquire(expire=5), "give the lock a ttl"),
    "auto_renewal": (lambda client: client.lock("name", auto_renewal=True), "a lease is renewed for as long as it is"),
    "thread_local": (
        lambda client: client.lock("name", thread_local=False),
        "a lease is an object that any thread may use",
    ),
    "mistyped": (lambda client: client.lock("name", maxhold=5), "did you mean max_hold?"),
    "mistyped of another": (lambda client: client.lock("name", blockin_timeout=5), "give a timeout, in seconds"),
    "semaphore": (lambda client: client.semaphore("name", 3, max_hol=5), "semaphore.. has no .*did you mean max_hold?"),
    "rwlock": (
        lambda client: client.rwlock("name", expire=5),
        "rwlock.. has no argument 'expire': give the lock a ttl",
    ),
    "multilock": (lambda client: client.multilock(["name"], reentrant=True), "reentrant.*belongs to client.lock"),
    "election": (lambda client: client.election("name", min_hold=3), "it belongs to client.lock.name, min_hold"),
    "ttl of acquire": (lambda client: client.lock("name").acquire(ttl=3), "it belongs to client.lock.name, ttl=...."),
    "weight of a lock": (lambda client: client.lock("name").acquire(weight=3), "belongs to semaphore.acquire"),
    "semaphore's acquire": (lambda client: client.semaphore("name", 3).acquire(weigth=3), "did you mean weight?"),
    "read side": (lambda client: client.rwlock("name").read().acquire(blocking=False), "give timeout=0"),
    "multilock's acquire": (lambda client: client.multilock(["name"]).acquire(blocking=False), "give timeout=0"),
    "campaign": (lambda client: client.election("name").campaign(val="me"), "did you mean value?"),
    "nonsense": (lambda client: client.lock("name").acquire(xyzzy=1), "'xyzzy': there are .*timeout"),
    "client": (
        lambda client: type(client)("memory://", timeout=5),
        "Client.. has no argument 'timeout': it belongs to client.lock",
    ),
    "client's host": (lambda client: type(client)(host="localhost"), "'host': it belongs to the URL of the store"),
    "max_ttl": (lambda client: client.lock("name", max_ttl=99), "belongs to the URL of a Redis.*max_ttl=300"),
    "timeout of a side": (lambda client: client.rwlock("name").read(timeout=1), "read.. .* lock.acquire.timeout"),
    "nonsense of a side": (lambda client: client.rwlock("name").write(xyzzy=1), "write.. .* it takes none"),
    "unfair": (lambda client: client.lock("name", unfair=True), "'unfair': give the lock fair=False"),
    "barging": (lambda client: client.lock("name", barging=True), "'barging': give the lock fair=False"),
    "fair semaphore": (lambda client: client.semaphore("name", 3, fair=False), "belongs to client.lock.name, fair="),
    "client's owner": (lambda client: type(client)("memory://", ownr="me"), "did you mean owner?"),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("form", ["threads", "asyncio"])
def test_an_error_for_an_unknown_keyword_suggests_the_right_one(call: str, form: str) -> None:
    """The keyword is misspelled, from another library or another call. It is a TypeError, as everywhere in Python."""
    write, said = CALLS[call]
    kind = Client if form == "threads" else AsyncClient
    client = kind(store=memory_source(MemoryTable()))
    with pytest.raises(UnknownArgument, match=said) as caught:
        write(client)
    assert isinstance(caught.value, TypeError)


ATTRIBUTES: dict[str, tuple[Callable[[Any], object], str]] = {
    "release": (lambda client: client.lock("name").release(), "belongs to the lease that you acquired.* its release$"),
    "owned": (lambda client: client.semaphore("name", 3).owned(), "belongs to the lease .* its check$"),
    "reacquire": (lambda client: client.multilock(["name"]).reacquire(), "belongs to the lease .* its extend$"),
    "of a side": (lambda client: client.rwlock("name").read().extend(5), "belongs to the lease .* its extend$"),
    "of both sides": (lambda client: client.rwlock("name").acquire(), "'acquire': read.. and write.. return an object"),
    "of both sides' lease": (lambda client: client.rwlock("name").release(), "belongs to the lease .* its release$"),
    "nonsense": (lambda client: client.lock("name").xyzzy, "Lock' object has no attribute 'xyzzy'$"),
    "nonsense of both sides": (lambda client: client.rwlock("name").xyzzy, "object has no attribute 'xyzzy'$"),
}


@pytest.mark.parametrize("attribute", ATTRIBUTES)
@pytest.mark.parametrize("form", ["threads", "asyncio"])
def test_what_other_libraries_have_in_a_lock_is_found(attribute: str, form: str) -> None:
    """`hasattr` finds none of it in a lock; the error says that the lease has it."""
    use, said = ATTRIBUTES[attribute]
    kind = Client if form == "threads" else AsyncClient
    client = kind(store=memory_source(MemoryTable()))
    assert not hasattr(client.lock("name"), "release")
    with pytest.raises(AttributeError, match=said):
        use(client)


ENTERED: dict[str, Callable[[Any], Any]] = {
    "client": lambda client: client,
    "lock": lambda client: client.lock("name"),
    "reentrant": lambda client: client.lock("name", reentrant=True),
    "semaphore": lambda client: client.semaphore("name", 3),
    "side": lambda client: client.rwlock("name").read(),
    "multilock": lambda client: client.multilock(["name"]),
}


@pytest.mark.parametrize("kind", ENTERED)
def test_the_error_of_the_wrong_with_names_the_right_one(kind: str) -> None:
    """A TypeError, as everywhere in Python. Nothing is acquired."""
    client = client_in_memory()
    with pytest.raises(TypeError, match="entered by `with`, not by `async with`; for asyncio, use AsyncClient"):
        drive(entered(ENTERED[kind](client)))
    with pytest.raises(TypeError, match="entered by `async with`, not by `with`; for threads, use Client"):
        enter(ENTERED[kind](AsyncClient(store=virtual.source())))
    assert client.inspect("name").holders == []


NEVER_ENTERED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "rwlock": (
        lambda client: client.rwlock("name"),
        r"enters an? (Async)?RWLock: enter its read\(\) or its write\(\)$",
    ),
    "election": (lambda client: client.election("name"), r"enters an (Async)?Election: enter its campaign\(\)$"),
}


@pytest.mark.parametrize("kind", NEVER_ENTERED)
def test_what_no_with_enters_says_what_to_enter(kind: str) -> None:
    """A reader/writer lock has two sides, and an election a campaign, for threads and asyncio alike."""
    make, said = NEVER_ENTERED[kind]
    for client in (client_in_memory(), AsyncClient(store=virtual.source())):
        with pytest.raises(TypeError, match=said):
            enter(make(client))
        with pytest.raises(TypeError, match=said):
            drive(entered(make(client)))


def test_a_lease_and_an_acquisition_say_how_to_enter_them() -> None:
    """A lease of asyncio is entered by `async with`; an acquisition is awaited before it is used as a lease."""

    async def main() -> None:
        async with AsyncClient(store=virtual.source()) as client:
            acquisition = client.lock("name").acquire()
            for word in ("token", "release", "check"):
                with pytest.raises(AttributeError, match=f"'{word}': await it first, as in `lease = await"):
                    getattr(acquisition, word)
            with pytest.raises(TypeError, match="entered by `async with`"):
                enter(acquisition)
            lease = await acquisition
            with pytest.raises(TypeError, match="entered by `async with`"):
                enter(lease)
            await lease.release()

    virtual.run(main)
    with client_in_memory() as client:
        lease = client.lock("name").acquire()
        with pytest.raises(TypeError, match="entered by `with`"):
            drive(entered(lease))
        lease.release()


def enter(wrong: Any) -> None:  # noqa: ANN401 - the very mistake that a type checker finds
    """Enter an object by `with`."""
    with wrong:
        pass


async def entered(wrong: Any) -> None:  # noqa: ANN401
    """Enter an object by `async with`."""
    async with wrong:
        pass


# -- locked ------------------------------------------------------------------------------------------------------


def test_locked_tells_whether_others_leave_no_room() -> None:
    """For every kind of lock, in threads and asyncio."""
    client = client_in_memory()
    with client:
        lock, semaphore = client.lock("lock"), client.semaphore("semaphore", 2)
        rwlock, multilock = client.rwlock("rwlock"), client.multilock(["lock", "other"])
        assert not any(each.locked() for each in (lock, semaphore, rwlock.read(), rwlock.write(), multilock))
        with lock:
            assert lock.locked()
            assert multilock.locked()
        with semaphore:
            assert not semaphore.locked()
            with semaphore:
                assert semaphore.locked()
        with rwlock.read():
            assert not rwlock.read().locked()
            assert rwlock.write().locked()
        with rwlock.write():
            assert rwlock.read().locked()


def test_locked_in_asyncio() -> None:
    """The same in asyncio; a lock delay counts like a holder."""

    async def main() -> None:
        async with AsyncClient(store=virtual.source()) as client:
            lock, multilock = client.lock("lock", lock_delay=10), client.multilock(["lock", "other"])
            assert not await lock.locked()
            assert not await multilock.locked()
            lease = await lock.acquire()
            assert await lock.locked()
            assert await multilock.locked()
            await client.revoke("lock", force=True)
            await lease.release()
            assert await lock.locked()
            await asyncio.sleep(11)
            assert not await lock.locked()

    virtual.run(main)


# -- waiting for oneself -----------------------------------------------------------------------------------------


def test_every_kind_refuses_to_wait_for_oneself_and_says_what_to_do() -> None:
    """Each kind gives its own advice; the lock object may be another one."""
    with client_in_memory() as client:
        rwlock = client.rwlock("rwlock")
        for held, contended in ((rwlock.read(), rwlock.write()), (rwlock.write(), rwlock.read())):
            with held.acquire(), pytest.raises(SelfDeadlock, match=r"downgrade\(\) its lease to read on"):
                contended.acquire()
            with held, pytest.raises(SelfDeadlock, match=r"downgrade\(\) its lease to read on"), contended:
                pass
        with client.election("election").campaign(), pytest.raises(SelfDeadlock, match=r"resign\(\) first"):
            client.election("election").campaign()
        with client.lock("lock"), pytest.raises(SelfDeadlock, match="reentrant=True"):
            client.lock("lock").acquire()
        with client.lock("lock"), pytest.raises(SelfDeadlock, match="by one multilock"):
            client.multilock(["lock", "other"]).acquire()


def test_a_wait_that_can_end_is_not_refused() -> None:
    """The permits of the thread count only if they leave no room; a wait with a timeout is no deadlock."""
    with client_in_memory() as client:
        semaphore = client.semaphore("semaphore", 3)
        with semaphore, semaphore, semaphore, pytest.raises(LockTimeout):
            semaphore.acquire(timeout=0.01)
        held = [semaphore.acquire()]
        other = threading.Thread(target=lambda: held.append(semaphore.acquire(weight=2)))
        other.start()
        other.join(TEST_TIMEOUT)
        timer = threading.Timer(0.05, held[1].release)
        timer.start()
        held.append(semaphore.acquire())  # others can make room
        for lease in held:
            lease.release()


def test_a_reader_that_waits_behind_a_writer_it_blocks_is_refused() -> None:
    """A task with a read lease may read again, but not while a writer waits for that read lease to end."""

    async def main() -> None:
        async with AsyncClient(store=virtual.source()) as client, client.rwlock("name").read():
            rwlock = client.rwlock("name")
            await (await rwlock.read().acquire()).release()  # without waiters there is room
            writer = asyncio.create_task(take(rwlock.write().acquire()))
            await asyncio.sleep(1)
            for _ in range(2):
                with pytest.raises(SelfDeadlock, match=r"when that lease ends. .* leave the `with`"):
                    await rwlock.read().acquire()
            with pytest.raises(LockTimeout):
                await rwlock.read().acquire(timeout=1)
            holds_nothing = asyncio.create_task(take(rwlock.read().acquire()))
            await asyncio.sleep(1)
            assert len((await client.inspect("name")).waiters) == 2
            assert not holds_nothing.done()
            writer.cancel()
            await (await holds_nothing).release()

    virtual.run(main)


def test_a_holder_that_waits_behind_a_waiter_it_leaves_room_is_not_refused() -> None:
    """Other holders may make room for both waiters."""

    async def main() -> None:
        async with AsyncClient(store=virtual.source()) as client:
            semaphore = client.semaphore("name", 4)
            others = await asyncio.create_task(take(semaphore.acquire(weight=3)))
            async with semaphore:
                ahead = asyncio.create_task(take(semaphore.acquire(weight=3)))
                asyncio.get_running_loop().call_later(1, lambda: ahead.add_done_callback(let_go))
                asyncio.get_running_loop().call_later(2, lambda: releases.append(asyncio.create_task(others.release())))
                await (await semaphore.acquire()).release()
            await asyncio.gather(*releases)

    def let_go(ahead: asyncio.Task[Any]) -> None:
        releases.append(asyncio.create_task(ahead.result().release()))

    releases: list[asyncio.Task[object]] = []
    virtual.run(main)


async def take(acquiring: Any) -> Any:  # noqa: ANN401 - any kind
    """Acquire in a task of its own."""
    return await acquiring


def test_a_reader_waits_behind_a_reader_under_a_lock_delay() -> None:
    """Both contenders are readers: both are granted when the delay is over."""

    async def main() -> None:
        async with AsyncClient(store=virtual.source()) as client:
            lost = await client.rwlock("name", lock_delay=5).read().acquire()
            async with client.rwlock("name").read():
                await client.revoke("name", force=True, token=lost.token)
                other = asyncio.create_task(client.rwlock("name").read().acquire())
                await asyncio.sleep(0.1)
                async with client.rwlock("name").read().acquire():
                    await (await other).release()

    virtual.run(main)


def test_every_kind_refuses_to_wait_for_oneself_in_asyncio() -> None:
    """The task counts as the holder, not the loop."""

    async def main() -> None:
        async with AsyncClient(store=virtual.source()) as client:
            rwlock = client.rwlock("rwlock")
            async with rwlock.read().acquire():
                with pytest.raises(SelfDeadlock, match="downgrade"):
                    await rwlock.write().acquire()
            async with client.election("election").campaign():
                with pytest.raises(SelfDeadlock, match="resign"):
                    await client.election("election").campaign()
            async with client.lock("lock"):
                with pytest.raises(SelfDeadlock, match="reentrant"):
                    await client.lock("lock").acquire()
                with pytest.raises(LockTimeout):
                    await asyncio.create_task(client.lock("lock").acquire(timeout=1))
            async with client.multilock(["lock", "other"]):
                with pytest.raises(SelfDeadlock, match="reentrant"):
                    await client.lock("other").acquire()

    virtual.run(main)


# -- stopping ----------------------------------------------------------------------------------------------------

WAITS: dict[str, Callable[[Client, Stop], Lease | MultiLease]] = {
    "lock": lambda client, stop: client.lock("name").acquire(stop=stop),
    "lock with a timeout": lambda client, stop: client.lock("name").acquire(timeout=TEST_TIMEOUT, stop=stop),
    "semaphore": lambda client, stop: client.semaphore("name", 1).acquire(stop=stop),
    "multilock": lambda client, stop: client.multilock(["free", "name"]).acquire(stop=stop),
    "election": lambda client, stop: client.election("name").campaign(stop=stop),
}


def waiting(client: Client) -> int:
    """Count the waiters of both names."""
    return sum(len(client.inspect(name).waiters) for name in ("name", "free"))


@pytest.mark.parametrize("where", ["this client", "another client"])
@pytest.mark.parametrize("kind", WAITS)
def test_waiting_threads_are_told_to_stop(kind: str, where: str) -> None:
    """They raise the error of the stop, hold nothing and stand in no queue; waiters without that Stop go on."""
    source = memory_source(MemoryTable())
    stop, other = Stop(), Stop()
    ended: list[BaseException | Lease | MultiLease] = []
    with Client(store=source) as holding, Client(store=source) as client:
        lease = (client if where == "this client" else holding).lock("name").acquire()

        def wait(stop: Stop) -> None:
            try:
                ended.append(WAITS[kind](client, stop))
            except TenureError as error:
                ended.append(error)

        threads = [threading.Thread(target=wait, args=[each]) for each in (stop, stop, stop, other)]
        for thread in threads:
            thread.start()
        eventually(lambda: waiting(client) == 4, "all wait")
        stop.set()
        for thread in threads[:3]:
            thread.join(TEST_TIMEOUT)
        assert [type(each) for each in ended] == [Stopped] * 3
        assert all("name" in str(each) or "free" in str(each) for each in ended)
        eventually(lambda: waiting(client) == 1, "the other one waits on")
        with pytest.raises(Stopped):  # at once
            WAITS[kind](client, stop)
        lease.release()
        threads[3].join(TEST_TIMEOUT)
        assert isinstance(ended[3], Lease | MultiLease)
        ended[3].release()
        assert not client.names()
        assert not stop._waits
        assert not other._waits


def test_a_stop_ends_the_wait_for_a_store_that_does_not_answer() -> None:
    """The wait ends with the request that is under way, not after `retry_for`."""
    stop = Stop()
    ended: list[BaseException] = []
    broken = Broken(acquire=StoreUnavailable("nobody listens"))
    with Client(store=disturbed(memory_source(MemoryTable()), broken), retry_for=1000) as client:

        def wait() -> None:
            with pytest.raises(Stopped) as caught:
                client.lock("name").acquire(stop=stop)
            ended.append(caught.value)

        thread = threading.Thread(target=wait)
        thread.start()
        eventually(lambda: client.session().attempts, "it asks")
        stop.set()
        thread.join(TEST_TIMEOUT)
        assert len(ended) == 1


# -- extend ------------------------------------------------------------------------------------------------------


def test_extend_says_what_max_hold_did_to_it(caplog: pytest.LogCaptureFixture) -> None:
    """`extend` returns what remains, and the log says why that is less than the caller passed."""

    async def main() -> None:
        async with AsyncClient(store=virtual.source()) as client:
            lease = await client.lock("name", ttl=10, max_hold=30).acquire()
            assert 19 < await lease.extend(20) < 20
            assert not caplog.records
            await asyncio.sleep(5)
            assert 24 < await lease.extend(60) <= 25
            (record,) = [each for each in caplog.records if each.levelno >= logging.WARNING]
            assert "extend(60) of 'name' is cut short: max_hold ends the lease in 25.0 s" in record.getMessage()
            await lease.release()

    virtual.run(main)


def test_a_shorter_extension_runs_down_to_it() -> None:
    """The lease keeps what was granted; when that has run down, the lease of a dead holder ends after the new ttl."""

    async def main() -> None:
        async with AsyncClient(store=virtual.source()) as client:
            lease = await client.lock("name", ttl=30).acquire()
            assert 29 < await lease.extend(2) < 30
            await asyncio.sleep(60)
            assert 0 < lease.remaining() <= 2
            assert (await client.inspect("name")).holders[0].expires_in <= 2
            lease.check()
            await lease.release()

    virtual.run(main)


# -- a blocking client in an event loop --------------------------------------------------------------------------


def test_a_blocking_client_in_an_event_loop_warns_once() -> None:
    """The warning has a class of its own and names the calling line; a thread outside the loop gets none."""

    async def main() -> None:
        await asyncio.to_thread(use, client_in_memory())
        client = client_in_memory()
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            use(client)
            use(client)
        (warning,) = seen
        assert warning.category is BlockedEventLoop
        assert warning.filename == __file__
        assert "AsyncClient" in str(warning.message)
        client.close()

    def use(client: Client) -> None:
        with client.lock("name"):
            pass

    asyncio.run(main())
