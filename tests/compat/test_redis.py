"""`tenure.compat.redis` behaves as redis-py's Lock, in both forms, but for what docs/coming-from-redis-py.md names.

Each behaviour is a coroutine that is written once: in threads it never suspends.
"""

import asyncio
import gc
import inspect
import itertools
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import pytest

from tenure.compat.redis import Lock, _clients
from tenure.compat.redis.asyncio import Lock as AsyncLock
from tests.hazards.helpers import eventually
from tests.servers import RedisServer

redis: Any = import_module("redis")  # so that type checkers don't take tests/compat for it
redis_asyncio: Any = import_module("redis.asyncio")
LockError, LockNotOwnedError = redis.exceptions.LockError, redis.exceptions.LockNotOwnedError

NUMBERS = itertools.count()


async def done(value: Any) -> Any:  # noqa: ANN401
    """Return what a call of either form returns."""
    return await value if inspect.isawaitable(value) else value


@dataclass
class Bench:
    """A name, a client to make locks with, and one to look at the key."""

    client: Any
    plain: Any
    name: str
    asynchronous: bool

    def lock(self, **options: Any) -> Any:  # noqa: ANN401
        """Make a lock of the name, as programs do."""
        return self.client.lock(self.name, lock_class=AsyncLock if self.asynchronous else Lock, **options)

    async def inside(self, lock: Any, body: Callable[[], Any]) -> Any:  # noqa: ANN401
        """Run a body in the `with` of a lock."""
        if self.asynchronous:
            async with lock as entered:
                body()
        else:
            with lock as entered:
                body()
        return entered


async def a_lock_is_the_key_of_its_name(b: Bench) -> None:
    """Its value is the token; a release deletes it."""
    lock = b.lock()
    assert await done(lock.acquire(blocking=False)) is True
    assert b.plain.get(b.name) == lock.local.token
    await done(lock.release())
    assert b.plain.get(b.name) is None
    assert lock.local.token is None


async def locked_and_owned_tell_who_holds(b: Bench) -> None:
    """Each lock by itself."""
    one, two = b.lock(), b.lock()
    for first, second in ((one, two), (two, one)):
        assert not await done(first.locked())
        assert not await done(first.owned())
        await done(first.acquire())
        assert await done(first.locked())
        assert await done(second.locked())
        assert await done(first.owned())
        assert not await done(second.owned())
        await done(first.release())


async def one_of_two_gets_it(b: Bench) -> None:
    """And then the other."""
    one, two = b.lock(), b.lock(blocking=False)
    assert await done(one.acquire(blocking=False))
    assert await done(two.acquire()) is False
    await done(one.release())
    assert await done(two.acquire())
    assert not await done(one.acquire(blocking=False))
    await done(two.release())


async def a_timeout_ends_it(b: Bench) -> None:
    """Take a whole number or a fraction of seconds; nothing renews it."""
    for timeout in (10, 9.5):
        lock = b.lock(timeout=timeout)
        await done(lock.acquire())
        assert 8000 < b.plain.pttl(b.name) <= timeout * 1000
        await done(lock.release())
    lock, other = b.lock(timeout=0.3), b.lock(timeout=9)
    await done(lock.acquire())
    assert await done(other.acquire())
    assert not await done(lock.owned())
    with pytest.raises(LockNotOwnedError):
        await done(lock.release())
    assert await done(other.owned())
    await done(other.release())


async def a_wait_has_an_end(b: Bench) -> None:
    """Of the lock, or of the call; 0 asks once."""
    held = b.lock()
    await done(held.acquire())
    for lock, options, least in (
        (b.lock(blocking_timeout=0.2), {}, 0.2),
        (b.lock(blocking_timeout=60), {"blocking_timeout": 0.1}, 0.1),
        (b.lock(), {"blocking_timeout": 0}, 0.0),
        (b.lock(blocking=False), {}, 0.0),
        (b.lock(blocking=False), {"blocking": True, "blocking_timeout": 0.1}, 0.1),
    ):
        began = time.monotonic()
        assert await done(lock.acquire(**options)) is False
        assert time.monotonic() - began >= least
    await done(held.release())


async def a_body_holds_the_lock(b: Bench) -> None:
    """Until it ends, also by an error of its own."""
    lock, seen = b.lock(blocking_timeout=5), list[bool]()
    assert await b.inside(lock, lambda: seen.append(b.plain.get(b.name) == lock.local.token)) is lock
    assert seen == [True]
    assert b.plain.get(b.name) is None

    def fail() -> None:
        raise KeyError

    with pytest.raises(KeyError):
        await b.inside(lock, fail)
    assert b.plain.get(b.name) is None


