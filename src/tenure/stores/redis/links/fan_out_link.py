"""The link to one node of a quorum for threads. One thread has requests under way at all nodes.

Where a `RedisThreadLink` blocks until the reply comes, this link lets the requests to other nodes go on. It sends
nothing more to a server that has owed a reply for long: only a new connection could tell whether that server is there,
and no caller should wait for one.
"""

from typing import Any

from tenure.errors import StoreUnavailable
from tenure.runtimes.fan_out import readable
from tenure.stores.redis.links import wire
from tenure.stores.redis.links.link import PackedCall, RedisReply, ReplyError
from tenure.stores.redis.links.sockets import RedisConnection, RedisUnsent
from tenure.stores.redis.links.threads import Keys, RedisThreadLink
from tenure.stores.redis.lua.scripts import Script

SILENT = 0.1
"""After how many seconds without a reply a server counts as silent."""

DIALLING = 0.25
"""For how many seconds a call waits for another connection while requests to the server are under way."""


class FanOutLink(RedisThreadLink):
    """The link to one node of a quorum, for the threads of one client. Only `Runtime.race` runs its scripts."""

    async def run(self, script: Script, keys: Keys, args: Keys, until: float) -> RedisReply:
        """Run a script: send it, and let the other requests go on until the reply has come."""
        connection = self._take(until)
        try:
            connection.send(wire.evalsha(script, keys, args, connection.run_id), until - connection.used)
        except RedisUnsent:
            self._pool.lose(connection)
            connection = self._connect(until)
            return await self._run_text_beside(connection, script, keys, args, until)
        except BaseException as error:  # noqa: BLE001 - it is raised again
            self._fail(connection, error)
        reply = await self._reply(connection, until)
        if type(reply) is ReplyError and reply.code == "NOSCRIPT":
            return await self._run_text_beside(connection, script, keys, args, until)
        return self._answer(connection, reply)

    async def run_request(self, template: PackedCall, request_id: bytes, numbers: bytes, until: float) -> Any:  # noqa: ANN401 - whatever the script returns
        """Run the script of a template for one request, and let the requests to other nodes go on."""
        connection = self._take(until)
        try:
            connection.send(template.packed(request_id, numbers, connection.run_id), until - connection.used)
        except RedisUnsent:
            self._pool.lose(connection)
            connection = self._connect(until)
            keys, args = template.words(request_id, numbers)
            return (await self._run_text_beside(connection, template.script, keys, args, until)).value
        except BaseException as error:  # noqa: BLE001 - it is raised again
            self._fail(connection, error)
        reply = await self._reply(connection, until)
        if type(reply) is ReplyError and reply.code == "NOSCRIPT":
            keys, args = template.words(request_id, numbers)
            return (await self._run_text_beside(connection, template.script, keys, args, until)).value
        self._pool.put_back(connection)
        if type(reply) is ReplyError:
            raise reply
        return reply

    async def _run_text_beside(
        self, connection: RedisConnection, script: Script, keys: Keys, args: Keys, until: float
    ) -> RedisReply:
        """Run a script by its text, because the server may not know it."""
        try:
            connection.send(wire.eval_text(script, keys, args, connection.run_id), until - self._now())
        except BaseException as error:  # noqa: BLE001 - it is raised again
            self._fail(connection, error)
        return self._answer(connection, await self._reply(connection, until))

    def _answer(self, connection: RedisConnection, reply: Any) -> RedisReply:  # noqa: ANN401 - whatever the server answers
        self._pool.put_back(connection)
        if type(reply) is ReplyError:
            raise reply
        return RedisReply(reply, connection.run_id)

    async def _reply(self, connection: RedisConnection, until: float) -> Any:  # noqa: ANN401 - whatever the server answers
        """Wait for the reply, and let the other requests go on meanwhile."""
        try:
            self._unheard.add(connection)
            reply = wire.NOTHING
            while reply is wire.NOTHING:
                await readable(connection.descriptor, until)
                self._unheard.discard(connection)  # before the read, during which other threads may look
                reply = self._read(connection, until)
        except GeneratorExit:
            self._pool.discard(connection)
            raise
        finally:
            self._unheard.discard(connection)
        return reply

    def _read(self, connection: RedisConnection, until: float) -> Any:  # noqa: ANN401 - whatever the server answers
        """Return the reply, or NOTHING if only a part of it has come."""
        try:
            reply = connection.take(until - connection.used)
        except BaseException as error:  # noqa: BLE001 - it is raised again
            self._fail(connection, error)
        if reply is wire.NOTHING and self._now() >= until:
            self._fail(connection, TimeoutError("the reply came too slowly"))
        return reply

    def _connect(self, until: float) -> RedisConnection:
        now = self._now()
        if any(now - each.used > SILENT and not _has_answered(each) for each in list(self._unheard)):
            raise StoreUnavailable(f"the Redis server at {self._address} has not answered for a while")
        return super()._connect(min(until, now + DIALLING) if self._unheard else until)

    def _start_anew(self) -> None:
        super()._start_anew()
        self._unheard: set[RedisConnection] = set()
        """The connections on which a reply is due."""


def _has_answered(connection: RedisConnection) -> bool:
    """Tell whether a reply has come that no thread has read yet."""
    try:
        return connection.is_stale()
    except ValueError:  # another thread has closed the connection
        return True
