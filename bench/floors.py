"""The floors: the least work that a lock of some kind needs. Most of them are no locks, for they wait for nobody."""

import base64
import http.client
import itertools
import json
import os
import secrets
import socket
import sqlite3
import uuid
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from tenure import Client

NAME = "bench"
VALUE = "0123456789abcdef0123456789abcdef"
PLENTY = 10**12
TTL = 30

SQLITE = "bare SQLite pair"
OWN, LEAST = "bare socket, own scripts", "bare socket, least scripts"
ALL_AT_ONCE, PING = "bare socket, all at once", "PING"
NODES_OWN, NODES_LEAST = "bare sockets, own scripts", "bare sockets, least scripts"
ADVISORY, GET_LOCK = "bare advisory lock", "bare GET_LOCK"
CALLS, TRIPS = "bare calls of tenure's functions", "bare SELECT 1, twice"
ADD_DELETE, OWN_SWAPS = "bare socket, add and delete", "bare socket, own commands"
CREATE_DELETE, PUT_DELETE = "kazoo create + delete", "bare put + delete"

MEANINGS = {
    SQLITE: "floor: UPSERT, then DELETE, two transactions on the same file with the same settings",
    OWN: "floor: Tenure's two EVALSHA, and nothing else",
    LEAST: "floor: EVALSHA of SET NX PX, then of compare-and-delete; no queue, no fencing token",
    ALL_AT_ONCE: "floor: Tenure's EVALSHAs over a bare socket, those of all tasks sent together",
    PING: "floor: one PING and its reply, on an idle connection",
    NODES_OWN: "floor: the two EVALSHA of one node, sent to all at once, all replies awaited",
    NODES_LEAST: (
        "floor: SET NX PX, then EVALSHA of compare-and-delete, to all at once; goes on when a majority has replied"
    ),
    ADVISORY: "floor: pg_advisory_lock + pg_advisory_unlock, prepared, by libpq alone, one connection a thread",
    GET_LOCK: "floor: GET_LOCK + RELEASE_LOCK, one PyMySQL connection a thread",
    CALLS: "floor: the two statements that tenure sends, by libpq alone; no lock, for it waits for nobody",
    TRIPS: "floor: two round trips by libpq alone",
    ADD_DELETE: "floor: add, then compare-and-delete; nothing remembers the last fencing token",
    OWN_SWAPS: "floor: Tenure's two compare-and-swaps, and nothing else",
    CREATE_DELETE: "floor: an ephemeral sequence node made, then removed",
    PUT_DELETE: "floor: a transaction that puts a key, then its removal, over one connection of http.client",
}


class Handle(Protocol):
    """The handle of one thread or process to a lock. `acquire` returns False if it gave up."""

    def acquire(self) -> object:
        """Wait until the lock is held."""
        ...

    def release(self) -> object:
        """Release the lock."""
        ...


@dataclass(slots=True)
class Work:
    """A handle made of two functions, or of one that does the work of both."""

    acquire: Callable[[], object]
    release: Callable[[], object] = bool


Handles = Generator[Sequence[Handle]]


def nodes(url: str) -> list[str]:
    """Return the URL of each node of a quorum, or of the only one."""
    return [f"redis://{host}:{port}/0" for host, port in addresses(url)]


def addresses(url: str) -> list[tuple[str, int]]:
    """Return the addresses in a URL."""
    pairs = (each.rpartition(":") for each in urlsplit(url).netloc.split(","))
    return [(host, int(port)) for host, _, port in pairs]


# -- files --------------------------------------------------------------------------------------------------------


@contextmanager
def sqlite(url: str, _want: object) -> Handles:
    """Insert one row, and delete it, in the database file of the store, which must have made it."""
    with Client(url) as client:
        client.names()
    with closing(sqlite3.connect(urlsplit(url).path, isolation_level=None)) as connection:
        execute = connection.execute
        execute("PRAGMA synchronous = OFF")  # as the store does; WAL mode is a property of the file
        execute("CREATE TABLE bench (name TEXT PRIMARY KEY, holder TEXT, expires_at INTEGER) WITHOUT ROWID")
        upsert = (
            "INSERT INTO bench (name, holder, expires_at) VALUES (?, ?, ?) ON CONFLICT (name) DO UPDATE "
            "SET holder = excluded.holder, expires_at = excluded.expires_at"
        )
        row = (NAME, VALUE, 1_700_000_000_000_000)
        yield [Work(partial(execute, upsert, row), partial(execute, "DELETE FROM bench WHERE name = ?", (NAME,)))]


