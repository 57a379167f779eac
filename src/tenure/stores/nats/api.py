"""Requests to JetStream, its answers and their errors, and which buckets lose locks."""

import asyncio
import json
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from nats.aio.client import Client as Connection
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from tenure.errors import StoreError
from tenure.escaping import shown

Api = dict[str, Any]
T = TypeVar("T")

NO_STREAM, NO_MESSAGE, NAME_IN_USE, NOT_ENABLED, NOT_ENABLED_FOR_ACCOUNT = 10059, 10037, 10058, 10076, 10039
WRONG_LAST = {10071, 10164}
"""The codes of JetStream for a write whose expected number is not that of the last message; the second while another
write of the subject is under way."""

UNAVAILABLE = 503
"""JetStream has no leader now."""

DAY = 86_400


class ApiError(StoreError):
    """JetStream has answered with an error."""

    def __init__(self, error: Api) -> None:
        super().__init__(f"NATS refused a request: {shown(str(error.get('description')))}.")
        self.code, self.kind = error.get("code"), error.get("err_code")


def flaw_of(config: Api) -> str:
    """Return why a bucket with this configuration loses locks; empty if it does not."""
    if config.get("storage") != "file":
        return "it is kept in memory, so a restart forgets all locks"
    if 0 < config.get("max_age", 0) < DAY * 10**9:
        return "its rows end by themselves, within less than a day"
    limited = config.get("max_bytes", -1) > 0 or config.get("max_msgs", -1) > 0
    if limited and config.get("discard") != "new":
        return "when it is full, it drops the oldest rows"
    if config.get("mirror") or config.get("sources"):
        return "it is a copy of another, and copies lag"
    return ""


def answer(reply: Msg) -> Api:
    """Return what JetStream has answered. Raises the error that it may be."""
    try:
        answer: Api = json.loads(reply.data)
    except ValueError:
        raise StoreError("NATS answered with something that is not JSON.") from None
    if "error" in answer:
        raise ApiError(answer["error"])
    return answer


class TlsConnection(Connection):
    """A connection that logs in after a TLS handshake only.

    Without it nats-py sends the login in the clear to a server, or to whoever stands before it, that asks for no TLS.
    """

    def _connect_command(self) -> bytes:
        if not self._server_info.get("tls_required"):
            server = self._current_server
            where = f" at {server.uri.hostname}:{server.uri.port}" if server else ""
            raise StoreError(
                f"the NATS server{where} asks for no TLS, so nothing was sent to it: set up its TLS, or write nats:// "
                "instead of natss:// if the network may read the login."
            )
        return super()._connect_command()


@dataclass(slots=True)
class Sent:
    """A request, and how often it was sent."""

    subject: str
    payload: bytes
    headers: dict[str, str] | None
    times: int = 0
    """How often it was sent."""


async def ended(work: Coroutine[Any, Any, T], timeout: float) -> T:
    """Await a call of nats-py as a task, which is cancelled when the time is over, or this is cancelled.

    nats-py awaits with `asyncio.wait_for`, which before Python 3.12 may swallow a cancellation.
    """
    task = asyncio.get_running_loop().create_task(work)
    try:
        await asyncio.wait({task}, timeout=timeout)
    finally:
        if not task.done():
            task.cancel()
        task.add_done_callback(_retrieve)
    if not task.done() or task.cancelled():
        raise TimeoutError
    return task.result()


def _retrieve(task: "asyncio.Task[Any]") -> None:
    """Take the error of a task, so that asyncio does not report it."""
    if not task.cancelled():
        task.exception()


async def close(connection: Connection) -> None:
    """Close a connection within a second, also its socket, which nats-py leaves open when a close fails."""
    with suppress(NatsError, OSError):
        await ended(connection.close(), 1.0)
    transport = connection._transport  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    if transport is not None:
        transport.close()  # type: ignore[no-untyped-call]
