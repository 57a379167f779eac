"""A client's session: a lease, a key that lives with it, and a channel below that key.

*   The lease is kept alive, and all that the client has there goes with it.
*   A stream watches the key and what is below it: so the end of the session is heard at once, and so are messages.

A proof that the session lives is counted from when it was asked for: the server begins to count when it hears of that,
so the lease certainly lives for its whole TTL from then on. A keepalive is answered by whoever takes itself for the
leader, which may have been replaced meanwhile. So it is a proof only if a read, which a majority confirms, shows after
it that no other leader was elected: then that was the leader. A grant is a proof by itself, as a majority makes it.
"""

import contextlib
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, cast

from holdfast.contracts.runtime import Runtime, Task
from holdfast.errors import StoreError, StoreUnavailable
from holdfast.runtimes.single import SingleFlight
from holdfast.stores.etcd import requests
from holdfast.stores.etcd.errors import LeaseGone, closed
from holdfast.stores.etcd.keys import Keys, after, decoded, number, session_of
from holdfast.stores.etcd.link import Said
from holdfast.stores.etcd.watching import Watches, Watching

if TYPE_CHECKING:
    from holdfast.stores.ordered.directory import Watcher

log = logging.getLogger("holdfast")

STALE = 0.45
"""After which part of its time a proof is renewed before it is used."""

MARGIN = 2
"""For how many seconds longer than it has to a block is kept, for it is not renewed in the same instant."""

APART = 1.0
"""How far apart, in seconds, a block and its session may be renewed."""

ATTEMPT = 2.0
"""How long an attempt may take that nobody waits for, in seconds."""

FIRST_PAUSE = 0.02
LONGEST_PAUSE = 1.0


@dataclass(slots=True, eq=False)
class Session:
    """One session, until it is over."""

    lease: int
    name: str
    revision: int
    """Up to which the channel was heard."""
    blocks: dict[int, int] = field(default_factory=dict[int, int])
    """Leases that outlive it, by their TTL."""
    read: list[str] = field(default_factory=list[str])
    """Keys of messages that can be removed."""
    watching: Watching | None = None
    mending: bool = False
    over: bool = False