@contextmanager
def pipe(url: str, _want: object) -> Handles:
    """Use a byte in a named pipe as the lock, which is the least cost of waking another process."""
    descriptor = os.open(Path(urlsplit(url).path).parent / "pipe", os.O_RDWR)
    try:
        yield [Work(partial(os.read, descriptor, 1), partial(os.write, descriptor, b"."))]
    finally:
        os.close(descriptor)


# -- Redis --------------------------------------------------------------------------------------------------------

TAKE = "return redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2])"
LET_GO = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"
DECREMENT = """
if redis.call('SET', KEYS[2], 1, 'NX', 'PX', 60000) then
    if tonumber(redis.call('GET', KEYS[1]) or '0') < tonumber(ARGV[1]) then return 0 end
    redis.call('DECRBY', KEYS[1], ARGV[1])
    return tonumber(ARGV[1])
end
return -1
"""
"""A decrement that is not repeated if its request is: it remembers the id of the request for a minute."""


class BareSocket:
    """A connection that sends commands packed by hiredis, and returns the replies."""

    def __init__(self, connected: socket.socket) -> None:
        """Use a connected socket."""
        import hiredis

        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        reader = hiredis.Reader()
        packing: Any = hiredis
        self.pack: Callable[[Any], bytes] = packing.pack_command
        self.send, self._recv = connected.sendall, connected.recv
        self._feed, self._gets = reader.feed, reader.gets

    def exchange(self, *words: Any) -> Any:  # noqa: ANN401 - whatever the server answers
        """Send one command and return its reply."""
        self.send(self.pack(words))
        return self.reply()

    def reply(self) -> Any:  # noqa: ANN401
        """Return the next reply."""
        while (reply := self._gets()) is False:
            self._feed(self._recv(65536))
        return reply


@contextmanager
def bare_sockets(url: str, each: int = 1) -> Generator[list[BareSocket]]:
    """Connect to all nodes of a URL, `each` times."""
    with ExitStack() as stack:
        places = [address for address in addresses(url) for _ in range(each)]
        yield [BareSocket(stack.enter_context(closing(socket.create_connection(place)))) for place in places]


class OwnScripts:
    """The exact commands that Tenure sends for one name."""

    def __init__(self, bare: BareSocket, name: str = NAME) -> None:
        """Load the scripts, and learn the identity of the server process."""
        from tenure.contracts.deadlines import micros
        from tenure.contracts.limits import MAX_TTL
        from tenure.contracts.messages import AcquireRequest
        from tenure.stores.redis import codec, scripts
        from tenure.stores.redis.links import wire
        from tenure.stores.redis.links.link import RedisAddress
        from tenure.stores.redis.names import NODE, state_key

        self._codec, self._scripts, self._node, self._number = codec, scripts, NODE, wire.number
        for script in (scripts.ACQUIRE, scripts.RELEASE):
            bare.exchange("SCRIPT", "LOAD", script.text)
        replies = bare.exchange("INFO", "server"), bare.exchange("INFO", "replication")
        self._run_id = wire.identity_of(RedisAddress(""), *replies)
        prefix = secrets.token_hex(16)
        self.channel = f"{prefix}-0"
        self._requests = (f"{prefix}-{n:x}" for n in itertools.count(1))
        self.asked = AcquireRequest(name, "", self.channel, "host/1234", micros(TTL), 1_000_000, 4_000_000)
        guard, bound = 1, micros(MAX_TTL)  # how Tenure guards against restarts, and its max_ttl, by default
        self._release_fields = codec.release_fields(guard, bound, sharded=False)
        self._request_fields = codec.request_fields(self.asked, guard, bound, sharded=False)
        self._seen = b""
        self._state = state_key(prefix)
        self._seen, granted = bare.exchange(*self.acquire())  # tells the generation, which later replies need not
        bare.exchange(*self.release(granted[1]))
        self._state = state_key(name)

    def acquire(self) -> tuple[Any, ...]:
        """Return the command of the next acquire request."""
        self.asked.request_id = next(self._requests)
        return self._evalsha(self._scripts.ACQUIRE, self._request_fields, self._codec.acquire_numbers(1, 0))

    def release(self, token: int) -> tuple[Any, ...]:
        """Return the command that releases the last grant."""
        return self._evalsha(self._scripts.RELEASE, self._release_fields, self._codec.release_numbers(0, token, 0))

    def _evalsha(self, script: Any, fields: bytes, numbers: bytes) -> tuple[Any, ...]:  # noqa: ANN401
        state, request = self._state, self.asked.request_id
        keys = (self._node, state, state + ":q", f"{state}:t:{request}")
        args = (fields, self._seen, numbers + request.encode(), *([] if self._seen else [self._run_id]))
        return (b"EVALSHA", script.digest, self._number(len(keys)), *keys, *args)


