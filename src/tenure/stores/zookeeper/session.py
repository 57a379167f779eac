"""The session of a client: its link, the proofs that it lives, and its events."""

from collections.abc import Callable, Sequence

from tenure.contracts.runtime import Runtime
from tenure.errors import StoreError
from tenure.stores.ordered import Watcher
from tenure.stores.zookeeper import names
from tenure.stores.zookeeper.library import KazooClient, Result
from tenure.stores.zookeeper.link import Answers, ZooKeeperHearing, ZooKeeperLink
from tenure.stores.zookeeper.options import ZooKeeperAccess
from tenure.stores.zookeeper.proofs import NEVER, Proofs


class ZooKeeperSession:
    """One session at a time, and what its replies prove. It passes the events of its link to a watcher."""

    def __init__(self, runtime: Runtime, access: ZooKeeperAccess, ended: Callable[[], None]) -> None:
        """Prepare the session; nothing is connected yet. `ended` is called first when a session has ended."""
        self._proofs = Proofs(access.options["timeout"])
        self.trust, self.proved_at = self._proofs.trust, NEVER
        self.link = ZooKeeperLink(
            runtime,
            access,
            ZooKeeperHearing(self._began, self._resumed, self._suspended, self._ended, self._told),
        )
        self._on_end = ended
        self._watcher: Watcher | None = None
        self._mutex = runtime.mutex()
        self._refusal: StoreError | None = None

    @property
    def id(self) -> int:
        """The id of the session; 0 if there is none."""
        return self.link.session

    def name(self) -> str:
        """Return the id of the session as an address; "" if there is none."""
        return names.session_name(self.link.session)

    async def open(self, watcher: Watcher, until: float) -> None:
        """Connect and begin a session."""
        self._watcher = watcher
        await self.link.ready(until)

    async def ready(self, until: float) -> None:
        """Wait for a connection, in a new session if the last one has ended."""
        self._refuse_if_refused()
        await self.link.ready(until)

    async def exchange(self, until: float, send: Callable[[KazooClient], Sequence[Result]], *, writes: bool) -> Answers:
        """Send requests together; return the replies."""
        self._refuse_if_refused()
        return await self.link.exchange(until, send, writes=writes)

    async def refuse(self, error: StoreError) -> None:
        """End the session, and answer every later request with this error."""
        self._refusal = error
        self._ended()
        await self.link.close()

    def _refuse_if_refused(self) -> None:
        if self._refusal is not None:
            raise self._refusal

    def silence(self) -> None:
        """Pass no more events to the watcher."""
        self._watcher = None

    async def close(self) -> None:
        """End the session."""
        await self.link.close()

    def abandon(self) -> None:
        """In a forked child: drop what was inherited."""
        self.silence()
        self.link.abandon()

    def contact(self, answers: Answers) -> None:
        """Record that the server has heard of the session."""
        with self._mutex:
            if answers.session == self.link.session:
                self._proofs.contact(answers.sent)

    def prove(self, answers: Answers) -> None:
        """Record that the leader counts the session as alive."""
        with self._mutex:
            if answers.session == self.link.session:
                self._proofs.prove(answers.sent)
                self.proved_at = self._proofs.proved_at

    def woken(self, request_id: str) -> None:
        """Tell the watcher that an entry which a request watches was removed or changed."""
        if self._watcher is not None:
            self._watcher.woken(request_id)

    def _began(self, _session: int, timeout: float, opened_at: float) -> None:
        with self._mutex:
            self._proofs.begin(timeout, opened_at)
            self.trust, self.proved_at = self._proofs.trust, self._proofs.proved_at

    def _resumed(self, opened_at: float) -> None:
        with self._mutex:
            self._proofs.resume(opened_at)
        if self._watcher is not None:
            self._watcher.gap()

    def _suspended(self) -> None:
        with self._mutex:
            self._proofs.suspend()

    def _ended(self) -> None:
        with self._mutex:
            self._proofs.end()
            self.proved_at = NEVER
        self._on_end()
        if self._watcher is not None:
            self._watcher.lost()

    def _told(self, message: str) -> None:
        if self._watcher is not None:
            self._watcher.told(message)