async def a_body_without_the_lock_does_not_run(b: Bench) -> None:
    """Whoever has the key; the error names the lock."""
    b.plain.set(b.name, "somebody")
    with pytest.raises(LockError) as failure:
        await b.inside(b.lock(blocking_timeout=0.1), pytest.fail)
    assert failure.value.lock_name == b.name
    assert b.plain.get(b.name) == b"somebody"


async def a_lock_that_is_lost_in_its_body_is_told(b: Bench) -> None:
    """As an error, or in the log."""
    with pytest.raises(LockNotOwnedError):
        await b.inside(b.lock(timeout=10), lambda: b.plain.set(b.name, "somebody"))
    b.plain.delete(b.name)
    quiet = b.lock(timeout=10, raise_on_release_error=False)
    eventually(lambda: not b.plain.exists(b.name), "a free name")
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("tenure").addHandler(handler)
    try:
        await b.inside(quiet, lambda: b.plain.delete(b.name))
    finally:
        logging.getLogger("tenure").removeHandler(handler)
    assert any("not held any more" in each for each in said)


async def who_does_not_hold_releases_nothing(b: Bench) -> None:
    """Neither before the first acquisition nor twice; the error names the lock, and is a ValueError."""
    lock = b.lock()
    for _ in range(2):
        with pytest.raises(LockError) as failure:
            await done(lock.release())
        assert failure.value.lock_name == b.name
        assert isinstance(failure.value, ValueError)
        await done(lock.acquire())
        await done(lock.release())


async def a_lost_lock_is_not_released(b: Bench) -> None:
    """See that the key of another stays, and the token is forgotten all the same."""
    lock = b.lock()
    await done(lock.acquire())
    b.plain.set(b.name, "somebody")
    with pytest.raises(LockNotOwnedError):
        await done(lock.release())
    assert lock.local.token is None
    assert b.plain.get(b.name) == b"somebody"


async def extend_adds_or_replaces(b: Bench) -> None:
    """Also by fractions; the end may come nearer."""
    lock = b.lock(timeout=10)
    await done(lock.acquire())
    assert await done(lock.extend(10)) is True
    assert 16000 < b.plain.pttl(b.name) <= 20000
    assert await done(lock.extend(12.5, replace_ttl=True)) is True
    assert 11 < lock.local.lease.remaining() <= 12.5
    assert await done(lock.extend(0.3, replace_ttl=True)) is True
    other = b.lock()
    assert await done(other.acquire(blocking_timeout=5))  # long before the 10 seconds are over
    await done(other.release())


async def reacquire_begins_the_timeout_anew(b: Bench) -> None:
    """Whatever the key says by then."""
    lock = b.lock(timeout=10)
    await done(lock.acquire())
    b.plain.pexpire(b.name, 5000)
    assert await done(lock.reacquire()) is True
    assert 8000 < b.plain.pttl(b.name) <= 10000
    await done(lock.release())


async def what_is_not_held_or_has_no_timeout_is_not_extended(b: Bench) -> None:
    """Nor reacquired; a lost lock is told from one that was never held."""

    def extend(lock: Any) -> Any:  # noqa: ANN401
        return lock.extend(10)

    def reacquire(lock: Any) -> Any:  # noqa: ANN401
        return lock.reacquire()

    for call in (extend, reacquire):
        lock = b.lock(timeout=10)
        with pytest.raises(LockError) as failure:
            await done(call(lock))
        assert not isinstance(failure.value, LockNotOwnedError)
        await done(lock.acquire())
        b.plain.set(b.name, "somebody")
        with pytest.raises(LockNotOwnedError):
            await done(call(lock))
        b.plain.delete(b.name)
        with pytest.raises(LockNotOwnedError):
            await done(lock.release())
        endless = b.lock()
        await done(endless.acquire())
        with pytest.raises(LockError, match="no timeout"):
            await done(call(endless))
        await done(endless.release())


async def a_name_may_be_bytes(b: Bench) -> None:
    """As any key of redis-py."""
    kind = AsyncLock if b.asynchronous else Lock
    lock = kind(b.client, b.name.encode())
    await done(lock.acquire())
    assert b.plain.exists(b.name)
    await done(lock.release())


async def differences_are_told(b: Bench) -> None:
    """Do what the page names: a key that always ends, and no tokens of the caller's."""
    with pytest.raises(TypeError, match=r"^Lock\.__init__\(\) .*'ttl'"):
        (AsyncLock if b.asynchronous else Lock)(b.client, b.name, ttl=10)  # type: ignore[call-arg] # pyright: ignore[reportCallIssue]
    lock = b.lock()
    await done(lock.acquire())
    assert 0 < b.plain.pttl(b.name) <= 30000
    await done(lock.release())
    with pytest.raises(LockError, match="token"):
        await done(lock.acquire(token="mine"))  # noqa: S106 - no secret
    long = b.lock(timeout=10)
    await done(long.acquire())
    with pytest.raises(LockError, match="with a `timeout` of 35 s or more"):
        await done(long.extend(60))
    await done(long.release())


