"""A client's session in etcd: a lease, a key with that lease, and a channel below that key.

*   The client keeps the lease alive. All keys of the client have the lease and vanish with it.
*   A stream watches the key and the channel below it, so the client hears of messages and of the session's end at once.

A proof that the session lives counts from the instant at which it was requested: the server starts the TTL when it gets
the request, so the lease certainly lives for its whole TTL from then on. Any server that believes to be the leader
replies to a keepalive, even if another leader was elected meanwhile. So a keepalive is a proof only if a later read,
which a majority confirms, shows the same term: then that server was the leader. A grant is a proof by itself, because a
majority makes it.
"""

import contextlib
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, cast

from tenure.contracts import forms
from tenure.contracts.runtime import Runtime, SpawnedTask
from tenure.errors import StoreError, StoreUnavailable
from tenure.runtimes.single import SingleFlight
from tenure.stores.etcd import requests
from tenure.stores.etcd.errors import SERVER, LeaseGone
from tenure.stores.etcd.http import JsonObject
from tenure.stores.etcd.keys import Keys, after, decoded, number, session_of
from tenure.stores.etcd.watch_streams import EtcdWatch, EtcdWatches

if TYPE_CHECKING:
    from tenure.stores.ordered.directory import Watcher

log = logging.getLogger("tenure")

STALE = 0.45
"""The part of `trust` after which a proof is renewed before it is used."""

MARGIN = 2
"""How many seconds a BLOCK entry is kept beyond its time, because its lease is not renewed in the same instant."""

RENEWED_WITHIN = 1.0
"""The longest time, in seconds, between the renewals of a BLOCK entry and of its session."""

ATTEMPT = 2.0
"""The longest time of one background attempt, in seconds."""

FIRST_PAUSE = 0.02
LONGEST_PAUSE = 1.0


@dataclass(slots=True, eq=False)
class EtcdSession:
    """One session from its beginning to its end."""

    lease: int
    name: str
    revision: int
    """The revision up to which the events of the channel were received."""
    blocks: dict[int, int] = field(default_factory=dict[int, int])
    """The leases that outlive the session, by their TTL."""
    read: list[str] = field(default_factory=list[str])
    """Keys of messages that were read and can be deleted."""
    watch: EtcdWatch | None = None
    mending: bool = False
    over: bool = False