class Sessions:
    """The session of a client, and the next one when it has ended."""

    def __init__(
        self,
        runtime: Runtime,
        watches: Watches,
        keys: Keys,
        timeout: int,
        forget: Callable[[], None],
    ) -> None:
        """Prepare; nothing is begun yet. `forget` is called when a session has ended."""
        self.trust = float(timeout)
        self.proved_at = float("-inf")
        self.current: Session | None = None
        self.watcher: Watcher | None = None
        self._runtime = runtime
        self._gateway = watches.gateway
        self._watches = watches
        self._keys = keys
        self._timeout = timeout
        self._forget = forget
        self._mutex = runtime.mutex()
        self._beginning = SingleFlight(runtime)
        self._closing = runtime.event()
        self._mender: Task | None = None

    # -- its beginning -------------------------------------------------------------------------------------

    async def ensure(self, until: float) -> Session:
        """Return the session; begin one if there is none. One of those who need it does, the others wait."""
        while (session := self.current) is None:
            if self._closing.is_set():
                raise closed()
            if not await self._beginning.fly(lambda: self.current is None, partial(self._begin, until), until):
                raise StoreUnavailable("no session was begun at etcd in time; ask again")
        return session

    async def _begin(self, until: float) -> None:
        sent = self._runtime.now()
        granted = await self._gateway.exchange("lease/grant", {"TTL": str(self._timeout)}, until)
        lease, ttl = number(granted, "ID"), number(granted, "TTL")
        name = session_of(lease)
        body = requests.transaction([], [requests.put(self._keys.channel(name), "", lease)])
        try:
            made = await self._gateway.exchange("kv/txn", body, until)
        except LeaseGone:
            raise StoreUnavailable("a session at etcd ended before it was begun; ask again") from None
        session = Session(lease, name, number(made["header"], "revision"))
        await self._listen(session, until)
        with self._mutex:
            if not (session.over or self._closing.is_set()):
                self.current, self.trust, self.proved_at = session, float(ttl), sent
                return
        self._finish(session)
        raise StoreUnavailable("a session at etcd ended before it was begun; ask again")

    # -- its renewal ---------------------------------------------------------------------------------------

    async def prove(self, until: float) -> None:
        """See to it that there is a recent proof, if there is a session."""
        if self.current is not None and self._runtime.now() - self.proved_at > STALE * self.trust:
            await self.renew(until)

    async def renew(self, until: float, reads: Sequence[Said] = ()) -> list[Said] | None:
        """Renew the session, and return what is read then; None if it has ended."""
        while (session := self.current) is not None:
            sent = await self._renew_blocks(session, until)
            kept = await self._gateway.exchange("lease/keepalive", {"ID": str(session.lease)}, until, first=True)
            if number(kept, "TTL") <= 0:
                self.end(session)
                return None
            read = [requests.get(self._keys.channel(session.name)), *reads]
            said = await self._gateway.exchange("kv/txn", requests.transaction([], read), until, first=True)
            mine, *rest = cast("list[Said]", said["responses"])
            if not mine["response_range"].get("kvs"):
                self.end(session)
                return None
            if number(said["header"], "raft_term") == number(kept["header"], "raft_term"):
                self._note_proof(session, sent)
                return rest
            log.debug("etcd elected a leader while a session was renewed; it is renewed again")
        return None

    def _note_proof(self, session: Session, sent: float) -> None:
        with self._mutex:
            if self.current is session:
                self.proved_at = max(self.proved_at, sent)

    async def _renew_blocks(self, session: Session, until: float) -> float:
        """Renew what outlives the session, just before it; return when that was done."""
        while True:
            began = self._runtime.now()
            for ttl, lease in list(session.blocks.items()):
                kept = await self._gateway.exchange("lease/keepalive", {"ID": str(lease)}, until, first=True)
                if number(kept, "TTL") <= 0:
                    session.blocks.pop(ttl, None)
            done = self._runtime.now()
            if done - began < APART:
                return done

    async def block_lease(self, session: Session, delay: float, until: float) -> int:
        """Return a lease that ends this long after the session, or a little later."""
        ttl = math.ceil(self.trust + delay) + MARGIN
        if (lease := session.blocks.get(ttl)) is None:
            lease = session.blocks.setdefault(ttl, await self.grant(ttl, until))
        return lease

    async def grant(self, ttl: int, until: float) -> int:
        """Return a new lease, which ends by itself."""
        return number(await self._gateway.exchange("lease/grant", {"TTL": str(ttl)}, until), "ID")

    # -- its channel -----------------------------------------------------------------------------------------

    async def _listen(self, session: Session, until: float) -> None:
        """Hear of its end, and of messages."""
        channel = self._keys.channel(session.name)
        make = partial(Watching, self._runtime, partial(self._hear, session), partial(self._unheard, session))
        span = (channel, after(channel + "/"))
        session.watching = await self._watches.begin(make, span, session.revision + 1, until)

    def _hear(self, session: Session, event: Said) -> None:
        kv = event["kv"]
        session.revision = max(session.revision, number(kv, "mod_revision"))
        key, channel = decoded(kv["key"]), self._keys.channel(session.name)
        if event.get("type") == "DELETE":
            if key == channel:
                self.end(session)
        elif key != channel:
            self._tell(session, key, kv)

    def _tell(self, session: Session, key: str, kv: Said) -> None:
        session.read.append(key)
        if self.watcher is not None and not session.over:
            self.watcher.told(decoded(kv.get("value", "")))

    def _unheard(self, session: Session) -> None:
        """Begin to listen again: nothing is missed, for messages stay until they are read."""
        with self._mutex:
            if session.over or session.mending:
                return
            session.mending = True
        with contextlib.suppress(RuntimeError):  # at the end of the interpreter
            self._mender = self._runtime.spawn(partial(self._mend, session), "etcd-channel")

    async def _mend(self, session: Session) -> None:
        pause = FIRST_PAUSE
        while not session.over:
            try:
                await self._hear_again(session)
            except Exception as error:  # noqa: BLE001 - whatever went wrong, nobody else would do it
                log.debug("a channel at etcd cannot be heard: %r", error)
            else:
                if not self._is_unheard(session):
                    return
            await self._closing.wait(self._runtime.now() + pause * (1 + self._runtime.random()) / 2)
            pause = min(2 * pause, LONGEST_PAUSE)

    def _is_unheard(self, session: Session) -> bool:
        """Tell whether it has to be mended once more; else whoever finds it unheard from now on has that done."""
        with self._mutex:
            session.mending = session.watching is not None and session.watching.over and not session.over
            return session.mending

    async def _hear_again(self, session: Session) -> None:
        """Read what came meanwhile, and watch from there on."""
        until = self._runtime.now() + ATTEMPT
        channel = self._keys.channel(session.name)
        found = await self._gateway.exchange("kv/range", requests.list_all(channel), until)
        there = {decoded(kv["key"]): kv for kv in found.get("kvs", [])}
        if there.pop(channel, None) is None:
            self.end(session)
            return
        for key, kv in sorted(there.items(), key=lambda item: number(item[1], "mod_revision")):
            if number(kv, "mod_revision") > session.revision:
                self._tell(session, key, kv)
        session.revision = number(found["header"], "revision")
        await self._listen(session, until)

    async def clear_channel(self, until: float) -> None:
        """Remove messages that were read."""
        while (session := self.current) is not None and session.read:
            with self._mutex:
                read, session.read = session.read[: requests.LARGEST], session.read[requests.LARGEST :]
            try:
                steps = [requests.delete(key) for key in read]
                await self._gateway.exchange("kv/txn", requests.transaction([], steps), until)
            except StoreError:
                session.read += read
                raise

    # -- its end -------------------------------------------------------------------------------------------

    def end(self, session: Session) -> None:
        """Note that a session has ended, and tell it, once."""
        if not self._finish(session):
            return
        self._forget()
        if self.watcher is not None:
            self.watcher.lost()

    def _finish(self, session: Session) -> bool:
        with self._mutex:
            told, session.over = session.over, True
            if self.current is session:
                self.current, self.proved_at = None, float("-inf")
        if session.watching is not None:
            session.watching.close()
        return not told

    async def close(self, until: float) -> None:
        """End the session at the server, for as long as that takes no longer than `until`."""
        self._closing.set()
        session = self.current
        if session is not None and self._finish(session):
            with contextlib.suppress(StoreError, LeaseGone):
                await self._revoke(session.lease, until)
            for lease in session.blocks.values():
                with contextlib.suppress(StoreError, LeaseGone):
                    await self._revoke_unused(lease, until)
        if self._mender is not None:
            await self._mender.join(until)

    async def _revoke(self, lease: int, until: float) -> None:
        await self._gateway.exchange("lease/revoke", {"ID": str(lease)}, until)

    async def _revoke_unused(self, lease: int, until: float) -> None:
        """End a lease that nothing belongs to; what outlives a session shall do so."""
        found = await self._gateway.exchange("lease/timetolive", {"ID": str(lease), "keys": True}, until)
        if not found.get("keys"):
            await self._revoke(lease, until)