def granted_token(reply: Any) -> int | None:  # noqa: ANN401 - as a script returns it
    """Return the token in a reply of `acquire`, or None if that is no grant."""
    if isinstance(reply, int):
        return reply
    if isinstance(reply, bytes):
        return None
    return int(reply[1]) if reply[0] == 1 else None


@contextmanager
def own_scripts(url: str, _want: object) -> Handles:
    """Send Tenure's scripts over a bare socket; a waiter reads the channel on another.

    It is no lock, for it handles no timeout, no lost notification, no renewal and no second thread.
    """
    with bare_sockets(url, 2) as (bare, channel):
        mine, token = OwnScripts(bare), 0
        channel.exchange("SUBSCRIBE", f"tenure:channel:{mine.channel}")

        def acquire() -> None:
            nonlocal token
            granted = granted_token(bare.exchange(*mine.acquire()))
            token = pushed() if granted is None else granted

        def pushed() -> int:
            while True:
                kind, pushed_token, request = channel.reply()[2].split()
                if kind in {b"G", b"g"} and request == mine.asked.request_id.encode():
                    return int(pushed_token)

        def release() -> None:
            released = bare.exchange(*mine.release(token))
            assert released == 1  # noqa: S101 - else this is no floor

        yield [Work(acquire, release)]


@contextmanager
def least_scripts(url: str, _want: object) -> Handles:
    """Send the two commands of a plain lock in Redis: SET NX PX, and compare-and-delete."""
    with bare_sockets(url) as (bare,):
        take, let_go = (bare.exchange("SCRIPT", "LOAD", text) for text in (TAKE, LET_GO))

        def acquire() -> None:
            taken = bare.exchange(b"EVALSHA", take, b"1", "bare", VALUE, str(TTL * 1000))
            assert taken == b"OK"  # noqa: S101

        def release() -> None:
            released = bare.exchange(b"EVALSHA", let_go, b"1", "bare", VALUE)
            assert released == 1  # noqa: S101

        yield [Work(acquire, release)]


@contextmanager
def all_at_once(url: str, want: Any) -> Handles:  # noqa: ANN401 - `contenders` imports this module
    """Send Tenure's scripts of all members together; the only handle stands for all of them."""
    with bare_sockets(url) as (bare,):
        mine = [OwnScripts(bare, f"bare-{number}") for number in range(want.members)]
        tokens: list[int] = []

        def together(commands: list[tuple[Any, ...]]) -> list[Any]:
            bare.send(b"".join(map(bare.pack, commands)))
            return [bare.reply() for _ in commands]

        def acquire() -> None:
            tokens[:] = [granted_token(reply) or 0 for reply in together([each.acquire() for each in mine])]

        def release() -> None:
            together([each.release(token) for each, token in zip(mine, tokens, strict=True)])

        yield [Work(acquire, release)]


@contextmanager
def pings(url: str, _want: object) -> Handles:
    """Send a PING."""
    with bare_sockets(url) as (bare,):
        yield [Work(partial(bare.exchange, "PING"))]


def decrement(client: Any, _want: object) -> Handle:  # noqa: ANN401 - partly untyped
    """Decrement a number by a script that is exact."""
    client.set("units", PLENTY)
    script = client.register_script(DECREMENT)
    return Work(lambda: script(keys=["units", f"request:{uuid.uuid4().hex}"], args=[1]))


def plain_decrement(client: Any, _want: object) -> Handle:  # noqa: ANN401
    """Decrement a number."""
    client.set("plain-units", PLENTY)
    return Work(partial(client.decr, "plain-units"))


