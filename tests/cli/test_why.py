"""`tenure why` names the cause, on real servers, in every situation in which a store can be."""

import json
import os
import signal
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

import tenure
from tenure.cli import run_app
from tenure.contracts.limits import EVERYBODY
from tenure.contracts.messages import AcquireRequest, Reply
from tenure.contracts.owner_metadata import OwnerMetadata
from tenure.runtimes.threads import drive
from tests.cli.conftest import TEST_TIMEOUT, Command, Done, until
from tests.servers import RedisServer

if TYPE_CHECKING:
    from pathlib import Path

    from tests.servers import EtcdServer, PostgresServer

Here = Callable[..., Done]

SECOND = 1_000_000


@dataclass
class Place:
    """A store, and clients of it."""

    kind: str
    url: str
    stack: ExitStack
    names: dict[str, str] = field(default_factory=dict[str, str])

    def __post_init__(self) -> None:
        self.clients: dict[str, tenure.Client] = {}
        self.pool = self.stack.enter_context(ThreadPoolExecutor(4))

    def client(self, owner: str) -> tenure.Client:
        """Return the client of an owner. It is open, for its short timeouts are not to be spent on connections."""
        if owner not in self.clients:
            self.clients[owner] = self.stack.enter_context(tenure.Client(self.url, owner=owner))
            drive(self.clients[owner].session().open())
        return self.clients[owner]

    def request(self, owner: str, name: str, *, ttl: float, waits: float = 60.0, weight: int = 1) -> Reply:
        """Send one request of a client that sends nothing more: as if its process stood still after it."""
        session = self.client(owner.partition("\x1f")[0]).session()
        request = AcquireRequest(
            name, uuid.uuid4().hex, session.channel, owner, round(ttl * SECOND), SECOND, round(waits * SECOND), weight
        )
        return drive(session.store.acquire(request, session.runtime.now() + 5.0))

    def wait(self, lock: Any, weight: int = 0) -> Future[Any]:  # noqa: ANN401 - a lock of any kind
        """Have a lock wait in a thread; the test ends the wait by closing the client."""
        return self.pool.submit(lambda: lock.acquire(TEST_TIMEOUT, **({"weight": weight} if weight else {})))

    def why(self, name: str, **options: Any) -> tenure.Explanation:  # noqa: ANN401 - of `Client.why`
        """Return what a client that has nothing to do with the name is told."""
        return self.client("somebody else").why(name, **options)


@pytest.fixture(params=["sqlite", "redis", "postgresql", "etcd"])
def place(request: pytest.FixtureRequest, tmp_path: "Path") -> Iterator[Place]:
    """Yield each kind of store."""
    kind: str = request.param
    url = f"sqlite://{tmp_path}/locks.db"
    if kind != "sqlite":
        fixture = {"redis": "redis_server", "postgresql": "postgres_server", "etcd": "etcd_server"}[kind]
        server: RedisServer | PostgresServer | EtcdServer = request.getfixturevalue(fixture)
        url = server.url
    with ExitStack() as stack:
        yield Place(kind, url, stack)


@pytest.fixture
def name() -> str:
    """Return a name of this test alone."""
    return f"why-{uuid.uuid4().hex[:12]}"


def on(place: Place, *kinds: str) -> bool:
    """Tell whether the place is one of these kinds."""
    return place.kind in kinds


# -- the situations ----------------------------------------------------------------------------------------------


def test_held_by_a_holder_that_renews(place: Place, name: str) -> None:
    """1: host, process, token and since when; the same in LockTimeout, also of asyncio."""
    owner = f"web-3/{os.getpid()}"
    with place.client(owner).lock(name) as lease:
        found = place.why(name)
        assert (found.cause, found.ahead) == (tenure.Cause.HELD, 0)
        (holder,) = found.holders
        assert (holder.host, holder.pid, holder.token) == ("web-3", os.getpid(), lease.token)
        assert holder.lasted is not None
        life = tenure.Life.UNKNOWN if on(place, "etcd") else tenure.Life.RENEWING
        assert holder.life is life
        assert bool(found.untold) == on(place, "etcd")
        with pytest.raises(
            tenure.LockTimeout, match=rf"not granted within 0\.1 s: it is held by {owner} \(for "
        ) as late:
            place.client("b").lock(name).acquire(timeout=0.1)
        assert late.value.explanation is not None
        assert [each.token for each in late.value.explanation.holders] == [lease.token]
        assert f"tenure release --token {lease.token} {name}" in [step.command for step in found.next]


