"""A link of the threads runtime to one node of a quorum, whose nodes are asked side by side in one thread.

Where a ThreadLink would block for the reply, it lets the others go on. A server that owes a reply for long is not asked
more: then only a new connection could tell whether it is there, and nobody is to wait for that.
"""

from typing import Any

from holdfast.errors import StoreUnavailable
from holdfast.runtimes.fan_out import readable
from holdfast.stores.redis import wire
from holdfast.stores.redis.link import Answer, ReplyError
from holdfast.stores.redis.scripts import Script
from holdfast.stores.redis.sockets import Connection, Unsent
from holdfast.stores.redis.threads import Keys, ThreadLink

SILENT = 0.1
"""After how many seconds without a reply a server counts as silent."""

DIALLING = 0.25
"""For how many seconds at most a call waits for another connection to be made, if its server is not silent."""


class FanOutLink(ThreadLink):
    """A way to one node of a quorum, for the threads of one client. Its scripts are run by `Runtime.race` alone."""

    async def run(self, script: Script, keys: Keys, args: Keys, until: float) -> Answer:
        """Run a script: send it, and let others go on until the reply is there."""
        connection = self._take(until)
        try:
            connection.send(wire.evalsha_alike(script, keys, args, connection.run_id), until - connection.used)
        except Unsent:
            self._pool.lose(connection)
            connection = self._connect(until)
            return await self._run_text_beside(connection, script, keys, args, until)
        except BaseException as error:  # noqa: BLE001 - it is raised again
            self._fail(connection, error)
        reply = await self._reply(connection, until)
        if type(reply) is ReplyError and reply.code == "NOSCRIPT":
            return await self._run_text_beside(connection, script, keys, args, until)
        return self._answer(connection, reply)

    async def _run_text_beside(
        self, connection: Connection, script: Script, keys: Keys, args: Keys, until: float
    ) -> Answer:
        """Run a script that the server does not know, or may not know."""
        try:
            connection.send(wire.eval_text(script, keys, args, connection.run_id), until - self._now())
        except BaseException as error:  # noqa: BLE001 - it is raised again
            self._fail(connection, error)
        return self._answer(connection, await self._reply(connection, until))

    def _answer(self, connection: Connection, reply: Any) -> Answer:  # noqa: ANN401 - whatever the server answers
        self._pool.put_back(connection)
        if type(reply) is ReplyError:
            raise reply
        return Answer(reply, connection.run_id)

    async def _reply(self, connection: Connection, until: float) -> Any:  # noqa: ANN401 - whatever the server answers
        """Wait for the reply, and let others go on meanwhile."""
        try:
            self._unheard.add(connection)
            reply = wire.NOTHING
            while reply is wire.NOTHING:
                await readable(connection.descriptor, until)
                self._unheard.discard(connection)  # before it is read, which lets other threads look
                reply = self._read(connection, until)
        except GeneratorExit:
            self._pool.discard(connection)
            raise
        finally:
            self._unheard.discard(connection)
        return reply

    def _read(self, connection: Connection, until: float) -> Any:  # noqa: ANN401 - whatever the server answers
        """Return the reply, or NOTHING if that is not all there yet."""
        try:
            reply = connection.take(until - connection.used)
        except BaseException as error:  # noqa: BLE001 - it is raised again
            self._fail(connection, error)
        if reply is wire.NOTHING and self._now() >= until:
            self._fail(connection, TimeoutError("the reply came too slowly"))
        return reply

    def _connect(self, until: float) -> Connection:
        now = self._now()
        if any(now - each.used > SILENT and not _has_answered(each) for each in list(self._unheard)):
            raise StoreUnavailable(f"the Redis server at {self._address} has not answered for a while")
        return super()._connect(min(until, now + DIALLING) if self._unheard else until)

    def _start_anew(self) -> None:
        super()._start_anew()
        self._unheard: set[Connection] = set()
        """Those on which a reply is due."""


def _has_answered(connection: Connection) -> bool:
    """Tell whether a reply has come that nobody has taken yet."""
    try:
        return connection.is_stale()
    except ValueError:  # another thread has closed it by now
        return True
