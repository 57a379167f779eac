"""Locks with `also="redis-py"` exclude redis-py's own Lock of the same name, whatever dies, expires or is lost."""

import asyncio
import contextlib
import itertools
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tenure import AsyncClient, Client, LeaseLost, LockTimeout, Outcome, UsageError
from tenure.contracts.messages import AcquireRequest, Granted, Withdrawn, WithdrawRequest
from tenure.contracts.store import Capabilities
from tenure.errors import OutcomeUnknown
from tenure.stores.redis import beside_redis_py, scripts
from tenure.stores.redis.beside_redis_py import MINE, RedisStoreBesideRedisPy, capabilities_beside
from tests.hazards.helpers import eventually
from tests.planting import planted
from tests.servers import RedisServer

redis: Any = import_module("redis")  # so that type checkers don't take tests/redis for it
Old: Any = import_module("redis.lock").Lock

NUMBERS = itertools.count()


@dataclass
class Scene:
    """A name of its own, a program with redis-py's Lock, and two with ours."""

    url: str
    name: str
    plain: Any
    here: Client
    there: Client

    def old(self, timeout: float | None = 20.0) -> Any:  # noqa: ANN401
        """Make redis-py's Lock of the name."""
        return Old(self.plain, self.name, timeout=timeout, sleep=0.005, thread_local=False)

    def value(self) -> str:
        """Return the value of the plain key."""
        return (self.plain.get(self.name) or b"").decode()

    def store(self, client: Client) -> RedisStoreBesideRedisPy:
        """Return the store of a client."""
        store = client.session().store
        assert isinstance(store, RedisStoreBesideRedisPy)
        return store


@contextlib.contextmanager
def scene_of(server: RedisServer) -> Generator[Scene]:
    """Begin a scene with a name of its own."""
    url = f"{server.url}?also=redis-py"
    with Client(url) as here, Client(url) as there, redis.Redis.from_url(server.url) as plain:
        yield Scene(url, f"beside-{next(NUMBERS)}", plain, here, there)


@pytest.fixture
def scene(redis_server: RedisServer) -> Iterator[Scene]:
    """Begin a scene at a server."""
    with scene_of(redis_server) as made:
        yield made


def old_keeps_ours_out(scene: Scene) -> None:
    """While the old lock is held ours is refused, says why, and is granted soon after the release or the expiry."""
    held = scene.old()
    assert held.acquire()
    assert scene.here.lock(scene.name).try_acquire() is None
    with pytest.raises(LockTimeout, match="held by a program with redis-py's Lock"):
        scene.here.lock(scene.name).acquire(timeout=0.1)
    (holder,) = scene.here.inspect(scene.name).holders
    assert holder.owner == "a program with redis-py's Lock"
    assert 0 < holder.expires_in <= 20
    threading.Timer(0.2, held.release).start()
    with scene.here.lock(scene.name, timeout=10) as lease:
        lease.check()
    assert scene.old(timeout=0.3).acquire()
    with scene.here.lock(scene.name, timeout=10):
        assert scene.value().startswith(MINE)


def ours_keeps_old_out(scene: Scene) -> None:
    """While ours is held the old lock is refused, for longer than a ttl; then it is granted at once."""
    with scene.here.lock(scene.name, ttl=3.0) as lease:
        until = time.monotonic() + 3.5
        while time.monotonic() < until:
            assert not scene.old().acquire(blocking=False)
            time.sleep(0.01)
        lease.check()
    old = scene.old()
    assert old.acquire(blocking=False)
    old.release()


