"""The link to etcd: requests as `transport/link.py` carries them, and streams on connections of their own."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, cast
from weakref import WeakKeyDictionary

from tenure.contracts.runtime import Runtime
from tenure.errors import OutcomeUnknown, StoreError
from tenure.stores.etcd import errors
from tenure.stores.etcd.http import EtcdReply, EtcdRequest, HttpConversation, JsonObject, piece
from tenure.stores.etcd.options import EtcdDeployment
from tenure.transport.aio import pump_for
from tenure.transport.errors import BROKEN
from tenure.transport.link import Line, Listening, ServerAddress, ServerLink


class Stream(Protocol):
    """A request whose body is sent piece by piece, and its replies, on a connection of its own."""

    def say(self, body: bytes) -> None:
        """Send another piece of the request. Does not wait."""

    def close(self) -> None:
        """End the stream, without a callback. Does not wait."""


@dataclass(slots=True)
class EtcdCallbacks:
    """The callbacks of a stream. Both are called where the runtime runs its code, and never block."""

    on_said: Callable[[JsonObject], None]
    on_end: Callable[[], None]
    """The stream has ended, and not by `close`."""


class EtcdStream:
    """A stream of HTTP: each piece is a chunk."""

    def __init__(self, listening: Listening) -> None:
        self._listening = listening
        self.close = listening.close

    def say(self, body: bytes) -> None:
        """Send another piece of the request. Does not wait."""
        self._listening.say(piece(body))


class EtcdLink(ServerLink[EtcdRequest, EtcdReply]):
    """The link to all servers of a deployment. What was not sent raises EtcdNotSent."""

    def __init__(self, runtime: Runtime, deployment: EtcdDeployment) -> None:
        pump = pump_for(runtime, "etcd")
        super().__init__(runtime, pump, errors.SERVER, deployment.connect_timeout, deployment.tls)
        self._streams: WeakKeyDictionary[Listening, ServerAddress] = WeakKeyDictionary()

    def _conversation(self, address: ServerAddress) -> HttpConversation:
        return HttpConversation(address)

    def _cannot_connect(self, address: ServerAddress, error: BaseException) -> StoreError:
        return errors.cannot_connect(address, error)

    def _unanswered(
        self, address: ServerAddress, line: Line[EtcdRequest, EtcdReply], error: BaseException
    ) -> OutcomeUnknown:
        heard = cast("HttpConversation", line.conversation).has_heard()
        return errors.unanswered(address, error, plain=self._tls is None and not heard)

    async def stream(
        self, address: ServerAddress, request: EtcdRequest, callbacks: EtcdCallbacks, until: float
    ) -> Stream:
        """Start a stream, and return when its head is sent. `Stream.say` sends the body."""
        line = await self._connect(address, until)
        try:
            head = cast("HttpConversation", line.conversation).begin(request)
            listening = line.listen(head, lambda reply: callbacks.on_said(reply.said), callbacks.on_end, until)
        except BROKEN as error:
            line.close()
            raise errors.EtcdNotSent(*errors.cannot_connect(address, error).args) from error
        except BaseException:
            line.close()
            raise
        with self._mutex:
            self._streams[listening] = address
        if self._closed:  # meanwhile: nobody else ends it
            listening.close()
            self._check_open()
        return EtcdStream(listening)

    def drop_server(self, address: ServerAddress) -> None:
        """End the streams of a server that does not answer, and close its idle connections."""
        self._pool(address).drop_idle()
        with self._mutex:
            lost = [listening for listening, at in self._streams.items() if at == address]
        for listening in lost:
            listening.lose()
