"""With `wait_for_release=False` the end of a `with` waits for no reply, and loses nothing by that."""

import asyncio
import gc
import time
import warnings
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest

from tenure import AsyncClient, Client, EventKind, LockEvent, Outcome, TenureError
from tenure.core.release import Releases
from tenure.core.session import Session
from tenure.stores.etcd.http import HttpConversation
from tenure.stores.ordered.releasing import Releaser
from tenure.stores.postgresql.connection import PgConnection
from tenure.stores.postgresql.database import PgDatabase
from tenure.stores.redis.links.sockets import RedisConnection
from tenure.stores.sql.store import SqlStore
from tenure.transport import pool
from tenure.transport.aio import LoopLine
from tenure.transport.blocking import BlockingLine
from tenure.transport.pool import ConnectionPool
from tenure_testing.conformance.kit import Kit
from tests.faults.scenes import API_FORMS, client_at, play
from tests.hazards.helpers import Script, eventually
from tests.hazards.interrupting import before_the_release, sweep
from tests.hazards.test_cancellations import AGAIN, LATE, WAITING, cancelled
from tests.planting import planted
from tests.servers import EtcdServer, PostgresServer, Proxy, RedisServer
from tests.servers.etcd import after, encoded

TTL = 30.0
"""Far longer than a test: a name that is free was released."""

QUICK: dict[str, Any] = {"ttl": TTL, "wait_for_release": False, "operation_timeout": TTL / 3}
"""The client under test, which waits long for a reply."""

HURRIED = {**QUICK, "operation_timeout": 0.5}
"""One that soon repeats what was not answered."""

WITHIN = TTL / 2
"""How long to wait for what must happen, in seconds: only a failure uses it up."""


LAST = 4
"""The number of the release that a `close` has to wait for."""


class RedisPlace:
    """A Redis server."""

    repeated = Outcome.RELEASED
    """What a repeated release tells of a lease that the first one ended: the server remembers revocations."""
    dead = 1
    """How many waiters of a client stay in the queue that was closed without a word."""
    connection: type = RedisConnection

    def __init__(self, server: RedisServer) -> None:
        self.server = server
        self.url = server.url

    def forget(self, space: str) -> None:
        """Have the server forget who holds a name, without a word to the client."""
        with self.server.connect() as wire:
            keys: Any = wire.command("KEYS", f"*{space}:name*")
            wire.command("DEL", *keys)

    def begin_anew(self) -> None:
        """Have the server forget all scripts, as after a start."""
        with self.server.connect() as wire:
            wire.command("SCRIPT", "FLUSH")


class PostgresPlace:
    """A PostgreSQL server."""

    repeated = Outcome.RELEASED
    dead = 1
    connection: type = PgConnection

    def __init__(self, server: PostgresServer) -> None:
        self.server = server
        self.url = server.url

    def forget(self, space: str) -> None:
        """Have the server forget who holds a name, without a word to the client."""
        self.server.execute("DELETE FROM tenure_names WHERE name = %s", f"{space}:name")

    def begin_anew(self) -> None:
        """Do nothing: it keeps its functions, and each connection prepares its own statements."""


class EtcdPlace:
    """An etcd server."""

    repeated = Outcome.UNKNOWN
    dead = 0
    connection: type = BlockingLine

    def __init__(self, server: EtcdServer) -> None:
        self.server = server
        self.url = server.url

    def forget(self, space: str) -> None:
        """Have the server forget who holds a name, without a word to the client."""
        prefix = f"tenure/n/{quote(f'{space}:name', safe='')}/"
        self.server.command("kv/deleterange", key=encoded(prefix), range_end=encoded(after(prefix)))

    def begin_anew(self) -> None:
        """Do nothing: it has no scripts."""


Place = RedisPlace | PostgresPlace | EtcdPlace

