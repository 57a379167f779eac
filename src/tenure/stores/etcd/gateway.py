"""The gateway: sends each request to one server of the ensemble, logs in, and fails over.

A client uses one server until the server fails, then the next one. The failure ends its streams, and the client begins
them again at the next server. A request that the server may have carried out is repeated only if that does no harm.

Each request needs a connection, and a client may have a thousand waiters: so the number of concurrent requests is
limited.
"""

import json
import logging
from collections import deque
from collections.abc import Callable
from typing import cast

from tenure.contracts.runtime import Event, Runtime
from tenure.errors import OutcomeUnknown, StoreError, StoreUnavailable
from tenure.stores.etcd import errors
from tenure.stores.etcd.errors import EtcdNotSent
from tenure.stores.etcd.http import OK, EtcdReply, EtcdRequest, JsonObject
from tenure.stores.etcd.keys import packed_json
from tenure.stores.etcd.link import EtcdCallbacks, EtcdLink, Stream
from tenure.stores.etcd.options import EtcdDeployment
from tenure.transport.link import ServerAddress

log = logging.getLogger("tenure")


class Admission:
    """Admits a fixed number of requests at once, in the order in which they arrive."""

    def __init__(self, runtime: Runtime, count: int) -> None:
        """Create an admission with `count` free slots."""
        self._runtime = runtime
        self._mutex = runtime.mutex()
        self._free = count
        self._waiting: deque[Event] = deque()

    async def take(self, until: float, *, first: bool = False) -> bool:
        """Wait for a slot, with `first` before all others; return False if none was free by `until`."""
        with self._mutex:
            if self._free > 0:
                self._free -= 1
                return True
            slot = self._runtime.event()
            self._waiting.insert(0 if first else len(self._waiting), slot)
        taken = False
        try:
            taken = await slot.wait(until)
        finally:
            if not taken:
                self._give_up(slot)
        return taken

    def give_back(self) -> None:
        """Give the slot to the next request in the queue."""
        with self._mutex:
            if self._waiting:
                self._waiting.popleft().set()
            else:
                self._free += 1

    def _give_up(self, slot: Event) -> None:
        """Leave the queue. A slot that was given meanwhile goes to the next request."""
        with self._mutex:
            waits = slot in self._waiting
            if waits:
                self._waiting.remove(slot)
        if not waits:
            self.give_back()


FAILOVER_TIMEOUT = 0.5
"""The least time, in seconds, that a server has for its reply before another server is tried."""


AT_ONCE = 32
"""How many requests may be under way at once, each on a connection of its own."""


