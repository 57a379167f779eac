"""The session of a client: its link, the proofs that it lives, and its events.

The leader restarts a session's timeout whenever it hears of the session. A follower tells the leader which sessions it
heard of only with the leader's next ping; if the follower dies before, the leader never hears of them. So a reply that
came through the leader proves two things: the session is alive there, and the leader knows what this follower heard
some time before. The session lives for its timeout from *then*. Contacts are at most a sixth of the timeout apart
(`keep_alive`), and a ping takes no longer than a quarter of it; so the trust is half of the timeout, less what clocks
may differ by. A reply that a server gives by itself proves nothing: the server may be cut off from the others.
"""

from collections import deque
from collections.abc import Callable, Sequence

from tenure.contracts.runtime import Runtime
from tenure.errors import OutcomeUnknown, StoreError
from tenure.stores.ordered import Watcher
from tenure.stores.zookeeper import names
from tenure.stores.zookeeper.library import KazooClient, Result
from tenure.stores.zookeeper.link import Answers, ZooKeeperCallbacks, ZooKeeperLink
from tenure.stores.zookeeper.options import ZooKeeperAccess

PASSED_ON = 1.5
"""How many seconds it takes at most until a follower has told the leader of the sessions it heard of (default: 1)."""

TRUSTED = 0.49
"""The trust, as a part of the session's timeout."""

NEVER = float("-inf")


class Proofs:
    """What a client knows of its session's life. All instants are local ones."""

    def __init__(self, timeout: float) -> None:
        """Begin without a session. `timeout` is the session timeout that the client will ask for."""
        self.proved_at = NEVER
        """The session lives for `trust` from this instant."""
        self.timeout = timeout
        self._sure = NEVER
        """The leader has certainly heard of the session at this instant or later."""
        self._contacts: deque[float] = deque()
        """When the connected server heard of the session, as far as the leader may not know of it yet."""

    @property
    def trust(self) -> float:
        """For how many seconds after a proof the nodes of the session certainly stay."""
        return TRUSTED * self.timeout

    def begin(self, timeout: float, opened_at: float) -> None:
        """Record a new session."""
        self.end()
        self.timeout = timeout
        self.resume(opened_at)

    def resume(self, opened_at: float) -> None:
        """Record a new connection. The server asked the leader about the session, so the leader has heard of it."""
        self._contacts.clear()
        self._sure = opened_at

    def suspend(self) -> None:
        """Record the loss of the connection: the server may have died before it told the leader."""
        self._contacts.clear()

    def end(self) -> None:
        """Record the end of the session."""
        self._contacts.clear()
        self._sure = self.proved_at = NEVER

    def contact(self, sent: float) -> None:
        """Record that the server heard of the session."""
        if not self._contacts or sent > self._contacts[-1] + PASSED_ON / 4:
            self._contacts.append(sent)

    def prove(self, sent: float) -> None:
        """Record that the leader counts the session as alive, and knows what the server heard some time before."""
        passed_on = sent - min(PASSED_ON, self.timeout / 4)
        while self._contacts and self._contacts[0] <= passed_on:
            self._sure = max(self._sure, self._contacts.popleft())
        self.proved_at = max(self.proved_at, min(sent, self._sure + self.timeout / 2))
        self.contact(sent)


class ZooKeeperSession:
    """One session at a time, and what its replies prove. It passes the events of its link to a watcher."""

    def __init__(self, runtime: Runtime, access: ZooKeeperAccess, ended: Callable[[], None]) -> None:
        """Prepare the session; nothing is connected yet. `ended` is called first when a session has ended."""
        self._proofs = Proofs(access.options["timeout"])
        self.trust, self.proved_at = self._proofs.trust, NEVER
        self.link = ZooKeeperLink(
            runtime,
            access,
            ZooKeeperCallbacks(self._began, self._resumed, self._suspended, self._ended, self._told),
        )
        self._on_end = ended
        self._watcher: Watcher | None = None
        self._mutex = runtime.mutex()
        self._refusal: StoreError | None = None

    @property
    def lasts(self) -> float:
        """The timeout of the session, in seconds."""
        return self._proofs.timeout

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
        try:
            return await self.link.exchange(until, send, writes=writes)
        except StoreError as error:
            self._refuse_if_refused(unknown=isinstance(error, OutcomeUnknown))
            raise

    async def refuse(self, error: StoreError) -> None:
        """End the session, and answer every later request with this error."""
        self._refusal = error
        self._ended()
        await self.link.close()

    def _refuse_if_refused(self, *, unknown: bool = False) -> None:
        """Raise the refusal if there is one; with `unknown`, for a request that was under way when it came."""
        if self._refusal is not None and unknown:
            raise OutcomeUnknown(f"{self._refusal}; a request may or may not have been carried out") from None
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
