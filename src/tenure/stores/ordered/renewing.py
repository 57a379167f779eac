"""What keeps a lease: the confirmation of its grant, its renewals, and changes of its weight, owner or capacity.

By the confirmation those that wait learn that a holder has taken its grant up. A waiter becomes the holder when the
entries before it go. If its client is dead or stands still, nobody takes the grant up, and the entry would stay as long
as its session. So a grant has to be confirmed, and this bounds it:

*   **A holder** confirms its grant by its first renewal: it writes so into its entry. Until then its lease never lasts
    longer than its ttl, counted from the last instant at which the entry certainly did not hold the name. A grant that
    would leave it too little of that is confirmed at once.
*   **A waiter** notes when it first sees another contender hold the name. If the entry of that contender still is not
    confirmed after the contender's ttl, counted from then, its lease is over or was never taken up, and the waiter
    removes the entry. The removal is refused if the entry was confirmed meanwhile.

A grant that is renewed costs one write more, once. A lock that is released before that costs nothing more.
"""

import logging
from collections.abc import Callable, Sequence

from tenure.contracts.deadlines import DRIFT, micros, seconds
from tenure.contracts.messages import AdjustRequest, RenewReply, RenewRequest
from tenure.contracts.owner_metadata import read_metadata
from tenure.errors import StoreError
from tenure.escaping import shown
from tenure.outcome import Outcome
from tenure.stores.ordered.caretaker import Caretaker
from tenure.stores.ordered.contenders import WOKEN_TTL, Contender, ContenderRegistry, EntryText, read_text, text_of
from tenure.stores.ordered.directory import Directory
from tenure.stores.ordered.entries import Entry, Kind, Record
from tenure.stores.ordered.granting import Decision, decide
from tenure.stores.ordered.releasing import Outcomes


class SessionTrust:
    """Tells from the last proof of a directory's session for how long its entries certainly stay."""

    def __init__(self, directory: Directory) -> None:
        """Read the proofs of `directory`."""
        self._directory = directory

    def trusted(self, entry: Entry, sent: float) -> int:
        """Return for how many microseconds after `sent` the session certainly keeps an entry.

        The store's clock may be faster than ours. The holder allows for that drift from `sent` on, but knows nothing of
        the time between the proof and `sent`, so the drift of that time is subtracted here.
        """
        proved_at, trust = self._directory.proved_at, self._directory.trust
        if entry.session != self._directory.session():  # checked last: the proof may belong to the next session
            return 0
        since = max(sent - proved_at, 0.0)
        return max(0, micros(trust - since / (1.0 - DRIFT))) if since < trust else 0


log = logging.getLogger("tenure")

CONFIRMED = float("inf")
"""Noted, instead of an instant, of a holder that is known to be confirmed."""


AT_ONCE = 50
"""How many grants are confirmed by one request."""


class Confirmations:
    """Confirms the grants of one client, and removes the contenders of others that do not confirm theirs."""

    def __init__(self, directory: Directory, now: Callable[[], float]) -> None:
        """Read and write the entries of `directory`."""
        self._directory = directory
        self._now = now

    def left(self, contender: Contender, ttl: int, sent: float) -> int:
        """Return for how many microseconds after `sent` a contender may hold the name, of its ttl.

        The holder allows for drifting clocks from `sent` on; the time before that is subtracted here.
        """
        if contender.confirmed:
            return ttl
        return min(ttl, ttl - micros((sent - contender.idle_at) / (1.0 - DRIFT)))

    async def confirm(self, contenders: Sequence[Contender], until: float) -> list[bool]:
        """Write into the entries of contenders that their grants were taken up; return False for each that is gone."""
        done = list[bool]()
        for start in range(0, len(contenders), AT_ONCE):  # what is written counts, though the rest may fail
            some = contenders[start : start + AT_ONCE]
            texts = [
                (each.request.name, each.entry, EntryText(each.text, each.ttl, confirmed=True).text())
                for each in some
                if each.entry is not None
            ]
            written = await self._directory.rewrite(texts, until)
            for each, there in zip(some, written, strict=True):
                each.confirmed = there
            done += written
        return done

    async def pass_over(self, waiter: Contender, decision: Decision, until: float) -> float:
        """Remove the holders before a waiter that have not confirmed their grants in time.

        Return in how many seconds the next one is to be removed; 0 if one was removed just now. Of one that is seen for
        the first time the ttl is not read: it is taken to be the waiter's own.
        """
        now, seen = self._now(), waiter.seen
        silent = [entry for entry in decision.holders if seen.get(entry.order, now) < now]
        waiter.seen = {entry.order: seen.get(entry.order, now) for entry in decision.holders}
        newly = any(order not in seen for order in waiter.seen)
        left = max(seconds(waiter.request.ttl), WOKEN_TTL) if newly else float("inf")
        if not silent:
            return left
        details = await self._directory.details(waiter.request.name, silent, until)
        for entry, detail in zip(silent, details, strict=True):
            if detail is None:
                return 0.0
            told = read_text(detail.text)
            if told.confirmed or not told.ttl:
                waiter.seen[entry.order] = CONFIRMED
                continue
            wait = waiter.seen[entry.order] + max(seconds(told.ttl), WOKEN_TTL) - self._now()
            if wait <= 0.0 and await self._directory.pass_over(waiter.request.name, entry, detail.text, until):
                log.warning(
                    "a contender for %r, %s, did not take up its grant within its ttl: it is dead or stands still, and "
                    "was removed from the queue",
                    waiter.request.name,
                    shown(read_metadata(told.owner).owner),
                )
                return 0.0
            left = min(left, wait if wait > 0.0 else WOKEN_TTL)
        return left


