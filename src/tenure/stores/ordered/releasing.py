"""The end of a request: how it ended, the removal of its entries, and the release or withdrawal by its client."""

from collections.abc import Callable

from tenure.contracts.deadlines import seconds
from tenure.contracts.messages import AcquireRequest, NotGranted, ReleaseRequest, WithdrawRequest
from tenure.errors import OutcomeUnknown, StoreUnavailable
from tenure.outcome import Outcome
from tenure.stores.ordered.caretaker import OPERATION, Caretaker
from tenure.stores.ordered.contenders import BESIDES, WOKEN_TTL, Contender, ContenderRegistry, EntryText, text_of
from tenure.stores.ordered.directory import Directory, SendsRemovals
from tenure.stores.ordered.entries import Entry, Kind, Listing, Record
from tenure.stores.ordered.granting import decide
from tenure.stores.ordered.inspector import Inspector


class Outcomes:
    """Tells how the requests of one client ended."""

    def __init__(self, directory: Directory, contenders: ContenderRegistry) -> None:
        """Look up outcomes in the registry, and in `directory` where the registry does not know them."""
        self._directory = directory
        self._contenders = contenders

    def is_released(self, request_id: str) -> bool:
        """Return whether the lease of a request was released."""
        past = self._contenders.past.get(request_id)
        return past is not None and past.outcome is Outcome.RELEASED

    def is_over(self, request_id: str) -> bool:
        """Return whether a request was withdrawn, or its lease released: then it must not join again."""
        past = self._contenders.past.get(request_id)
        return past is not None and past.outcome in {None, Outcome.RELEASED}

    def refuse_while_ending(self, name: str, request_id: str) -> None:
        """Raise StoreUnavailable while an expired request is being removed: its outcome is not known yet."""
        if request_id in self._contenders.ending:
            raise StoreUnavailable(f"the request for {name!r} was not repeated in time and is being removed: try again")

    async def of_lease(self, name: str, request_id: str, until: float) -> Outcome:
        """Return the outcome of a lease whose entry is gone: taken over if a later contender joined, else expired."""
        past = self._contenders.past.get(request_id)
        if past is not None and past.outcome is Outcome.TAKEN_OVER:
            return Outcome.TAKEN_OVER
        return self.by_listing(request_id, await self._directory.look(name, until))

    def by_listing(self, request_id: str, listing: Listing) -> Outcome:
        """Return the outcome of a lease whose entry is gone, from a listing of its name."""
        past = self._contenders.past.get(request_id)
        if past is not None and past.outcome is Outcome.TAKEN_OVER:
            return Outcome.TAKEN_OVER
        if past is None or not past.order:
            return Outcome.TAKEN_OVER if decide(listing.entries).holders else Outcome.EXPIRED
        later = any(each.kind is Kind.CONTENDER and each.order > past.order for each in listing.entries)
        return Outcome.TAKEN_OVER if later or listing.joined > past.order + past.added else Outcome.EXPIRED


class EntryRemover:
    """Removes the entries of contenders from a directory."""

    def __init__(self, directory: Directory, now: Callable[[], float]) -> None:
        """Remove entries from `directory`."""
        self._directory = directory
        self._now = now

    async def end_watches(self, waiter: Contender, until: float) -> None:
        """End the watches of a waiter. They would stay until what they watch changes."""
        request = waiter.request
        await self._directory.watch(request.name, request.request_id, (), until)
        if waiter.hears:
            await self._directory.watch(request.name, request.request_id + BESIDES, (), until)

    async def remove_expired(self, contender: Contender, until: float) -> None:
        """Remove an expired contender."""
        if not contender.holds:
            await self.end_watches(contender, until)
        await self.remove(contender, until, lapsed=contender.holds)

    async def remove(self, contender: Contender, until: float, keep: int = 0, *, lapsed: bool = False) -> bool:
        """Remove all entries of a contender; True if it was there. Add a PLACEHOLDER if the name must stay blocked."""
        request, entry = contender.request, contender.entry
        delays = lapsed and request.lock_delay
        if entry is None or not (contender.block or contender.light or keep or delays):
            return await self._directory.withdraw_join(
                request.name, request.request_id, None if contender.unsure else entry, until
            )
        while not (removed := await self._replace(contender, entry, keep, until, delays=bool(delays))):
            there = (await self._directory.look(request.name, until)).entries
            if not any(each.kind is Kind.CONTENDER and each.order == entry.order for each in there):
                break
            if self._now() >= until:  # other clients keep changing the entries
                raise OutcomeUnknown(
                    f"the entries of a holder of {request.name!r} changed during each attempt to remove them: try again"
                )
        if contender.unsure:
            await self._directory.withdraw_join(request.name, request.request_id, None, until)
        return removed

    async def _replace(self, contender: Contender, entry: Entry, keep: int, until: float, *, delays: bool) -> bool:
        """Replace the entries of a contender by a PLACEHOLDER, if any, in one step; False if one of them changed."""
        request, remove, add = contender.request, [entry], list[Record]()
        if contender.block or contender.light:
            entries = (await self._directory.look(request.name, until)).entries
            mine = [
                each for each in entries if each.request_id == request.request_id and each.kind is not Kind.PLACEHOLDER
            ]
            remove = [each for each in mine if each.kind in {Kind.BLOCK, Kind.LIGHT}] + [entry]
        weight = min((each.weight for each in remove if each.kind is Kind.LIGHT), default=request.weight)
        if keep:
            text = EntryText(contender.text, keep).text()
            add.append(
                Record(
                    Kind.PLACEHOLDER, request.request_id, weight, request.capacity, 0, seconds(keep), text, entry.order
                )
            )
        elif delays:
            delay, text = seconds(request.lock_delay), text_of(contender)
            add.append(
                Record(Kind.PLACEHOLDER, request.request_id, weight, request.capacity, 1, delay, text, entry.order)
            )
        return await self._directory.change(request.name, remove, add, until)


