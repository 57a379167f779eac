"""The links to a Redis server for threads: a pool of connections for requests, and a thread that listens.

Every `async def` here blocks in place, in the thread that calls it, but the requests of a `FanOutLink`.
"""

# ruff: noqa: D102 - the contracts say what these methods do

import contextlib
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn, TypeVar

from tenure.contracts.runtime import Event
from tenure.errors import StoreUnavailable
from tenure.reentry import start_thread
from tenure.runtimes.fan_out import readable
from tenure.runtimes.threads import ThreadEvent, ThreadsRuntime
from tenure.stores.redis.links import wire
from tenure.stores.redis.links.link import (
    PackedCall,
    RedisAccess,
    RedisAddress,
    RedisCallbacks,
    RedisReply,
    ReplyError,
    Word,
    Words,
)
from tenure.stores.redis.links.listener import RedisListener
from tenure.stores.redis.links.sockets import BROKEN, RedisConnection, RedisUnsent, connect
from tenure.stores.redis.scripts import Script
from tenure.transport.errors import too_late
from tenure.transport.pool import ConnectionPool
from tenure.transport.wakeup_pipe import WakeUpPipe

T = TypeVar("T")

ASKING = wire.command(b"ASKING")

Pack = Callable[[Script, Words, Words, bytes], bytes]