KINDS: dict[str, type[RedisPlace] | type[PostgresPlace] | type[EtcdPlace]] = {
    "redis": RedisPlace,
    "postgres": PostgresPlace,
    "etcd": EtcdPlace,
}


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest) -> Place:
    """Return a server."""
    made: Place = KINDS[request.param](request.getfixturevalue(f"{request.param}_server"))
    return made


@pytest.fixture
def proxy(place: Place) -> Iterator[Proxy]:
    """Put a proxy in front of the server."""
    with Proxy(place.server.address) as running:
        yield running


def url_of(place: Place, proxy: Proxy) -> str:
    """Return the URL of a proxy."""
    (host, port), (to_host, to_port) = place.server.address, proxy.address
    return place.url.replace(f"{host}:{port}", f"{to_host}:{to_port}")


async def quick_at(kit: Kit, url: str, told: list[LockEvent], **options: Any) -> AsyncClient:  # noqa: ANN401
    """Return a client under test that has released before: its first release may wait, and bring what others need."""
    quick = client_at(kit, url, on_event=told.append, **options)
    async with quick.lock("warm"):
        pass
    await until(kit, told, "released")
    told.clear()
    return quick


async def until(kit: Kit, told: list[LockEvent], *causes: str) -> None:
    """Wait for the events of the ends of leases."""
    ends = [EventKind.RELEASED, EventKind.LOST]

    async def all_told() -> bool:
        return [each.cause for each in told if each.event in ends] == list(causes)

    await kit.until(all_told, f"there are {causes}", WITHIN)


async def holds_no_reply(kit: Kit, place: Place, proxy: Proxy) -> None:
    """Leave the body and free the name while the reply is under way, and hear the outcome later."""
    told: list[LockEvent] = []
    quick, other = await quick_at(kit, url_of(place, proxy), told, **QUICK), client_at(kit, place.url)
    lease = await quick.lock("name").acquire()
    proxy.delay(down=0.2)
    async with lease:
        pass
    assert not [each for each in told if each.event is EventKind.RELEASED], "the reply has not come"
    await (await other.lock("name").acquire(timeout=WITHIN)).release()
    assert await lease.release() is Outcome.RELEASED, "a call waits for the reply"
    await until(kit, told, "released")


async def is_repeated(kit: Kit, place: Place, proxy: Proxy) -> None:
    """Repeat a release that was sent and never arrived in the background, without another request."""
    told: list[LockEvent] = []
    quick, other = await quick_at(kit, url_of(place, proxy), told, **HURRIED), client_at(kit, place.url)
    lease = await quick.lock("name").acquire()
    proxy.lose()
    async with lease:
        pass
    await until(kit, told, "released")
    assert proxy.counts.lost == 1
    await (await other.lock("name").acquire(timeout=WITHIN)).release()


async def is_repeated_at_once(kit: Kit, place: Place, proxy: Proxy) -> None:
    """Do that as soon as the connection breaks, and not when the reply is overdue."""
    told: list[LockEvent] = []
    quick = await quick_at(kit, url_of(place, proxy), told, **QUICK)
    lease = await quick.lock("name").acquire()
    proxy.lose()
    async with lease:
        pass
    await until(kit, told, "released")


async def survives_a_lost_reply(kit: Kit, place: Place, proxy: Proxy) -> None:
    """Ask again for a reply that never comes; the lease counts as released where the server can tell."""
    told: list[LockEvent] = []
    quick = await quick_at(kit, url_of(place, proxy), told, **HURRIED)
    lease = await quick.lock("name").acquire()
    proxy.swallow(cut=False)
    async with lease:
        pass
    await until(kit, told, place.repeated.value)
    assert proxy.counts.swallowed == 1
    assert await lease.release() is place.repeated
    assert not await quick.lock("name").locked()


async def tells_of_a_loss(kit: Kit, place: Place, proxy: Proxy) -> None:
    """Report a reply that the store did not have the lease any more."""
    told: list[LockEvent] = []
    quick = await quick_at(kit, url_of(place, proxy), told, **QUICK)
    async with quick.lock("name") as lease:
        place.forget(kit.space)
    await until(kit, told, "refused")
    assert lease.state == "lost"


