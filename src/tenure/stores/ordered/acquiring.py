"""The requests to acquire: a contender joins, looks whether it holds the name, and else waits."""

import logging
from collections.abc import Sequence
from math import isinf

from tenure.contracts.deadlines import micros, seconds
from tenure.contracts.messages import AcquireRequest, Busy, CapacityMismatch, Granted, Queued, Reply, Withdrawn
from tenure.contracts.runtime import Runtime
from tenure.errors import StoreError, StoreUnavailable
from tenure.stores.ordered.caretaker import AGAIN, OPERATION, Caretaker
from tenure.stores.ordered.contenders import BESIDES, WOKEN_TTL, Contender, ContenderRegistry, text_of
from tenure.stores.ordered.directory import Directory
from tenure.stores.ordered.entries import Entry, Kind, Listing, Record, check_tokens, first_token
from tenure.stores.ordered.granting import Decision, decide, to_hear_of_grants, to_watch
from tenure.stores.ordered.inspector import Inspector
from tenure.stores.ordered.releasing import EntryRemover, Outcomes
from tenure.stores.ordered.renewing import Confirmations, SessionTrust

log = logging.getLogger("tenure")

RETRY = 2.0
"""The re-poll interval of the first waiter, in seconds. Watches are reliable, so this is only the safety net."""

LATER = 0.2
"""How much longer the re-poll interval of each next waiter is, in seconds."""

LONGEST_RETRY = 20.0


