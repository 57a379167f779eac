"""The guards of files, values, objects and keys of Redis: who comes late is refused, from the first touch on."""

import asyncio
import multiprocessing
import os
import stat
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import permutations
from pathlib import Path
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.asyncio.cluster import RedisCluster as AsyncRedisCluster
from redis.client import Redis
from redis.cluster import RedisCluster
from redis.crc import key_slot
from redis.exceptions import ResponseError

import tenure
from tenure import StaleTokenError, StoreUnavailable, UsageError
from tenure.fencing import (
    AsyncObjectGuard,
    AsyncRedisGuard,
    FileGuard,
    MemoryGuard,
    ObjectGuard,
    RedisGuard,
    StoredObject,
    objects,
)
from tenure.fencing.holders import Holder
from tenure.fencing.redis_keys import SCRIPT, fence_of
from tests.fencing.resources import (
    AsyncGuardedKey,
    AsyncGuardedObject,
    Bucket,
    Guarded,
    GuardedFile,
    GuardedKey,
    GuardedObject,
    GuardedValue,
    redis_client,
)
from tests.servers import Cluster, RedisServer

KINDS = ("value", "file", "object", "async object", "key", "async key")

Make = Callable[[], Guarded]


@pytest.fixture
def client(redis_server: RedisServer) -> Iterator[Redis]:
    """Connect to a Redis."""
    with redis_client(redis_server.port) as client:
        yield client


@pytest.fixture(params=KINDS)
def make(request: pytest.FixtureRequest, tmp_path: Path, space: str) -> Make:
    """Return a function that makes a new guarded text of each kind."""
    numbers = iter(range(1000))
    if request.param.endswith("key"):
        server: RedisServer = request.getfixturevalue("redis_server")
        client: Redis = request.getfixturevalue("client")
        if request.param == "key":
            return lambda: GuardedKey(client, f"{space}{next(numbers)}")
        return lambda: AsyncGuardedKey(server.port, client, f"{space}{next(numbers)}")
    makers: dict[str, Make] = {
        "value": GuardedValue,
        "file": lambda: GuardedFile(tmp_path / f"{next(numbers)}.txt"),
        "object": GuardedObject,
        "async object": AsyncGuardedObject,
    }
    return makers[request.param]


# -- promises ------------------------------------------------------------------------------------------------


def touches(resource: Guarded) -> list[Callable[[Holder], object]]:
    """Return all that a holder can do first."""
    return [resource.touch, resource.read, lambda holder: resource.write(holder, "theirs")]


def late_holders_are_refused(make: Make) -> None:
    """Check that after any first touch every older holder is refused, and changes nothing."""
    for first in range(3):
        for then in range(3):
            resource = make()
            resource.write(5, "first")
            touches(resource)[first](7)
            before = resource.now()
            with pytest.raises(StaleTokenError):
                touches(resource)[then](6)
            assert resource.now() == before


def a_holder_goes_on(make: Make) -> None:
    """Check that a holder touches, reads and writes as often as it likes, in any order."""
    for order in permutations(range(3)):
        resource = make()
        resource.write(5, "first")
        for each in (*order, *order):
            touches(resource)[each](7)
        assert resource.read(7) == "theirs"
        assert resource.now() == "theirs"


def no_update_is_lost(make: Make) -> None:
    """Check every order of the steps of an old and a new holder, each of which adds a letter to what it has read."""
    steps = {"old": 6, "new": 7}
    for order in sorted(set(permutations(["old", "old", "new", "new"]))):
        resource = make()
        resource.write(5, "-")
        read: dict[str, str] = {}
        done: list[str] = []
        for who in order:
            try:
                if who not in read:
                    read[who] = resource.read(steps[who])
                else:
                    resource.write(steps[who], f"{read[who]}{who[0]}")
                    done.append(who[0])
            except StaleTokenError:
                assert who == "old", order
                read.setdefault(who, "refused")
        assert sorted(resource.now()) == sorted(["-", *done]), order
        assert "n" in done


PROMISES = [late_holders_are_refused, a_holder_goes_on, no_update_is_lost]


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
def test_every_guard_keeps_the_promise(make: Make, promise: Callable[[Make], None]) -> None:
    """In both forms of the API."""
    promise(make)


class Forgetful(GuardedValue):
    """Checks writes alone."""

    def __init__(self) -> None:
        super().__init__()
        self.read = self._read

    def _read(self, holder: Holder) -> str:
        return self.guard._value


