"""The shipped SQL store of a simulated client: every operation of its database is a request to a server and a reply."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

from simulation.checker import Checker
from simulation.network import RECOVERY, Answer, Link
from simulation.runtime import SimRuntime
from simulation.sql.direct import DirectSqlDatabase, capabilities_of
from simulation.sql.node import SqlNode
from simulation.sql.server import SqlServer
from tenure.contracts.messages import Notification, NotificationKind
from tenure.errors import StoreError, StoreUnavailable
from tenure.outcome import Outcome
from tenure.stores.sql.database import SqlSnapshot, SqlWrite
from tenure.stores.sql.store import SqlStore

T = TypeVar("T")

RECONNECTS = 0.1
"""How long a client takes to listen again, in seconds."""


ANSWERED_WITHIN = 2.0
"""How long a client waits for the reply to a release that was sent, in seconds."""


class SimulatedSqlDatabase(DirectSqlDatabase):
    """The access of a simulated client: every operation is a request to the server and a reply."""

    def __init__(self, runtime: SimRuntime, node: SqlNode, link: Link, checker: Checker) -> None:
        """Use `node` over `link`."""
        super().__init__(node.server, node.rules, f"channel-{runtime.process.name}")
        self._runtime = runtime
        self._node = node
        self._link = link
        self._checker = checker
        self._deliver: Callable[[Notification], None] = lambda notification: None  # noqa: ARG005
        self._closed = False

    async def open(self, deliver: Callable[[Notification], None], until: float) -> str:
        """Listen."""
        self._deliver = deliver
        self._link.when_cut.append(self._listen_again_soon)
        return await super().open(self._push, until)

    async def close(self) -> None:
        """Stop listening."""
        self._closed = True
        await super().close()

    def send_release(self, name: str, request_id: str, told: Callable[[SqlSnapshot | Outcome | None], None]) -> bool:
        """Send the release beside the caller; `told` gets its reply."""

        async def run() -> None:
            found: SqlSnapshot | Outcome | None = None
            with suppress(StoreError):
                found = await self.release(name, request_id, self._runtime.now() + ANSWERED_WITHIN)
                found = Outcome.RELEASED if found is None else found
            told(found)

        self._runtime.spawn(run, "release sent")
        return True

    def vanish(self) -> None:
        """End the session that listens, as the death of the client does."""
        self._server.channels.pop(self.channel, None)

    def _push(self, notification: Notification) -> None:
        self._link.push(lambda: self._deliver(notification), f"{notification.request_id} ({notification.kind})")

    def _listen_again_soon(self) -> None:
        self._link.process.later(RECONNECTS, self._listen_again)

    def _listen_again(self) -> None:
        """Listen again after the connection broke, and report that notifications may have been missed."""
        if self._closed or self.channel in self._server.channels:
            return
        if self._node.is_down() or max(self._link.deaf_until, self._link.mute_until) > self._link.world.time:
            self._listen_again_soon()
            return
        self._server.channels[self.channel] = self._push
        self._deliver(Notification(self.channel, NotificationKind.GAP, ""))

    async def transact(self, names: Sequence[str], work: Callable[[SqlSnapshot], SqlWrite], until: float) -> bool:
        """Lock rows, and write what `work` makes of them, if this client is there to do its part at that instant.

        The database ends a transaction whose client stands still. Meanwhile it does not make others wait, as a real
        one does for a second.
        """
        process, began, left_over = self._link.process, self._link.epoch, [work]

        def once(server: SqlServer) -> bool:
            absent = process.crashed or process.paused_until > process.world.time or process.clock() > until
            if absent or self._link.epoch != began or not left_over:
                return False
            return server.transact(names, left_over.pop(), self._rules)

        return await self._call(once, until)

    async def _call(self, work: Callable[[SqlServer], T], until: float) -> T:
        node, link = self._node, self._link
        if node.is_down():
            link.happened["connection refused"] += 1
            await self._runtime.sleep(link.delay())
            raise StoreUnavailable("connection refused")
        if link.faults.errors and link.world.random.random() < link.faults.errors:
            await self._fail()

        def serve(answer: Answer[T]) -> None:
            if not node.is_down():
                answer.resolve(work(node.server))

        return await link.exchange(serve, until, lambda: node.takes(link.happened))

    async def _fail(self) -> None:
        """Raise StoreUnavailable without an effect; now and then StoreError, after which a retry is useless."""
        world, delay = self._link.world, self._link.delay()
        self._link.happened["error answered"] += 1
        self._checker.store.disturbed(self.channel, world.time + delay + RECOVERY)
        await self._runtime.sleep(delay)
        if world.random.random() < 0.2:
            raise StoreError("the database replied with an error, and a retry would fail as well")
        raise StoreUnavailable("the database replied with an error")


class SimulatedSqlStore(SqlStore):
    """The shipped store of one client, which may die."""

    def __init__(self, runtime: SimRuntime, node: SqlNode, link: Link, checker: Checker) -> None:
        """Use `node` over `link`."""
        self._simulated = SimulatedSqlDatabase(runtime, node, link, checker)
        super().__init__("sql://simulated", runtime, self._simulated, capabilities_of(node.rules))

    def vanish(self) -> None:
        """End the session that listens."""
        self._simulated.vanish()