def test_held_by_a_silent_holder(place: Place, name: str) -> None:
    """2: where the store tells it. In etcd a client that is silent loses its session, and nothing is claimed before."""
    place.request("stuck/99", name, ttl=8.0)
    if on(place, "etcd"):
        assert place.why(name).holders[0].life is tenure.Life.UNKNOWN
        return
    assert place.why(name).holders[0].life is tenure.Life.RENEWING
    until(lambda: place.why(name).holders[0].life is tenure.Life.SILENT, "it is called silent")
    found = place.why(name)
    assert found.cause is tenure.Cause.HELD
    assert "silent for " in found.text
    assert "renewing" not in found.text


def test_too_few_permits(place: Place, name: str) -> None:
    """3: the numbers are told, and the holders."""
    with place.client("a").semaphore(name, 4).acquire(weight=3):
        assert place.why(name).cause is tenure.Cause.FREE
        found = place.why(name, weight=2)
        assert found.cause is tenure.Cause.CAPACITY
        assert found.text.startswith("1 of 4 permits is free, and 2 are asked for: the others are held by a")
        with pytest.raises(tenure.LockTimeout, match="1 of 4 permits is free, and 2 are asked for"):
            place.client("b").semaphore(name, 4).acquire(0.1, weight=2)


def test_behind_a_writer(place: Place, name: str) -> None:
    """4: a reader that comes later is told of the writer, not of the readers alone; the writer is told of them."""
    with place.client("reader").rwlock(name).read():
        writer = place.wait(place.client("writer").rwlock(name).write())
        until(lambda: place.why(name).waiters, "the writer waits")
        found = place.why(name)
        assert found.cause is tenure.Cause.WRITER
        assert found.text.startswith("the writer writer (for ")
        assert "it is held by reader" in found.text
        assert found.ahead == 1
        with pytest.raises(tenure.LockTimeout, match=r"the writer writer .*, 1 waited before us"):
            place.client("late").rwlock(name).read().acquire(timeout=0.2)
        of_writer = place.why(name, owner="writer")
        assert (of_writer.cause, of_writer.ahead) == (tenure.Cause.HELD, 0)
        assert place.why(name, weight=EVERYBODY).cause is tenure.Cause.HELD
    writer.result(TEST_TIMEOUT).release()


def test_behind_a_waiter_for_many(place: Place, name: str) -> None:
    """5: there is room, but an earlier waiter needs more."""
    with place.client("a").semaphore(name, 4).acquire(weight=2):
        heavy = place.wait(place.client("heavy").semaphore(name, 4), 3)
        until(lambda: place.why(name).waiters, "it waits")
        found = place.why(name)
        assert found.cause is tenure.Cause.BEHIND
        assert "waits before for 3 permits, of which 2 of 4 are free" in found.text
    heavy.result(TEST_TIMEOUT).release()


def test_a_lock_delay(place: Place, name: str) -> None:
    """6: nobody holds the name, and everybody is kept out; also told to a call that does not wait."""
    lease = place.client("a").lock(name, lock_delay=30.0).acquire()
    place.client("a").revoke(name, force=True)
    found = place.why(name)
    assert (found.cause, found.holders) == (tenure.Cause.LOCK_DELAY, ())
    for timeout in (0, 0.1):
        with pytest.raises(
            tenure.LockTimeout, match=r"lock_delay keeps the name from everybody for another \d\d\.\d s"
        ):
            place.client("b").lock(name).acquire(timeout)
    assert found.next[0].command.startswith("tenure wait --timeout ")
    lease.release()


def test_a_min_hold(place: Place, name: str) -> None:
    """7: the holder has let go, and is not told as one that works."""
    place.client("a").lock(name, min_hold=20.0).acquire().release()
    found = place.why(name)
    assert found.cause is tenure.Cause.MIN_HOLD
    assert found.holders[0].life is tenure.Life.RELEASED
    assert not any("revoke" in step.command for step in found.next)
    with pytest.raises(tenure.LockTimeout, match=r"it was released, and the min_hold of a \("):
        place.client("b").lock(name).acquire(timeout=0.1)


