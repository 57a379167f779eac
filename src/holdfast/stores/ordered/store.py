"""The store over a directory of things that stand in order: ZooKeeper, etcd.

Each contender is an entry of its client's session; the first that fit hold. Nobody grants anything: what is removed
wakes who watches it, and that one looks whether it holds by now. So all that is needed for a hand-off is one event and
one look.

Two things end a holding that is not released:

*   **The session**, if the process dies or is cut off. What a session has is certainly kept for `trust` from the last
    proof, so a grant or a renewal counts for no longer than that, whatever its ttl.
*   **The client itself**, while it lives, when nobody renewed a lease for its ttl, or nobody asked for a waiter.

So a ttl shorter than the session bounds a holder that hangs; one that dies is bounded by the session.
"""

import logging
from collections.abc import Callable, Sequence

from holdfast.contracts.deadlines import DRIFT, micros, seconds
from holdfast.contracts.messages import (
    Adjust,
    Ask,
    Busy,
    Gone,
    Granted,
    HolderView,
    Leave,
    Left,
    Mismatch,
    NameView,
    Notice,
    NoticeKind,
    Page,
    Release,
    Renewal,
    RenewReply,
    Reply,
    Waiting,
)
from holdfast.contracts.runtime import Runtime
from holdfast.contracts.store import Capabilities
from holdfast.errors import OutcomeUnknown, StoreUnavailable
from holdfast.guard import Guard, Guarding
from holdfast.outcome import Outcome
from holdfast.stores.ordered.caretaker import AGAIN, OPERATION, Caretaker
from holdfast.stores.ordered.contenders import Place, Places
from holdfast.stores.ordered.directory import Directory
from holdfast.stores.ordered.entries import Entry, Kind, Listing, Reading, Record, read, to_watch
from holdfast.stores.ordered.inspector import Onlooker
from holdfast.stores.ordered.texts import Said, text_of

log = logging.getLogger("holdfast")

POKE = 2.0
"""After how many seconds the first waiter looks although nothing woke it. Watches are reliable: this is the net."""

LATER = 0.2
"""How many seconds later each next waiter does so."""

LONGEST_POKE = 20.0

HEARD = 1.0
"""How long, in seconds, a waiter that was woken has at least to ask whether it holds now."""

