"""A bucket of JetStream as a table: a row is the last message of a subject, and its version that message's number.

The numbers of a stream grow for ever, also over deletions. A write names the number that the last message of its
subject must have, and the leader of the stream compares: one that comes late, or whose reply was lost, changes nothing.
Reads go to the leader as well, for followers lag. A leader that stood still and was replaced answers reads for a moment
after it goes on: a row that is older than what this client has seen is refused.
"""

import asyncio
import base64
import json
import logging
import random
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from nats.aio.client import Client as Connection
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from tenure.errors import OutcomeUnknown, StoreError, StoreUnavailable
from tenure.escaping import quoted
from tenure.runtimes.aio import CANCELLED, LoopTask, in_own_task
from tenure.stores.nats.api import (
    NAME_IN_USE,
    NO_MESSAGE,
    NO_STREAM,
    NOT_ENABLED,
    NOT_ENABLED_FOR_ACCOUNT,
    UNAVAILABLE,
    WRONG_LAST,
    Api,
    ApiError,
    Sent,
    TlsConnection,
    answer,
    close,
    close_socket,
    config_of,
    flaw_of,
    is_over,
)
from tenure.stores.nats.options import NatsDeployment
from tenure.stores.rows.access import REMEMBERED
from tenure.stores.rows.contract import Row

log = logging.getLogger("tenure.nats")

OPENING = 5.0
"""The longest time to connect and to find or make the bucket, in seconds."""

ATTEMPT = 1.0
"""How long one attempt of a request waits for the answer, in seconds."""

PONG = 0.5
"""How long a server that has not answered a request may take to answer a ping, in seconds."""

HEARTBEAT = 1.0
"""How often the server says that it has nothing to tell, in seconds."""

PING, PINGS = 5, 2
"""How often an idle connection is tried, in seconds, and how many tries may be unanswered."""