def test_a_dead_head_of_the_queue(place: Place, command: Command, name: str) -> None:
    """8: its client sends nothing more. In etcd it holds the name by its place, until it is passed over."""
    if not on(place, "etcd"):
        place.request("a", name, ttl=1.0)
        place.request("dead", name, ttl=1.0, waits=0.2)
        until(lambda: place.why(name).cause is tenure.Cause.DEAD, "it is called dead")
        found = place.why(name)
        assert found.text.startswith("the waiter at the head of the queue, dead (for ")
        assert found.waiters[0].life is tenure.Life.GONE
        return
    lease = place.client("a").lock(name).acquire()
    waiter = command.start("lock", name, "--ttl", "1", "--owner", "dead", "--url", f"{place.url}?session_timeout=60")
    until(lambda: place.why(name).waiters, "it waits")
    waiter.send_signal(signal.SIGKILL)
    waiter.wait(TEST_TIMEOUT)
    lease.release()
    until(lambda: place.why(name).cause is tenure.Cause.DEAD, "it is called dead")
    assert place.why(name).text.startswith("dead (for ")


def test_a_circle_of_waiters(place: Place, name: str) -> None:
    """9: each holds what the other waits for."""
    other = f"{name}-other"
    pairs = (("anna", name, other), ("ben", other, name))
    for owner, held, _ in pairs:
        place.request(OwnerMetadata(owner, actor=f"{owner} thread of {owner}").text(), held, ttl=30.0)
    for owner, held, wanted in pairs:
        place.request(OwnerMetadata(owner, actor=f"{owner} thread of {owner}", holds=(held,)).text(), wanted, ttl=30.0)
    found = place.why(name)
    assert [reason.cause for reason in found.reasons] == [tenure.Cause.DEADLOCK, tenure.Cause.HELD]
    assert f"ben (thread of ben) waits for {name!r}, which anna (thread of anna) holds" in found.text
    assert (found.holders[0].thread, found.waiters[0].thread) == ("thread of anna", "thread of ben")


def test_a_paused_job(place: Place, name: str) -> None:
    """10: by its own name, and by that of its lock; a lock of the same name that is held is told as a lock."""
    client = place.client("a")
    client.once(name, window="daily").run(lambda: None)
    assert place.why(name).cause is tenure.Cause.FREE
    client.job(name).pause()
    for asked in (name, f"job:{name}"):
        found = place.why(asked)
        assert found.cause is tenure.Cause.PAUSED
        assert f"tenure job resume {name}" in [step.command for step in found.next]
    with client.lock(name):
        assert place.why(name).cause is tenure.Cause.HELD


def test_a_name_that_nobody_holds(place: Place, name: str) -> None:
    """11: names that may have been meant, of other namespaces too."""
    with place.client("a").lock(f"shop:{name}"), place.client("a").lock(f"{name}s"):
        found = place.why(name)
        assert found.cause is tenure.Cause.FREE
        assert found.near[:2] == (f"shop:{name}", f"{name}s")
        assert found.next[0].command == f"tenure why shop:{name}"


def test_a_quarantine(place: Place, name: str, tmp_path: "Path", request: pytest.FixtureRequest) -> None:
    """12: why, since when and until when; a holder does not hide it. Only a store that may forget has one."""
    if on(place, "sqlite", "etcd"):
        assert place.why(name).cause is tenure.Cause.FREE
        return
    with ExitStack() as stack:
        if on(place, "redis"):
            server = stack.enter_context(RedisServer(tmp_path))
            place.url = f"{server.url}?guard=strict"
        else:
            postgres: PostgresServer = request.getfixturevalue("postgres_server")
            place.stack.enter_context(place.client("a").lock(name))
            clock = "(extract(epoch from clock_timestamp()) * 1000000)::bigint"
            postgres.execute(
                f"UPDATE tenure_meta SET quarantined_since = {clock}, quarantined_until = {clock} + 20000000"  # noqa: S608
            )
            stack.callback(lambda: postgres.execute(f"UPDATE tenure_meta SET quarantined_until = {clock}"))  # noqa: S608
        with pytest.raises(tenure.LockTimeout, match="is quarantined: it grants nothing for another") as late:
            place.client("b").lock(name).acquire(timeout=0.2)
        assert late.value.explanation is not None
        assert late.value.explanation.cause is tenure.Cause.QUARANTINE
        until(lambda: "The quarantine began " in place.why(name).text, "it has begun")
        found = place.why(name)
        assert found.cause is tenure.Cause.QUARANTINE
        assert "tenure quarantine end" in [step.command for step in found.next]
        if on(place, "postgresql"):
            assert [reason.cause for reason in found.reasons] == [tenure.Cause.QUARANTINE, tenure.Cause.HELD]
        place.stack.pop_all().close()