@contextmanager
def least_scripts_of_all(url: str, _want: object) -> Handles:
    """Send the two commands of every Redlock. It awaits the replies of a majority, and then reads the others."""
    with bare_sockets(url) as bares:
        majority = len(bares) // 2 + 1
        (let_go,) = {bare.exchange("SCRIPT", "LOAD", LET_GO) for bare in bares}
        take = bares[0].pack(("SET", "bare", VALUE, "NX", "PX", str(TTL * 1000)))
        release = bares[0].pack((b"EVALSHA", let_go, b"1", "bare", VALUE))

        def send(command: bytes) -> list[Any]:
            for bare in bares:
                bare.send(command)
            return [bare.reply() for bare in bares[:majority]]

        def pair() -> None:
            taken, released = send(take), send(release)
            for bare in bares[majority:]:
                taken.append(bare.reply())
                released.append(bare.reply())
            assert set(taken) == {b"OK"}  # noqa: S101 - else this is no floor
            assert set(released) == {1}  # noqa: S101

        yield [Work(pair)]


@contextmanager
def own_scripts_of_all(url: str, _want: object) -> Handles:
    """Send Tenure's own scripts for one node to all, before the first reply is read."""
    with bare_sockets(url) as bares:
        each = [(bare, OwnScripts(bare)) for bare in bares]

        def pair() -> None:
            for bare, mine in each:
                bare.send(bare.pack(mine.acquire()))
            taken = [granted_token(bare.reply()) for bare in bares]
            assert None not in taken  # noqa: S101
            for (bare, mine), token in zip(each, taken, strict=True):
                bare.send(bare.pack(mine.release(token or 0)))
            released = [bare.reply() for bare in bares]
            assert set(released) == {1}  # noqa: S101

        yield [Work(pair)]


# -- databases ----------------------------------------------------------------------------------------------------


@contextmanager
def libpq(url: str, **statements: str) -> Generator[Any]:
    """Connect by libpq alone, and prepare statements."""
    pgconn = import_module("psycopg.pq").PGconn.connect(url.encode())
    try:
        for name, text in statements.items():
            pgconn.prepare(name.encode(), text.encode())
        yield pgconn
    finally:
        pgconn.finish()


@contextmanager
def advisory(url: str, want: Any) -> Handles:  # noqa: ANN401
    """Take PostgreSQL's own locks."""
    statements = {"lock": "SELECT pg_advisory_lock(4711)", "unlock": "SELECT pg_advisory_unlock(4711)"}
    with ExitStack() as stack:
        connections = [stack.enter_context(libpq(url, **statements)) for _ in range(want.members)]
        yield [
            Work(partial(pgconn.exec_prepared, b"lock", ()), partial(pgconn.exec_prepared, b"unlock", ()))
            for pgconn in connections
        ]


@contextmanager
def calls(url: str, _want: object) -> Handles:
    """Send the two statements of a pair of Tenure on a name of its own."""
    with Client(url) as client:
        client.names()  # makes the tables
    from tenure.contracts import forms
    from tenure.stores.sql.rows import pack_holder

    statements = import_module("tenure.stores.postgresql.statements").PgStatements("", "tenure_")
    holder = pack_holder("tenure_0123456789abcdef", "host/1234", notify_contended=True).encode()
    prefix, numbers = secrets.token_hex(16).encode(), itertools.count(1)
    lease = (b"%d" % (TTL * 1_000_000), b"0", b"0", b"1000000")
    waiter = (b'"0123456789abcdef","tenure_0123456789abcdef","host/1234"', b"tenure_0123456789abcdef", b"4000000")
    rules = (b"60000000", b"f", b"%d" % forms.READS)
    request_id = b""
    with libpq(url) as pgconn:
        pgconn.exec_(b"SET plan_cache_mode = force_generic_plan")
        for each in (statements.acquire, statements.release):
            pgconn.prepare(each.name, each.text)

        def acquire() -> None:
            nonlocal request_id
            request_id = b"%b-%x" % (prefix, next(numbers))
            sent = (b"bare", request_id, holder, *lease, *waiter, *rules)
            granted = pgconn.exec_prepared(statements.acquire.name, sent)
            assert int(granted.get_value(0, 0)) > 0  # noqa: S101 - else this is no floor

        def release() -> None:
            released = pgconn.exec_prepared(statements.release.name, (b"bare", request_id, *rules))
            assert released.get_value(0, 0) == b"t"  # noqa: S101

        yield [Work(acquire, release)]


