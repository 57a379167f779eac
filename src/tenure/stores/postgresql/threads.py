"""The link for threads: every `async def` blocks in place, in the thread that calls it."""

import inspect
from collections.abc import Callable
from typing import Any

from tenure.errors import UsageError
from tenure.runtimes import clocks
from tenure.stores.postgresql.connection import PgConnection
from tenure.stores.postgresql.link import PgLink
from tenure.transport.polling import new_poll


class PgThreadLink(PgLink):
    """The connections of the threads of one client."""

    async def _wait(self, connection: PgConnection, mask: int, until: float) -> None:
        ready = new_poll()
        ready.register(connection, mask)
        if not ready.poll(max(0.0, until - clocks.steady()) * 1000):
            raise TimeoutError

    async def _made_by(self, connect: Callable[[], Any], until: float) -> Any:  # noqa: ANN401, ARG002 - it has timeouts
        made = connect()
        if inspect.isawaitable(made):
            if inspect.iscoroutine(made):
                made.close()
            raise UsageError(
                f"{self._deployment.title()} makes connections for asyncio, which only an AsyncClient can use: give a "
                "Client a blocking pool or engine."
            )
        return made

    async def _look_up(self, host: str, port: int) -> list[str]:  # noqa: ARG002 - libpq blocks, as this thread may
        return []
