"""What an earlier version has left in a server is read, and written in the present form by the next change."""

from collections.abc import Iterator

import pytest

from tenure import Client, LockTimeout
from tenure.contracts.messages import AcquireRequest, Granted, ReleaseRequest, Withdrawn
from tenure.outcome import Outcome
from tenure.runtimes.threads import drive
from tenure.stores.redis.names import NODE, state_key
from tests.servers import RedisServer
from tests.servers.resp import RespWire

USUAL = "\udcc1"
"""The first byte of the present form."""

EARLIER = """
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local held = ARGV[1] == 'held'
redis.call('HSET', KEYS[1], '=', cmsgpack.pack(tonumber(ARGV[2]), 1, 0, 0, 'released', now, 0, now + 3600000000,
    0, 0, false, held and 'theirs' or '', '', held and 'their owner' or '', held and tonumber(ARGV[2]) or 0,
    held and 1 or 0, held and 60000000 or 0, 0, held and now or 0, held and now + 60000000 or 0, false, false))
redis.call('PEXPIREAT', KEYS[1], math.ceil((now + 3600000000) / 1000))
"""
"""Writes the state of a name as an earlier version did: held by another client, or free."""

WAITER = """
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local state = { cmsgpack.unpack(redis.call('HGET', KEYS[1], '=')) }
state[7], state[9], state[10] = 1, 1, 1000000
redis.call('HSET', KEYS[1], '=', cmsgpack.pack(unpack(state)), 'wwaiter', cmsgpack.pack({ '', 'their waiter', 30000000,
    1000000, 4000000, 1, 0, 0, 1, 0, now, now + 4000000 }))
redis.call('ZADD', KEYS[2], 1, 'waiter')
"""
"""Adds a waiter to such a state of a name that is held."""

MARKER = """
local marker = redis.call('GET', KEYS[1])
local _, began, ends, longest, until_when, others, gone, at = struct.unpack('>Bdddddd', marker)
redis.call('SET', KEYS[1], cmsgpack.pack(string.sub(marker, at), began, ends, longest, until_when, others, gone),
    'PX', 3600000)
"""
"""Writes the marker as an earlier version did."""

NAME = "earlier"
TOKEN = 2**52


@pytest.fixture
def wire(redis_server: RedisServer) -> Iterator[RespWire]:
    """Connect to the server, without any name."""
    wire = redis_server.connect()
    wire.command("DEL", state_key(NAME), NODE)
    yield wire
    wire.command("DEL", state_key(NAME), NODE)
    wire.close()


def state(wire: RespWire) -> str:
    """Return the state that is kept."""
    return str(wire.command("HGET", state_key(NAME), "="))


def write(wire: RespWire, kind: str) -> None:
    """Write a state as an earlier version did."""
    wire.command("EVAL", EARLIER, 1, state_key(NAME), kind, TOKEN)
    assert not state(wire).startswith(USUAL)


def test_a_lease_is_still_held(redis_server: RedisServer, wire: RespWire) -> None:
    """Nobody else gets the name."""
    write(wire, "held")
    with Client(redis_server.url) as client, pytest.raises(LockTimeout, match="their owner"):
        client.lock(NAME, timeout=0).acquire()


def test_a_waiter_is_granted(redis_server: RedisServer, wire: RespWire) -> None:
    """A release by a later version hands over to it."""
    write(wire, "held")
    wire.command("EVAL", WAITER, 2, state_key(NAME), f"{state_key(NAME)}:q")
    with Client(redis_server.url) as client:
        with client.lock(f"{NAME} or later"):  # its server is known to this client from here on
            pass
        session = client.session()
        release = ReleaseRequest(NAME, "theirs", TOKEN, unsure=False)
        assert drive(session.store.release(release, session.runtime.now() + 5)) is Outcome.RELEASED
        (holder,) = client.inspect(NAME).holders
        assert holder.owner == "their waiter"
        assert holder.token > TOKEN
        assert state(wire).startswith(USUAL)


def test_tokens_go_on(redis_server: RedisServer, wire: RespWire) -> None:
    """The next token is larger than the last one of the earlier version."""
    write(wire, "free")
    with Client(redis_server.url) as client, client.lock(NAME, timeout=0) as lease:
        assert lease.token > TOKEN
        assert state(wire).startswith(USUAL)


def test_a_request_that_was_withdrawn_is_refused(redis_server: RedisServer, wire: RespWire) -> None:
    """The earlier version did not note until when a name has tombstones, so they are looked for."""
    write(wire, "free")
    wire.command("SET", f"{state_key(NAME)}:t:late", 2**53, "PX", 30000)
    with Client(redis_server.url) as client:
        session = client.session()
        drive(session.open())
        until = session.runtime.now() + 5

        def request(request_id: str) -> AcquireRequest:
            return AcquireRequest(NAME, request_id, "", "owner", 1_000_000, 1_000_000, 4_000_000, wait=False)

        assert isinstance(drive(session.store.acquire(request("late"), until)), Withdrawn)
        assert isinstance(drive(session.store.acquire(request("other"), until)), Granted)


def test_a_marker_is_read_and_written_anew(redis_server: RedisServer, wire: RespWire) -> None:
    """A server whose marker an earlier version wrote is not taken for one that may have forgotten leases."""
    with Client(redis_server.url) as client:
        with client.lock(NAME):
            pass
        wire.command("EVAL", MARKER, 1, NODE)
        assert not str(wire.command("GET", NODE)).startswith(USUAL)
        with client.lock(NAME, timeout=0):
            assert str(wire.command("GET", NODE)).startswith(USUAL)