class Strict(GuardedValue):
    """Refuses an equal token."""

    def __init__(self) -> None:
        super().__init__()
        self.guard._touch = self._refuse_equal  # type: ignore[method-assign]

    def _refuse_equal(self, holder: Holder) -> None:
        assert isinstance(holder, int)
        if holder <= self.guard.highest:
            raise StaleTokenError("equal")
        self.guard._fence.touch(holder)


class Trusting(GuardedValue):
    """Accepts whoever comes."""

    def __init__(self) -> None:
        super().__init__()
        self.guard._touch = lambda holder: None  # type: ignore[method-assign]


class WritesFirst(GuardedValue):
    """Looks at the token after the write."""

    def __init__(self) -> None:
        super().__init__()
        self.write = self._write

    def _write(self, holder: Holder, value: str) -> None:
        self.guard._value = value
        self.guard.touch(holder)


class RaisesOnWrite(GuardedValue):
    """Refuses a late reader, but does not raise the fence for a reader."""

    def __init__(self) -> None:
        super().__init__()
        self.read = self._read

    def _read(self, holder: Holder) -> str:
        assert isinstance(holder, int)
        if holder < self.guard.highest:
            raise StaleTokenError("late")
        return self.guard._value


@pytest.mark.parametrize("wrong", [Forgetful, Strict, Trusting, WritesFirst, RaisesOnWrite])
def test_a_wrong_guard_is_noticed(wrong: type[GuardedValue]) -> None:
    """At least one promise finds each."""
    found = 0
    for promise in PROMISES:
        try:
            promise(wrong)
        except (AssertionError, StaleTokenError, pytest.fail.Exception):
            found += 1
    assert found


# -- holders -------------------------------------------------------------------------------------------------


def test_a_lease_shows_its_token_and_the_refusal_says_whose_it_is(make: Make) -> None:
    """The error names the token, the lock, the owner and the resource."""
    resource = make()
    with tenure.Client("memory://", owner="anna\n") as client, client.lock("orders") as lease:
        resource.write(lease, "by a lease")
        assert lease.owner == "anna\n"
        newer = lease.token + 1
        resource.touch(newer)
        with pytest.raises(StaleTokenError) as caught:
            resource.write(lease, "late")
        assert f"token {lease.token} of orders (anna\\n) is stale" in str(caught.value)
        assert f"has seen token {newer}" in str(caught.value)
    with pytest.raises(StaleTokenError, match=r"^token 1 is stale"):
        resource.touch(1)
    assert resource.now() == "by a lease"


@pytest.mark.parametrize("wrong", [0, -1, True])
def test_what_is_no_token_is_refused(make: Make, wrong: int) -> None:
    """A guard never takes the first token for granted."""
    with pytest.raises(UsageError, match="needs a lease or its fencing token"):
        make().touch(wrong)


def test_a_store_without_tokens_is_refused() -> None:
    """The lease says so itself."""

    class Tokenless:
        name, owner = "name", ""

        @property
        def token(self) -> int:
            raise UsageError("the store has no tokens")

    with pytest.raises(UsageError, match="no tokens"):
        MemoryGuard("").touch(Tokenless())


# -- values --------------------------------------------------------------------------------------------------


def test_updates_of_threads_are_not_lost() -> None:
    """Each replaces the value in one step."""
    guard = MemoryGuard(0, highest=3)
    with ThreadPoolExecutor(8) as pool:
        for each in [pool.submit(guard.update, 5, lambda value: value + 1) for _ in range(400)]:
            each.result()
    assert guard.read(5) == 400
    with pytest.raises(StaleTokenError):
        MemoryGuard(0, highest=3).touch(2)
    assert repr(guard) == "<MemoryGuard 'the value' token 5>"


# -- files ---------------------------------------------------------------------------------------------------


def test_a_file_is_replaced_as_a_whole_and_keeps_its_mode(tmp_path: Path) -> None:
    """A reader without a guard sees the old content or the new one."""
    path = tmp_path / "data"
    guard = FileGuard(path)
    assert guard.read(1) is None
    guard.write(1, b"one")
    path.chmod(0o640)
    with path.open("rb") as reader:
        assert guard.update(2, lambda content: (content or b"") + b" two") == b"one two"
        assert reader.read() == b"one"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert sorted(each.name for each in tmp_path.iterdir()) == ["data", "data.fence"]


class Crash(BaseException):
    """The process dies here."""


