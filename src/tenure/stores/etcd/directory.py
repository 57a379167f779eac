"""The directory in etcd: one client's session, its messages to other sessions, and its operations on entries.

An entry is a key. The revision at which the key was created is its order and its position. One transaction adds an
entry and lists the name, so a join takes one round trip. `keys.py` lists the keys. `changes.py` has the transactions
that change entries, and the time that is left to them; `reads.py` the reads; `entry_watches.py` the watches of waiters.
"""

from tenure.contracts.findings import Finding, Report
from tenure.contracts.runtime import Runtime
from tenure.guard import Guard
from tenure.stores.etcd import requests
from tenure.stores.etcd.cells import EtcdCells
from tenure.stores.etcd.changes import EtcdChanges, EtcdLifetimes
from tenure.stores.etcd.entry_watches import EtcdEntryWatches
from tenure.stores.etcd.errors import LeaseGone
from tenure.stores.etcd.examining import EtcdExaminer
from tenure.stores.etcd.gateway import Gateway
from tenure.stores.etcd.keys import ContenderKeys, Keys
from tenure.stores.etcd.link import EtcdLink
from tenure.stores.etcd.options import EtcdDeployment
from tenure.stores.etcd.reads import EtcdReads
from tenure.stores.etcd.session import EtcdSessions
from tenure.stores.etcd.watch_streams import EtcdWatches
from tenure.stores.ordered.directory import Watcher
from tenure.stores.ordered.entries import position_of

CLOSING = 2.0
"""The longest that the end of a session may take at the server, in seconds."""


class EtcdDirectory:
    """One client's session in etcd, and its view of all entries."""

    def __init__(self, runtime: Runtime, deployment: EtcdDeployment, link: EtcdLink) -> None:
        """Prepare the directory; nothing is connected yet. `link` must be made for the same runtime.

        The operations on entries are bound methods of the parts, so that no operation costs a further Python call.
        """
        self._runtime = runtime
        gateway = self._gateway = Gateway(runtime, deployment, link)
        keys = self._keys = Keys(deployment.prefix)
        watches = EtcdWatches(runtime, gateway)
        contender_keys = ContenderKeys()
        sessions = EtcdSessions(runtime, watches, keys, deployment.session_timeout, contender_keys.forget)
        reads = EtcdReads(runtime, gateway, keys, sessions)
        changes = EtcdChanges(runtime, gateway, keys, sessions, reads, contender_keys=contender_keys)
        self.cells = EtcdCells(runtime, gateway, keys)
        self._sessions = sessions
        self._examiner = EtcdExaminer(runtime, deployment, gateway)
        self._changes = changes
        self._entry_watches = EtcdEntryWatches(runtime, keys, watches, sessions)
        self._disconnect = link.close
        self.abandon = link.abandon
        self.join = changes.join
        self.withdraw_join = changes.withdraw_join
        self.send_removal = changes.send_removal
        self.collect_replies = gateway.collect_replies
        self.change = changes.change
        self.rewrite = changes.rewrite
        self.pass_over = changes.pass_over
        self.stir = changes.stir
        self.look = reads.look
        self.look_at_all = reads.look_at_all
        self.details = reads.details
        self.check = reads.check
        self.names = reads.names
        self.remains = EtcdLifetimes(runtime, gateway, reads, changes).remains
        self.watch = self._entry_watches.watch

    @property
    def trust(self) -> float:
        """For how many seconds after the request of a proof the entries of the session certainly stay."""
        return self._sessions.trust

    @property
    def proved_at(self) -> float:
        """The local instant at which the last proof of this session was requested."""
        return self._sessions.proved_at

    @property
    def lasts(self) -> float:
        """For how many seconds the servers keep the entries of a client that has died."""
        return self._sessions.trust

    def session(self) -> str:
        """Return the address of the session for messages: the id of its lease, as etcdctl shows it."""
        session = self._sessions.current
        return "" if session is None else session.name

    def guard(self, name: str, request_id: str, token: int) -> Guard:
        """Return the condition for the user's own transactions that a contender that reserved this token exists."""
        return Guard(self._changes.key_of(name, request_id).encode(), position_of(token))

    def at_opening(self) -> list[Finding]:
        """Return nothing: beginning a session shows no settings."""
        return []

    async def examine(self, ttl: float, timeout: float) -> Report:
        """Look at the settings of the members."""
        return await self._examiner.report(ttl, timeout)

    # -- life ----------------------------------------------------------------------------------------------

    async def open(self, watcher: Watcher, until: float) -> None:
        """Begin a session."""
        self._sessions.watcher = watcher
        await self._sessions.ensure(until)

    async def keep_alive(self, until: float) -> None:
        """Renew the session if there is one, and delete the messages that were read."""
        await self._sessions.renew(until)
        self._sessions.keep_heard()
        await self._sessions.clear_channel(until)

    async def close(self) -> None:
        """End the session, and remove all that was added in it."""
        self._entry_watches.close()
        try:
            await self._sessions.close(self._runtime.now() + CLOSING)
        finally:
            await self._disconnect()

    # -- messages ------------------------------------------------------------------------------------------

    async def tell(self, session: str, message: str, until: float) -> None:
        """Send a message to a session. The message is lost if the session has ended."""
        key = f"{self._keys.channel(session)}/{self._runtime.new_id()}"
        body = requests.transaction([], [requests.put(key, message, int(session, 16))])
        try:
            await self._gateway.exchange("kv/txn", body, until, again=False)
        except LeaseGone:
            return
