"""The store without a table: each lease is a lock that a session of the database holds.

A grant and a release are one round trip each, on a connection that belongs to the lease in between. A connection that
holds a lock is never put back: anything that goes wrong on it closes it, which frees the lock. A lease whose session
has ended is lost at its next renewal, and the watch brings that renewal forward as soon as the socket says so.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from tenure.contracts.deadlines import MICROS
from tenure.contracts.findings import Finding, Report, ignore_findings
from tenure.contracts.messages import (
    AcquireRequest,
    AdjustRequest,
    Busy,
    Granted,
    HolderView,
    NameView,
    NotGranted,
    Notification,
    Page,
    ReleaseRequest,
    RenewReply,
    RenewRequest,
    Reply,
    WaiterView,
    Withdrawn,
    WithdrawRequest,
)
from tenure.contracts.runtime import Runtime
from tenure.contracts.store import Capabilities
from tenure.errors import OutcomeUnknown, StoreError, StoreUnavailable
from tenure.outcome import Outcome
from tenure.stores.sql.examining import AnyExaminer, examine
from tenure.stores.sql.held_locks import HeldLock, HeldLocks, SessionWatch
from tenure.stores.sql.sessions import (
    AnyLocks,
    AnySession,
    LockKey,
    LockTerms,
    SessionEndedError,
    SessionHolder,
    SessionView,
)

REQUEST_SLICE = 0.1
"""How long one request waits in the database for a lock, in seconds."""

RETRY = 20_000
"""When a waiter asks again that could not wait in the database, in microseconds."""

GONE = "its session in the database has ended"


class SessionLockStore:
    """One client's access to the session locks of a database."""

    def __init__(
        self,
        title: str,
        runtime: Runtime,
        locks: AnyLocks,
        capabilities: Capabilities,
        examiner: AnyExaminer | None = None,
    ) -> None:
        self.capabilities = capabilities
        self._title = title
        self._runtime = runtime
        self._locks = locks
        self._examiner = examiner
        self.on_findings: Callable[[Sequence[Finding]], None] = ignore_findings
        self._held = HeldLocks(runtime)
        self._watch = SessionWatch(runtime, self._held, locks)
        self._waiting: set[str] = set()
        """The ids of the requests that wait in the database. Any thread may add or discard one at any time."""

    def identity(self) -> str:
        """Return the title, which names the database."""
        return self._title

    async def examine(self, ttl: float, timeout: float) -> Report:
        """Look at the settings of the server."""
        return await examine(self._examiner, ttl, timeout)

    # -- life ----------------------------------------------------------------------------------------------

    async def open(self, deliver: Callable[[Notification], None], until: float) -> str:
        """Connect; return "", for there is no channel."""
        tokens = await self._locks.open(until)
        if tokens != self.capabilities.tokens:
            self.capabilities = replace(self.capabilities, tokens=tokens)
        self._watch.begin(deliver)
        return ""

    async def close(self) -> None:
        """Disconnect. All locks end."""
        await self._watch.end()
        for held in list(self._held.by_id.values()):
            self._locks.close_session(held.session)
        await self._locks.close()

    def abandon(self) -> None:
        """In a forked child: drop what was inherited."""
        self._held.abandon()
        self._watch.abandon()
        self._locks.abandon()

    # -- acquire -------------------------------------------------------------------------------------------

    async def acquire(self, request: AcquireRequest, until: float) -> Reply:
        """Grant a free name; else wait for it in the database for a moment, or refuse."""
        request_id = request.request_id
        if request_id in self._held.over:
            return Withdrawn()
        held = self._held.by_id.get(request_id)
        if held is not None and (granted := await self._confirm(held, request, until)) is not None:
            return granted
        key = LockKey.of(request.name)
        session = await self._take(until)
        wait = self._time_to_wait(request, until)
        token = await self._lock(session, key, request, wait, until)
        if token:
            ttl = self._cut(request.ttl)
            self._held.by_id[request_id] = HeldLock(key, session, token, ttl)
            if not self._watch.runs:
                self._watch.start()
            return Granted(token, ttl)
        self._locks.put_back(session)
        return Busy(0 if wait else RETRY, await self._holders(key, until))

    async def acquire_many(self, requests: Sequence[AcquireRequest], until: float) -> list[Reply]:
        """Raise NotImplementedError: a session holds one lock."""
        raise NotImplementedError

    async def _take(self, until: float) -> AnySession:
        try:
            return await self._locks.take(until)
        except StoreUnavailable as error:
            if len(self._held.by_id) < self._locks.most:
                raise
            raise StoreUnavailable(
                f"{self._title}: this client holds {len(self._held.by_id)} locks, and each takes one of its "
                f"{self._locks.most} connections: allow more with ?connections= in the URL"
            ) from error

    def _time_to_wait(self, request: AcquireRequest, until: float) -> float:
        """Return how many seconds to wait in the database: 0 if it can't, or too many requests of this client do."""
        if not request.wait or not self._locks.waits or len(self._waiting) >= self._locks.most // 2:
            return 0.0
        return max(0.0, min(REQUEST_SLICE, (until - self._runtime.now()) / 2))

    async def _lock(self, session: AnySession, key: LockKey, request: AcquireRequest, wait: float, until: float) -> int:
        """Take the lock, or wait for it; a session on which that fails is closed, for it may hold the lock."""
        try:
            if wait:
                self._waiting.add(request.request_id)
            return await session.lock(key, LockTerms(request.owner, request.ttl, request.proposal, wait), until)
        except SessionEndedError as error:
            self._locks.close_session(session)
            raise OutcomeUnknown(f"{self._title}: the session ended during the request ({error}): try again") from error
        except BaseException:
            self._locks.close_session(session)
            raise
        finally:
            self._waiting.discard(request.request_id)

    async def _holders(self, key: LockKey, until: float) -> tuple[str, ...]:
        """Return who holds the lock. Raises StoreError if it is held for another name, or by another program."""
        holders = (await self._locks.look(key, until)).holders
        for holder in holders:
            if not holder.same_name:
                raise StoreError(
                    f"{self._title}: the key {key.number} of {key.name!r} is taken by session {holder.session} "
                    f"({holder.owner or 'unnamed'}) for another name or by another program. Wait until that lock is "
                    "free, or use another name"
                )
        return tuple(holder.owner for holder in holders)

    async def _confirm(self, held: HeldLock, request: AcquireRequest, until: float) -> Granted | None:
        """Answer a repeated request with its grant; return None if that has ended."""
        (reply,) = await self._prolong([(held, request.ttl)], until)
        if reply is None:
            raise OutcomeUnknown(f"{self._title}: the session of {request.name!r} did not answer: check the server")
        if reply is True:
            return Granted(held.token, self._cut(request.ttl))
        self._drop(request.request_id, held)
        return None

    def _cut(self, ttl: int) -> int:
        """Return the ttl for which the server keeps a silent session that is to have a ttl."""
        return min(ttl, self._locks.longest_ttl)

    def _drop(self, request_id: str, held: HeldLock) -> None:
        """Close the session of a lock, unless the lock is released already: then the session serves others."""
        if self._held.by_id.get(request_id) is held:
            del self._held.by_id[request_id]
            self._locks.close_session(held.session)

    # -- renew ---------------------------------------------------------------------------------------------

    async def renew(self, renewals: Sequence[RenewRequest], until: float) -> list[RenewReply]:
        """Renew leases. Raises OutcomeUnknown if no session answered."""
        for each in renewals:
            each.ttl = self._cut(each.ttl)
        known = {each.request_id: self._known(each.request_id, each.token) for each in renewals}
        todo = [(held, each.ttl) for each in renewals if (held := known[each.request_id]) is not None]
        answers = dict(zip([id(held) for held, _ in todo], await self._prolong(todo, until), strict=True))
        if todo and all(answer is None for answer in answers.values()):
            raise OutcomeUnknown(f"{self._title} did not answer: check the server and the network")
        return [await self._renewed(each, known[each.request_id], answers, until) for each in renewals]

    async def _renewed(
        self,
        renewal: RenewRequest,
        held: HeldLock | None,
        answers: dict[int, bool | SessionEndedError | None],
        until: float,
    ) -> RenewReply:
        answer = None if held is None else answers[id(held)]
        if answer is True:
            return None
        if held is not None and answer is None:
            renewal.ttl = 0  # not answered: the lease keeps its deadline, and is renewed again soon
            return None
        if held is not None:
            renewal.refused_because = f"{GONE} ({answer})" if isinstance(answer, SessionEndedError) else GONE
            self._drop(renewal.request_id, held)
        try:
            return await self._ended(renewal.name, until)
        except StoreError:
            return Outcome.EXPIRED  # it has ended in any case

    def _known(self, request_id: str, token: int) -> HeldLock | None:
        held = self._held.by_id.get(request_id)
        return held if held is not None and held.token == token else None

    async def _prolong(
        self, todo: Sequence[tuple[HeldLock, int]], until: float
    ) -> list[bool | SessionEndedError | None]:
        """Renew locks by a statement each; one whose session another thread uses just now is taken for unanswered.

        All statements are sent first, so that a session that does not answer delays no other. If all sessions are in
        use, the first is waited for: the watch looks at it, and is soon done.
        """
        operation = object()
        try:
            claimed = [each for each in todo if self._held.try_to_claim(each[0], operation)]
            if todo and not claimed:
                await self._held.claim(todo[0][0], operation, until)
                claimed = [todo[0]]
            living = [(held, ttl) for held, ttl in claimed if not held.ended]
            begun = [(held, held.session.begin_to_prolong(ttl)) for held, ttl in living]
            replies = [ended or await held.session.end_prolonging(until) for held, ended in begun]
        finally:
            for held, _ in todo:
                if held.claimed_by is operation:
                    held.claimed_by = None
            self._held.freed.set()
        answers: dict[int, bool | SessionEndedError | None] = {
            id(held): SessionEndedError(held.ended) for held, _ in claimed if held.ended
        }
        answers.update(zip([id(held) for held, _ in living], replies, strict=True))
        return [answers.get(id(held)) for held, _ in todo]

    async def _ended(self, name: str, until: float) -> Outcome:
        """Return what became of a name whose lease has ended."""
        return Outcome.TAKEN_OVER if (await self._locks.look(LockKey.of(name), until)).holders else Outcome.EXPIRED

    # -- release -------------------------------------------------------------------------------------------

    async def release(self, release: ReleaseRequest, until: float) -> Outcome:
        """Free the lock, and put its connection back."""
        held = self._known(release.request_id, release.token)
        if held is None:
            if self._held.over.get(release.request_id):
                return Outcome.RELEASED
            return await self._ended(release.name, until)
        if await self._unlock(release.request_id, held, until):
            self._held.note_over(release.request_id, released=True)
            return Outcome.RELEASED
        return await self._ended(release.name, until)

    async def _unlock(self, request_id: str, held: HeldLock, until: float) -> bool:
        """Free a lock, and return whether its session held it; close the session if it fails."""
        operation = object()
        try:
            if not self._held.try_to_claim(held, operation):
                await self._held.claim(held, operation, until)
            return await self._unlock_claimed(request_id, held, until)
        finally:
            if held.claimed_by is operation:
                held.claimed_by = None
            self._held.freed.set()

    async def _unlock_claimed(self, request_id: str, held: HeldLock, until: float) -> bool:
        try:
            held_until_now = not held.ended and await held.session.unlock(until)
        except SessionEndedError as error:
            if error.during:
                self._drop(request_id, held)
                raise OutcomeUnknown(f"{self._title}: the session ended during a release ({error})") from error
            held_until_now = False
        except BaseException:
            self._drop(request_id, held)
            raise
        if not held_until_now:
            self._drop(request_id, held)
            return False
        del self._held.by_id[request_id]
        held.ended = "the lock was released"  # for whoever claims it after this, because he waited for it
        self._locks.put_back(held.session)
        return True

    async def withdraw(self, withdraw: WithdrawRequest, until: float) -> NotGranted:
        """Free the lock of a request if it was granted, and refuse a late copy of it."""
        held = self._held.by_id.get(withdraw.request_id)
        if withdraw.unsure or held is not None:
            self._held.note_over(withdraw.request_id, released=False)
        if held is not None:
            await self._unlock(withdraw.request_id, held, until)
        return NotGranted()

    async def adjust(self, adjust: AdjustRequest, until: float) -> RenewReply:  # noqa: ARG002 - the contract
        """Raise StoreError: there is no record of a lease that could be changed."""
        raise self._no_record("a lease cannot be changed")

    async def resize(self, name: str, before: int, after: int, until: float) -> int:  # noqa: ARG002 - the contract
        """Return 1: every name has one holder here."""
        return 1

    # -- inspect -------------------------------------------------------------------------------------------

    async def inspect(self, name: str, until: float) -> NameView:
        """Return who holds a name and who waits for it in the database."""
        view = await self._locks.look(LockKey.of(name), until)
        holders = [_show(holder) for holder in view.holders]
        last_token = await self._locks.last_token(until)
        waiters = [WaiterView(owner, 1, waited, alive=True) for owner, waited in view.waiters]
        return NameView(name, 1, max([last_token, *(holder.token for holder in holders)]), holders, waiters)

    async def names(self, prefix: str, until: float, rest: object = None) -> Page:  # noqa: ARG002 - the contract
        """Raise StoreError: the database knows hashes of names only."""
        raise self._no_record("names cannot be listed, for the database knows only hashes of them")

    async def request_revocation(self, name: str, until: float) -> list[HolderView]:  # noqa: ARG002 - the contract
        """Raise StoreError: there is nothing through which a holder could be asked."""
        raise self._no_record("a holder cannot be asked to release a name; to take it, revoke with force")

    async def revoke(self, name: str, until: float, token: int = 0) -> list[HolderView]:
        """End the session of the holder, if the role may do that. The holder notices within half a second."""
        key = LockKey.of(name)
        return [
            _show(holder)
            for holder in _ours(await self._locks.look(key, until))
            if token in {0, holder.token} and await self._locks.end_holder(key, holder.session, until)
        ]

    def _no_record(self, what: str) -> StoreError:
        return StoreError(f"{self._title} keeps no record of locks: {what}. Use the store with a table for that")


def _ours(view: SessionView) -> list[SessionHolder]:
    return [holder for holder in view.holders if holder.same_name]


def _show(holder: SessionHolder) -> HolderView:
    ttl = holder.ttl / MICROS
    return HolderView(holder.owner, holder.token, 1, 0.0, holder.left, ttl)