class EtcdSessions:
    """The session of a client, replaced by a new one after its end."""

    def __init__(
        self,
        runtime: Runtime,
        watches: EtcdWatches,
        keys: Keys,
        timeout: int,
        forget: Callable[[str], None],
    ) -> None:
        """Prepare; no session is begun yet. `forget` is called with the name of a session that has ended."""
        self.trust = float(timeout)
        self.proved_at = float("-inf")
        self.current: EtcdSession | None = None
        self.watcher: Watcher | None = None
        self._runtime = runtime
        self._gateway = watches.gateway
        self._watches = watches
        self._keys = keys
        self._timeout = timeout
        self._forget = forget
        self._refusal: StoreError | None = None
        """The error that ended the last session, if a later release has raised the form."""
        self._mutex = runtime.mutex()
        self._beginning = SingleFlight(runtime)
        self._closing = runtime.event()
        self._mender: SpawnedTask | None = None

    # -- beginning -----------------------------------------------------------------------------------------

    async def ensure(self, until: float) -> EtcdSession:
        """Return the session, and begin one if there is none. One caller begins it, the others wait."""
        while (session := self.current) is None:
            if self._closing.is_set():
                raise SERVER.closed()
            if not await self._beginning.run(lambda: self.current is None, partial(self._begin, until), until):
                raise StoreUnavailable("beginning a session at etcd timed out: try again")
        return session

    async def _begin(self, until: float) -> None:
        await self._agree_on_form(until)
        sent = self._runtime.now()
        granted = await self._gateway.exchange("lease/grant", {"TTL": str(self._timeout)}, until)
        lease, ttl = number(granted, "ID"), number(granted, "TTL")
        name = session_of(lease)
        body = requests.transaction([], [requests.put(self._keys.channel(name), "", lease)])
        try:
            made = await self._gateway.exchange("kv/txn", body, until)
        except LeaseGone:
            raise StoreUnavailable("a new session at etcd ended at once: try again") from None
        session = EtcdSession(lease, name, number(made["header"], "revision"))
        await self._listen(session, until)
        with self._mutex:
            if not (session.over or self._closing.is_set()):
                self.current, self.trust, self.proved_at = session, float(ttl), sent
                return
        self._finish(session)
        raise StoreUnavailable("a new session at etcd ended at once: try again")

    async def _agree_on_form(self, until: float) -> None:
        """Write the mark of the stored form if there is none, or an earlier one. Raises StoreError if it is later."""
        read = requests.get(self._keys.form)
        said = await self._gateway.exchange("kv/txn", requests.transaction([], [read]), until)
        while (revision := self._check_form(said["responses"][0])) is not None:
            body = requests.transaction(
                [requests.changed(self._keys.form, revision)], [requests.put(self._keys.form, forms.mark())], [read]
            )
            said = await self._gateway.exchange("kv/txn", body, until)
            if said.get("succeeded"):
                return

    def _check_form(self, said: JsonObject) -> int | None:
        """Return at which revision the mark was written, if this client has to write it; 0 if there is none."""
        kvs = cast("list[JsonObject]", said["response_range"].get("kvs", []))
        if not kvs:
            return 0
        form = forms.check(
            decoded(kvs[0].get("value", "")), f"the prefix {self._keys.form.rpartition('/')[0]!r} in etcd"
        )
        return number(kvs[0], "mod_revision") if form < forms.WRITES else None

    # -- renewal -------------------------------------------------------------------------------------------

    async def prove(self, until: float) -> None:
        """Renew the session if there is one and its last proof is not recent. Raises StoreError after a later form."""
        if self._refusal is not None:
            raise self._refusal
        if self.current is not None and self._runtime.now() - self.proved_at > STALE * self.trust:
            await self.renew(until)

    async def renew(self, until: float, reads: Sequence[JsonObject] = ()) -> list[JsonObject] | None:
        """Renew the session and return the replies to `reads`; None if the session has ended."""
        while (session := self.current) is not None:
            sent = await self._renew_blocks(session, until)
            kept = await self._gateway.exchange("lease/keepalive", {"ID": str(session.lease)}, until, first=True)
            if number(kept, "TTL") <= 0:
                self.end(session)
                return None
            read = [requests.get(self._keys.channel(session.name)), requests.get(self._keys.form), *reads]
            said = await self._gateway.exchange("kv/txn", requests.transaction([], read), until, first=True)
            mine, form, *rest = cast("list[JsonObject]", said["responses"])
            try:
                self._check_form(form)
            except StoreError as error:  # it was raised meanwhile: no later request gets a session either
                self._refusal = error
                self.end(session)
                raise
            if not mine["response_range"].get("kvs"):
                self.end(session)
                return None
            if number(said["header"], "raft_term") == number(kept["header"], "raft_term"):
                self._note_proof(session, sent)
                return rest
            log.debug("etcd elected a leader while a session was renewed; it is renewed again")
        return None

    def _note_proof(self, session: EtcdSession, sent: float) -> None:
        with self._mutex:
            if self.current is session:
                self.proved_at = max(self.proved_at, sent)

    async def _renew_blocks(self, session: EtcdSession, until: float) -> float:
        """Renew the leases that outlive the session, just before the session; return the last renewal's instant."""
        while True:
            began = self._runtime.now()
            for ttl, lease in list(session.blocks.items()):
                kept = await self._gateway.exchange("lease/keepalive", {"ID": str(lease)}, until, first=True)
                if number(kept, "TTL") <= 0:
                    session.blocks.pop(ttl, None)
            done = self._runtime.now()
            if done - began < RENEWED_WITHIN:
                return done

    async def block_lease(self, session: EtcdSession, delay: float, until: float) -> int:
        """Return a lease that ends `delay` seconds after the session, or a little later."""
        ttl = math.ceil(self.trust + delay) + MARGIN
        if (lease := session.blocks.get(ttl)) is None:
            lease = session.blocks.setdefault(ttl, await self.grant(ttl, until))
        return lease

    async def grant(self, ttl: int, until: float) -> int:
        """Return a new etcd lease, which is never renewed here."""
        return number(await self._gateway.exchange("lease/grant", {"TTL": str(ttl)}, until), "ID")

    # -- channel -------------------------------------------------------------------------------------------

    async def _listen(self, session: EtcdSession, until: float) -> None:
        """Watch the key of the session and the messages below it."""
        channel = self._keys.channel(session.name)
        make = partial(EtcdWatch, self._runtime, partial(self._hear, session), partial(self._unheard, session))
        span = (channel, after(channel + "/"))
        session.watch = watch = await self._watches.begin(make, span, session.revision + 1, until)
        if session.over:  # after the line above: of this and `_finish`, at least one finds what the other has set
            watch.close()

    def _hear(self, session: EtcdSession, event: JsonObject) -> None:
        kv = event["kv"]
        session.revision = max(session.revision, number(kv, "mod_revision"))
        key, channel = decoded(kv["key"]), self._keys.channel(session.name)
        if event.get("type") == "DELETE":
            if key == channel:
                self.end(session)
        elif key != channel:
            self._tell(session, key, kv)

    def _tell(self, session: EtcdSession, key: str, kv: JsonObject) -> None:
        session.read.append(key)
        if self.watcher is not None and not session.over:
            self.watcher.told(decoded(kv.get("value", "")))

    def _unheard(self, session: EtcdSession) -> None:
        """Start a task that watches the channel again.

        No message is missed, because messages stay until they are read.
        """
        with self._mutex:
            if session.over or session.mending:
                return
            session.mending = True
        try:
            self._mender = self._runtime.spawn(partial(self._mend, session), "etcd-channel", again=True)
        except RuntimeError:  # no thread can be started now: `keep_heard` tries again
            session.mending = False

    def keep_heard(self) -> None:
        """Start the task that watches the channel again, if its start has failed."""
        if (session := self.current) is not None and session.watch is not None and session.watch.over:
            self._unheard(session)

    async def _mend(self, session: EtcdSession) -> None:
        pause = FIRST_PAUSE
        while not session.over:
            try:
                await self._hear_again(session)
            except Exception as error:  # noqa: BLE001 - this task must survive every error: no other restores the watch
                log.debug("the channel of a session at etcd could not be watched again: %r", error)
            else:
                if not self._is_unheard(session):
                    return
            await self._closing.wait(self._runtime.now() + pause * (1 + self._runtime.random()) / 2)
            pause = min(2 * pause, LONGEST_PAUSE)

    def _is_unheard(self, session: EtcdSession) -> bool:
        """Return whether the channel must be watched again by this task; if not, a later loss starts a new task."""
        with self._mutex:
            session.mending = session.watch is not None and session.watch.over and not session.over
            return session.mending

    async def _hear_again(self, session: EtcdSession) -> None:
        """Read the messages that arrived meanwhile, and watch the channel from that revision on."""
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
        """Delete the messages that were read."""
        while (session := self.current) is not None and session.read:
            with self._mutex:
                read, session.read = session.read[: requests.LARGEST], session.read[requests.LARGEST :]
            try:
                steps = [requests.delete(key) for key in read]
                await self._gateway.exchange("kv/txn", requests.transaction([], steps), until)
            except StoreError:
                session.read += read
                raise

    # -- end -----------------------------------------------------------------------------------------------

    def end(self, session: EtcdSession) -> None:
        """Mark a session as ended, and notify the watcher once."""
        if not self._finish(session):
            return
        self._forget(session.name)
        if self.watcher is not None:
            self.watcher.lost()

    def _finish(self, session: EtcdSession) -> bool:
        with self._mutex:
            told, session.over = session.over, True
            if self.current is session:
                self.current, self.proved_at = None, float("-inf")
        if session.watch is not None:
            session.watch.close()
        return not told

    async def close(self, until: float) -> None:
        """End the session at the server, but spend no more time than `until` on it."""
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
        """Revoke a lease that no key has. Keys that outlive the session keep their lease."""
        found = await self._gateway.exchange("lease/timetolive", {"ID": str(lease), "keys": True}, until)
        if not found.get("keys"):
            await self._revoke(lease, until)
