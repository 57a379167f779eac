"""Requests to JetStream, its answers and their errors, and which buckets lose locks."""

import json
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nats.aio.client import Client as Connection
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from tenure.errors import StoreError
from tenure.escaping import shown
from tenure.runtimes.aio import in_own_task

if TYPE_CHECKING:
    import asyncio

Api = dict[str, Any]

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


def config_of(stream: str, subjects: str, replicas: int) -> Api:
    """Return the configuration of a bucket that loses no locks."""
    return {
        "name": stream,
        "description": "locks of Tenure",
        "subjects": [f"{subjects}>"],
        "max_msgs_per_subject": 1,
        "max_msgs": -1,
        "max_bytes": -1,
        "max_age": 0,
        "discard": "new",
        "storage": "file",
        "num_replicas": replicas,
        "deny_delete": True,
        "allow_rollup_hdrs": True,
        "allow_direct": True,
    }


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


def is_over(connection: Connection) -> bool:
    """Return whether a connection is closed, or was made useless by others who cancelled its tasks.

    nats-py does not notice the latter, and waits for answers that nobody takes any more.
    """
    tasks: list[asyncio.Task[Any] | None] = [
        connection._reading_task,  # noqa: SLF001  # pyright: ignore[reportPrivateUsage, reportUnknownMemberType]
        connection._flusher_task,  # noqa: SLF001  # pyright: ignore[reportPrivateUsage, reportUnknownMemberType]
        connection._ping_interval_task,  # noqa: SLF001  # pyright: ignore[reportPrivateUsage, reportUnknownMemberType]
        *(
            each._wait_for_msgs_task  # noqa: SLF001  # pyright: ignore[reportPrivateUsage, reportUnknownMemberType]
            for each in list(connection._subs.values())  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        ),
    ]
    return connection.is_closed or any(each is not None and each.done() for each in tasks)


async def close(connection: Connection) -> None:
    """Close a connection within a second, also its socket, which nats-py leaves open when a close fails."""
    try:
        with suppress(NatsError, OSError):
            await in_own_task(connection.close(), 1.0)
    finally:
        close_socket(connection)


def close_socket(connection: Connection) -> None:
    """Close the socket of a connection at once."""
    transport = connection._transport  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    if transport is not None:
        transport.close()  # type: ignore[no-untyped-call]