class RedisThreadLink:
    """The link to one server, for the threads of one client."""

    blocks = True

    def __init__(
        self,
        runtime: ThreadsRuntime,
        access: RedisAccess,
        address: RedisAddress,
        callbacks: RedisCallbacks,
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
        self._on_greeting = callbacks.on_greeting
        self._make_listener = partial(RedisListener, runtime, address, callbacks, self._dial_channel, sharded=sharded)
        self._closed = False
        self._start_anew()

    async def run(self, script: Script, keys: Words, args: Words, until: float) -> RedisReply:
        return self._run(script, keys, args, until)

    def run_request(self, template: PackedCall, request_id: bytes, numbers: bytes, until: float) -> Any:  # noqa: ANN401 - whatever the script returns
        """Run the script of a template for one request, as most acquisitions and releases do; return its value."""
        now = self._now()
        connection = self._pool.take(now) if now < until else None
        if connection is None:
            connection = self._take(until)
        try:
            reply = connection.exchange(
                template.packed(request_id, numbers, connection.run_id), until - connection.used
            )
        except RedisUnsent:
            self._pool.lose(connection)
            return self._run_text(self._connect(until), *template.words(request_id, numbers), until).value
        except BaseException as error:  # noqa: BLE001 - it is raised again
            self._fail(connection, error)
        if type(reply) is ReplyError:
            if reply.code == "NOSCRIPT":
                return self._run_text(connection, *template.words(request_id, numbers), until).value
            self._pool.put_back(connection)
            raise reply
        self._pool.put_back(connection)
        return reply

    def send_request(
        self, template: PackedCall, request_id: bytes, numbers: bytes, until: float, told: Callable[[Any], None]
    ) -> bool:
        now = self._now()
        connection = self._pool.take(now) if now < until else None
        if connection is None:
            return False
        try:
            connection.send_owed(template.packed(request_id, numbers, connection.run_id), until - now, told)
        except RedisUnsent:
            self._pool.lose(connection)
            return False
        except BaseException as error:  # noqa: BLE001 - it is raised again
            self._fail(connection, error)
        self._pool.put_back(connection)
        return True

    def collect(self) -> None:
        for connection in self._pool.take_owing(self._now(), lambda each: each.owed):
            with contextlib.suppress(StoreUnavailable):  # it is closed, and has told whom it owed a reply
                self._carry_out(connection, RedisConnection.collect)

    async def run_replicated(self, script: Script, keys: Words, args: Words, until: float, replicas: int) -> RedisReply:
        return self._run(script, keys, args, until, replicas=replicas)

    async def run_after_asking(self, script: Script, keys: Words, args: Words, until: float) -> RedisReply:
        return self._run(script, keys, args, until, asking=True)

    def _run(
        self, script: Script, keys: Words, args: Words, until: float, *, replicas: int = 0, asking: bool = False
    ) -> RedisReply:
        """Run a script: by its digest, and by its text if the server does not know it."""

        def attempt(connection: RedisConnection, pack: Pack) -> RedisReply:
            left = until - self._now()
            packed = pack(script, keys, args, connection.run_id)
            if asking:  # if the server refuses ASKING, it refuses the script, too
                connection.exchange(ASKING + packed, left)
                return RedisReply(connection.reply(until - self._now()), connection.run_id)
            if not replicas:
                return RedisReply(connection.exchange(packed, left), connection.run_id)
            reply = connection.exchange(packed + wire.wait(replicas, left), left)
            return RedisReply(reply, connection.run_id, connection.reply(until - self._now()))

        def exchange(connection: RedisConnection) -> RedisReply:
            answer = attempt(connection, wire.evalsha)
            return attempt(connection, wire.eval_text) if wire.is_error(answer.value, "NOSCRIPT") else answer

        answer = self._exchange(exchange, until)
        wire.raise_if_error(answer.value)
        wire.raise_if_error(answer.acknowledged)
        return answer

    async def command(self, *words: Word, until: float) -> Any:  # noqa: ANN401 - whatever the command answers
        packed = wire.command(*words)
        reply = self._exchange(lambda connection: connection.exchange(packed, until - connection.used), until)
        wire.raise_if_error(reply)
        return reply

    async def listen(self, channel: str, until: float) -> None:
        await self._channel().listen(channel, until)

    async def wait(self, event: Event, until: float | None) -> bool:
        """Wait for an event, and read the channel meanwhile if that pays."""
        listener = self._listener
        if listener is None or not isinstance(event, ThreadEvent):
            return await event.wait(until)
        return listener.direct.wait(event, until)

    async def ignore(self, channel: str) -> None:
        if self._listener is not None:
            self._listener.ignore(channel)

    async def close(self) -> None:
        """Close the idle connections, and end the listener. Requests under way go on to their end."""
        with self._mutex:
            self._closed = True  # with the mutex held: no thread makes another listener after this
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
        self, connection: RedisConnection, script: Script, keys: Words, args: Words, until: float
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
        self._check_time(until)
        return self._pool.take(self._now()) or self._connect(until)

    def _check_time(self, until: float) -> None:
        if self._now() >= until:
            raise too_late(f"the Redis server at {self._address}")

    def _connect(self, until: float) -> RedisConnection:
        self._check_open()
        until = min(until, self._now() + self._access.connect_timeout)
        connection = self._dial(until, self._identify)
        self._pool.add(connection, self._now())
        return connection

    def _dial(self, until: float, identify: wire.Identify) -> RedisConnection:
        return connect(self._access, self._address, self._now, until, identify, on_greeting=self._on_greeting)

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


MOST_DIALS = 8
"""How many connections to a server may be in the making for one thread; each takes a thread meanwhile."""


class FanOutLink(RedisThreadLink):
    """The link to one node of a quorum, for the threads of one client. Only `Runtime.race` runs its requests.

    One thread has requests under way at all nodes, so no node may block it: neither by a reply nor by a connection.
    """

    blocks = False

    async def run(self, script: Script, keys: Words, args: Words, until: float) -> RedisReply:
        return await self._run_beside(partial(wire.evalsha, script, keys, args), lambda: (script, keys, args), until)

    async def run_request(self, template: PackedCall, request_id: bytes, numbers: bytes, until: float) -> Any:  # noqa: ANN401 - whatever the script returns
        packed = partial(template.packed, request_id, numbers)
        answer = await self._run_beside(packed, partial(template.words, request_id, numbers), until)
        return answer.value

    async def command(self, *words: Word, until: float) -> Any:  # noqa: ANN401 - whatever the command answers
        packed = wire.command(*words)
        connection, reply = await self._exchange_beside(lambda _run_id: packed, until)
        self._pool.put_back(connection)
        wire.raise_if_error(reply)
        return reply

    async def _run_beside(
        self, packed: Callable[[bytes], bytes], call: Callable[[], tuple[Script, Words, Words]], until: float
    ) -> RedisReply:
        """Run a script: by its digest, and by the text of the `call` if the server does not know it."""
        connection, reply = await self._exchange_beside(packed, until)
        if wire.is_error(reply, "NOSCRIPT"):
            reply = await self._reply(connection, wire.eval_text(*call(), connection.run_id), until)
        self._pool.put_back(connection)
        wire.raise_if_error(reply)
        return RedisReply(reply, connection.run_id)

    async def _exchange_beside(self, packed: Callable[[bytes], bytes], until: float) -> tuple[RedisConnection, Any]:
        """Send a request on an idle connection, or on a new one; return the connection and the reply."""
        self._check_time(until)
        connection = self._pool.take(self._now())
        if connection is not None:
            with contextlib.suppress(RedisUnsent):
                return connection, await self._reply(connection, packed(connection.run_id), until)
        connection = await self._dialled(until)
        return connection, await self._reply(connection, packed(connection.run_id), until)

    async def _reply(self, connection: RedisConnection, packed: bytes, until: float) -> Any:  # noqa: ANN401 - whatever the server answers
        """Send a request, and return the reply; the other requests go on meanwhile."""
        try:
            connection.send(packed, until - self._now())
            reply = wire.NOTHING
            while reply is wire.NOTHING:
                await readable(connection.descriptor, until)
                reply = connection.take()
                if reply is wire.NOTHING and self._now() >= until:
                    raise TimeoutError("the reply came too slowly")  # noqa: TRY301 - as the system does elsewhere
        except BaseException as error:  # noqa: BLE001 - it is raised again
            self._fail(connection, error)
        return reply

    async def _dialled(self, until: float) -> RedisConnection:
        """Return a new connection; the other requests go on meanwhile.

        A thread makes it, because looking up a host and shaking hands block.
        """
        errors = list[Exception]()
        while not errors and self._now() < until:
            caller = threading.get_ident()
            if list(self._dials.values()).count(caller) >= MOST_DIALS:
                raise StoreUnavailable(f"the Redis server at {self._address} has not answered for a while")
            made = WakeUpPipe()
            dial = partial(self._dial_for, caller, made, errors, until)
            try:
                start_thread(dial, "dial")
            except RuntimeError:  # this machine or interpreter starts no more threads: the other requests must wait
                dial()
            try:
                await readable(made.fileno(), until)
            finally:
                made.close()
            if (connection := self._pool.take(self._now())) is not None:  # else another thread took it
                return connection
        raise errors[0] if errors else wire.cannot_connect(self._address, TimeoutError())

    def _dial_for(self, caller: int, made: WakeUpPipe, errors: list[Exception], until: float) -> None:
        """Put a new connection into the pool, whether or not the caller still waits for it."""
        thread = threading.current_thread()
        self._dials[thread] = caller
        try:
            self._pool.put_back(self._connect(until))
        except Exception as error:  # noqa: BLE001 - the caller raises it
            errors.append(error)
        finally:
            del self._dials[thread]
            made.wake()

    async def close(self) -> None:
        await super().close()
        until = self._now() + self._access.connect_timeout
        for thread in list(self._dials):
            thread.join(max(0.0, until - self._now()))

    def _start_anew(self) -> None:
        super()._start_anew()
        self._dials: dict[threading.Thread, int] = {}
        """The threads that make connections, and the idents of the threads that need these."""
