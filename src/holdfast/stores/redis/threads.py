"""A link of the threads runtime: a pool of connections for requests, and a thread that listens.

Every `async def` here blocks in place. A request takes the connection that was used last, so that few stay in use.
One on which anything went wrong is closed, and the idle ones that have had no answer since go with it: they are
likely to be as dead.
"""

import threading
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn, TypeVar

from holdfast.errors import StoreUnavailable
from holdfast.runtimes.threads import ThreadsRuntime
from holdfast.stores.redis import wire
from holdfast.stores.redis.access import Access
from holdfast.stores.redis.link import Address, Answer, Hearing, ReplyError, Word
from holdfast.stores.redis.listener import Listener
from holdfast.stores.redis.scripts import Script
from holdfast.stores.redis.sockets import BROKEN, Connection, Unsent, connect
from holdfast.transport.pool import ConnectionPool

T = TypeVar("T")

ASKING = wire.command(b"ASKING")

Keys = tuple[Word, ...]
Pack = Callable[[Script, Keys, Keys, bytes], bytes]


class ThreadLink:
    """A way to one server, for the threads of one client."""

    def __init__(
        self,
        runtime: ThreadsRuntime,
        access: Access,
        address: Address,
        hearing: Hearing,
        *,
        identify: wire.Identify = wire.WHO,
        sharded: bool = False,
    ) -> None:
        """Prepare; nothing is connected yet.

        Without `identify` the server is not asked for its run id, and scripts get an empty one. Channels are
        `sharded` in a cluster.
        """
        self._now = runtime.now
        self._access = access
        self._address = address
        self._identify = identify
        self._make_listener = partial(Listener, runtime, address, hearing, self._dial_channel, sharded=sharded)
        self._closed = False
        self._start_anew()

    def __repr__(self) -> str:
        return f"<ThreadLink to {self._address}>"

    async def run(self, script: Script, keys: Keys, args: Keys, until: float) -> Answer:
        """Run a script. The way of every acquisition: it takes no detour over `_exchange`, which costs."""
        connection = self._take(until)
        try:
            reply = connection.exchange(wire.evalsha(script, keys, args, connection.run_id), until - connection.used)
        except Unsent:
            self._pool.lose(connection)
            return self._run_text(self._connect(until), script, keys, args, until)
        except BaseException as error:  # noqa: BLE001 - it is raised again
            self._fail(connection, error)
        if type(reply) is ReplyError and reply.code == "NOSCRIPT":
            return self._run_text(connection, script, keys, args, until)
        self._pool.put_back(connection)
        if type(reply) is ReplyError:
            raise reply
        return Answer(reply, connection.run_id)

    async def run_replicated(self, script: Script, keys: Keys, args: Keys, until: float, replicas: int) -> Answer:
        """Run a script, and learn how many replicas have what it wrote. They are waited for most of the time left."""

        def attempt(connection: Connection, pack: Pack) -> Answer:
            left = until - self._now()
            packed = pack(script, keys, args, connection.run_id)
            reply = connection.exchange(packed + wire.wait(replicas, left), left)
            return Answer(reply, connection.run_id, connection.reply(until - self._now()))

        answer = self._exchange(lambda connection: _known(connection, attempt), until)
        wire.raise_if_error(answer.value)
        wire.raise_if_error(answer.acknowledged)
        return answer

    async def run_after_asking(self, script: Script, keys: Keys, args: Keys, until: float) -> Answer:
        """Run a script right after an ASKING."""

        def attempt(connection: Connection, pack: Pack) -> Answer:
            packed = pack(script, keys, args, connection.run_id)
            connection.exchange(ASKING + packed, until - self._now())  # what it says against that, it says once more
            return Answer(connection.reply(until - self._now()), connection.run_id)

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

    async def ignore(self, channel: str) -> None:
        """Give a subscription up."""
        if self._listener is not None:
            self._listener.ignore(channel)

    async def close(self) -> None:
        """Disconnect. Requests that are under way end by themselves."""
        with self._mutex:
            self._closed = True
            listener = self._listener
        self._pool.close()
        if listener is not None:
            listener.close()

    def abandon(self) -> None:
        """In a forked child: close its copies of all sockets, and be as new."""
        self._pool.abandon()
        if self._listener is not None:
            self._listener.abandon()
        self._start_anew()

    def _start_anew(self) -> None:
        self._mutex = threading.Lock()
        self._listener: Listener | None = None
        self._pool: ConnectionPool[Connection] = ConnectionPool()

    def _channel(self) -> Listener:
        with self._mutex:
            self._check_open()
            if self._listener is None:
                self._listener = self._make_listener()
            return self._listener

    def _check_open(self) -> None:
        if self._closed:
            raise StoreUnavailable(f"the link to the Redis server at {self._address} is closed; make a new client")

    # Requests.

    def _run_text(self, connection: Connection, script: Script, keys: Keys, args: Keys, until: float) -> Answer:
        """Run a script that the server does not know."""
        packed = wire.eval_text(script, keys, args, connection.run_id)
        reply = self._carry_out(connection, lambda connection: connection.exchange(packed, until - self._now()))
        wire.raise_if_error(reply)
        return Answer(reply, connection.run_id)

    def _exchange(self, exchange: Callable[[Connection], T], until: float) -> T:
        """Have a request and its replies on any connection."""
        connection = self._take(until)
        try:
            return self._carry_out(connection, exchange)
        except Unsent:
            return self._carry_out(self._connect(until), exchange)

    def _carry_out(self, connection: Connection, exchange: Callable[[Connection], T]) -> T:
        """Have a request and its replies on a connection, and keep it only if all went well."""
        try:
            said = exchange(connection)
        except BaseException as error:  # noqa: BLE001 - it is raised again
            self._fail(connection, error)
        self._pool.put_back(connection)
        return said

    def _take(self, until: float) -> Connection:
        """Return a connection on which no reply is due."""
        now = self._now()
        if now >= until:
            raise StoreUnavailable(f"no time was left to ask the Redis server at {self._address}; allow more")
        return self._pool.take(now) or self._connect(until)

    def _connect(self, until: float) -> Connection:
        self._check_open()
        until = min(until, self._now() + self._access.connect_timeout)
        connection = self._dial(until, self._identify)
        self._pool.add(connection, self._now())
        return connection

    def _dial(self, until: float, identify: wire.Identify) -> Connection:
        return connect(self._access, self._address, self._now, until, identify)

    def _dial_channel(self, on_stage: Callable[[OSError], None]) -> Connection:
        until = self._now() + self._access.connect_timeout
        return connect(self._access, self._address, self._now, until, None, on_stage)

    def _fail(self, connection: Connection, error: BaseException) -> NoReturn:
        """Drop a connection on which something went wrong, and say what."""
        if not isinstance(error, (Unsent, *BROKEN)):
            self._pool.discard(connection)
            raise error
        self._pool.lose(connection)
        if isinstance(error, Unsent):
            raise Unsent(f"the Redis server at {self._address} closed the connection; ask again") from error.__cause__
        raise wire.unanswered(self._address, error) from error


def _known(connection: Connection, attempt: Callable[[Connection, Pack], Answer]) -> Answer:
    """Run a script by its digest, and by its text if the server does not know it."""
    answer = attempt(connection, wire.evalsha)
    return attempt(connection, wire.eval_text) if wire.is_error(answer.value, "NOSCRIPT") else answer
