"""The simulated server does not lie: whatever it is told, a real server answers the same, publishes and keeps the same.

The clock of the real server stands still, and is set by the test: its processes see it through a preloaded library.
"""

# ruff: noqa: D102 - a rule's name says what happens

import sys
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.stateful import rule, run_state_machine_as_test

from simulation.redis.direct import DirectDeployment, DirectLink
from simulation.redis.keyspace import Keyspace, SortedSet
from simulation.redis.server import Server
from tenure.contracts.runtime import Runtime
from tenure.stores.redis.links.link import RedisAddress, RedisCallbacks, RedisLink, ReplyError, Word
from tenure.stores.redis.scripts import Script
from tenure.table.step import Step
from tenure.table.times import TOMBSTONE
from tests.properties import thorough
from tests.properties.redis_machine import RedisMachine, Saved
from tests.servers import Clock, RedisServer
from tests.servers.redis import find_program, version
from tests.servers.resp import Reply
from tests.servers.resp import ReplyError as RealError

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="a server's clock can be set on Linux only"),
    pytest.mark.skipif(version(find_program()) >= (8,), reason="the simulation is of the Lua of Redis 7"),
]

NOW = 5_000 * 3_600 * 1_000_000


class Real:
    """A real server whose clock is set by hand."""

    def __init__(self, server: RedisServer, clock: Clock) -> None:
        """Talk to a server."""
        self.server = server
        self.wire = server.connect()
        self._clock = clock

    def set_clock(self, now: int) -> None:
        """Let the clock stand still at an instant, in microseconds."""
        self._clock._rate, self._clock._wall_base = 0.0, now * 1_000
        self._clock._write()

    def answer(self, *words: Word | int) -> Any:  # noqa: ANN401 - whatever the command answers
        """Return what a command answers, bytes as hiredis reads them; an error by its code."""
        text = [word.decode("utf-8", "surrogateescape") if isinstance(word, bytes) else word for word in words]
        try:
            return _bytes(self.wire.command(*text))
        except RealError as error:
            return str(error).split(" ")[0]

    def kept(self) -> dict[bytes, object]:
        """Return all that it keeps."""
        keys = self.answer("KEYS", "*")
        return {key: self._value(key) for key in keys}

    def _value(self, key: bytes) -> object:
        kind = self.answer("TYPE", key)
        if kind == b"string":
            value = self.answer("GET", key)
        elif kind == b"zset":
            value = self.answer("ZRANGE", key, 0, -1, "WITHSCORES")
        else:
            value = self.answer("HGETALL", key)
            value = sorted(zip(value[::2], value[1::2], strict=True))
        return value, self.answer("PEXPIRETIME", key)


def _bytes(reply: Reply) -> Any:  # noqa: ANN401 - whatever was replied
    if isinstance(reply, list):
        return [_bytes(each) for each in reply]
    return reply.encode("utf-8", "surrogateescape") if isinstance(reply, str) else reply


def kept(keys: Keyspace) -> dict[bytes, object]:
    """Return all that a simulated server keeps."""
    found: dict[bytes, object] = {}
    for key in keys.all():
        value: object = keys.value(key)
        if isinstance(value, dict):
            value = sorted(value.items())
        elif isinstance(value, SortedSet):
            value = [word for score, member in value.order for word in (member, b"%.17g" % score)]
        found[key] = value, keys._ends.get(key, -1)
    return found


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Real]:
    """Run a real server."""
    folder = tmp_path_factory.mktemp("clocked")
    with Clock(folder / "clock") as clock, RedisServer(folder / "redis", clock=clock) as server:
        found = Real(server, clock)
        found.answer("DEBUG", "SET-ACTIVE-EXPIRE", 0)
        yield found
        found.wire.close()
        clock.reset()


# -- the scripts -------------------------------------------------------------------------------------------