BEHAVIOURS: dict[str, Callable[[Bench], Coroutine[Any, Any, None]]] = {
    each.__name__: each
    for each in (
        a_lock_is_the_key_of_its_name,
        locked_and_owned_tell_who_holds,
        one_of_two_gets_it,
        a_timeout_ends_it,
        a_wait_has_an_end,
        a_body_holds_the_lock,
        a_body_without_the_lock_does_not_run,
        a_lock_that_is_lost_in_its_body_is_told,
        who_does_not_hold_releases_nothing,
        a_lost_lock_is_not_released,
        extend_adds_or_replaces,
        reacquire_begins_the_timeout_anew,
        what_is_not_held_or_has_no_timeout_is_not_extended,
        a_name_may_be_bytes,
        differences_are_told,
    )
}


@pytest.mark.parametrize("decoded", [False, True])
@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("behaviour", BEHAVIOURS)
def test_a_behaviour(behaviour: str, asynchronous: bool, decoded: bool, redis_server: RedisServer) -> None:
    """Each says what it shows; with a client that returns str, too."""
    if decoded and behaviour not in {"locked_and_owned_tell_who_holds", "a_lock_that_is_lost_in_its_body_is_told"}:
        return
    name = f"compat-{next(NUMBERS)}"
    with redis.Redis.from_url(redis_server.url) as plain:
        if not asynchronous:
            with (
                redis.Redis.from_url(redis_server.url, decode_responses=decoded) as client,
                pytest.raises(StopIteration),  # its end: it never suspends
            ):
                BEHAVIOURS[behaviour](Bench(client, plain, name, asynchronous)).send(None)
            return

        async def main() -> None:
            async with redis_asyncio.Redis.from_url(redis_server.url, decode_responses=decoded) as client:
                await BEHAVIOURS[behaviour](Bench(client, plain, name, asynchronous))

        asyncio.run(main())


def test_a_lock_belongs_to_its_thread_unless_it_says_otherwise(redis_server: RedisServer) -> None:
    """As by `thread_local`; a thread that has not acquired it gets LockError."""
    with redis.Redis.from_url(redis_server.url) as client:
        for shared in (True, False):
            lock = Lock(client, "of-a-thread", thread_local=not shared)
            lock.acquire()
            failed: list[BaseException] = []

            def release(lock: Lock = lock, failed: list[BaseException] = failed) -> None:
                try:
                    lock.release()
                except LockError as error:
                    failed.append(error)

            thread = threading.Thread(target=release)
            thread.start()
            thread.join()
            assert bool(failed) is not shared
            if not shared:
                lock.release()


def test_a_server_that_is_away_is_an_error_of_redis_py(redis_server: RedisServer) -> None:
    """So `except redis.exceptions.ConnectionError` goes on to work, and no lock is held."""
    with redis.Redis(port=1) as client, pytest.raises(redis.exceptions.ConnectionError):
        Lock(client, "away").acquire(blocking=False)


def test_without_also_ours_exclude_ours(redis_server: RedisServer) -> None:
    """The plain key is left alone, and a lock with `also` is excluded as well: both are one name."""
    with redis.Redis.from_url(redis_server.url) as client:
        fast = Lock(client, "fast", also=None)
        fast.acquire()
        assert not client.exists("fast")
        assert not Lock(client, "fast").acquire(blocking=False)
        fast.release()
        with Lock(client, "fast"):
            assert not fast.acquire(blocking=False)


ONCE = """
import sys
from redis import Redis
from tenure.compat.redis import Lock
lock = Lock(Redis.from_url(sys.argv[1]), "hourly", timeout=60)
print(lock.acquire(blocking=False))
"""


def test_a_lock_outlasts_the_process_that_does_not_release_it(redis_server: RedisServer) -> None:
    """The lock for "at most once a minute" is one that nobody releases, in redis-py, too."""
    command = [sys.executable, "-c", ONCE, redis_server.url]
    said = [subprocess.run(command, capture_output=True, text=True, check=True).stdout for _ in range(2)]
    assert said == ["True\n", "False\n"]


def test_no_client_outlives_its_pool(redis_server: RedisServer) -> None:
    """A program that makes a redis-py client for each request keeps no threads of ours."""
    client = redis.Redis.from_url(redis_server.url)
    with Lock(client, "pooled"):
        ours = next(iter(_clients._of[client.connection_pool].values()))
    client.close()
    del client
    gc.collect()
    eventually(lambda: ours._closed, "a closed client")