def waiters_get_both(scene: Scene) -> None:
    """See that a waiter of ours that gets the name by a hand-off has the key by the time it is granted."""
    for holder, waiter in ((scene.here, scene.there), (scene.there, scene.here)) * 3:
        granted: list[bool] = []

        def wait(client: Client = waiter, granted: list[bool] = granted) -> None:
            with contextlib.suppress(LeaseLost), client.lock(scene.name, timeout=10) as lease:
                granted.append(scene.value() == MINE + lease._core.grant.request_id)
                granted.append(not scene.old().acquire(blocking=False))

        thread = threading.Thread(target=wait)
        with holder.lock(scene.name):
            thread.start()
            eventually(lambda: len(scene.here.inspect(scene.name).waiters) == 1, "a waiter")
        thread.join(20)
        assert granted == [True, True]


def a_key_that_is_gone_is_a_loss(scene: Scene) -> None:
    """Nobody's key but ours is touched, and the loss of ours is the loss of the lease."""
    lease = scene.here.lock(scene.name).acquire()
    scene.plain.delete(scene.name)
    old = scene.old()
    assert old.acquire(blocking=False)
    with pytest.raises(LeaseLost, match="its key"):
        lease.extend()
    assert lease.release() is not Outcome.RELEASED
    assert old.owned()
    old.release()
    lease = scene.here.lock(scene.name).acquire()
    scene.plain.set(scene.name, "somebody")
    assert lease.release() is Outcome.TAKEN_OVER
    assert scene.value() == "somebody"
    scene.plain.delete(scene.name)
    scene.there.lock(scene.name).acquire(timeout=10).release()


def who_gives_up_leaves_nothing(scene: Scene) -> None:
    """Neither the name, for ours, nor the key, for the old ones, whether or not the waiter had either."""
    old = scene.old()
    assert old.acquire()
    for timeout in (0, 0.2):
        with pytest.raises(LockTimeout):
            scene.here.lock(scene.name).acquire(timeout=timeout)
    old.release()
    scene.there.lock(scene.name).acquire(timeout=0).release()
    with scene.there.lock(scene.name), pytest.raises(LockTimeout):
        scene.here.lock(scene.name).acquire(timeout=0.2)
    assert old.acquire(blocking=False)
    old.release()


def lost_replies_change_nothing(scene: Scene) -> None:
    """See that a take whose reply is lost is repeated; one that arrives after the withdrawal takes nothing."""
    store, right = scene.store(scene.here), RedisStoreBesideRedisPy._keys
    lose = ["take", "give"]

    async def wrong(doing: str, *rest: Any) -> Any:  # noqa: ANN401
        answer = await right(store, doing, *rest)
        if doing in lose:
            lose.remove(doing)
            raise OutcomeUnknown("the reply is lost")
        return answer

    vars(store)["_keys"] = wrong
    lease = scene.here.lock(scene.name).acquire(timeout=10)
    assert scene.value() == MINE + lease._core.grant.request_id
    assert lease.release().kept
    assert not scene.value()
    del vars(store)["_keys"]

    async def main() -> None:
        async with AsyncClient(scene.url) as client:
            store: Any = client.session().store
            await client.inspect(scene.name)
            request = AcquireRequest(scene.name, "late", store._channel, "o", 10**7, 10**6, 10**6)
            until = client.session().runtime.now() + 10
            assert isinstance(await store.acquire(request, until), Granted)
            await store.withdraw(WithdrawRequest(scene.name, "late", unsure=True), until)
            assert await store._keys("take", [(scene.name, "late", 10**7)], until) == [(-1, "")]
            assert isinstance(await store.acquire(request, until), Withdrawn)

    asyncio.run(main())
    assert not scene.value()


def delays_keep_old_out(scene: Scene) -> None:
    """`min_hold` after a release, and `lock_delay` after an expiry, count for the old locks, too."""
    scene.here.lock(scene.name, min_hold=0.6).acquire().release()
    assert not scene.old().acquire(blocking=False)
    assert 0 < scene.plain.pttl(scene.name) <= 700
    assert scene.old().acquire(blocking_timeout=10)
    scene.plain.delete(scene.name)
    lease = scene.here.lock(scene.name, ttl=0.3, lock_delay=0.7, renew=False).acquire()
    assert lease.lost.wait(10)
    assert not scene.old().acquire(blocking=False)
    assert scene.old().acquire(blocking_timeout=10)