SESSION_ENDED = "this client's session has ended: the servers had not heard of it for longer than a session lasts"
GONE = "its entry is gone: this client's session has ended, or somebody has removed the entry"
"""Why a renewal is refused."""

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
        """Stand on `directory`, which was made for the same runtime."""
        self.capabilities = capabilities
        self.directory = directory
        self._runtime = runtime
        self._places = Places(runtime.mutex(), runtime.now)
        self._deliver: Callable[[Notice], None] = _ignore
        self._onlooker = Onlooker(directory, runtime.now)
        self._caretaker = Caretaker(runtime, directory, self._places, self._end_silent)

    def identity(self) -> str:
        """Return nothing: it is not known whether another store is the same one."""
        return ""

    # -- life ----------------------------------------------------------------------------------------------

    async def open(self, deliver: Callable[[Notice], None], until: float) -> str:
        """Begin a session. There is no inbox: whoever waits here is woken and asks."""
        self._deliver = deliver
        await self.directory.open(self, until)
        self._caretaker.start()
        return ""

    async def close(self) -> None:
        """End the session, and with it all that it has."""
        await self._caretaker.stop()
        await self.directory.close()

    def abandon(self) -> None:
        """In a forked child: drop what was inherited."""
        self._caretaker.abandon()
        self.directory.abandon()

    def guard(self, name: str, request: str, token: int) -> Guard | None:
        """Return a condition for transactions of the user's own, if the directory knows such."""
        return self.directory.guard(name, request, token) if isinstance(self.directory, Guarding) else None

    # -- what the directory tells --------------------------------------------------------------------------

    def woken(self, request: str) -> None:
        """Have a waiter ask whether it holds by now; if it does not, it loses its place."""
        place = self._places.live.get(request)
        if place is not None:
            self._places.wake(place, self._runtime.now() + max(seconds(place.ask.ttl), HEARD))
            self._caretaker.look_by(place.ends_at)
            self._deliver(Notice("", NoticeKind.HEAD, request))

    def told(self, message: str) -> None:
        """Hear from another client that somebody wants what is held here, or has taken it."""
        kind, _, rest = message.partition(" ")
        request, _, token = rest.partition(" ")
        if kind not in {NoticeKind.REVOKED, NoticeKind.ASKED} or not token.isdecimal():
            log.debug("a message that cannot be read is ignored: %r", message)
            return
        if kind == NoticeKind.REVOKED:
            self._places.end_of(request, int(token), Outcome.TAKEN_OVER)
        self._deliver(Notice("", NoticeKind(kind), request, int(token)))

    def lost(self) -> None:
        """Have whoever waits begin anew, and whoever holds find out."""
        log.warning("the session at the store has ended: what was held in it is lost, and who waited stands last again")
        self.gap()

    def gap(self) -> None:
        """Have every waiter ask and every lease renewed, soon."""
        self._deliver(Notice("", NoticeKind.GAP, ""))

    # -- acquire -------------------------------------------------------------------------------------------

    async def acquire(self, ask: Ask, until: float) -> Reply:
        """Join, or look again; tell whether it holds."""
        sent = self._runtime.now()
        if self._is_over(ask.request):
            return Gone()
        self._refuse_while_ending(ask.name, ask.request)
        if not ask.wait and ask.request not in self._places.live:
            refusal = await self._refusal(ask, until)
            if refusal is not None:
                return refusal
        place = self._places.find(ask.request, ask, max(self._silence(ask), until + OPERATION))
        while self._places.live.get(ask.request) is place:
            joins = place.entry is None or place.entry.session != self.directory.session()
            listing = await (self._join(place, until) if joins else self.directory.look(ask.name, until))
            reply = await self._answer(place, listing, sent, until, newcomer=joins)
            if reply is not None:
                return reply
            if self._runtime.now() >= until:
                raise StoreUnavailable(f"no time was left to look who holds {ask.name!r}; allow more")
        raise StoreUnavailable(f"this request for {ask.name!r} was ended meanwhile; ask again")

    async def acquire_many(self, asks: Sequence[Ask], until: float) -> list[Reply]:
        """Not at all: names are asked for one by one."""
        raise NotImplementedError

    def _refuse_while_ending(self, name: str, request: str) -> None:
        """Raise StoreUnavailable while a request is being ended for its silence: what comes of it is not known yet."""
        if request in self._places.ending:
            raise StoreUnavailable(
                f"a request for {name!r} was silent for too long, and is just being ended; ask again"
            )

    def _is_over(self, request: str) -> bool:
        past = self._places.past.get(request)
        return past is not None and past.outcome in {None, Outcome.RELEASED}

    def _silence(self, ask: Ask) -> float:
        """Return until when somebody who asks now counts as alive, if it is not told when to ask again."""
        return self._runtime.now() + max(seconds(ask.patience), OPERATION)

    async def _join(self, place: Place, until: float) -> Listing:
        ask = place.ask
        place.entry, place.block, place.light, place.holds = None, False, False, False
        record = Record(Kind.CONTENDER, ask.request, ask.weight, ask.capacity, text=text_of(place))
        try:
            place.entry, listing = await self.directory.join(ask.name, record, until)
        except BaseException:  # whatever ended it, it may still arrive
            place.unsure = True
            self._revive(place)
            raise
        if self._revive(place):  # what removes it may be under way
            raise StoreUnavailable(f"this request for {ask.name!r} was ended meanwhile; ask again")
        return listing

    def _revive(self, place: Place) -> bool:
        """See to it that a contender does not stay which joined only when its place had been ended."""
        revived = self._places.revive(place, self._runtime.now() + HEARD)
        if revived:
            self._caretaker.look_by(place.ends_at)
        return revived

    async def _answer(
        self, place: Place, listing: Listing, sent: float, until: float, *, newcomer: bool
    ) -> Reply | None:
        """Say what a listing means for a place; None if it has to be looked at again."""
        ask, reading = place.ask, read(listing.entries)
        if reading.stale:
            self._caretaker.throw_away(ask.name, reading.stale)
        if reading.holder(ask.request) is not None:
            return await self._granted(place, listing, reading, sent, until)
        mine = reading.waiter(ask.request)
        if mine is None:  # somebody removed it
            place.entry = None
            return None
        if (newcomer and mine in reading.foreign) or mine.weight > reading.capacity:
            await self._turn_away(place, until)
            return Mismatch(reading.capacity)
        if not ask.wait:
            owners = await self._onlooker.owners(ask.name, reading, until)
            await self._turn_away(place, until)
            return Busy(micros(AGAIN), owners)
        return await self._wait(place, mine, reading, until)

    async def _granted(
        self, place: Place, listing: Listing, reading: Reading, sent: float, until: float
    ) -> Reply | None:
        """Tell that a place holds, for as long as the session certainly lives, or the ttl if that is shorter."""
        ask, entry = place.ask, place.entry
        if entry is None or entry.session != self.directory.session():
            return None
        place.block = bool(ask.lock_delay)  # whatever comes of it; and there may be one of an earlier session
        if place.block and not _has_block(listing, ask.request):
            record = Record(
                Kind.BLOCK, ask.request, ask.weight, ask.capacity, entry.order, seconds(ask.lock_delay), text_of(place)
            )
            if not await self.directory.change(ask.name, [], [record], until, entry):
                return None
        ttl = min(ask.ttl, self._trusted(entry, sent))
        if ttl < min(ask.ttl, micros(self.directory.trust)) // 2:
            return None  # by looking again, which proves that the session lives
        if not self._places.hold(place, self._runtime.now() + seconds(ask.ttl)):
            return None
        self._caretaker.look_by(place.ends_at)
        return Granted(entry.token, ttl, wanted=bool(reading.waiters))

    def _trusted(self, entry: Entry, sent: float) -> int:
        """Return for how many microseconds from `sent` on an entry is certainly kept, by its session.

        The store's clock may be faster than ours: also in the time from the proof to `sent`, of which the holder, who
        allows for that from then on, knows nothing.
        """
        proved_at, trust = self.directory.proved_at, self.directory.trust
        if entry.session != self.directory.session():  # looked at last: the proof may be of the next session
            return 0
        since = max(sent - proved_at, 0.0)
        return max(0, micros(trust - since / (1.0 - DRIFT))) if since < trust else 0

    async def _wait(self, place: Place, mine: Entry, reading: Reading, until: float) -> Reply | None:
        """Watch what has to go before, and tell when to ask at the latest; None if something went meanwhile."""
        ask = place.ask
        watched = to_watch(reading, mine)
        if not await self.directory.watch(ask.name, ask.request, watched, until):
            return None
        number = reading.place(ask.request)
        poke_in = min(POKE + LATER * number, LONGEST_POKE) * (0.75 + 0.5 * self._runtime.random())
        others = [block for block in reading.blocks if block not in watched]
        if await self._outlast(ask.name, others, until) == 0.0:  # whoever looks first has their time begin
            return None
        left = await self._outlast(ask.name, [entry for entry in watched if entry.kind is not Kind.CONTENDER], until)
        if left == 0.0:
            return None
        poke_in = min(poke_in, left)
        self._places.hear(ask.request, self._silence(ask) + 2 * poke_in)
        self._caretaker.look_by(place.ends_at)
        counter = (place.entry or mine).token - 1
        return Waiting(counter, micros(poke_in), number)

    async def _outlast(self, name: str, timed: Sequence[Entry], until: float) -> float:
        """Return in how many seconds the first of what ends by itself does; 0 if one just did."""
        return min([await self.directory.remains(name, entry, until) for entry in timed], default=float("inf"))

    async def _refusal(self, ask: Ask, until: float) -> Busy | Mismatch | None:
        """Look whether someone who does not want to wait would have to; else it had better join."""
        while True:
            listing = await self.directory.look(ask.name, until)
            fake = Entry(Kind.CONTENDER, ask.request, _after(listing.entries), ask.weight, ask.capacity)
            reading = read([*listing.entries, fake])
            if reading.holder(ask.request) is not None:
                return None
            if fake in reading.foreign:
                return Mismatch(reading.capacity)
            if await self._outlast(ask.name, [*reading.kept, *reading.blocks], until) > 0.0:
                return Busy(micros(AGAIN), await self._onlooker.owners(ask.name, reading, until))

    # -- release and leave -----------------------------------------------------------------------------------

    async def release(self, release: Release, until: float) -> Outcome:
        """Remove the entry, which lets the next one in."""
        request = release.request
        past = self._places.past.get(request)
        if past is not None and past.outcome is Outcome.RELEASED:
            return Outcome.RELEASED
        self._refuse_while_ending(release.name, request)
        place = self._places.live.get(request)
        if place is None or place.entry is None or place.entry.token != release.token:
            return await self._fate(release.name, request, until)
        if place.entry.session != self.directory.session():
            self._places.end(request, Outcome.EXPIRED)
            return await self._fate(release.name, request, until)
        if self._places.has_run_out(place):
            self._caretaker.look_by(self._runtime.now())
            raise StoreUnavailable(f"the lease of {release.name!r} has run out, and is just being ended; ask again")
        self._let_go(place, release, until)
        removed = await self._remove(place, until, keep=release.keep)
        self._places.end(request, Outcome.RELEASED if removed else Outcome.EXPIRED)
        return Outcome.RELEASED if removed else await self._fate(release.name, request, until)

    def _let_go(self, place: Place, release: Release, until: float) -> None:
        """See to it that a place ends even if this release is not carried out, nor asked for again.

        One that others are to be kept out of for a while is left to its ttl then.
        """
        if release.keep:
            place.ends_at = max(place.ends_at, until + OPERATION)  # the silence of a release is not that of its holder
        else:
            place.holds, place.ends_at = False, until + HEARD
            self._caretaker.look_by(place.ends_at)

    async def leave(self, leave: Leave, until: float) -> Left:
        """Remove the entry, wherever it stands."""
        name, request = leave.name, leave.request
        self._refuse_while_ending(name, request)
        place = self._places.live.get(request)
        if place is not None:
            place.holds, place.ends_at = False, until + HEARD  # it is ended, even if nobody asks for that again
            self._caretaker.look_by(place.ends_at)
        reading = read((await self.directory.look(name, until)).entries)
        left = Left(await self._onlooker.owners(name, reading, until), reading.place(request))
        await self.directory.watch(name, request, (), until)
        if place is not None:
            await self._remove(place, until)
        if place is not None or leave.unsure:
            self._places.end(request, None)
        return left

    async def _turn_away(self, place: Place, until: float) -> None:
        """Remove one that is refused. It may come again."""
        await self._remove(place, until)
        self._places.drop(place.ask.request)

    async def _end_silent(self, place: Place, until: float) -> None:
        """Remove a place whose owner has fallen silent."""
        await self._remove(place, until, lapsed=place.holds)

    async def _remove(self, place: Place, until: float, keep: int = 0, *, lapsed: bool = False) -> bool:
        """Remove all entries of a place; True if it was there. Put something there that keeps others out for a time."""
        ask, entry = place.ask, place.entry
        delays = lapsed and ask.lock_delay
        if entry is None or not (place.block or place.light or keep or delays):
            return await self.directory.withdraw(ask.name, ask.request, None if place.unsure else entry, until)
        while not (removed := await self._replace(place, entry, keep, until, delays=bool(delays))):
            there = (await self.directory.look(ask.name, until)).entries
            if not any(each.kind is Kind.CONTENDER and each.order == entry.order for each in there):
                break
            if self._runtime.now() >= until:  # others keep changing what belongs to it
                raise OutcomeUnknown(f"what belongs to a holder of {ask.name!r} changes too fast; ask again")
        if place.unsure:
            await self.directory.withdraw(ask.name, ask.request, None, until)
        return removed

    async def _replace(self, place: Place, entry: Entry, keep: int, until: float, *, delays: bool) -> bool:
        """Remove what there is of a place, in one step with what comes instead; False if something of it changed."""
        ask, remove, add = place.ask, [entry], list[Record]()
        if place.block or place.light:
            entries = (await self.directory.look(ask.name, until)).entries
            mine = [each for each in entries if each.request == ask.request and each.kind is not Kind.KEPT]
            remove = [each for each in mine if each.kind in {Kind.BLOCK, Kind.LIGHT}] + [entry]
        weight = min((each.weight for each in remove if each.kind is Kind.LIGHT), default=ask.weight)
        if keep:
            text = Said(place.text, keep).text()
            add.append(Record(Kind.KEPT, ask.request, weight, ask.capacity, 0, seconds(keep), text, entry.order))
        elif delays:
            delay, text = seconds(ask.lock_delay), text_of(place)
            add.append(Record(Kind.KEPT, ask.request, weight, ask.capacity, 1, delay, text, entry.order))
        return await self.directory.change(ask.name, remove, add, until)

    async def _fate(self, name: str, request: str, until: float) -> Outcome:
        """Tell what became of a holding that is not there any more: whether somebody came after it."""
        past = self._places.past.get(request)
        if past is not None and past.outcome is Outcome.TAKEN_OVER:
            return Outcome.TAKEN_OVER
        listing = await self.directory.look(name, until)
        if past is None or not past.order:
            return Outcome.TAKEN_OVER if read(listing.entries).holders else Outcome.EXPIRED
        later = any(each.kind is Kind.CONTENDER and each.order > past.order for each in listing.entries)
        return Outcome.TAKEN_OVER if later or listing.joined > past.order + past.added else Outcome.EXPIRED

    # -- what goes on ----------------------------------------------------------------------------------------

    async def renew(self, renewals: Sequence[Renewal], until: float) -> list[RenewReply]:
        """Prove that the session lives and the entries are there.

        A renewal for longer than the session certainly lives is cut down to that.
        """
        sent = self._runtime.now()
        places = [self._renewable(renewal, until) for renewal in renewals]
        asked = [(place.ask.name, place.entry) for place in places if place is not None and place.entry is not None]
        there = iter(await self.directory.check(asked, until) if asked else [])
        replies: list[RenewReply] = []
        for renewal, place in zip(renewals, places, strict=True):
            if place is None or not next(there):
                renewal.refused_because = self._why_gone(renewal.request)
                if place is not None:
                    self._places.end_of(renewal.request, renewal.token, Outcome.EXPIRED)
                replies.append(await self._fate(renewal.name, renewal.request, until))
            else:
                replies.append(await self._renewed(place, renewal, sent, until))
        return replies

    def _why_gone(self, request: str) -> str:
        place = self._places.live.get(request)
        entry = None if place is None else place.entry
        return GONE if entry is None or entry.session == self.directory.session() else SESSION_ENDED

    def _renewable(self, renewal: Renewal, until: float) -> Place | None:
        """Return the place of a renewal if it may be there still, and keep it from being ended meanwhile."""
        place = self._places.hear(renewal.request, until)
        if place is None or place.entry is None or place.entry.token != renewal.token:
            return None
        return place if place.entry.session == self.directory.session() else None

    async def _renewed(self, place: Place, renewal: Renewal, sent: float, until: float) -> RenewReply:
        if not self._places.hold(place, self._runtime.now() + seconds(renewal.ttl)):
            return await self._fate(renewal.name, renewal.request, until)
        if renewal.ttl > place.ttl and place.entry is not None:
            place.ttl = renewal.ttl
            await self.directory.rewrite(place.ask.name, place.entry, text_of(place), until)
        renewal.ttl = min(renewal.ttl, 0 if place.entry is None else self._trusted(place.entry, sent))
        self._caretaker.look_by(place.ends_at)
        return None

    async def adjust(self, adjust: Adjust, until: float) -> RenewReply:
        """Make a contender lighter, or show it under another owner."""
        place = self._places.live.get(adjust.request)
        entry = None if place is None else place.entry
        if place is None or entry is None or entry.token != adjust.token or entry.session != self.directory.session():
            return await self._fate(adjust.name, adjust.request, until)
        if adjust.owner:
            place.text = adjust.owner
            if not await self.directory.rewrite(adjust.name, entry, text_of(place), until):
                return await self._fate(adjust.name, adjust.request, until)
        lighter = adjust.weight and adjust.weight < place.ask.weight
        if lighter and not await self._lighten(place, entry, adjust.weight, until):
            return await self._fate(adjust.name, adjust.request, until)
        return None

    async def _lighten(self, place: Place, entry: Entry, weight: int, until: float) -> bool:
        """Make a contender lighter, and what stays of it should it vanish; False if it is gone."""
        ask, place.light = place.ask, True
        blocks = [
            each
            for each in (await self.directory.look(ask.name, until)).entries
            if each.kind is Kind.BLOCK and each.request == ask.request and each.weight > weight
        ]
        add = [Record(Kind.LIGHT, ask.request, weight, ask.capacity)] + [
            Record(Kind.BLOCK, ask.request, weight, ask.capacity, entry.order, seconds(ask.lock_delay), text_of(place))
            for _ in blocks
        ]
        done = await self.directory.change(ask.name, blocks, add, until, entry)
        if done:
            await self.directory.stir(ask.name, [entry], until)
        return done

    async def resize(self, name: str, before: int, after: int, until: float) -> int:
        """Change the capacity of a name, and wake all who may fit now or never."""
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

    # -- looking ---------------------------------------------------------------------------------------------

    async def inspect(self, name: str, until: float) -> NameView:
        """Show who holds and who waits. How long ago is as exact as the clocks of the client and the store agree."""
        return await self._onlooker.inspect(name, until)

    async def names(self, prefix: str, until: float, rest: object = None) -> Page:
        """Return a page of the names in use."""
        return await self.directory.names(prefix, until, rest)

    async def ask_back(self, name: str, until: float) -> list[HolderView]:
        """Ask the holders of a name to let go."""
        return await self._onlooker.ask_back(name, until)

    async def revoke(self, name: str, until: float, token: int = 0) -> list[HolderView]:
        """Remove the holders and tell them. Their lock delays begin."""
        return await self._onlooker.revoke(name, until, token)


def _has_block(listing: Listing, request: str) -> bool:
    return any(entry.kind is Kind.BLOCK and entry.request == request for entry in listing.entries)


def _after(entries: Sequence[Entry]) -> int:
    return max((entry.order for entry in entries), default=0) + 1


def _ignore(notice: Notice) -> None: ...
