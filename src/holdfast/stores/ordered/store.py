"""The store on an ordered directory: ZooKeeper or etcd.

Each contender is an entry of its client's session, and the first entries that fit hold the name. No server grants
anything: the removal of an entry wakes the waiter that watches it, and the waiter looks whether it holds the name. So a
hand-off costs one event and one look.

Two things end a lease that is not released:

*   **The session** ends it, if the process dies or is cut off. The entries of a session certainly stay for `trust`
    after the last proof, so a grant or a renewal counts for no longer than that, whatever its ttl.
*   **The client** ends it while the process lives: a lease that was not renewed for its ttl, or a waiter whose requests
    stopped.

So the ttl bounds a holder that hangs, even if the ttl is shorter than the session; the session bounds one that dies.
"""

import logging
from collections.abc import Callable, Sequence

from holdfast.contracts.deadlines import DRIFT, micros, seconds
from holdfast.contracts.messages import (
    AcquireRequest,
    AdjustRequest,
    Busy,
    CapacityMismatch,
    Granted,
    HolderView,
    NameView,
    NotGranted,
    Notification,
    NotificationKind,
    Page,
    Queued,
    ReleaseRequest,
    RenewReply,
    RenewRequest,
    Reply,
    Withdrawn,
    WithdrawRequest,
)
from holdfast.contracts.runtime import Runtime
from holdfast.contracts.store import Capabilities
from holdfast.errors import OutcomeUnknown, StoreUnavailable
from holdfast.guard import Guard, Guarding
from holdfast.outcome import Outcome
from holdfast.stores.ordered.caretaker import AGAIN, OPERATION, Caretaker
from holdfast.stores.ordered.contenders import Contender, ContenderRegistry
from holdfast.stores.ordered.directory import Directory
from holdfast.stores.ordered.entries import Entry, Kind, Listing, Reading, Record, read, to_watch
from holdfast.stores.ordered.inspector import Inspector
from holdfast.stores.ordered.texts import EntryText, text_of

log = logging.getLogger("holdfast")

RETRY = 2.0
"""The re-poll interval of the first waiter, in seconds. Watches are reliable, so this is only the safety net."""

LATER = 0.2
"""How much longer the re-poll interval of each next waiter is, in seconds."""

LONGEST_RETRY = 20.0

WOKEN_TTL = 1.0
"""The least time, in seconds, in which a waiter that was woken must send its request again."""

SESSION_ENDED = "this client's session has ended: the servers had not heard of it for longer than a session lasts"
GONE = "its entry is gone: this client's session has ended, or the entry was removed"
"""The reasons for which a renewal is refused."""

CAPABILITIES = Capabilities(
    min_ttl=0.05,
    queue=True,
    weights=True,
    local=False,
    span=1,
)