def test_an_eviction(redis_server: RedisServer, name: str) -> None:
    """13: Redis has lost the state of a name that is waited for."""
    with ExitStack() as stack:
        place = Place("redis", redis_server.url, stack)
        place.request("a", name, ttl=30.0)
        place.request("b", name, ttl=30.0)
        assert place.why(name).cause is tenure.Cause.HELD
        assert redis_server.command("HDEL", f"tenure:{{{name}}}", "=") == 1
        until(lambda: place.why(name).cause is tenure.Cause.EVICTED, "the loss is told")


# -- the command -------------------------------------------------------------------------------------------------


def test_the_command_prints_sentences(here: Here, client: tenure.Client) -> None:
    """The cause first, then who, then what can be typed; status 0 also of a free name."""
    with client.lock("orders") as lease:
        done = here("why", "orders")
        assert done.status == 0
        first, *rest = done.output.splitlines()
        assert first.startswith("orders: it is held by the test (for ")
        assert rest[0].startswith("holder: the test (for ")
        assert rest[0].endswith(f"token {lease.token}")
        assert f"next: `tenure release --token {lease.token} orders` takes the name from that holder" in done.output
    free = here("why", "orders")
    assert (free.status, free.output.splitlines()[0]) == (
        0,
        "orders: nobody holds it, and nothing keeps it from being granted.",
    )
    nobody = here("why", "orders", "--owner", "nobody")
    assert (nobody.status, nobody.output) == (64, "")
    assert "'nobody' does not wait for this name" in nobody.errors


def test_the_command_prints_json(here: Here, client: tenure.Client) -> None:
    """Every field, and numbers where the sentences have numbers."""
    with client.lock("orders") as lease:
        found = json.loads(here("why", "orders", "--json").output)
    assert (found["name"], found["cause"], found["ahead"]) == ("orders", "held", 0)
    assert found["text"] == found["reasons"][0]["text"]
    (holder,) = found["holders"]
    assert (holder["owner"], holder["token"], holder["life"]) == ("the test", lease.token, "renewing")
    assert [step["command"] for step in found["next"]][-1] == "tenure show orders"


def test_a_namespace_is_part_of_the_commands(here: Here, command: Command) -> None:
    """And not of the name."""
    with tenure.Client(command.url, namespace="my shop") as client, client.lock("orders"):
        done = here("why", "orders", "--namespace", "my shop")
        assert done.output.startswith("orders: it is held by")
        assert "`tenure show --namespace 'my shop' orders`" in done.output
        assert "`tenure why 'my shop:orders'`" in here("why", "orders").output


def test_an_owner_cannot_forge_a_line(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    """Escape sequences and line breaks of others are shown, not obeyed."""
    with tenure.Client(command.url, owner="eve\x1b[2J\nnext: `rm -rf /`") as eve, eve.lock("orders\n\x1b[2J"):
        assert run_app(["why", "orders\n\x1b[2J", "--url", command.url]) == 0
    text = capsys.readouterr().out
    assert "\x1b" not in text
    assert not any(line.startswith("next: `rm") for line in text.splitlines())
    assert r"eve\x1b[2J\nnext" in text


def test_no_password_is_shown(redis_acl: RedisServer, capfd: pytest.CaptureFixture[str], name: str) -> None:
    """Not in the sentences, the JSON, or the error of a timeout."""
    with tenure.Client(redis_acl.url_for("tenure", "a-secret")) as client, client.lock(name):
        with pytest.raises(tenure.LockTimeout) as late:
            client.lock(name).acquire(timeout=0.1)
        for options in ([], ["--json"]):
            assert run_app(["why", name, "--url", redis_acl.url_for("tenure", "a-secret"), *options]) == 0
    captured = capfd.readouterr()
    for text in (captured.out, str(late.value), repr(late.value.explanation)):
        assert "a-secret" not in text
