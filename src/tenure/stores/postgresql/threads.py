"""The link for threads: every `async def` blocks in place, in the thread that calls it."""

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

    async def _look_up(self, host: str, port: int) -> list[str]:  # noqa: ARG002 - libpq blocks, as this thread may
        return []