@pytest.mark.parametrize("step", ["pwrite", "fsync 1", "open", "fsync 2", "replace", "fsync 3"])
def test_a_process_may_die_at_every_step_of_a_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """The content is the old one or the new one, the next holder writes, and an older one is refused by the fence."""
    path = tmp_path / "data"
    FileGuard(path).write(5, b"old")
    name, _, number = step.partition(" ")
    left = int(number or 1)

    def crash(real: Callable[..., object]) -> Callable[..., object]:
        def called(*args: object, **options: object) -> object:
            nonlocal left
            left -= 1
            if not left:
                raise Crash
            return real(*args, **options)

        return called

    with monkeypatch.context() as patch:
        target: object = Path if name in {"open", "replace"} else os
        patch.setattr(target, name, crash(getattr(target, name)))
        with pytest.raises(Crash):
            FileGuard(path).write(7, b"new")
    assert path.read_bytes() == (b"new" if step == "fsync 3" else b"old")
    if step != "pwrite":
        with pytest.raises(StaleTokenError):
            FileGuard(path).write(6, b"late")
    FileGuard(path).write(7, b"again")
    assert FileGuard(path).read(8) == b"again"


def test_a_fence_that_is_written_after_the_content_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above finds it: an older holder is accepted after the crash."""
    path = tmp_path / "data"
    FileGuard(path).write(5, b"old")
    monkeypatch.setattr(os, "pwrite", Mock(return_value=0))
    FileGuard(path).write(7, b"new")
    FileGuard(path).write(6, b"late")
    assert path.read_bytes() == b"late"


def test_a_damaged_fence_and_a_busy_file_are_told(tmp_path: Path) -> None:
    """Nobody is let in by mistake, and nobody waits for ever."""
    import fcntl

    path = tmp_path / "data"
    FileGuard(path).touch(5)
    (tmp_path / "data.fence").write_bytes(b"what?")
    with pytest.raises(UsageError, match="remove it"):
        FileGuard(path).touch(6)
    (tmp_path / "data.fence").unlink()
    FileGuard(path).touch(5)
    with (tmp_path / "data.fence").open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(StoreUnavailable, match=r"used by others for 0.05 s"):
            FileGuard(path, timeout=0.05).touch(6)


def count_up(path: str, tokens: range) -> None:
    """Add one to the number in a file for each token that is not refused, and note what was accepted."""
    guard = FileGuard(path, timeout=60.0)
    for token in tokens:
        try:
            guard.update(token, lambda content: b"%d" % (int(content or 0) + 1))
        except StaleTokenError:
            continue
        with Path(f"{path}.accepted").open("a") as file:
            file.write("x")


def test_processes_lose_no_update(tmp_path: Path) -> None:
    """The number is how often they were accepted, and all that was not stale was."""
    path = tmp_path / "number"
    processes = [
        multiprocessing.get_context("spawn").Process(target=count_up, args=(str(path), range(1 + each, 200, 4)))
        for each in range(3)
    ]
    for each in processes:
        each.start()
    for each in processes:
        each.join(60)
        assert each.exitcode == 0
    accepted = len((tmp_path / "number.accepted").read_text())
    assert int(path.read_bytes()) == accepted >= 50


# -- objects -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize("other", [6, 7, 8])
def test_a_put_between_the_read_and_the_put_begins_the_call_again(place: int, other: int) -> None:
    """At each put of ours another holder is faster once: nothing is lost, and whoever is older is refused."""
    bucket = Bucket()
    guard = ObjectGuard(bucket.read, bucket.write)
    guard.write(5, "-")
    expected = "-"

    def overtake() -> None:
        nonlocal expected
        try:
            ObjectGuard(bucket.read, bucket.write).update(other, lambda text: f"{text}o")
        except StaleTokenError:
            assert other == 6
        else:
            expected += "o"

    bucket.before_put = [*[lambda: None] * place, overtake]
    for _ in range(3):
        try:
            guard.update(7, lambda text: f"{text}w")
        except StaleTokenError:
            assert other == 8
            break
        expected += "w"
    assert sorted(bucket.stored.value) == sorted(expected)
    assert ("o" in expected) == (other > 6 or not place)


def test_a_put_whose_condition_always_fails_is_given_up() -> None:
    """With an error that says what to do."""
    tries = 0

    def refuse(_value: str, _token: int, _version: str) -> bool:
        nonlocal tries
        tries += 1
        return False

    async def refuse_later(value: str, token: int, version: str) -> bool:
        return refuse(value, token, version)

    bucket = Bucket()
    guard, later = ObjectGuard(bucket.read, refuse), AsyncObjectGuard(bucket.read_later, refuse_later)
    calls: list[Callable[[], object]] = [
        lambda: guard.touch(5),
        lambda: guard.write(5, "x"),
        lambda: asyncio.run(later.touch(5)),
        lambda: asyncio.run(later.write(5, "x")),
    ]
    for work in calls:
        with pytest.raises(StoreUnavailable, match="Try again"):
            work()
    assert tries == 4 * objects.TRIES


def test_a_guard_that_ignores_a_failed_condition_is_noticed() -> None:
    """The test above finds it: the other's put is lost."""
    bucket = Bucket()

    def careless(value: str, token: int, version: str) -> bool:
        bucket.write(value, token, version)
        return True

    guard = ObjectGuard(bucket.read, careless)
    guard.write(5, "-")
    bucket.before_put = [lambda: ObjectGuard(bucket.read, bucket.write).update(7, lambda text: f"{text}o")]
    guard.update(7, lambda text: f"{text}w")
    assert bucket.stored == StoredObject("-o", 7, "v2")


