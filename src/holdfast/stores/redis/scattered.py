"""A link of the threads runtime to one node of a quorum, whose nodes are asked side by side in one thread.

Where a ThreadLink would block for the reply, it lets the others go on. A request whose reply nobody waits for any more
leaves its connection in debt: it is used again when the reply has come, and closed if none comes for long.
"""

from collections import deque

from holdfast.runtimes.scatter import Readable
from holdfast.stores.redis import wire
from holdfast.stores.redis.link import Answer, ReplyError
from holdfast.stores.redis.scripts import Script
from holdfast.stores.redis.sockets import BROKEN, Connection, Unsent
from holdfast.stores.redis.threads import Keys, ThreadLink

GIVEN_UP = 5.0
"""After how many seconds a reply that did not come is not waited for any more."""


class ScatteredLink(ThreadLink):
    """A way to one node of a quorum, for the threads of one client. Its scripts are run by `Runtime.race` alone."""

    async def run(self, script: Script, keys: Keys, args: Keys, until: float) -> Answer:
        """Run a script: send it, and let others go on until the reply is there."""
        connection = self._take(until)
        try:
            connection.send(wire.evalsha(script, keys, args, connection.run_id), until - connection.used)
        except Unsent:
            self._lose(connection)
            return self._run_text(self._connect(until), script, keys, args, until)
        except BaseException as error:  # noqa: BLE001 - it is raised again
            self._fail(connection, error)
        try:
            await Readable(connection.fileno(), until)
        except GeneratorExit:
            self._in_debt.append(connection)
            raise
        try:
            reply = connection.reply(max(0.001, until - self._now()))
        except BaseException as error:  # noqa: BLE001
            self._fail(connection, error)
        if type(reply) is ReplyError and reply.code == "NOSCRIPT":
            return self._run_text(connection, script, keys, args, until)
        self._put_back(connection)
        if type(reply) is ReplyError:
            raise reply
        return Answer(reply, connection.run_id)

    def _take(self, until: float) -> Connection:
        if self._in_debt:
            self._collect_debts()
        return super()._take(until)

    def _collect_debts(self) -> None:
        """Take back the connections whose reply has come by now."""
        for _ in range(len(self._in_debt)):
            try:
                connection = self._in_debt.popleft()
            except IndexError:  # others take them meanwhile
                return
            if not connection.is_stale():  # which is to say that there is something to read
                if self._now() - connection.used < GIVEN_UP:
                    self._in_debt.append(connection)
                else:
                    self._discard(connection)
                continue
            try:
                connection.reply(0.05)
            except BROKEN:
                self._discard(connection)
            else:
                self._put_back(connection)

    def _drop_idle(self, before: float = float("inf")) -> None:
        super()._drop_idle(before)
        if self._closed:
            while self._in_debt:
                self._discard(self._in_debt.popleft())

    def _start_anew(self) -> None:
        super()._start_anew()
        self._in_debt: deque[Connection] = deque()