async def comes_before_the_next_request(kit: Kit, place: Place, proxy: Proxy) -> None:
    """Get the name again with one request, each time, from the first one on a new server on."""
    place.begin_anew()
    quick = client_at(kit, place.url, **QUICK)
    for _ in range(50):
        async with quick.lock("name", timeout=0):
            pass
    for _ in range(50):
        async with quick.rwlock("book", timeout=0).write():
            pass


async def is_not_overtaken(kit: Kit, place: Place, proxy: Proxy) -> None:
    """Get the name again over the connection on which the reply is owed: over another one it may come too early."""
    quick = await quick_at(kit, url_of(place, proxy), [], **QUICK)
    lease = await quick.lock("name").acquire()
    before = proxy.counts.connections
    proxy.delay(up=0.1)
    async with lease:
        pass
    await (await quick.lock("name").acquire(timeout=0)).release()
    assert proxy.counts.connections == before


async def needs_more_than_was_sent(kit: Kit, place: Place, proxy: Proxy) -> None:
    """Pass a waiter that is dead, for which one request is not enough in every store."""
    told: list[LockEvent] = []
    quick, other = await quick_at(kit, url_of(place, proxy), told, **QUICK), client_at(kit, place.url)
    lease = await quick.lock("name").acquire()
    dead = await kit.raw()
    await dead.acquire(dead.request("name"))
    await dead.close()
    waiting = kit.start(other.lock("name").acquire)
    await kit.waiters(other, "name", 1 + place.dead)
    async with lease:
        pass
    await (await waiting.result(WITHIN)).release()
    await until(kit, told, "released")


async def is_awaited_by_close(kit: Kit, place: Place, proxy: Proxy) -> None:
    """Leave no release behind when the client is closed."""
    told: list[LockEvent] = []
    quick, other = await quick_at(kit, url_of(place, proxy), told, **QUICK), client_at(kit, place.url)
    for number in range(LAST + 1):
        lease = await quick.lock(f"name {number}").acquire()
        trip = 0.1 if number < LAST else 1.0
        proxy.delay(up=trip, down=trip)
        async with lease:
            pass
        proxy.delay()
    await quick.close()
    await until(kit, told, *["released"] * (LAST + 1))
    assert await other.names() == []


async def is_awaited_by_drain(kit: Kit, place: Place, proxy: Proxy) -> None:
    """Wait in `drain` as well, which tells whether all is released within its time."""
    told: list[LockEvent] = []
    quick, other = await quick_at(kit, url_of(place, proxy), told, **QUICK), client_at(kit, place.url)
    lease = await quick.lock("name").acquire()
    proxy.delay(down=0.3)
    async with lease:
        pass
    assert await quick.drain(WITHIN)
    assert [each.cause for each in told if each.event is EventKind.RELEASED] == ["released"]
    assert not await other.lock("name").locked()
    proxy.delay()
    hurried = await quick_at(kit, url_of(place, proxy), [], **HURRIED)
    lease = await hurried.lock("name").acquire()
    proxy.blackhole(up=False)
    async with lease:
        pass
    assert not await hurried.drain(0.1)


async def survives_its_server(kit: Kit, place: Place, proxy: Proxy) -> None:
    """Repeat it until a server answers that was away for a while."""
    told: list[LockEvent] = []
    quick, other = await quick_at(kit, url_of(place, proxy), told, **HURRIED), client_at(kit, place.url)
    lease = await quick.lock("name").acquire()
    proxy.lose()
    proxy.refuse()
    async with lease:
        pass
    await until(kit, told, "unknown")
    assert await other.lock("name").locked()
    proxy.accept()
    await (await other.lock("name").acquire(timeout=WITHIN)).release()