@contextmanager
def trips(url: str, _want: object) -> Handles:
    """Send two statements that do nothing."""
    with libpq(url, one="SELECT 1") as pgconn:
        trip = partial(pgconn.exec_prepared, b"one", ())
        yield [Work(trip, trip)]


@contextmanager
def get_lock(url: str, want: Any) -> Handles:  # noqa: ANN401
    """Take MySQL's own locks."""
    parts = urlsplit(url)
    connect = import_module("pymysql").connect
    login = {"user": parts.username, "password": parts.password, "database": parts.path[1:]}

    def run(cursor: Any, sql: str) -> None:  # noqa: ANN401
        cursor.execute(sql, (NAME,))
        assert cursor.fetchone() == (1,)  # noqa: S101 - else it is not held

    with ExitStack() as stack:
        handles: list[Handle] = []
        for _ in range(want.members):
            connection = connect(host=parts.hostname, port=parts.port, autocommit=True, **login)
            cursor = stack.enter_context(closing(connection)).cursor()
            handles.append(
                Work(partial(run, cursor, "SELECT GET_LOCK(%s, 60)"), partial(run, cursor, "SELECT RELEASE_LOCK(%s)"))
            )
        yield handles


# -- memcached and etcd -------------------------------------------------------------------------------------------


@contextmanager
def _exchange(url: str) -> Generator[Callable[[bytes], bytes]]:
    """Yield a function that sends a command to memcached and returns the one packet of its reply."""
    with closing(socket.create_connection(addresses(url)[0])) as connected:
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def exchange(packed: bytes) -> bytes:
            connected.sendall(packed)
            return connected.recv(65_536)

        yield exchange


@contextmanager
def add_delete(url: str, _want: object) -> Handles:
    """Send the two commands of a plain lock in memcached: add, and compare-and-delete."""
    from tenure.stores.memcached.protocol import pack_add

    with _exchange(url) as exchange:

        def pair() -> None:
            stored = exchange(pack_add(b"bare", VALUE.encode(), TTL))
            deleted = exchange(b"md bare C%b\r\n" % stored[4:-2])
            assert (stored[:4], deleted) == (b"HD c", b"HD\r\n")  # noqa: S101 - else this is no floor

        yield [Work(pair)]


@contextmanager
def own_swaps(url: str, _want: object) -> Handles:
    """Send the two commands that Tenure sends for a name that it knows."""
    from tenure.stores.memcached.protocol import pack_add, pack_swap
    from tenure.stores.memcached.records import RETENTION, LockRecord, RecordState

    request, token = f"{VALUE}-1234", 1_700_000_000_000_000
    held = LockRecord(RecordState.HELD, request, token, TTL * 1_000_000, owner="host/1234").to_bytes()
    free = LockRecord(RecordState.FREE, request, token).to_bytes()
    with _exchange(url) as exchange:
        version = exchange(pack_add(b"own", free, RETENTION))[4:-2]

        def pair() -> None:
            nonlocal version
            version = exchange(pack_swap(b"own", held, TTL + RETENTION, version))[4:-2]
            version = exchange(pack_swap(b"own", free, RETENTION, version))[4:-2]
            assert version.isdigit()  # noqa: S101

        yield [Work(pair)]


@contextmanager
def put_delete(url: str, _want: object) -> Handles:
    """Put a key by a transaction, and remove it."""
    key, value = (base64.b64encode(each).decode() for each in (b"floor/bench", b"0123456789abcdef"))
    put = {"compare": [], "success": [{"request_put": {"key": key, "value": value}}]}
    with closing(http.client.HTTPConnection(*addresses(url)[0])) as connection:

        def post(path: str, body: object) -> None:
            connection.request("POST", f"/v3/kv/{path}", json.dumps(body))
            reply = json.loads(connection.getresponse().read())
            assert "header" in reply, reply  # noqa: S101 - else this is no floor

        yield [Work(partial(post, "txn", put), partial(post, "deleterange", {"key": key}))]