def a_revocation_frees_ours_alone(scene: Scene) -> None:
    """By force the lease and its key end; the key of another stays."""
    lease = scene.here.lock(scene.name).acquire()
    assert scene.there.revoke(scene.name, force=True)
    old = scene.old()
    assert old.acquire(blocking=False)
    assert lease.lost.wait(10)
    assert not scene.there.revoke(scene.name, force=True)
    assert old.owned()
    assert lease.release() is not Outcome.RELEASED
    assert old.owned()


def an_end_frees_both(scene: Scene) -> None:
    """See that a lease that nobody extends ends for both kinds of programs, and not before its holder knows."""
    lease = scene.here.lock(scene.name, ttl=0.5, renew=False).acquire()
    assert scene.old().acquire(blocking_timeout=10)
    assert lease.lost.is_set()
    scene.plain.delete(scene.name)
    lease = scene.here.lock(scene.name, ttl=20, renew=False).acquire()
    lease.extend(0.3)
    assert scene.old().acquire(blocking_timeout=10)
    assert lease.lost.is_set()


SCENES: dict[str, Callable[[Scene], None]] = {
    scene.__name__: scene
    for scene in (
        old_keeps_ours_out,
        ours_keeps_old_out,
        waiters_get_both,
        a_key_that_is_gone_is_a_loss,
        who_gives_up_leaves_nothing,
        lost_replies_change_nothing,
        delays_keep_old_out,
        a_revocation_frees_ours_alone,
        an_end_frees_both,
    )
}


@pytest.mark.parametrize("what", SCENES)
def test_a_scene(what: str, scene: Scene) -> None:
    """Each says what it shows."""
    SCENES[what](scene)


def test_what_needs_more_than_one_key_is_refused(redis_server: RedisServer) -> None:
    """redis-py's Lock has one holder on one server."""
    with Client(f"{redis_server.url}?also=redis-py") as client:
        with pytest.raises(UsageError, match="no semaphores"):
            client.semaphore("n", 2)
        with client.lock("handed") as lease, pytest.raises(UsageError):
            lease.detach()
    with pytest.raises(UsageError, match="`also` may be 'redis-py'"):
        Client(f"{redis_server.url}?also=pottery")
    with pytest.raises(UsageError, match="cannot have also"):
        Client(quorum=[f"redis://a:{port}?also=redis-py" for port in (1, 2, 3)])


# -- planted bugs ------------------------------------------------------------------------------------------

LATE = "lost_replies_change_nothing"
BUGS: list[tuple[str, str, str, str]] = [
    ("acquire", "if code == DONE:", "if True:", "old_keeps_ours_out"),
    ("acquire", "Busy(retry_in, (OTHERS,), stands=True)", "Busy(retry_in, (OTHERS,))", "who_gives_up_leaves_nothing"),
    ("acquire", "request.ttl + request.lock_delay", "request.ttl", "delays_keep_old_out"),
    (
        "acquire",
        "if code == WITHDRAWN:\n        return Withdrawn()",
        "if code == WITHDRAWN:\n        return reply",
        "lost_replies_change_nothing",
    ),
    ("renew", "if code == DONE else _lost", "if True else _lost", "a_key_that_is_gone_is_a_loss"),
    ("renew", 'self._keys("keep", keys', 'self._keys("look", keys', "ours_keeps_old_out"),
    ("release", "release.request_id, release.keep)", "release.request_id, 0)", "delays_keep_old_out"),
    ("release", "release.request_id in self._given or", "True or", "a_key_that_is_gone_is_a_loss"),
    ("release", '= await self._keys("give"', '= await self._keys("keep"', "ours_keeps_old_out"),
    ("withdraw", 'await self._keys("give"', 'await self._keys("look"', "lost_replies_change_nothing"),
    ("revoke", "value.startswith(MINE)", "False", "a_revocation_frees_ours_alone"),
    ("script", "value ~= mine", "false", "a_key_that_is_gone_is_a_loss"),
    ("script", "if call('GET', KEYS[2 * i + 1]) then code = -1 else", "do", "lost_replies_change_nothing"),
    ("script", "not value and doing == 'take'", "doing == 'take'", "old_keeps_ours_out"),
    ("script", "call('SET', key, mine, 'PX', ms)", "call('SET', key, mine)", "an_end_frees_both"),
    ("script", "'PX', ms)", "'EX', ms)", "an_end_frees_both"),
    ("script", "elseif left < ms or doing == 'give' then", "elseif doing == 'give' then", "ours_keeps_old_out"),
    ("able", "pushes_count", "", "waiters_get_both"),
]