async def tells_of_another_holder(kit: Kit, place: Place, proxy: Proxy) -> None:
    """Report a lease that somebody took by force, of which no notification has come."""
    told: list[LockEvent] = []
    quick, other = await quick_at(kit, url_of(place, proxy), told, **QUICK), client_at(kit, place.url)
    lease = await quick.lock("name").acquire()
    proxy.blackhole(up=False)
    assert len(await other.revoke("name", force=True)) == 1
    async with other.lock("name", timeout=WITHIN):
        async with lease:
            pass
        assert not [each for each in told if each.event is EventKind.LOST], "nothing has come"
        proxy.heal()
        await kit.until(lambda: is_told(told, EventKind.LOST), "the loss is told", WITHIN)
        assert await lease.release() is Outcome.TAKEN_OVER
    assert lease.state == "lost"


async def is_told(told: list[LockEvent], event: EventKind) -> bool:
    """Return whether an event was told once."""
    return len([each for each in told if each.event is event]) == 1


async def removes_all_that_there_is(kit: Kit, place: Place, proxy: Proxy) -> None:
    """Free a name at once that would be kept from others for a while if its lease were lost."""
    told: list[LockEvent] = []
    quick, other = await quick_at(kit, place.url, told, **QUICK), client_at(kit, place.url)
    async with quick.lock("name", lock_delay=TTL):
        pass
    await until(kit, told, "released")
    await (await other.lock("name").acquire(timeout=WITHIN)).release()


SCENES = (
    holds_no_reply,
    is_repeated,
    is_repeated_at_once,
    survives_a_lost_reply,
    tells_of_a_loss,
    comes_before_the_next_request,
    is_not_overtaken,
    needs_more_than_was_sent,
    is_awaited_by_close,
    is_awaited_by_drain,
    survives_its_server,
    tells_of_another_holder,
    removes_all_that_there_is,
)


