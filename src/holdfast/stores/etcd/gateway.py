"""The servers as one: which of them is asked, as whom, and what becomes of an error.

One server is used until it fails, then the next: its streams end with that, and are begun again at the next one. A
request that may have been carried out is repeated only if that does no harm.
"""

import json
from collections.abc import Callable
from typing import cast

from holdfast.contracts.runtime import Runtime
from holdfast.errors import OutcomeUnknown, StoreUnavailable
from holdfast.stores.etcd import errors
from holdfast.stores.etcd.admission import Admission
from holdfast.stores.etcd.http import OK
from holdfast.stores.etcd.keys import packed_json
from holdfast.stores.etcd.link import Address, Answer, Hearing, Link, NotSent, Request, Said, Stream
from holdfast.stores.etcd.options import Deployment

FAILOVER_TIMEOUT = 0.5
"""How long, in seconds, a server has at least to answer if another could be asked instead."""


AT_ONCE = 32
"""How many requests are under way at once, each on a connection of its own."""


class Gateway:
    """The servers of a deployment, for one client."""

    def __init__(self, runtime: Runtime, deployment: Deployment, link: Link) -> None:
        """Prepare; nothing is connected yet. Clients begin at any of the servers."""
        self._runtime = runtime
        self._deployment = deployment
        self._link = link
        self._place = int(runtime.random() * len(deployment.addresses))
        self._token = ""
        self._admission = Admission(runtime, AT_ONCE)

    async def exchange(
        self,
        path: str,
        body: Said,
        until: float,
        *,
        again: bool = True,
        first: bool = False,
        on_unsure: Callable[[], None] = lambda: None,
    ) -> Said:
        """Ask, and return the answer. With `again` it does no harm if this is carried out more than once.

        If as many requests are under way as may be, it waits for its turn; with `first`, before all others.
        `on_unsure` is called when a request went unanswered, also if another is answered then.

        Raises StoreUnavailable, OutcomeUnknown, another StoreError, or errors.LeaseGone.
        """
        packed = packed_json(body).encode()
        if not await self._admission.take(until, first=first):
            raise StoreUnavailable("etcd answers too slowly for all that is asked at once; ask again, or ask for less")
        try:
            return await self._exchange_in_turn(path, packed, until, again=again, on_unsure=on_unsure)
        finally:
            self._admission.give_back()

    async def _exchange_in_turn(
        self, path: str, packed: bytes, until: float, *, again: bool, on_unsure: Callable[[], None]
    ) -> Said:
        """Ask one server after another, until one answers."""
        tries = len(self._deployment.addresses)
        while True:
            tries -= 1
            now = self._runtime.now()
            if now >= until:
                raise StoreUnavailable("no time was left to ask etcd; allow more")
            timeout = max((until - now) / 2, FAILOVER_TIMEOUT) if again and tries > 0 else until - now
            address = self._address()
            try:
                return await self._exchange(address, path, packed, min(until, now + timeout))
            except NotSent as error:
                self._advance(address)
                if tries <= 0:
                    raise StoreUnavailable(*error.args) from error.__cause__
            except StoreUnavailable as error:
                self._advance(address)
                if isinstance(error, OutcomeUnknown):
                    on_unsure()
                if tries <= 0 or (isinstance(error, OutcomeUnknown) and not again):
                    raise

    async def stream(self, path: str, hearing: Hearing, until: float) -> Stream:
        """Begin a stream at the server that is in use."""
        tries = len(self._deployment.addresses)
        while True:
            tries -= 1
            address = self._address()
            try:
                token = await self._login(address, until)
                return await self._link.stream(address, Request(path, b"", token), hearing, until)
            except NotSent as error:
                self._advance(address)
                if tries <= 0:
                    raise StoreUnavailable(*error.args) from error.__cause__

    def forget_token(self) -> bool:
        """Log in anew with the next request, for a server did not know our token; False if we have no user."""
        self._token = ""
        return bool(self._deployment.user)

    async def close(self) -> None:
        """Disconnect."""
        await self._link.close()

    def abandon(self) -> None:
        """In a forked child: let go of the sockets."""
        self._link.abandon()

    async def _exchange(self, address: Address, path: str, packed: bytes, until: float) -> Said:
        """Ask a server, once more if it did not know our token."""
        try:
            return await self._exchange_once(address, path, packed, until)
        except errors.TokenRefused:
            self._token = ""
        try:
            return await self._exchange_once(address, path, packed, until)
        except errors.TokenRefused as error:
            raise StoreUnavailable(f"the etcd server at {address} takes no token ({error}); ask again") from None

    async def _exchange_once(self, address: Address, path: str, packed: bytes, until: float) -> Said:
        token = await self._login(address, until)
        return _result(address, await self._link.exchange(address, Request(path, packed, token), until))

    async def _login(self, address: Address, until: float) -> str:
        """Return what the servers know us by: nothing, if there is no user."""
        if not self._deployment.user or self._token:
            return self._token
        login = json.dumps({"name": self._deployment.user, "password": self._deployment.password}).encode()
        try:
            answer = await self._link.exchange(address, Request("auth/authenticate", login), until)
        except OutcomeUnknown as error:
            raise NotSent(*error.args) from error.__cause__
        if "authentication is not enabled" in errors.text_of(answer.said)[0]:
            return ""
        self._token = str(_result(address, answer).get("token", ""))
        return self._token

    def _address(self) -> Address:
        return self._deployment.addresses[self._place % len(self._deployment.addresses)]

    def _advance(self, address: Address) -> None:
        """Ask another server from now on, if this is the one that was asked."""
        if len(self._deployment.addresses) > 1 and address == self._address():
            self._place += 1
            self._link.forsake(address)


def _result(address: Address, answer: Answer) -> Said:
    errors.raise_refusal(address, answer.said)
    if answer.status != OK:
        raise StoreUnavailable(
            f"what answers at {address} is no etcd server (status {answer.status}); check the host and the port"
        )
    result = answer.said.get("result", answer.said)  # keepalives come as a stream of one
    return cast("Said", result) if isinstance(result, dict) else {}


MakeLink = Callable[[Runtime, Deployment], Link]