def pushes_that_count(able: Capabilities) -> Capabilities:
    """Return the capabilities with one mistake."""
    return replace(capabilities_beside(able), pushes_count=True)


@pytest.mark.parametrize("bug", range(len(BUGS)))
def test_a_planted_bug_is_found(bug: int, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is one that a maintainer could bring in; a scene fails."""
    method, right, wrong, found_by = BUGS[bug]
    if method == "script":
        text = scripts.PLAIN_KEY.text
        assert text.count(right) == 1
        monkeypatch.setattr(scripts, "PLAIN_KEY", replace(scripts.PLAIN_KEY, text=text.replace(right, wrong)))
    elif method == "able":
        monkeypatch.setattr(beside_redis_py, "capabilities_beside", pushes_that_count)
    else:
        monkeypatch.setattr(RedisStoreBesideRedisPy, method, planted(RedisStoreBesideRedisPy, method, right, wrong))
    with pytest.raises(BaseException) as failure, scene_of(redis_server) as scene:  # noqa: PT011
        SCENES[found_by](scene)
    assert not isinstance(failure.value, (TypeError, NameError))


# -- histories ---------------------------------------------------------------------------------------------

ROUNDS, ROUNDS_OF_EACH = 2000, 21


def test_old_and_new_programs_exclude_each_other_for_thousands_of_rounds(  # noqa: C901 - one kind of program each
    redis_server: RedisServer,
) -> None:
    """Threads of redis-py's Lock and of ours, in both forms, take one name in turns; no two are ever inside.

    An old program that asks again at once overtakes those that are told that the name is free, so the rounds go on
    until each kind has had its own.
    """
    name, inside, failed = "mixed", threading.Lock(), list[BaseException]()
    took = Counter({"old": 0, "new": 0, "async": 0})
    url = f"{redis_server.url}?also=redis-py"

    def enter(kind: str) -> None:
        assert inside.acquire(blocking=False), "two are inside"
        took[kind] += 1
        inside.release()

    def unfinished() -> bool:
        return not failed and (took.total() < ROUNDS or min(took.values()) < ROUNDS_OF_EACH)

    def old() -> None:
        with redis.Redis.from_url(redis_server.url) as plain:
            while unfinished():
                with Old(plain, name, timeout=30, sleep=0.01):
                    enter("old")

    def new(timeout: float | None) -> None:
        with Client(url, operation_timeout=20.0) as client:
            client.inspect(name)  # so that no timeout counts for the connection
            while unfinished():
                with contextlib.suppress(LockTimeout), client.lock(name, timeout=timeout):
                    enter("new")

    async def tasks() -> None:
        async def work(client: AsyncClient) -> None:
            while unfinished():
                async with client.lock(name):
                    enter("async")

        async with AsyncClient(url, operation_timeout=20.0) as client:
            await asyncio.gather(*(work(client) for _ in range(3)))

    ours: list[Callable[[], None]] = [lambda: new(None), lambda: new(0.01), lambda: asyncio.run(tasks())]

    def run(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            failed.append(error)
            raise

    threads = [threading.Thread(target=run, args=(work,), daemon=True) for work in (old, old, old, *ours)]
    for thread in reversed(threads):  # ours first, which have more to connect
        thread.start()
        eventually(lambda: took.total() or failed, "the first round")
    end = time.monotonic() + 240
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    assert not failed
    assert not any(thread.is_alive() for thread in threads), took


PROGRAM = """
import sys, time, os
from redis import Redis
from redis.exceptions import RedisError
from redis.lock import Lock as Old
from tenure.compat.redis import Lock as New
kind, port, name, path = sys.argv[1:]
log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
plain = Redis(port=int(port))
make = Old if kind == "old" else New
while True:
    lock = make(plain, name, timeout=0.4, sleep=0.002)
    asked = time.monotonic()
    try:
        if not lock.acquire(blocking=False):
            time.sleep(0.003)
            continue
    except RedisError:  # the machine is busy, and the server did not answer in time
        continue
    got = time.monotonic()
    ends = asked + 0.4 if kind == "old" else got + lock.local.lease.remaining()
    os.write(log, f"{os.getpid()} {got} {ends} got\\n".encode())
    time.sleep(0.003)
    os.write(log, f"{os.getpid()} {time.monotonic()} {ends} left\\n".encode())
    try:
        lock.release()
    except Exception:
        pass
"""


def has_begun(log: Path, first: bytes) -> bool:
    """Tell whether a program has written a line."""
    return log.exists() and first in log.read_bytes()


def test_programs_that_are_killed_or_stopped_never_overlap(redis_server: RedisServer, tmp_path: Path) -> None:
    """Old and new processes are killed and stopped in the middle; what each could trust overlaps with no other's."""
    log, dice, kinds = tmp_path / "log", random.Random(7), ("old", "new", "old", "new")
    died: dict[int, float] = {}

    def start(kind: str) -> subprocess.Popen[bytes]:
        port = redis_server.url.rpartition(":")[2].partition("/")[0]
        return subprocess.Popen([sys.executable, "-c", PROGRAM, kind, port, "killed", str(log)])

    running = [start(kind) for kind in kinds]
    by_kind = {each.pid: kind for each, kind in zip(running, kinds, strict=True)}
    try:
        for _ in range(16):
            at = dice.randrange(len(running))
            first = f"{running[at].pid} ".encode()
            eventually(partial(has_begun, log, first), "its first round", 120)
            time.sleep(dice.uniform(0.0, 0.1))
            if dice.random() < 0.5:
                running[at].send_signal(signal.SIGSTOP)
                time.sleep(dice.uniform(0.1, 0.8))
                running[at].send_signal(signal.SIGCONT)
                continue
            running[at].kill()
            running[at].wait()
            died[running[at].pid] = time.monotonic()
            running[at] = start(kinds[at])
            by_kind[running[at].pid] = kinds[at]
    finally:
        for each in running:
            each.kill()
            each.wait()
    ended = time.monotonic()
    spans: list[tuple[float, float, int]] = []
    begun: dict[int, tuple[float, float]] = {}
    for line in log.read_text("utf-8").splitlines():
        pid, when, ends, what = line.split()
        if what == "got":
            begun[int(pid)] = (float(when), float(ends))
        else:
            got, ends_at = begun.pop(int(pid))
            spans.append((got, min(float(when), ends_at), int(pid)))
    spans += [(got, min(died.get(pid, ended), ends), pid) for pid, (got, ends) in begun.items()]
    spans = sorted(span for span in spans if span[0] < span[1])
    for before, after in itertools.pairwise(spans):
        assert before[1] <= after[0], (before, after, by_kind[before[2]], by_kind[after[2]])
    took = Counter(by_kind[pid] for _, _, pid in spans)
    assert min(took["old"], took["new"]) > 20, took