class OrderedStore:
    """One client's contenders in a directory."""

    def __init__(self, runtime: Runtime, directory: Directory, capabilities: Capabilities = CAPABILITIES) -> None:
        """Create a store on `directory`, which must be made for the same runtime."""
        self.capabilities = capabilities
        self.directory = directory
        self._runtime = runtime
        self._contenders = ContenderRegistry(runtime.mutex(), runtime.now)
        self._deliver: Callable[[Notification], None] = _ignore
        self._inspector = Inspector(directory, runtime.now)
        self._caretaker = Caretaker(runtime, directory, self._contenders, self._end_silent)

    def identity(self) -> str:
        """Return "": nothing tells whether another store is the same one."""
        return ""

    # -- life ----------------------------------------------------------------------------------------------

    async def open(self, deliver: Callable[[Notification], None], until: float) -> str:
        """Begin a session and return "": a directory has no notification channel, it wakes waiters through watches."""
        self._deliver = deliver
        await self.directory.open(self, until)
        self._caretaker.start()
        return ""

    async def close(self) -> None:
        """End the session, and remove all that was added in it."""
        await self._caretaker.stop()
        await self.directory.close()

    def abandon(self) -> None:
        """In a forked child: drop what was inherited."""
        self._caretaker.abandon()
        self.directory.abandon()

    def guard(self, name: str, request_id: str, token: int) -> Guard | None:
        """Return a condition for the user's own transactions, or None if the directory has none."""
        return self.directory.guard(name, request_id, token) if isinstance(self.directory, Guarding) else None

    # -- events of the directory -----------------------------------------------------------------------------

    def woken(self, request_id: str) -> None:
        """Have a waiter repeat its request, which tells whether it holds the name. If it doesn't, it expires soon."""
        contender = self._contenders.live.get(request_id)
        if contender is not None:
            self._contenders.wake(contender, self._runtime.now() + max(seconds(contender.request.ttl), WOKEN_TTL))
            self._caretaker.look_by(contender.ends_at)
            self._deliver(Notification("", NotificationKind.HEAD, request_id))

    def told(self, message: str) -> None:
        """Deliver another client's message: a revocation request for a lease of this client, or its revocation."""
        kind, _, rest = message.partition(" ")
        request_id, _, token = rest.partition(" ")
        if kind not in {NotificationKind.REVOKED, NotificationKind.REVOCATION_REQUESTED} or not token.isdecimal():
            log.debug("a message that cannot be read is ignored: %r", message)
            return
        if kind == NotificationKind.REVOKED:
            self._contenders.end_of(request_id, int(token), Outcome.TAKEN_OVER)
        self._deliver(Notification("", NotificationKind(kind), request_id, int(token)))

    def lost(self) -> None:
        """Have every waiter join again, and every holder find out about its lease."""
        log.warning(
            "the session at the store has ended: its leases are lost, and its waiters join the queue again at the end"
        )
        self.gap()

    def gap(self) -> None:
        """Have every waiter send its request again and every lease renewed, soon."""
        self._deliver(Notification("", NotificationKind.GAP, ""))

    # -- acquire -------------------------------------------------------------------------------------------

    async def acquire(self, request: AcquireRequest, until: float) -> Reply:
        """Join or look again; reply whether the request is granted."""
        sent = self._runtime.now()
        if self._is_over(request.request_id):
            return Withdrawn()
        self._refuse_while_ending(request.name, request.request_id)
        if not request.wait and request.request_id not in self._contenders.live:
            refusal = await self._refusal(request, until)
            if refusal is not None:
                return refusal
        contender = self._contenders.find(request.request_id, request, max(self._silence(request), until + OPERATION))
        while self._contenders.live.get(request.request_id) is contender:
            joins = contender.entry is None or contender.entry.session != self.directory.session()
            listing = await (self._join(contender, until) if joins else self.directory.look(request.name, until))
            reply = await self._answer(contender, listing, sent, until, newcomer=joins)
            if reply is not None:
                return reply
            if self._runtime.now() >= until:
                raise StoreUnavailable(
                    f"the request for {request.name!r} timed out before the store told who holds the name: "
                    "raise `timeout` or `operation_timeout`"
                )
        raise StoreUnavailable(f"the request for {request.name!r} was removed while it was under way: try again")

    async def acquire_many(self, requests: Sequence[AcquireRequest], until: float) -> list[Reply]:
        """Raise NotImplementedError: an ordered store grants names one by one."""
        raise NotImplementedError

    def _refuse_while_ending(self, name: str, request_id: str) -> None:
        """Raise StoreUnavailable while an expired request is being removed: its outcome is not known yet."""
        if request_id in self._contenders.ending:
            raise StoreUnavailable(f"the request for {name!r} was not repeated in time and is being removed: try again")

    def _is_over(self, request_id: str) -> bool:
        past = self._contenders.past.get(request_id)
        return past is not None and past.outcome in {None, Outcome.RELEASED}

    def _silence(self, request: AcquireRequest) -> float:
        """Return the local instant at which a request made now expires, if no retry time is given to its client."""
        return self._runtime.now() + max(seconds(request.waiter_ttl), OPERATION)

    async def _join(self, contender: Contender, until: float) -> Listing:
        request = contender.request
        contender.entry, contender.block, contender.light, contender.holds = None, False, False, False
        record = Record(Kind.CONTENDER, request.request_id, request.weight, request.capacity, text=text_of(contender))
        try:
            contender.entry, listing = await self.directory.join(request.name, record, until)
        except BaseException:  # the join may still arrive, whatever interrupted it
            contender.unsure = True
            self._revive(contender)
            raise
        if self._revive(contender):  # its removal may be under way
            raise StoreUnavailable(f"the request for {request.name!r} was removed while it was under way: try again")
        return listing

    def _revive(self, contender: Contender) -> bool:
        """Have a contender removed once more that joined after it was ended."""
        revived = self._contenders.revive(contender, self._runtime.now() + WOKEN_TTL)
        if revived:
            self._caretaker.look_by(contender.ends_at)
        return revived

    async def _answer(
        self, contender: Contender, listing: Listing, sent: float, until: float, *, newcomer: bool
    ) -> Reply | None:
        """Return the reply that a listing means for a contender; None if the caller must look again."""
        request, reading = contender.request, read(listing.entries)
        if reading.stale:
            self._caretaker.throw_away(request.name, reading.stale)
        if reading.holder(request.request_id) is not None:
            return await self._granted(contender, listing, reading, sent, until)
        mine = reading.waiter(request.request_id)
        if mine is None:  # another client removed it
            contender.entry = None
            return None
        if (newcomer and mine in reading.foreign) or mine.weight > reading.capacity:
            await self._refuse(contender, until)
            return CapacityMismatch(reading.capacity)
        if not request.wait:
            owners = await self._inspector.owners(request.name, reading, until)
            await self._refuse(contender, until)
            return Busy(micros(AGAIN), owners)
        return await self._wait(contender, mine, reading, until)

    async def _granted(
        self, contender: Contender, listing: Listing, reading: Reading, sent: float, until: float
    ) -> Reply | None:
        """Reply that the request is granted for its ttl, or for as long as the session certainly lives if less."""
        request, entry = contender.request, contender.entry
        if entry is None or entry.session != self.directory.session():
            return None
        contender.block = bool(request.lock_delay)  # also if this fails: an earlier session may have added a BLOCK
        if contender.block and not _has_block(listing, request.request_id):
            record = Record(
                Kind.BLOCK,
                request.request_id,
                request.weight,
                request.capacity,
                entry.order,
                seconds(request.lock_delay),
                text_of(contender),
            )
            if not await self.directory.change(request.name, [], [record], until, entry):
                return None
        ttl = min(request.ttl, self._trusted(entry, sent))
        if ttl < min(request.ttl, micros(self.directory.trust)) // 2:
            return None  # the next look proves that the session lives
        if not self._contenders.hold(contender, self._runtime.now() + seconds(request.ttl)):
            return None
        self._caretaker.look_by(contender.ends_at)
        return Granted(entry.token, ttl, contended=bool(reading.waiters))

    def _trusted(self, entry: Entry, sent: float) -> int:
        """Return for how many microseconds after `sent` the session certainly keeps an entry.

        The store's clock may be faster than ours. The holder allows for that drift from `sent` on, but knows nothing of
        the time between the proof and `sent`, so the drift of that time is subtracted here.
        """
        proved_at, trust = self.directory.proved_at, self.directory.trust
        if entry.session != self.directory.session():  # checked last: the proof may belong to the next session
            return 0
        since = max(sent - proved_at, 0.0)
        return max(0, micros(trust - since / (1.0 - DRIFT))) if since < trust else 0

    async def _wait(self, contender: Contender, mine: Entry, reading: Reading, until: float) -> Reply | None:
        """Watch the entries that block the waiter, and reply with its retry time; None if one of them is gone."""
        request = contender.request
        watched = to_watch(reading, mine)
        if not await self.directory.watch(request.name, request.request_id, watched, until):
            return None
        number = reading.place(request.request_id)
        retry_in = min(RETRY + LATER * number, LONGEST_RETRY) * (0.75 + 0.5 * self._runtime.random())
        others = [block for block in reading.blocks if block not in watched]
        if (
            await self._outlast(request.name, others, until) == 0.0
        ):  # the first client to look starts the time of a BLOCK
            return None
        left = await self._outlast(
            request.name, [entry for entry in watched if entry.kind is not Kind.CONTENDER], until
        )
        if left == 0.0:
            return None
        retry_in = min(retry_in, left)
        self._contenders.hear(request.request_id, self._silence(request) + 2 * retry_in)
        self._caretaker.look_by(contender.ends_at)
        counter = (contender.entry or mine).token - 1
        return Queued(counter, micros(retry_in), number)

    async def _outlast(self, name: str, timed: Sequence[Entry], until: float) -> float:
        """Return in how many seconds the first of the timed entries ends; 0 if one has just ended."""
        return min([await self.directory.remains(name, entry, until) for entry in timed], default=float("inf"))

    async def _refusal(self, request: AcquireRequest, until: float) -> Busy | CapacityMismatch | None:
        """Return the refusal of a request that would have to wait, but may not; None if it should join."""
        while True:
            listing = await self.directory.look(request.name, until)
            fake = Entry(Kind.CONTENDER, request.request_id, _after(listing.entries), request.weight, request.capacity)
            reading = read([*listing.entries, fake])
            if reading.holder(request.request_id) is not None:
                return None
            if fake in reading.foreign:
                return CapacityMismatch(reading.capacity)
            if await self._outlast(request.name, [*reading.kept, *reading.blocks], until) > 0.0:
                return Busy(micros(AGAIN), await self._inspector.owners(request.name, reading, until))

    # -- release and withdraw --------------------------------------------------------------------------------

    async def release(self, release: ReleaseRequest, until: float) -> Outcome:
        """Remove the entry, so that the next waiter holds the name."""
        request_id = release.request_id
        past = self._contenders.past.get(request_id)
        if past is not None and past.outcome is Outcome.RELEASED:
            return Outcome.RELEASED
        self._refuse_while_ending(release.name, request_id)
        contender = self._contenders.live.get(request_id)
        if contender is None or contender.entry is None or contender.entry.token != release.token:
            return await self._fate(release.name, request_id, until)
        if contender.entry.session != self.directory.session():
            self._contenders.end(request_id, Outcome.EXPIRED)
            return await self._fate(release.name, request_id, until)
        if self._contenders.has_run_out(contender):
            self._caretaker.look_by(self._runtime.now())
            raise StoreUnavailable(f"the lease of {release.name!r} has expired and is being removed: try again")
        self._let_go(contender, release, until)
        removed = await self._remove(contender, until, keep=release.keep)
        self._contenders.end(request_id, Outcome.RELEASED if removed else Outcome.EXPIRED)
        return Outcome.RELEASED if removed else await self._fate(release.name, request_id, until)

    def _let_go(self, contender: Contender, release: ReleaseRequest, until: float) -> None:
        """Make the contender expire, so that it ends even if this release fails and is not repeated.

        With `keep` the name must stay blocked for a while: then the contender keeps the end of its lease.
        """
        if release.keep:
            # A repeated release must still find the contender.
            contender.ends_at = max(contender.ends_at, until + OPERATION)
        else:
            contender.holds, contender.ends_at = False, until + WOKEN_TTL
            self._caretaker.look_by(contender.ends_at)

    async def withdraw(self, withdraw: WithdrawRequest, until: float) -> NotGranted:
        """Remove the entry of a request, whether it waits or holds the name."""
        name, request_id = withdraw.name, withdraw.request_id
        self._refuse_while_ending(name, request_id)
        contender = self._contenders.live.get(request_id)
        if contender is not None:
            # The contender expires even if this request is not repeated.
            contender.holds, contender.ends_at = False, until + WOKEN_TTL
            self._caretaker.look_by(contender.ends_at)
        reading = read((await self.directory.look(name, until)).entries)
        left = NotGranted(await self._inspector.owners(name, reading, until), reading.place(request_id))
        await self.directory.watch(name, request_id, (), until)
        if contender is not None:
            await self._remove(contender, until)
        if contender is not None or withdraw.unsure:
            self._contenders.end(request_id, None)
        return left

    async def _refuse(self, contender: Contender, until: float) -> None:
        """Remove a contender whose request is refused. The request may be sent again."""
        await self._remove(contender, until)
        self._contenders.drop(contender.request.request_id)

    async def _end_silent(self, contender: Contender, until: float) -> None:
        """Remove an expired contender."""
        await self._remove(contender, until, lapsed=contender.holds)

    async def _remove(self, contender: Contender, until: float, keep: int = 0, *, lapsed: bool = False) -> bool:
        """Remove all entries of a contender; True if it was there. Add a KEPT entry if the name must stay blocked."""
        request, entry = contender.request, contender.entry
        delays = lapsed and request.lock_delay
        if entry is None or not (contender.block or contender.light or keep or delays):
            return await self.directory.withdraw_join(
                request.name, request.request_id, None if contender.unsure else entry, until
            )
        while not (removed := await self._replace(contender, entry, keep, until, delays=bool(delays))):
            there = (await self.directory.look(request.name, until)).entries
            if not any(each.kind is Kind.CONTENDER and each.order == entry.order for each in there):
                break
            if self._runtime.now() >= until:  # other clients keep changing the entries
                raise OutcomeUnknown(
                    f"the entries of a holder of {request.name!r} changed during each attempt to remove them: try again"
                )
        if contender.unsure:
            await self.directory.withdraw_join(request.name, request.request_id, None, until)
        return removed

    async def _replace(self, contender: Contender, entry: Entry, keep: int, until: float, *, delays: bool) -> bool:
        """Replace the entries of a contender by a KEPT entry, if any, in one step; False if one of them changed."""
        request, remove, add = contender.request, [entry], list[Record]()
        if contender.block or contender.light:
            entries = (await self.directory.look(request.name, until)).entries
            mine = [each for each in entries if each.request_id == request.request_id and each.kind is not Kind.KEPT]
            remove = [each for each in mine if each.kind in {Kind.BLOCK, Kind.LIGHT}] + [entry]
        weight = min((each.weight for each in remove if each.kind is Kind.LIGHT), default=request.weight)
        if keep:
            text = EntryText(contender.text, keep).text()
            add.append(
                Record(Kind.KEPT, request.request_id, weight, request.capacity, 0, seconds(keep), text, entry.order)
            )
        elif delays:
            delay, text = seconds(request.lock_delay), text_of(contender)
            add.append(Record(Kind.KEPT, request.request_id, weight, request.capacity, 1, delay, text, entry.order))
        return await self.directory.change(request.name, remove, add, until)

    async def _fate(self, name: str, request_id: str, until: float) -> Outcome:
        """Return the outcome of a lease whose entry is gone: taken over if a later contender joined, else expired."""
        past = self._contenders.past.get(request_id)
        if past is not None and past.outcome is Outcome.TAKEN_OVER:
            return Outcome.TAKEN_OVER
        listing = await self.directory.look(name, until)
        if past is None or not past.order:
            return Outcome.TAKEN_OVER if read(listing.entries).holders else Outcome.EXPIRED
        later = any(each.kind is Kind.CONTENDER and each.order > past.order for each in listing.entries)
        return Outcome.TAKEN_OVER if later or listing.joined > past.order + past.added else Outcome.EXPIRED

    # -- renew, adjust and resize ----------------------------------------------------------------------------

    async def renew(self, renewals: Sequence[RenewRequest], until: float) -> list[RenewReply]:
        """Renew a batch of leases: prove that the session lives and that the entries exist.

        A renewal for longer than the session certainly lives is cut down to that time.
        """
        sent = self._runtime.now()
        contenders = [self._renewable(renewal, until) for renewal in renewals]
        entries = [
            (contender.request.name, contender.entry)
            for contender in contenders
            if contender is not None and contender.entry is not None
        ]
        there = iter(await self.directory.check(entries, until) if entries else [])
        replies: list[RenewReply] = []
        for renewal, contender in zip(renewals, contenders, strict=True):
            if contender is None or not next(there):
                renewal.refused_because = self._why_gone(renewal.request_id)
                if contender is not None:
                    self._contenders.end_of(renewal.request_id, renewal.token, Outcome.EXPIRED)
                replies.append(await self._fate(renewal.name, renewal.request_id, until))
            else:
                replies.append(await self._renewed(contender, renewal, sent, until))
        return replies

    def _why_gone(self, request_id: str) -> str:
        contender = self._contenders.live.get(request_id)
        entry = None if contender is None else contender.entry
        return GONE if entry is None or entry.session == self.directory.session() else SESSION_ENDED

    def _renewable(self, renewal: RenewRequest, until: float) -> Contender | None:
        """Return the contender of a renewal if it may still exist, and let it live at least until `until`."""
        contender = self._contenders.hear(renewal.request_id, until)
        if contender is None or contender.entry is None or contender.entry.token != renewal.token:
            return None
        return contender if contender.entry.session == self.directory.session() else None

    async def _renewed(self, contender: Contender, renewal: RenewRequest, sent: float, until: float) -> RenewReply:
        if not self._contenders.hold(contender, self._runtime.now() + seconds(renewal.ttl)):
            return await self._fate(renewal.name, renewal.request_id, until)
        if renewal.ttl > contender.ttl and contender.entry is not None:
            contender.ttl = renewal.ttl
            await self.directory.rewrite(contender.request.name, contender.entry, text_of(contender), until)
        renewal.ttl = min(renewal.ttl, 0 if contender.entry is None else self._trusted(contender.entry, sent))
        self._caretaker.look_by(contender.ends_at)
        return None

    async def adjust(self, adjust: AdjustRequest, until: float) -> RenewReply:
        """Reduce the weight of a lease, or change the owner that its entry shows."""
        contender = self._contenders.live.get(adjust.request_id)
        entry = None if contender is None else contender.entry
        if (
            contender is None
            or entry is None
            or entry.token != adjust.token
            or entry.session != self.directory.session()
        ):
            return await self._fate(adjust.name, adjust.request_id, until)
        if adjust.owner:
            contender.text = adjust.owner
            if not await self.directory.rewrite(adjust.name, entry, text_of(contender), until):
                return await self._fate(adjust.name, adjust.request_id, until)
        lighter = adjust.weight and adjust.weight < contender.request.weight
        if lighter and not await self._lighten(contender, entry, adjust.weight, until):
            return await self._fate(adjust.name, adjust.request_id, until)
        return None

    async def _lighten(self, contender: Contender, entry: Entry, weight: int, until: float) -> bool:
        """Reduce the weight of a contender, and of the BLOCK that replaces it if it vanishes; False if it is gone."""
        request, contender.light = contender.request, True
        blocks = [
            each
            for each in (await self.directory.look(request.name, until)).entries
            if each.kind is Kind.BLOCK and each.request_id == request.request_id and each.weight > weight
        ]
        add = [Record(Kind.LIGHT, request.request_id, weight, request.capacity)] + [
            Record(
                Kind.BLOCK,
                request.request_id,
                weight,
                request.capacity,
                entry.order,
                seconds(request.lock_delay),
                text_of(contender),
            )
            for _ in blocks
        ]
        done = await self.directory.change(request.name, blocks, add, until, entry)
        if done:
            await self.directory.stir(request.name, [entry], until)
        return done

    async def resize(self, name: str, before: int, after: int, until: float) -> int:
        """Change the capacity of a name, and wake all contenders, which may now hold the name or never fit."""
        reading = read((await self.directory.look(name, until)).entries)
        if not reading.capacity:
            return after
        if reading.capacity == before != after:
            record = Record(Kind.SIZE, self._runtime.new_id(), 1, after, before)
            await self.directory.change(name, [], [record], until)
            listing = await self.directory.look(name, until)
            reading = read(listing.entries)
            contenders = [entry for entry in listing.entries if entry.kind is Kind.CONTENDER]
            await self.directory.stir(name, contenders, until)
        return reading.capacity or after

    # -- inspect ---------------------------------------------------------------------------------------------

    async def inspect(self, name: str, until: float) -> NameView:
        """Return who holds and who waits. The durations are as exact as the client's and the store's clocks agree."""
        return await self._inspector.inspect(name, until)

    async def names(self, prefix: str, until: float, rest: object = None) -> Page:
        """Return a page of the names in use."""
        return await self.directory.names(prefix, until, rest)

    async def request_revocation(self, name: str, until: float) -> list[HolderView]:
        """Send a revocation request to the holders of a name."""
        return await self._inspector.request_revocation(name, until)

    async def revoke(self, name: str, until: float, token: int = 0) -> list[HolderView]:
        """Revoke the leases of a name and notify their holders. Their lock delays begin."""
        return await self._inspector.revoke(name, until, token)


def _has_block(listing: Listing, request_id: str) -> bool:
    return any(entry.kind is Kind.BLOCK and entry.request_id == request_id for entry in listing.entries)


def _after(entries: Sequence[Entry]) -> int:
    return max((entry.order for entry in entries), default=0) + 1


def _ignore(notification: Notification) -> None: ...