class Bucket:
    """A bucket, over one connection, which is made again when it is lost. All calls are of one loop."""

    def __init__(self, deployment: NatsDeployment) -> None:
        self._deployment = deployment
        self._stream = f"KV_{deployment.bucket}"
        self._subjects = f"$KV.{deployment.bucket}."
        self._opening: asyncio.Task[Connection] | None = None
        self._watching: LoopTask | None = None
        self._problem: Exception | None = None
        self._newest: OrderedDict[str, int] = OrderedDict()
        """The last version of each row that this client has seen."""
        self._created = ""
        """When the bucket was made, as the server says: in a bucket that was made anew the numbers begin again."""
        self._ending: set[asyncio.Task[None]] = set()
        """The tasks that close a connection, or try whether it must be closed."""
        self._trying: asyncio.Task[None] | None = None
        """The last task that tried whether the server still answers on the connection."""

    async def read(self, key: str, timeout: float) -> Row:
        """Return a row; `Row()` if there is none."""
        known = self._newest.get(key, 0)  # what is written meanwhile may be newer than the answer
        asked = {"last_by_subj": self._subjects + key}
        try:
            reply = await self._call(f"STREAM.MSG.GET.{self._stream}", asked, timeout)
        except ApiError as error:
            if error.kind != NO_MESSAGE:
                raise
            reply = {"message": {"seq": 0}}
        message: Api = reply["message"]
        if message["seq"] < min(known, self._newest.get(key, 0)):  # which a bucket made anew begins again
            if (present := self._present()) is not None:
                self._leave(present)
            raise StoreUnavailable(self._says("a server that leads no longer has answered"))
        if not message["seq"]:
            return Row()
        self._note_version(key, message["seq"])
        # A row that a tool has deleted is a message without data: what is written next follows its number.
        return Row(base64.b64decode(message.get("data", "")), message["seq"])

    async def write(self, key: str, value: bytes, version: Any, timeout: float) -> int | None:  # noqa: ANN401
        """Write a row if it has this version still; return its new version, or None."""
        until = time.monotonic() + timeout
        connection = await self._connected(timeout)
        if len(value) > connection.max_payload - 1024:
            raise StoreError(
                f"a row of {len(value)} bytes is more than NATS takes; raise max_payload in the configuration of the "
                "server."
            )
        headers = {"Nats-Expected-Last-Subject-Sequence": str(version or 0), "Nats-Expected-Stream": self._stream}
        sent = Sent(self._subjects + key, value, headers)
        try:
            written = int(answer(await self._send(sent, until))["seq"])
            self._note_version(key, written)
            return written
        except ApiError as error:
            if error.kind in WRONG_LAST:
                if sent.times == 1:
                    return None
                with suppress(StoreUnavailable):
                    row = await self.read(key, until - time.monotonic())
                    if row.value == value:  # no two values are alike
                        return int(row.version)
            elif error.code != UNAVAILABLE:
                raise
            raise OutcomeUnknown(self._says("it did not say whether a write was done")) from None
        except (StoreUnavailable, NatsError, OSError) as error:
            if not sent.times:
                raise
            why = f"a write was not answered ({type(error).__name__})"
            raise OutcomeUnknown(self._says(why)) from None

    def _note_version(self, key: str, version: int) -> None:
        """Remember the last version of a row, of so many rows as a client remembers."""
        self._newest[key] = max(version, self._newest.pop(key, 0))
        if len(self._newest) > REMEMBERED:
            self._newest.popitem(last=False)

    async def keys(self, prefix: str, after: str, most: int, timeout: float) -> list[str]:
        """Return up to `most` keys that begin with `prefix` and follow `after`. The server lists all of the kind."""
        until, found = time.monotonic() + timeout, list[str]()
        asked: Api = {"subjects_filter": f"{self._subjects}{prefix.partition('.')[0]}.>", "offset": 0}
        while True:
            reply = await self._call(f"STREAM.INFO.{self._stream}", asked, until - time.monotonic())
            subjects: Api = reply["state"].get("subjects") or {}
            found += [each.removeprefix(self._subjects) for each in subjects]
            asked["offset"] += len(subjects)
            if not subjects or asked["offset"] >= reply.get("total", 0):
                break
        return sorted(key for key in found if key.startswith(prefix) and key > after)[:most]

    def watch(self, changed: Callable[[str, Row], None]) -> None:
        """Call `changed` with each row that is written from now on; with an empty key if some may have been missed."""
        loop = asyncio.get_running_loop()
        self._watching = LoopTask(loop, lambda: loop.create_task(self._watch(changed)), again=True)

    async def close(self) -> None:
        """Disconnect."""
        watching, self._watching = self._watching, None
        if watching is not None:
            watching.cancel()
            await watching.join(None)
        await self._drop()
        while self._ending:
            await asyncio.wait(self._ending)  # each ends within a second

    # -- the connection ------------------------------------------------------------------------------------

    async def _connected(self, timeout: float) -> Connection:
        """Return the connection; make it if there is none. All callers wait for the same one, each for its own time."""
        present = self._present()
        if present is not None and is_over(present):
            self._leave(present)
        opening = self._opening
        if opening is None or (opening.done() and present is None):
            opening = self._opening = asyncio.get_running_loop().create_task(self._open())
        await asyncio.wait({opening}, timeout=timeout)
        if not opening.done():
            raise StoreUnavailable(self._says("it is not connected yet"))
        if opening.cancelled():  # by others, or by a close
            raise StoreUnavailable(self._says(CANCELLED))
        return opening.result()

    def _present(self) -> Connection | None:
        """Return the connection that was made last, which may be closed by now; None if there is none."""
        opening = self._opening
        made = opening is not None and opening.done() and not opening.cancelled() and opening.exception() is None
        return opening.result() if opening is not None and made else None

    async def _open(self) -> Connection:
        """Connect, and find or make the bucket."""
        self._problem = None
        connection = None
        try:
            async with asyncio.timeout(OPENING):
                connection = await self._connect()
                await self._find_bucket(connection)
        except GeneratorExit:  # the coroutine is being closed, and may await nothing more
            raise
        except BaseException as error:
            if connection is not None:
                await close(connection)
            if isinstance(error, NatsError | OSError | ValueError):  # TimeoutError is an OSError
                raise self._unreachable(error) from None
            raise
        return connection

    async def _connect(self) -> Connection:
        """Connect to any of the servers, in no order; each gets a share of the time."""
        where = self._deployment
        addresses = [*where.addresses]
        random.shuffle(addresses)
        share = OPENING / (len(addresses) + 1)
        options: dict[str, Any] = where.login if where.tls is None else {"tls": where.tls, **where.login}
        while True:
            address, connection = addresses.pop(), Connection() if where.tls is None else TlsConnection()
            connecting = connection.connect(  # pyright: ignore[reportUnknownMemberType]
                f"{'nats' if where.tls is None else 'tls'}://{address}",
                error_cb=self._note,
                allow_reconnect=False,  # made anew by the next call, so that no request waits in a buffer meanwhile
                max_reconnect_attempts=1,
                reconnect_time_wait=0,
                connect_timeout=share,  # type: ignore[arg-type] # seconds
                ping_interval=PING,
                max_outstanding_pings=PINGS,
                name="tenure",
                **options,
            )
            try:
                await in_own_task(connecting, share)
                return connection
            except GeneratorExit:
                raise
            except BaseException as error:
                await close(connection)
                if not addresses or not isinstance(error, NatsError | OSError):
                    raise

    async def _find_bucket(self, connection: Connection) -> None:
        """Make the bucket if there is none. Raises StoreError if the one that is there would lose locks."""
        try:
            found = await self._call(f"STREAM.INFO.{self._stream}", {}, OPENING, connection)
        except ApiError as error:
            if error.kind in {NOT_ENABLED, NOT_ENABLED_FOR_ACCOUNT}:
                raise StoreError(self._says("JetStream is not enabled: start the server with --jetstream")) from None
            if error.kind != NO_STREAM:
                raise
            found = await self._make_bucket(connection)
        if found["created"] != self._created:
            self._created = found["created"]
            self._newest.clear()
        if flaw := flaw_of(found["config"]):
            raise StoreError(
                f"the bucket {self._deployment.bucket!r} of NATS would lose locks: {flaw}. Name another in the URL, "
                "and Tenure makes it."
            )

    async def _make_bucket(self, connection: Connection) -> Api:
        clustered = bool(connection._server_info.get("cluster"))  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        config = config_of(self._stream, self._subjects, self._deployment.replicas or (3 if clustered else 1))
        try:
            return await self._call(f"STREAM.CREATE.{self._stream}", config, OPENING, connection)
        except ApiError as error:
            if error.kind != NAME_IN_USE:  # another client was faster, with other options
                raise
            return await self._call(f"STREAM.INFO.{self._stream}", {}, OPENING, connection)

    async def _note(self, error: Exception) -> None:
        """Note why there is no connection, for the error of whoever waits for it."""
        self._problem = error
        log.debug("the connection to %s: %s", self._deployment.title(), type(error).__name__)

    async def _drop(self) -> None:
        """Close the connection, or stop making it."""
        opening, self._opening = self._opening, None
        if opening is None:
            return
        opening.cancel()
        await asyncio.wait({opening})
        if not opening.cancelled() and opening.exception() is None:
            await close(opening.result())

    # -- requests ------------------------------------------------------------------------------------------

    async def _call(self, path: str, body: Api, timeout: float, connection: Connection | None = None) -> Api:
        """Send a request to JetStream that may be repeated."""
        request = Sent(f"$JS.API.{path}", json.dumps(body).encode(), None)
        try:
            return answer(await self._send(request, time.monotonic() + timeout, connection))
        except ApiError as error:
            if error.code == UNAVAILABLE:
                raise StoreUnavailable(str(error)) from None
            raise
        except (NatsError, OSError) as error:
            raise StoreUnavailable(self._says(f"it did not answer ({type(error).__name__})")) from None

    async def _send(self, request: Sent, until: float, only: Connection | None = None) -> Msg:
        """Send a request until it is answered. While a stream has no leader, nobody answers what was sent to it."""
        while True:
            connection = only or await self._connected(until - time.monotonic())
            attempt = min(ATTEMPT, until - time.monotonic())
            request.times += 1
            try:
                sent = connection.request(request.subject, request.payload, timeout=attempt, headers=request.headers)
                return await in_own_task(sent, attempt)
            except (NatsError, OSError):
                if until - time.monotonic() <= 0:
                    if only is None and (self._trying is None or self._trying.done()):
                        self._trying = self._begin(self._try_connection(connection))  # for the next request
                    raise
            await self._try_connection(connection)

    async def _try_connection(self, connection: Connection) -> None:
        """Leave a server that answers nothing at all, for another may."""
        if not is_over(connection):
            with suppress(NatsError, OSError):
                await in_own_task(connection.flush(PONG), PONG)  # type: ignore[arg-type] # seconds
                return
        self._leave(connection)
        await asyncio.sleep(PONG / 10)

    def _leave(self, connection: Connection) -> None:
        """Close a connection in the background; the next call makes another."""
        if self._present() is connection:
            self._opening = None
        closing = self._begin(close(connection))
        closing.add_done_callback(lambda _: close_socket(connection))  # others may cancel it before it begins

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        self._ending.add(ending := asyncio.get_running_loop().create_task(work))
        ending.add_done_callback(self._ending.discard)
        return ending

    def _says(self, what: str) -> str:
        return f"{self._deployment.title()}: {what}."

    def _unreachable(self, error: Exception) -> StoreError:
        cause = self._problem or error
        said = str(cause).lower()
        if "authorization" in said or "authentication" in said:
            return StoreError(self._says("the login is refused; check the user and the password of the URL"))
        return StoreUnavailable(self._says(f"it cannot be reached ({quoted(cause) or type(cause).__name__})"))

    # -- changes -------------------------------------------------------------------------------------------

    async def _watch(self, changed: Callable[[str, Row], None]) -> None:
        """Follow the stream by a consumer. One that misses a message, or falls silent, is replaced by another."""
        while True:
            with suppress(StoreError, NatsError, OSError):
                await self._follow(await self._connected(OPENING), changed)
            await asyncio.sleep(HEARTBEAT / 4)

    async def _follow(self, connection: Connection, changed: Callable[[str, Row], None]) -> None:
        """Tell of changes until some may have been missed."""
        messages: asyncio.Queue[Msg] = asyncio.Queue()
        address = connection.new_inbox()
        subscription = await connection.subscribe(address, cb=messages.put)  # pyright: ignore[reportUnknownMemberType]
        try:
            config = {
                "deliver_subject": address,
                "deliver_policy": "new",
                "ack_policy": "none",
                "max_deliver": 1,
                "idle_heartbeat": int(HEARTBEAT * 1e9),
                "inactive_threshold": int(5 * HEARTBEAT * 1e9),
                "mem_storage": True,
                "num_replicas": 1,
            }
            body = {"stream_name": self._stream, "config": config}
            await self._call(f"CONSUMER.CREATE.{self._stream}", body, OPENING, connection)
            changed("", Row())
            told = 0
            while not is_over(connection):
                async with asyncio.timeout(3 * HEARTBEAT):
                    message = await messages.get()
                if not message.reply.startswith("$JS.ACK."):  # a heartbeat
                    continue
                sequence = message.metadata.sequence
                if sequence.consumer != told + 1:
                    return
                told = sequence.consumer
                key = message.subject.removeprefix(self._subjects)
                self._note_version(key, sequence.stream)
                changed(key, Row(message.data, sequence.stream))
        finally:
            with suppress(NatsError, OSError):
                await subscription.unsubscribe()