class Releaser:
    """Ends the requests of one client when the client says so."""

    def __init__(
        self,
        directory: Directory,
        contenders: ContenderRegistry,
        caretaker: Caretaker,
        now: Callable[[], float],
        *,
        remover: EntryRemover,
        inspector: Inspector,
    ) -> None:
        """End contenders of the registry; the caretaker ends those whose release or withdrawal fails."""
        self._directory = directory
        self._contenders = contenders
        self._caretaker = caretaker
        self._remover = remover
        self._inspector = inspector
        self._outcomes = Outcomes(directory, contenders)
        self._now = now
        self._sending = directory if isinstance(directory, SendsRemovals) else None

    async def release(self, release: ReleaseRequest, until: float) -> Outcome:
        """Remove the entry, so that the next waiter holds the name."""
        request_id = release.request_id
        if self._outcomes.is_released(request_id):
            return Outcome.RELEASED
        self._outcomes.refuse_while_ending(release.name, request_id)
        contender = self._contenders.live.get(request_id)
        if contender is None or contender.entry is None or contender.entry.token != release.token:
            return await self._outcomes.of_lease(release.name, request_id, until)
        if contender.entry.session != self._directory.session():
            self._contenders.end(request_id, Outcome.EXPIRED)
            return await self._outcomes.of_lease(release.name, request_id, until)
        if self._contenders.has_run_out(contender):
            self._caretaker.look_by(self._now())
            raise StoreUnavailable(f"the lease of {release.name!r} has expired and is being removed: try again")
        self._let_go(contender, release, until)
        removed = await self._remover.remove(contender, until, keep=release.keep)
        self._contenders.end(request_id, Outcome.RELEASED if removed else Outcome.EXPIRED)
        return Outcome.RELEASED if removed else await self._outcomes.of_lease(release.name, request_id, until)

    def send(
        self,
        request: AcquireRequest,  # noqa: ARG002 - as the contract says
        release: ReleaseRequest,
        until: float,
        told: Callable[[Outcome | None], None],
    ) -> bool:
        """Send the removal of a contender that has one entry; see `SendsReleases` in contracts/store.py."""
        request_id = release.request_id
        contender = self._contenders.live.get(request_id)
        if self._sending is None or contender is None or contender.entry is None or release.keep:
            return False
        entry = contender.entry
        if (
            contender.block
            or contender.light
            or contender.unsure
            or entry.token != release.token
            or entry.session != self._directory.session()
            or self._contenders.has_run_out(contender)
        ):
            return False

        def heard(removed: bool, listing: Listing | None) -> None:  # noqa: FBT001 - as the contract says
            if not removed and listing is None:
                told(None)
                return
            self._contenders.end(request_id, Outcome.RELEASED if removed else Outcome.EXPIRED)
            told(Outcome.RELEASED if listing is None else self._outcomes.by_listing(request_id, listing))

        self._let_go(contender, release, until)
        return self._sending.send_removal(release.name, entry, until, heard)

    def collect_replies(self) -> None:
        """Take the replies that have come."""
        if self._sending is not None:
            self._sending.collect_replies()

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
        self._outcomes.refuse_while_ending(name, request_id)
        contender = self._contenders.live.get(request_id)
        if contender is not None:
            # The contender expires even if this request is not repeated.
            contender.holds, contender.ends_at = False, until + WOKEN_TTL
            self._caretaker.look_by(contender.ends_at)
        decision = decide((await self._directory.look(name, until)).entries)
        left = NotGranted(await self._inspector.owners(name, decision, until), decision.place(request_id))
        if contender is not None:
            await self._remover.end_watches(contender, until)
            await self._remover.remove(contender, until)
        if contender is not None or withdraw.unsure:
            self._contenders.end(request_id, None)
        return left