class DoubleLink(DirectLink):
    """A link to a simulated server and to a real one, which says the same or else fails."""

    def __init__(self, reach: Callable[[], Server], callbacks: RedisCallbacks, real: Real) -> None:
        """Talk to both."""
        super().__init__(reach, callbacks)
        self._real = real
        self._channel = real.server.connect()
        self._heard: list[bytes] = []
        self._expected: list[bytes] = []
        on_push = callbacks.on_push

        def push(payload: bytes) -> None:
            self._expected.append(payload)
            on_push(payload)

        self._callbacks = RedisCallbacks(push, callbacks.on_gap)

    def _value(self, server: Server, script: Script, keys: tuple[Word, ...], args: tuple[Word, ...]) -> Any:  # noqa: ANN401 - any reply
        """Run a script on both."""
        self._real.set_clock(server._clock())
        words = (len(keys), *keys, *args)
        said = self._real.answer("EVALSHA", script.digest, *words)
        if said == "NOSCRIPT":
            said = self._real.answer("EVAL", script.text, *words)
        value = super()._value(server, script, keys, args)
        assert said == value
        return value

    async def listen(self, channel: str, until: float) -> None:
        """Subscribe at both."""
        await super().listen(channel, until)
        self._channel.command("SUBSCRIBE", channel)

    async def ignore(self, channel: str) -> None:
        """End a subscription at both."""
        await super().ignore(channel)
        self._channel.command("UNSUBSCRIBE", channel)

    async def close(self) -> None:
        """End all subscriptions at both."""
        await super().close()
        self._channel.close()

    def compare(self) -> None:
        """Compare what was heard."""
        self._channel.send("PING")
        while (said := _bytes(self._channel.receive())) != [b"pong", b""]:
            self._heard.append(said[2])
        assert self._heard == self._expected


class DoubleDeployment(DirectDeployment):
    """A Deployment of both."""

    def __init__(self, machine: "RealMachine", reach: Callable[[], Server]) -> None:
        """Have the rules of a machine."""
        super().__init__(machine.guarded, reach)

    def link(self, runtime: Runtime, address: RedisAddress, callbacks: RedisCallbacks) -> RedisLink:
        """Make a link to both."""
        link = DoubleLink(self._reach, callbacks, RealMachine.real)
        self.links.append(link)
        return link


class RealMachine(RedisMachine):
    """The machine that holds the simulated server against the grant table; and a real one against both."""

    real: ClassVar[Real]

    def open_store(self) -> object:
        """Start with an empty server."""
        self.real.answer("FLUSHALL")
        super().open_store()
        self.copied: list[tuple[bytes, bytes, int]] = []
        self.deployment = DoubleDeployment(self, lambda: self.server)
        return self.deployment

    def conclude(self, client: int, steps: dict[str, Step], ttl: int | None, buries: str) -> None:
        """Compare what was heard as well."""
        super().conclude(client, steps, ttl, buries)
        for link in self.deployment.links:
            if isinstance(link, DoubleLink) and link._channels:
                link.compare()

    def teardown(self) -> None:
        """Compare all that is kept in the end."""
        self.real.set_clock(self.clocks.now)
        self.server.keys.now = self.clocks.now
        assert self.real.kept() == kept(self.server.keys)
        super().teardown()

    @rule(by=st.just(TOMBSTONE))
    def much_time_goes_by(self, by: int) -> None:
        self.clocks.now += by  # and no name is so old that it is forgotten, which the oracle does not know of

    @rule()
    def the_server_restarts_with_nothing(self) -> None:
        self.real.answer("FLUSHALL")
        super().the_server_restarts_with_nothing()

    @rule()
    def all_data_is_deleted(self) -> None:
        self.real.answer("FLUSHALL")
        super().all_data_is_deleted()

    @rule()
    def a_copy_is_taken(self) -> None:
        self.real.set_clock(self.clocks.now)
        found = self.real.answer("KEYS", "*")
        self.copied = [(key, self.real.answer("DUMP", key), self.real.answer("PEXPIRETIME", key)) for key in found]
        super().a_copy_is_taken()

    def recalled(self, saved: Saved) -> Keyspace:
        """Give the real server what the copy has."""
        self.real.answer("FLUSHALL")
        for key, dump, ends in self.copied:
            self.real.answer("RESTORE", key, max(ends, 0), dump, "ABSTTL")
        return super().recalled(saved)

    @rule()
    def the_server_forgets_its_scripts(self) -> None:
        self.real.answer("SCRIPT", "FLUSH")
        super().the_server_forgets_its_scripts()


