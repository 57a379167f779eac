"""The link to a Redis server for threads: a pool of connections for requests, and a thread that listens.

Every `async def` here blocks in place, in the thread that calls it.
"""

import threading
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn, TypeVar

from tenure.contracts.runtime import Event
from tenure.errors import StoreUnavailable
from tenure.runtimes.threads import ThreadEvent, ThreadsRuntime
from tenure.stores.redis.links import wire
from tenure.stores.redis.links.access import RedisAccess
from tenure.stores.redis.links.link import PackedCall, RedisAddress, RedisHearing, RedisReply, ReplyError, Word
from tenure.stores.redis.links.listener import RedisListener
from tenure.stores.redis.links.sockets import BROKEN, RedisConnection, RedisUnsent, connect
from tenure.stores.redis.lua.scripts import Script
from tenure.transport.pool import ConnectionPool

T = TypeVar("T")

ASKING = wire.command(b"ASKING")

Keys = tuple[Word, ...]
Pack = Callable[[Script, Keys, Keys, bytes], bytes]


class RedisThreadLink:
    """The link to one server, for the threads of one client."""

    def __init__(
        self,
        runtime: ThreadsRuntime,
        access: RedisAccess,
        address: RedisAddress,
        hearing: RedisHearing,
        *,
        identify: wire.Identify = wire.WHO,
        sharded: bool = False,
    ) -> None:
        """Prepare; nothing is connected yet.

        Without `identify`, the link does not ask the server for its run id, and scripts get an empty one. A cluster has
        `sharded` channels.
        """
        self._now = runtime.now
        self._access = access
        self._address = address
        self._identify = identify
        self._make_listener = partial(RedisListener, runtime, address, hearing, self._dial_channel, sharded=sharded)
        self._closed = False
        self._start_anew()

    def __repr__(self) -> str:
        return f"<ThreadLink to {self._address}>"

    async def run(self, script: Script, keys: Keys, args: Keys, until: float) -> RedisReply:
        """Run a script."""

        def attempt(connection: RedisConnection, pack: Pack) -> RedisReply:
            left = until - self._now()
            return RedisReply(connection.exchange(pack(script, keys, args, connection.run_id), left), connection.run_id)

        answer = self._exchange(lambda connection: _known(connection, attempt), until)
        wire.raise_if_error(answer.value)
        return answer

    async def run_request(self, template: PackedCall, request_id: bytes, numbers: bytes, until: float) -> Any:  # noqa: ANN401 - whatever the script returns
        """Run the script of a template for one request, as most acquisitions and releases do; return its value."""
        now = self._now()
        connection = self._pool.take(now) if now < until else None
        if connection is None:
            connection = self._take(until)
        try:
            packed = template.packed(request_id, numbers, connection.run_id)
            reply = connection.exchange(packed, until - connection.used)
        except RedisUnsent:
            self._pool.lose(connection)
            keys, args = template.words(request_id, numbers)
            return self._run_text(self._connect(until), template.script, keys, args, until).value
        except BaseException as error:  # noqa: BLE001 - it is raised again
            self._fail(connection, error)
        if type(reply) is ReplyError and reply.code == "NOSCRIPT":
            keys, args = template.words(request_id, numbers)
            return self._run_text(connection, template.script, keys, args, until).value
        self._pool.put_back(connection)
        if type(reply) is ReplyError:
            raise reply
        return reply

    async def run_replicated(self, script: Script, keys: Keys, args: Keys, until: float, replicas: int) -> RedisReply:
        """Run a script, and count the replicas that have what it wrote; the server waits for them."""

        def attempt(connection: RedisConnection, pack: Pack) -> RedisReply:
            left = until - self._now()
            packed = pack(script, keys, args, connection.run_id)
            reply = connection.exchange(packed + wire.wait(replicas, left), left)
            return RedisReply(reply, connection.run_id, connection.reply(until - self._now()))

        answer = self._exchange(lambda connection: _known(connection, attempt), until)
        wire.raise_if_error(answer.value)
        wire.raise_if_error(answer.acknowledged)
        return answer

    async def run_after_asking(self, script: Script, keys: Keys, args: Keys, until: float) -> RedisReply:
        """Run a script right after an ASKING."""

        def attempt(connection: RedisConnection, pack: Pack) -> RedisReply:
            packed = pack(script, keys, args, connection.run_id)
            connection.exchange(
                ASKING + packed, until - self._now()
            )  # if the server refuses ASKING, it refuses the script, too
            return RedisReply(connection.reply(until - self._now()), connection.run_id)

        answer = self._exchange(lambda connection: _known(connection, attempt), until)
        wire.raise_if_error(answer.value)
        return answer

    async def command(self, *words: Word, until: float) -> Any:  # noqa: ANN401 - whatever the command answers
        """Send a plain command."""
        packed = wire.command(*words)
        reply = self._exchange(lambda connection: connection.exchange(packed, until - connection.used), until)
        wire.raise_if_error(reply)
        return reply

    async def listen(self, channel: str, until: float) -> None:
        """Subscribe to a channel, and return once the server has confirmed it."""
        await self._channel().listen(channel, until)

    async def wait(self, event: Event, until: float | None) -> bool:
        """Wait for an event, and read the channel meanwhile if that pays."""
        listener = self._listener
        if listener is None or not isinstance(event, ThreadEvent):
            return await event.wait(until)
        return listener.direct.wait(event, until)

    async def ignore(self, channel: str) -> None:
        """End a subscription."""
        if self._listener is not None:
            self._listener.ignore(channel)

    async def close(self) -> None:
        """Close the idle connections, and end the listener. Requests under way go on to their end."""
        with self._mutex:
            self._closed = True
            listener = self._listener
        self._pool.close()
        if listener is not None:
            listener.close()

    def abandon(self) -> None:
        """In a forked child: close its copies of all sockets, and start anew."""
        self._pool.abandon()
        if self._listener is not None:
            self._listener.abandon()
        self._start_anew()

    def _start_anew(self) -> None:
        self._mutex = threading.Lock()
        self._listener: RedisListener | None = None
        self._pool: ConnectionPool[RedisConnection] = ConnectionPool()

    def _channel(self) -> RedisListener:
        with self._mutex:
            self._check_open()
            if self._listener is None:
                self._listener = self._make_listener()
            return self._listener

    def _check_open(self) -> None:
        if self._closed:
            raise StoreUnavailable(f"the link to the Redis server at {self._address} is closed; make a new client")

    # Requests

    def _run_text(
        self, connection: RedisConnection, script: Script, keys: Keys, args: Keys, until: float
    ) -> RedisReply:
        """Run a script that the server does not know."""
        packed = wire.eval_text(script, keys, args, connection.run_id)
        reply = self._carry_out(connection, lambda connection: connection.exchange(packed, until - self._now()))
        wire.raise_if_error(reply)
        return RedisReply(reply, connection.run_id)

    def _exchange(self, exchange: Callable[[RedisConnection], T], until: float) -> T:
        """Carry out an exchange on an idle connection, or on a new one."""
        connection = self._take(until)
        try:
            return self._carry_out(connection, exchange)
        except RedisUnsent:
            return self._carry_out(self._connect(until), exchange)

    def _carry_out(self, connection: RedisConnection, exchange: Callable[[RedisConnection], T]) -> T:
        """Carry out an exchange on a connection, and put the connection back only if all went well."""
        try:
            said = exchange(connection)
        except BaseException as error:  # noqa: BLE001 - it is raised again
            self._fail(connection, error)
        self._pool.put_back(connection)
        return said

    def _take(self, until: float) -> RedisConnection:
        """Return a connection on which no reply is due."""
        now = self._now()
        if now >= until:
            raise StoreUnavailable(
                f"the request to the Redis server at {self._address} timed out before it was sent: "
                "raise `timeout` or `operation_timeout`"
            )
        return self._pool.take(now) or self._connect(until)

    def _connect(self, until: float) -> RedisConnection:
        self._check_open()
        until = min(until, self._now() + self._access.connect_timeout)
        connection = self._dial(until, self._identify)
        self._pool.add(connection, self._now())
        return connection

    def _dial(self, until: float, identify: wire.Identify) -> RedisConnection:
        return connect(self._access, self._address, self._now, until, identify)

    def _dial_channel(self, on_stage: Callable[[OSError], None]) -> RedisConnection:
        until = self._now() + self._access.connect_timeout
        return connect(self._access, self._address, self._now, until, None, on_stage)

    def _fail(self, connection: RedisConnection, error: BaseException) -> NoReturn:
        """Close a connection on which something went wrong, and raise what the caller has to know."""
        if not isinstance(error, (RedisUnsent, *BROKEN)):
            self._pool.discard(connection)
            raise error
        self._pool.lose(connection)
        if isinstance(error, RedisUnsent):
            raise RedisUnsent(
                f"the Redis server at {self._address} closed the connection; ask again"
            ) from error.__cause__
        raise wire.unanswered(self._address, error) from error


def _known(connection: RedisConnection, attempt: Callable[[RedisConnection, Pack], RedisReply]) -> RedisReply:
    """Run a script by its digest, and by its text if the server does not know it."""
    answer = attempt(connection, wire.evalsha)
    return attempt(connection, wire.eval_text) if wire.is_error(answer.value, "NOSCRIPT") else answer