class Gateway:
    """The connection of one client to the servers of a deployment."""

    def __init__(self, runtime: Runtime, deployment: EtcdDeployment, link: EtcdLink) -> None:
        """Prepare the gateway; nothing is connected yet. Each client begins at a random server."""
        self._runtime = runtime
        self._deployment = deployment
        self._link = link
        self._place = int(runtime.random() * len(deployment.addresses))
        self._token = ""
        self._admission = Admission(runtime, AT_ONCE)

    async def exchange(
        self,
        path: str,
        body: JsonObject,
        until: float,
        *,
        again: bool = True,
        first: bool = False,
        on_unsure: Callable[[], None] = lambda: None,
    ) -> JsonObject:
        """Send a request and return the reply. `again` tells that a repeated request does no harm.

        If too many requests are under way, this one waits in a queue, with `first` before all others. `on_unsure` is
        called when a server gave no reply, even if another server replied then.

        Raises StoreUnavailable, OutcomeUnknown, another StoreError, or errors.LeaseGone.
        """
        packed = packed_json(body).encode()
        if not await self._admission.take(until, first=first):
            raise StoreUnavailable(
                f"the request to etcd at {self._address()} timed out behind {AT_ONCE} other requests of this client: "
                "raise `timeout` or `operation_timeout`, or send fewer requests at once"
            )
        try:
            return await self._exchange_with_each(path, packed, until, again=again, on_unsure=on_unsure)
        finally:
            self._admission.give_back()

    def send(self, path: str, body: JsonObject, until: float, told: Callable[[JsonObject | None], None]) -> bool:
        """Send a request to the current server, and have `told` get its reply later; False if it cannot be sent now.

        It goes by an idle connection, so it waits for nothing. `told` gets None if no reply comes, or an error.
        Raises OutcomeUnknown.
        """
        address = self._address()
        if self._deployment.user and not self._token:
            return False

        def heard(answer: EtcdReply | None) -> None:
            said: JsonObject | None = None
            try:
                said = None if answer is None else _result(address, answer)
            except errors.TokenRefused:
                self._token = ""
            except (StoreError, errors.LeaseGone) as error:
                log.debug("a request to which no caller waits for a reply was refused: %s", error)
            told(said)

        request = EtcdRequest(path, packed_json(body).encode(), self._token)
        return self._link.send_owed(address, request, until, heard)

    def collect_replies(self) -> None:
        """Take the replies to `send` that have come."""
        self._link.collect_owed()

    async def _exchange_with_each(
        self, path: str, packed: bytes, until: float, *, again: bool, on_unsure: Callable[[], None]
    ) -> JsonObject:
        """Send a request to one server after another until one replies."""
        tries = len(self._deployment.addresses)
        while True:
            tries -= 1
            now = self._runtime.now()
            if now >= until:
                raise errors.SERVER.too_late(self._address())
            address = self._address()
            try:
                if tries > 0:
                    await self._link.conversation(address, self._share(until, tries))
                    now = self._runtime.now()
                timeout = max((until - now) / 2, FAILOVER_TIMEOUT) if again and tries > 0 else until - now
                return await self._exchange(address, path, packed, min(until, now + timeout))
            except EtcdNotSent as error:
                self._advance(address)
                if tries <= 0:
                    raise StoreUnavailable(*error.args) from error.__cause__
            except StoreUnavailable as error:
                self._advance(address)
                if isinstance(error, OutcomeUnknown):
                    on_unsure()
                if tries <= 0 or (isinstance(error, OutcomeUnknown) and not again):
                    raise

    def _share(self, until: float, others: int) -> float:
        """Return until when a server may be connected, so that as much time is left for each of the others."""
        now = self._runtime.now()
        return now + (until - now) / (others + 1)

    async def exchange_with(self, address: ServerAddress, path: str, body: JsonObject, until: float) -> JsonObject:
        """Send a request to one server, whichever this client uses otherwise. Raises StoreError."""
        return await self._exchange(address, path, packed_json(body).encode(), until)

    async def stream(self, path: str, callbacks: EtcdCallbacks, until: float) -> Stream:
        """Begin a stream at the current server."""
        tries = len(self._deployment.addresses)
        while True:
            tries -= 1
            address = self._address()
            try:
                share = self._share(until, tries)
                token = await self._login(address, share)
                return await self._link.stream(address, EtcdRequest(path, b"", token), callbacks, share)
            except EtcdNotSent as error:
                self._advance(address)
                if tries <= 0:
                    raise StoreUnavailable(*error.args) from error.__cause__

    def forget_token(self) -> bool:
        """Drop the token, so that the next request logs in again; return False if the deployment has no user."""
        self._token = ""
        return bool(self._deployment.user)

    async def _exchange(self, address: ServerAddress, path: str, packed: bytes, until: float) -> JsonObject:
        """Send a request to a server, and once more with a new token if the server refused the token."""
        try:
            return await self._exchange_once(address, path, packed, until)
        except errors.TokenRefused:
            self._token = ""
        try:
            return await self._exchange_once(address, path, packed, until)
        except errors.TokenRefused as error:
            raise StoreUnavailable(f"the etcd server at {address} refused a new token ({error}); try again") from None

    async def _exchange_once(self, address: ServerAddress, path: str, packed: bytes, until: float) -> JsonObject:
        token = await self._login(address, until)
        return _result(address, await self._link.exchange(address, EtcdRequest(path, packed, token), until))

    async def _login(self, address: ServerAddress, until: float) -> str:
        """Return the token for the servers, and log in if there is none; "" if the deployment has no user."""
        if not self._deployment.user or self._token:
            return self._token
        login = json.dumps({"name": self._deployment.user, "password": self._deployment.password}).encode()
        try:
            answer = await self._link.exchange(address, EtcdRequest("auth/authenticate", login), until)
        except OutcomeUnknown as error:
            raise EtcdNotSent(*error.args) from error.__cause__
        if "authentication is not enabled" in errors.text_of(answer.said)[0]:
            return ""
        self._token = str(_result(address, answer).get("token", ""))
        return self._token

    def _address(self) -> ServerAddress:
        return self._deployment.addresses[self._place % len(self._deployment.addresses)]

    def _advance(self, address: ServerAddress) -> None:
        """Switch to the next server, unless another request did so already."""
        addresses, place = self._deployment.addresses, self._place
        if len(addresses) > 1 and address == addresses[place % len(addresses)]:
            self._place = place + 1  # and not one more than it is by now: another thread may have left the server, too
            self._link.drop_server(address)


def _result(address: ServerAddress, answer: EtcdReply) -> JsonObject:
    errors.raise_refusal(address, answer.said)
    if answer.status != OK:
        raise StoreUnavailable(
            f"the server at {address} is not an etcd server (status {answer.status}); check the host and the port"
        )
    result = answer.said.get("result", answer.said)  # a keepalive replies with a stream of one object
    if not isinstance(result, dict):
        return {}
    said = cast("JsonObject", result)
    if answer.date:
        said["date"] = answer.date  # etcd's own replies have no such field
    return said