SESSION_ENDED = "this client's session has ended: the servers had not heard of it for longer than a session lasts"
GONE = "its entry is gone: this client's session has ended, or the entry was removed"
"""The reasons for which a renewal is refused."""


class LeaseRenewals:
    """Renews the leases of one client."""

    def __init__(
        self, directory: Directory, contenders: ContenderRegistry, caretaker: Caretaker, now: Callable[[], float]
    ) -> None:
        """Renew contenders of the registry; the caretaker ends those whose renewals stop."""
        self._directory = directory
        self._contenders = contenders
        self._caretaker = caretaker
        self._outcomes = Outcomes(directory, contenders)
        self._trust = SessionTrust(directory)
        self._confirmations = Confirmations(directory, now)
        self._now = now

    async def renew(self, renewals: Sequence[RenewRequest], until: float) -> list[RenewReply]:
        """Renew a batch of leases: prove that the session lives and that the entries exist.

        A renewal for longer than the session certainly lives is cut down to that time.
        """
        sent = self._now()
        contenders = [self._renewable(renewal, until) for renewal in renewals]
        entries = [
            (contender.request.name, contender.entry)
            for contender in contenders
            if contender is not None and contender.entry is not None
        ]
        checked = iter(await self._directory.check(entries, until) if entries else [])
        there = [contender is not None and next(checked) for contender in contenders]
        await self._confirm(renewals, contenders, there, until)
        replies: list[RenewReply] = []
        for renewal, contender, exists in zip(renewals, contenders, there, strict=True):
            if contender is None or not exists:
                renewal.refused_because = self._why_gone(renewal.request_id)
                if contender is not None:
                    self._contenders.end_of(renewal.request_id, renewal.token, Outcome.EXPIRED)
                replies.append(await self._outcomes.of_lease(renewal.name, renewal.request_id, until))
            else:
                replies.append(await self._renewed(contender, renewal, sent, until))
        await self._note_contention(
            [each for each, reply in zip(renewals, replies, strict=True) if reply is None], until
        )
        return replies

    async def _confirm(
        self, renewals: Sequence[RenewRequest], contenders: Sequence[Contender | None], there: list[bool], until: float
    ) -> None:
        """Confirm what is renewed for the first time, and write longer ttls; note in `there` which entries are gone."""
        places = list[int]()
        for place, (renewal, contender) in enumerate(zip(renewals, contenders, strict=True)):
            if contender is not None and there[place] and (not contender.confirmed or renewal.ttl > contender.ttl):
                contender.ttl, contender.confirmed = max(contender.ttl, renewal.ttl), False
                places.append(place)
        to_confirm = [contender for place in places if (contender := contenders[place]) is not None]
        for place, done in zip(places, await self._confirmations.confirm(to_confirm, until), strict=True):
            there[place] = done

    async def _note_contention(self, renewed: Sequence[RenewRequest], until: float) -> None:
        """Tell the renewals of leases that may be handed off whether another client waits.

        The leases are renewed already, so this takes no more than half of the time that is left, and may fail.
        """
        ranged = [each for each in renewed if self._has_range(each.request_id)]
        if not ranged:
            return
        now = self._now()
        try:
            listings = await self._directory.look_at_all([each.name for each in ranged], now + (until - now) / 2)
        except StoreError as error:
            log.debug("it is not known whether others wait for renewed leases: %s", error)
            return
        for renewal, listing in zip(ranged, listings, strict=True):
            renewal.contended = bool(decide(listing.entries).waiters)

    def _has_range(self, request_id: str) -> bool:
        contender = self._contenders.live.get(request_id)
        return contender is not None and contender.request.span > 1

    def _why_gone(self, request_id: str) -> str:
        contender = self._contenders.live.get(request_id)
        entry = None if contender is None else contender.entry
        return GONE if entry is None or entry.session == self._directory.session() else SESSION_ENDED

    def _renewable(self, renewal: RenewRequest, until: float) -> Contender | None:
        """Return the contender of a renewal if it may still exist, and let it live at least until `until`."""
        contender = self._contenders.hear(renewal.request_id, until)
        if contender is None or contender.entry is None or contender.entry.token != renewal.token:
            return None
        return contender if contender.entry.session == self._directory.session() else None

    async def _renewed(self, contender: Contender, renewal: RenewRequest, sent: float, until: float) -> RenewReply:
        if not self._contenders.hold(contender, self._now() + seconds(renewal.ttl)):
            return await self._outcomes.of_lease(renewal.name, renewal.request_id, until)
        renewal.ttl = min(renewal.ttl, 0 if contender.entry is None else self._trust.trusted(contender.entry, sent))
        self._caretaker.look_by(contender.ends_at)
        return None