# -- Redis ---------------------------------------------------------------------------------------------------


def slot(key: str) -> int:
    """Return the slot of a key in a Cluster, as redis-py has it."""
    found: int = key_slot(key.encode())
    return found


@given(st.text(alphabet="{}ab:", max_size=12))
def test_a_fence_is_in_the_slot_of_its_key(key: str) -> None:
    """Or it is refused, because no other key can be in that slot."""
    try:
        fence = fence_of(key)
    except UsageError:
        assert "}" in key or not key
        return
    assert slot(fence) == slot(key)
    assert fence != key


def test_any_command_runs_behind_the_fence(client: Redis, space: str) -> None:
    """Its reply comes as Redis gives it; a command that fails leaves the fence raised."""
    guard, key = RedisGuard(client), f"{space}:order"
    assert guard.run(5, "HSET", key, "a", 1, "b", "x") == 2
    assert guard.run(5, "HGETALL", key) == [b"a", b"1", b"b", b"x"]
    assert guard.run(5, "HGET", key, "none") is None
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        guard.get(7, key)
    with pytest.raises(StaleTokenError):
        guard.run(6, "DEL", key)
    assert guard.delete(7, key)
    assert not guard.delete(7, key)
    with pytest.raises(StaleTokenError):
        guard.set(6, key, "late")
    assert client.get(fence_of(key)) == b"7"
    assert client.ttl(fence_of(key)) == -1


def test_a_fence_may_go_after_a_while(client: Redis, space: str) -> None:
    """If the user says so; each touch begins the time anew."""
    guard, key = RedisGuard(client, keep=100), f"{space}:brief"
    guard.touch(5, key)
    assert client.exists(key) == 0
    assert 90_000 < int(client.pttl(fence_of(key))) <= 100_000
    with pytest.raises(UsageError, match="keep"):
        RedisGuard(client, keep=0)


def test_a_token_of_any_size_is_compared_exactly(client: Redis, space: str) -> None:
    """Tokens are below 2**53, where Lua counts exactly."""
    guard, key = RedisGuard(client), f"{space}:large"
    guard.set(2**53 - 1, key, "x")
    with pytest.raises(StaleTokenError):
        guard.set(2**53 - 2, key, "late")
    assert client.get(fence_of(key)) == str(2**53 - 1).encode()


class TwoRequests(GuardedKey):
    """Checks in one request, and writes in another."""

    def __init__(self, client: Redis, key: str) -> None:
        super().__init__(client, key)
        self.between: Callable[[], object] = lambda: None

    def write(self, holder: Holder, text: str) -> None:
        """Replace the text."""
        self.touch(holder)
        between, self.between = self.between, lambda: None
        between()
        self.client.set(self.key, text)


def test_a_check_apart_from_the_write_lets_a_late_holder_write(client: Redis, space: str) -> None:
    """That is why the script does both."""
    wrong = TwoRequests(client, f"{space}:wrong")
    wrong.between = lambda: GuardedKey(client, wrong.key).write(7, "newer")
    wrong.write(6, "late")
    assert wrong.now() == "late"
    assert "redis.call(ARGV[3], KEYS[1]" in SCRIPT


def test_a_cluster_keeps_a_fence_beside_its_key(redis_cluster: Cluster, space: str) -> None:
    """Whatever the slot of the key, in both forms."""
    host, port = redis_cluster.nodes[0].address

    async def write_late(keys: list[str]) -> int:
        refused = 0
        async with AsyncRedisCluster(host=host, port=port) as client:
            for key in keys:
                with pytest.raises(StaleTokenError):
                    await AsyncRedisGuard(client).set(6, key, "late")
                refused += 1
        return refused

    keys = [f"{space}{number}" for number in range(12)]
    with closing(RedisCluster(host=host, port=port)) as client:
        for key in keys:
            RedisGuard(client).set(7, key, key)
        assert asyncio.run(write_late(keys)) == len(keys)
        assert [RedisGuard(client).get(7, key) for key in keys] == [key.encode() for key in keys]