@pytest.mark.parametrize("form", API_FORMS)
@pytest.mark.parametrize("scene", SCENES)
def test_a_release_that_nobody_waits_for(
    scene: Any,  # noqa: ANN401
    form: str,
    place: Place,
    proxy: Proxy,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It frees the name, is repeated until it is answered, and its outcome is told."""
    play(form, place.url, lambda kit: scene(kit, place, proxy))
    assert "ended by an error" not in caplog.text, "the renewer goes on"


FORKING = """
import logging, os, sys, tenure
logging.disable(logging.WARNING)  # of what a server's settings are bad for
told = []
client = tenure.Client(sys.argv[1], wait_for_release=False, operation_timeout=10, on_event=told.append)
client.lock("warm").acquire().release()
with client.lock("warm"):
    pass
lease = client.lock("name").acquire()
print("delay", flush=True)
sys.stdin.readline()
with lease:
    pass
pid = os.fork()
if pid == 0:
    print("child", client.lock("other").acquire().release().value, flush=True)
    client.close()
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
client.close()
print(*(each.cause for each in told if each.name == "name" and each.event in ("released", "lost")), flush=True)
"""


def test_a_forked_child_leaves_the_reply_to_its_parent(place: Place, proxy: Proxy) -> None:
    """It takes none of it, begins anew, and the parent hears of its release once."""
    script = Script(FORKING, url_of(place, proxy))
    assert script.hear() == "delay"
    proxy.delay(down=0.2)
    script.say()
    assert script.end() == ("child released\nreleased\n", "")


@pytest.mark.filterwarnings(
    "ignore:coroutine .* was never awaited",
    "ignore::pytest.PytestUnraisableExceptionWarning",  # Python swallows an interrupt in a finalizer
)
def test_an_interrupt_anywhere_leaves_no_name_held(place: Place) -> None:
    """Whether it comes while the release is sent, or while its reply is taken for another request."""
    with warnings.catch_warnings(), Client(place.url, **QUICK) as quick, Client(place.url) as other:
        warnings.simplefilter("ignore", ResourceWarning)  # of sockets and leases at the place of the interrupt

        def work(name: str) -> None:
            with quick.lock(f"swept:{name}", ttl=TTL), quick.lock(f"swept:{name}'", ttl=TTL):
                pass

        work("warm")
        places = list(sweep(lambda at: lambda: work(str(at)), stride=4))
        assert len(places) > 40, "the sweep goes through acquisitions and releases"
        held = {f"swept:{at}{which}" for at, where in places if before_the_release(where) for which in ("", "'")}
        eventually(lambda: set(other.names("swept:*")) <= held, "all are free whose release has begun", WITHIN)
        gc.collect()


@pytest.mark.parametrize("how", [WAITING, LATE, AGAIN])
def test_a_cancellation_at_any_await_leaves_no_name_held(place: Place, how: str) -> None:
    """Whether replies to releases are owed on the connection of the request that is cancelled, or not."""

    async def scene() -> None:
        async with AsyncClient(place.url, **QUICK) as quick, AsyncClient(place.url) as other:

            async def work(name: str) -> None:
                async with quick.lock(f"swept:{name}"), quick.lock(f"swept:{name}'"):
                    pass
                async with quick.lock(f"swept:{name}''", timeout=WITHIN):
                    pass

            async def run(at: int) -> bool:
                return await cancelled(work(f"{how} {at}"), at, how)

            await work("warm")
            ended: bool | BaseException = True
            at = 0
            while ended is not False:
                at += 1
                (ended,) = await asyncio.gather(asyncio.create_task(run(at)), return_exceptions=True)
                assert ended is False or isinstance(ended, asyncio.CancelledError)
            assert at > 3, "there was nothing to cancel"
            give_up_at = time.monotonic() + WITHIN
            while held := await other.names("swept:*"):
                assert time.monotonic() < give_up_at, f"{held} are not free"
                await asyncio.sleep(0.01)

    asyncio.run(scene())


def left_to_its_thread(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the renewer look for replies right after a release was sent, and then later."""
    kind: Any = place.connection
    right, looked = kind.collect, list[object]()

    def collect(connection: Any) -> None:  # noqa: ANN401
        looked.append(connection)
        right(connection)

    monkeypatch.setattr(kind, "collect", collect)
    with Client(place.url, **QUICK) as client:
        monkeypatch.setattr(pool, "REST", 3600.0)
        session: Any = client.session()
        collect_all, session.renewer.collect = session.renewer.collect, None  # this thread looks in its place
        for _ in range(3):
            with client.lock("name", timeout=0):
                pass
        looked.clear()  # the next request has taken what was owed by then
        session.store.collect_replies()
        assert not looked
        monkeypatch.setattr(pool, "REST", 0.0)
        session.renewer.collect = collect_all
        session.renewer.look_by(0.0)
        eventually(lambda: looked, "a look for the reply", WITHIN)


def test_a_connection_that_was_just_used_is_left_to_its_thread(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else its next request would go by another connection, overtake the release, and be refused by itself."""
    left_to_its_thread(place, monkeypatch)


def test_a_renewer_that_takes_it_away_is_noticed(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug."""
    wrong = planted(ConnectionPool, "take_owing", "now - connection.used >= REST", "True")
    monkeypatch.setattr(ConnectionPool, "take_owing", wrong)
    with pytest.raises(AssertionError):
        left_to_its_thread(place, monkeypatch)


BUGS: dict[str, tuple[type, str, str, str, Any]] = {
    "redis: a reply is taken for that to another request": (
        RedisConnection,
        "exchange",
        "if self.owed:",
        "if False:",
        comes_before_the_next_request,
    ),
    "postgres: a reply is taken for that to another request": (
        PgConnection,
        "_execute_behind",
        "yield from self._finish_owed()",
        "pass",
        comes_before_the_next_request,
    ),
    "postgres: a connection ends without a word": (
        PgConnection,
        "close",
        "while self.owed:",
        "while False:",
        is_repeated_at_once,
    ),
    "postgres: what has to be a step is one statement": (
        SqlStore,
        "send_release",
        "not is_plain_request(request)",
        "False",
        comes_before_the_next_request,
    ),
    "postgres: the lease counts as released though nothing was done": (
        SqlStore,
        "send_release",
        "None if outcome is Outcome.RELEASED else outcome",
        "outcome",
        needs_more_than_was_sent,
    ),
    "postgres: what the reply tells of the lease is not looked at": (
        PgDatabase,
        "send_release",
        "if table[0][0] == TRUE else self._snapshot(table, 1)",
        "",
        tells_of_a_loss,
    ),
    "nobody reads what comes on idle connections": (
        ConnectionPool,
        "take_owing",
        "and owed(connection)",
        "and not owed(connection)",
        tells_of_a_loss,
    ),
    "etcd: a reply is taken for that to another request": (
        HttpConversation,
        "reply",
        "if not self.owed:",
        "if True:",
        comes_before_the_next_request,
    ),
    "etcd: a connection on which a reply is owed is not used": (
        HttpConversation,
        "goes_on",
        "self._due == owed",
        "self._due == 0",
        is_not_overtaken,
    ),
    "etcd: a connection ends without a word": (
        BlockingLine,
        "close",
        "for told in owed:",
        "for told in ():",
        is_repeated_at_once,
    ),
    "etcd: a connection of asyncio ends without a word": (
        LoopLine,
        "cut",
        "while owed := self.conversation.owed:",
        "while owed := self.conversation.owed.copy().clear():",
        is_repeated_at_once,
    ),
    "etcd: the lease counts as released though its entry was gone": (
        Releaser,
        "send",
        "Outcome.RELEASED if listing is None else",
        "Outcome.RELEASED if True else",
        tells_of_a_loss,
    ),
    "etcd: entries besides the own one stay": (
        Releaser,
        "send",
        "contender.block",
        "False",
        removes_all_that_there_is,
    ),
    "what was not answered is not repeated": (
        Releases,
        "_told",
        "outcome is None:",
        "outcome is None and lease.dropped:",
        is_repeated,
    ),
    "nobody looks whether a reply comes": (Releases, "collect", "until <= now or", "", survives_a_lost_reply),
    "only other requests take the replies": (
        Releases,
        "collect",
        "self._sending.collect_replies()",
        "pass",
        tells_of_a_loss,
    ),
    "a drain does not wait": (
        Session,
        "drain",
        "self.attempts or self.releases.pending()",
        "self.attempts",
        is_awaited_by_drain,
    ),
    "redis, postgres: a close does not wait": (
        Session,
        "_close",
        "await self.releases.end(until)",
        "pass",
        is_awaited_by_close,
    ),
    "an outcome is assumed": (Releases, "_told", "self._settle(lease, outcome)", "pass", tells_of_a_loss),
}
"""Of all stores, or of those that begin the name. To end its session, etcd is sent a request behind the release."""


def concerned(bug: str) -> list[str]:
    """Return the stores in which a bug is planted."""
    named = bug.partition(":")[0].split(", ")
    return [kind for kind in KINDS if kind in named] or [*KINDS]


@pytest.mark.parametrize(("bug", "place"), [(bug, kind) for bug in BUGS for kind in concerned(bug)], indirect=["place"])
def test_a_planted_bug_is_found(bug: str, place: Place, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each by its scene, in threads if it does not name asyncio."""
    owner, method, right, wrong, scene = BUGS[bug]
    monkeypatch.setattr(owner, method, planted(owner, method, right, wrong))
    monkeypatch.setattr("tests.stores.test_releases_sent.WITHIN", 3.0)
    with pytest.raises((AssertionError, LookupError, TypeError, TenureError)):
        play(API_FORMS["asyncio" in bug], place.url, lambda kit: scene(kit, place, proxy))