class Adjuster:
    """Adjusts the leases of one client, and resizes names."""

    def __init__(self, directory: Directory, contenders: ContenderRegistry, new_id: Callable[[], str]) -> None:
        """Adjust contenders of the registry; `new_id` makes a unique id for each resize."""
        self._directory = directory
        self._contenders = contenders
        self._outcomes = Outcomes(directory, contenders)
        self._new_id = new_id

    async def adjust(self, adjust: AdjustRequest, until: float) -> RenewReply:
        """Reduce the weight of a lease, or change the owner that its entry shows."""
        contender = self._contenders.live.get(adjust.request_id)
        entry = None if contender is None else contender.entry
        if (
            contender is None
            or entry is None
            or entry.token != adjust.token
            or entry.session != self._directory.session()
        ):
            return await self._outcomes.of_lease(adjust.name, adjust.request_id, until)
        if adjust.owner:
            contender.text = adjust.owner
            if not all(await self._directory.rewrite([(adjust.name, entry, text_of(contender))], until)):
                return await self._outcomes.of_lease(adjust.name, adjust.request_id, until)
        lighter = adjust.weight and adjust.weight < contender.request.weight
        if lighter and not await self._lighten(contender, entry, adjust.weight, until):
            return await self._outcomes.of_lease(adjust.name, adjust.request_id, until)
        return None

    async def _lighten(self, contender: Contender, entry: Entry, weight: int, until: float) -> bool:
        """Reduce the weight of a contender, and of the BLOCK that replaces it if it vanishes; False if it is gone."""
        request, contender.light = contender.request, True
        blocks = [
            each
            for each in (await self._directory.look(request.name, until)).entries
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
        done = await self._directory.change(request.name, blocks, add, until, entry)
        if done:
            await self._directory.stir(request.name, [entry], until)
        return done

    async def resize(self, name: str, before: int, after: int, until: float) -> int:
        """Change the capacity of a name, and wake all contenders, which may now hold the name or never fit."""
        decision = decide((await self._directory.look(name, until)).entries)
        if not decision.capacity:
            return after
        if decision.capacity == before != after:
            record = Record(Kind.SIZE, self._new_id(), 1, after, before)
            await self._directory.change(name, [], [record], until)
            listing = await self._directory.look(name, until)
            decision = decide(listing.entries)
            contenders = [entry for entry in listing.entries if entry.kind is Kind.CONTENDER]
            await self._directory.stir(name, contenders, until)
        return decision.capacity or after