def test_the_scripts_do_the_same_on_a_real_server(real: Real) -> None:
    """Replies, pushes and all that is kept are the same, whatever clients, servers and clocks do."""
    RealMachine.real = real
    run_state_machine_as_test(RealMachine, settings=thorough(40, 40))


# -- what scripts may use ----------------------------------------------------------------------------------

names = st.sampled_from(["a", "b", "c"])
members = st.sampled_from(["x", "y", "zz", ""])
numbers = st.sampled_from([0, 1, -1, 7, 2**31, 2**53 - 1, 1_700_000_000_000_000, "1.5", "many"])
ends = st.sampled_from(["+inf", "1.5", 7])
instants = st.sampled_from([NOW // 1000 - 1, NOW // 1000, NOW // 1000 + 1, NOW // 1000 + 50, "soon"])
commands = st.one_of(
    st.tuples(st.just("GET"), names),
    st.tuples(st.just("MGET"), names, names),
    st.tuples(st.just("SET"), names, members),
    st.tuples(st.just("SET"), names, members, st.just("PX"), st.sampled_from([0, 1, 50, "long"])),
    st.tuples(st.just("HGET"), names, members),
    st.tuples(st.just("HSET"), names, members, numbers),
    st.tuples(st.just("HDEL"), names, members),
    st.tuples(st.just("ZADD"), names, numbers, members),
    st.tuples(st.just("ZADD"), names, st.just("NX"), numbers, members),
    st.tuples(st.just("ZREM"), names, members),
    st.tuples(st.just("ZRANGE"), names, numbers, numbers),
    st.tuples(st.just("ZRANGE"), names, st.sampled_from(["(-inf", "(0", "(1.5"]), ends, st.just("BYSCORE")),
    st.tuples(
        *map(st.just, ("ZRANGE", "b", "(-inf")),
        ends,
        *map(st.just, ("BYSCORE", "LIMIT")),
        *[st.sampled_from([0, 1, 2])] * 2,
        st.just("WITHSCORES"),
    ),
    st.tuples(st.just("ZPOPMIN"), names),
    st.tuples(st.just("ZRANK"), names, members),
    st.tuples(st.just("ZCARD"), names),
    st.tuples(st.just("PEXPIREAT"), names, instants),
    st.tuples(st.just("TIME")),
    st.tuples(st.just("PUBLISH"), names, members),
    st.tuples(st.just("PUBSUB"), st.sampled_from(["NUMSUB", "SHARDNUMSUB"]), names, names),
)
CALL = """#!lua
for i = 2, #ARGV do
    if ARGV[1] == '1' and tonumber(ARGV[i]) then ARGV[i] = tonumber(ARGV[i]) end
end
return redis.call(unpack(ARGV, 2))
"""


@given(
    steps=st.lists(
        st.tuples(commands, st.booleans(), st.sampled_from([0, 0, 1_000, 999, 50_000, -7_000])), min_size=1, max_size=30
    )
)
@example(  # the very millisecond in which a key ends, which is seldom met by chance
    steps=[
        (("SET", "a", "x"), False, 0),
        (("PEXPIREAT", "a", NOW // 1000 + 1), False, 1_000),
        (("GET", "a"), False, 0),
    ]
)
@example(  # what has ended is gone for good once it was looked at, also if the clock steps back
    steps=[
        (("SET", "b", "x", "PX", 50), False, 50_000),
        (("TIME",), False, 1_000),
        (("MGET", "a", "b"), False, -7_000),
    ]
)
@thorough(300)
def test_commands_do_the_same_on_a_real_server(real: Real, steps: list[tuple[tuple[Word, ...], bool, int]]) -> None:
    """Each command answers, changes and lets expire the same; also with numbers of Lua, and while the clock steps."""
    now = NOW
    simulated = Server("simulated", lambda: now)
    real.answer("FLUSHALL")
    for words, as_numbers, by in steps:
        real.set_clock(now)
        keys = ("a", "b", "c")
        args = (b"1" if as_numbers else b"0", *words)
        said = real.answer("EVAL", CALL, len(keys), *keys, *args)
        try:
            expected = simulated.eval(CALL, keys, args)
        except ReplyError as error:
            expected = error.code
        assert said == expected, words
        now += by
    real.set_clock(now)
    simulated.keys.now = now
    assert real.kept() == kept(simulated.keys)


whole = st.one_of(
    st.integers(-(2**53) + 1, 2**53 - 1), st.sampled_from([0, 127, 128, 255, 256, 65_535, 65_536, 2**32 - 1, 2**32])
)
plain = st.one_of(whole, whole.map(lambda n: -n), st.booleans(), st.text("ab\0é", max_size=40))
values = st.recursive(plain, lambda inner: st.lists(inner, max_size=20), max_leaves=40)


def lua_of(value: object) -> str:
    """Write a value in Lua."""
    if isinstance(value, list):
        return "{" + ",".join(map(lua_of, cast("list[object]", value))) + "}"
    if isinstance(value, str):
        return "'" + "".join(f"\\{byte}" if byte < 32 else chr(byte) for byte in value.encode()) + "'"
    return str(value).lower()


@given(value=values, size=st.sampled_from([0, 31, 32, 255, 256, 65_535, 65_536]))
@thorough(300)
def test_values_are_packed_as_on_a_real_server(real: Real, value: object, size: int) -> None:
    """The library cmsgpack writes the same bytes and reads them the same, and replies are converted the same."""
    simulated = Server("simulated", lambda: NOW)
    lua = lua_of(value)
    for does in (
        f"return cmsgpack.pack({lua}, 1)",
        f"return {{{lua}, 1}}",
        f"return {{cmsgpack.unpack(cmsgpack.pack({lua}, {lua}))}}",
        f"return #cmsgpack.pack(string.rep('x', {size}), {{string.rep('x', {size})}})",
        f"return {{1, {lua}, nil, 2}}",
        f"return {{{size} / 7, -{size} / 7, tostring({size} / 7), 2 ^ 53, '{size}' + 1}}",
    ):
        text = f"#!lua\n{does}\n"
        assert simulated.eval(text, (), ()) == real.answer("EVAL", text, 0)


@pytest.mark.parametrize(
    "does",
    ["x = 1", "return x", "return os.time()", "return require('x')", "return io", "error('x')", "return {err='E x'}"],
)
def test_what_a_script_may_not_do_fails_on_both(real: Real, does: str) -> None:
    """There are no globals to make, and no ways out."""
    text = f"#!lua\n{does}\n"
    assert isinstance(real.answer("EVAL", text, 0), str)
    with pytest.raises(ReplyError):
        Server("simulated", lambda: NOW).eval(text, (), ())


def test_a_script_that_only_reads_may_not_write_on_either(real: Real) -> None:
    """The flags of a script are heeded."""
    text = "#!lua flags=no-writes\nreturn redis.call('SET', KEYS[1], 1)\n"
    assert real.answer("EVAL", text, 1, "a") == "ERR"
    with pytest.raises(ReplyError, match=r"^ERR"):
        Server("simulated", lambda: NOW).eval(text, ("a",), ())


def _ends_early(self: Keyspace, key: bytes) -> bool:
    end = self._ends.get(key)
    return end is not None and self.now // 1_000 >= end


def _stays_when_empty(self: Keyspace, key: bytes, name: bytes) -> int:
    value = self._values.get(key)
    return 1 if isinstance(value, dict) and value.pop(name, None) is not None else 0


def _keeps_its_end(self: Keyspace, key: bytes, value: bytes, *options: bytes) -> bool:
    self._values[key] = value
    return True


LIES: dict[str, Callable[..., object]] = {
    "_has_ended": _ends_early,
    "_hdel": _stays_when_empty,
    "_set": _keeps_its_end,
}


@pytest.mark.parametrize("lie", LIES)
def test_a_server_that_lies_is_noticed(lie: str, real: Real, monkeypatch: pytest.MonkeyPatch) -> None:
    """A simulated server that is wrong in one command does not answer as a real one does."""
    monkeypatch.setattr(Keyspace, lie, LIES[lie])
    with pytest.raises(AssertionError):
        test_commands_do_the_same_on_a_real_server(real)  # pyright: ignore[reportCallIssue] - it draws its steps