class Acquirer:
    """Joins the queues of names for one client, and tells whether its requests are granted."""

    def __init__(
        self,
        runtime: Runtime,
        directory: Directory,
        contenders: ContenderRegistry,
        caretaker: Caretaker,
        *,
        remover: EntryRemover,
        inspector: Inspector,
    ) -> None:
        """Register each request as a contender; the caretaker ends those whose requests stop."""
        self._runtime = runtime
        self._directory = directory
        self._contenders = contenders
        self._caretaker = caretaker
        self._remover = remover
        self._inspector = inspector
        self._outcomes = Outcomes(directory, contenders)
        self._trust = SessionTrust(directory)
        self._confirmations = Confirmations(directory, runtime.now)
        self._told_of_ttl = False

    async def acquire(self, request: AcquireRequest, until: float) -> Reply:
        """Join or look again; reply whether the request is granted."""
        sent = self._runtime.now()
        if not self._told_of_ttl and request.ttl < micros(self._directory.lasts):
            self._tell_of_ttl(request)
        if self._outcomes.is_over(request.request_id):
            return Withdrawn()
        self._outcomes.refuse_while_ending(request.name, request.request_id)
        if not request.wait and request.request_id not in self._contenders.live:
            refusal = await self._refusal(request, until)
            if refusal is not None:
                return refusal
        contender = self._contenders.find(request.request_id, request, max(self._silence(request), until + OPERATION))
        while self._contenders.live.get(request.request_id) is contender:
            joins = contender.entry is None or contender.entry.session != self._directory.session()
            looked = self._runtime.now()
            listing = await (self._join(contender, until) if joins else self._directory.look(request.name, until))
            reply = await self._answer(contender, listing, (sent, looked), until, newcomer=joins)
            if reply is not None:
                return reply
            if self._runtime.now() >= until:
                raise StoreUnavailable(
                    f"the request for {request.name!r} timed out before the store told who holds the name: "
                    "raise `timeout` or `operation_timeout`"
                )
        raise StoreUnavailable(f"the request for {request.name!r} was removed while it was under way: try again")

    def _tell_of_ttl(self, request: AcquireRequest) -> None:
        """Log, once a client, what a ttl below the session's timeout does not bound."""
        self._told_of_ttl = True
        log.info(
            "the ttl of %r is %g s, and a session lasts %g s: if this process dies while it holds the name, and has "
            "renewed its lease, the name is free when its session ends, and not after the ttl. Set ?session_timeout= "
            "in the URL as low as the ttl if that is too late",
            request.name,
            seconds(request.ttl),
            self._directory.lasts,
        )

    def _silence(self, request: AcquireRequest) -> float:
        """Return the local instant at which a request made now expires, if no retry time is given to its client."""
        return self._runtime.now() + max(seconds(request.waiter_ttl), OPERATION)

    async def _join(self, contender: Contender, until: float) -> Listing:
        request = contender.request
        contender.entry, contender.block, contender.light, contender.holds = None, False, False, False
        contender.told = contender.confirmed = False
        if not contender.unsure:  # else an earlier join may have added the entry
            contender.idle_at = self._runtime.now()
        text, reserved = text_of(contender), request.span - 1
        record = Record(Kind.CONTENDER, request.request_id, request.weight, request.capacity, reserved, text=text)
        try:
            contender.entry, listing = await self._directory.join(request.name, record, until)
        except BaseException:  # the join may still arrive, whatever interrupted it
            contender.unsure = True
            self._revive(contender)
            raise
        if self._revive(contender):  # its removal may be under way
            raise StoreUnavailable(f"the request for {request.name!r} was removed while it was under way: try again")
        try:
            check_tokens(request, contender.entry.position)
        except StoreError:
            await self._refuse(contender, until)
            raise
        return listing

    def _revive(self, contender: Contender) -> bool:
        """Have a contender removed once more that joined after it was ended."""
        revived = self._contenders.revive(contender, self._runtime.now() + WOKEN_TTL)
        if revived:
            self._caretaker.look_by(contender.ends_at)
        return revived

    async def _answer(
        self, contender: Contender, listing: Listing, instants: tuple[float, float], until: float, *, newcomer: bool
    ) -> Reply | None:
        """Return the reply that a listing means for a contender; None if the caller must look again.

        `instants` tells when the request was sent, and when the listing was requested.
        """
        sent, looked = instants
        request, decision = contender.request, decide(listing.entries)
        if decision.stale:
            self._caretaker.throw_away(request.name, decision.stale)
        if decision.holder(request.request_id) is not None:
            await self._hear_of_grants(contender, [], until)
            return await self._granted(contender, listing, decision, sent, until)
        mine = decision.waiter(request.request_id)
        if mine is None:  # another client removed it
            contender.entry = None
            return None
        if (newcomer and mine in decision.foreign) or mine.weight > decision.capacity:
            await self._refuse(contender, until)
            return CapacityMismatch(decision.capacity)
        contender.idle_at = max(contender.idle_at, looked)
        if not request.wait:
            owners = await self._inspector.owners(request.name, decision, until)
            await self._inspector.tell_contended(request.name, decision, until)
            await self._refuse(contender, until)
            return Busy(micros(AGAIN), owners)
        return await self._wait(contender, mine, decision, until)

    async def _refuse(self, contender: Contender, until: float) -> None:
        """Remove a contender whose request is refused. The request may be sent again."""
        await self._remover.remove(contender, until)
        self._contenders.drop(contender.request.request_id)

    async def _granted(
        self, contender: Contender, listing: Listing, decision: Decision, sent: float, until: float
    ) -> Reply | None:
        """Reply that the request is granted for its ttl, or for as long as the session certainly lives if less."""
        request, entry = contender.request, contender.entry
        if entry is None or entry.session != self._directory.session():
            return None
        contender.block = bool(request.lock_delay)  # also if this fails: an earlier session may have added a BLOCK
        blocks = [each for each in listing.entries if each.kind is Kind.BLOCK and each.request_id == request.request_id]
        if contender.block and not _has_block(blocks, entry):
            # One of an earlier entry of this request may have run out already, so it must not count for this entry.
            record = Record(
                Kind.BLOCK,
                request.request_id,
                request.weight,
                request.capacity,
                entry.order,
                seconds(request.lock_delay),
                text_of(contender),
            )
            if not await self._directory.change(request.name, blocks, [record], until, entry):
                return None
        ttl = min(self._confirmations.left(contender, request.ttl, sent), self._trust.trusted(entry, sent))
        if ttl < min(request.ttl, micros(self._directory.trust)) // 2:
            if not contender.confirmed:
                await self._confirmations.confirm([contender], until)
            return None  # the next look proves that the session lives, and that the entry is there
        if not self._contenders.hold(contender, self._runtime.now() + seconds(request.ttl)):
            return None
        self._caretaker.look_by(contender.ends_at)
        return Granted(entry.token, ttl, contended=bool(decision.waiters))

    async def _wait(self, contender: Contender, mine: Entry, decision: Decision, until: float) -> Reply | None:
        """Watch the entries that block the waiter, and reply with its retry time; None if one of them is gone."""
        request = contender.request
        watched = to_watch(decision, mine)
        if not await self._directory.watch(request.name, request.request_id, watched, until):
            return None
        if not await self._hear_of_grants(contender, to_hear_of_grants(decision, watched), until):
            return None
        number = decision.place(request.request_id)
        if number == 0 or not contender.told:  # those before it may have died before they told
            contender.told = await self._inspector.tell_contended(request.name, decision, until)
        retry_in = min(RETRY + LATER * number, LONGEST_RETRY) * (0.75 + 0.5 * self._runtime.random())
        others = [block for block in decision.blocks if block not in watched]
        # The time of a BLOCK may begin with the first look at it, so those that do not matter yet are looked at, too.
        if await self._outlast(request.name, others, until) == 0.0:
            return None
        timed = [entry for entry in watched if entry.kind is not Kind.CONTENDER]
        left = await self._outlast(request.name, timed, until)
        if left == 0.0:
            return None
        passes_in = await self._confirmations.pass_over(contender, decision, until)
        if passes_in == 0.0:
            return None
        retry_in = min(retry_in, left, passes_in + LATER * number)
        self._contenders.hear(request.request_id, self._silence(request) + 2 * retry_in)
        self._caretaker.look_by(contender.ends_at)
        counter = first_token((contender.entry or mine).position) - 1
        return Queued(counter, micros(retry_in), number)

    async def _hear_of_grants(self, contender: Contender, entries: list[Entry], until: float) -> bool:
        """Watch these besides, so that the waiter looks when those before it are granted; False if one is gone."""
        if not (entries or contender.hears):
            return True
        contender.hears = bool(entries)
        request = contender.request
        return await self._directory.watch(request.name, request.request_id + BESIDES, entries, until)

    async def _outlast(self, name: str, timed: Sequence[Entry], until: float) -> float:
        """Return in how many seconds the first of the timed entries ends; 0 if one has just ended."""
        return min([await self._directory.remains(name, entry, until) for entry in timed], default=float("inf"))

    async def _refusal(self, request: AcquireRequest, until: float) -> Busy | CapacityMismatch | None:
        """Return the refusal of a request that would have to wait, but may not; None if it should join."""
        while True:
            listing = await self._directory.look(request.name, until)
            fake = Entry(Kind.CONTENDER, request.request_id, _after(listing.entries), request.weight, request.capacity)
            decision = decide([*listing.entries, fake])
            if decision.holder(request.request_id) is not None:
                return None
            if fake in decision.foreign:
                return CapacityMismatch(decision.capacity)
            left = await self._outlast(request.name, [*decision.placeholders, *decision.blocks], until)
            if left > 0.0:
                owners = await self._inspector.owners(request.name, decision, until)
                await self._inspector.tell_contended(request.name, decision, until)
                blocked = 0 if owners or isinf(left) else micros(left)
                return Busy(micros(AGAIN), owners, blocked=blocked)


def _has_block(blocks: Sequence[Entry], contender: Entry) -> bool:
    return any(block.before == contender.order for block in blocks)


def _after(entries: Sequence[Entry]) -> int:
    return max((entry.order for entry in entries), default=0) + 1
