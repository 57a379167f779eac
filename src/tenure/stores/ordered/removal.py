"""The removal of a contender's entries, with the PLACEHOLDER entry that may have to block the name for a while."""

from collections.abc import Callable

from tenure.contracts.deadlines import seconds
from tenure.errors import OutcomeUnknown
from tenure.stores.ordered.contenders import Contender
from tenure.stores.ordered.directory import Directory
from tenure.stores.ordered.entries import Entry, Kind, Record
from tenure.stores.ordered.texts import EntryText, text_of


class EntryRemover:
    """Removes the entries of contenders from a directory."""

    def __init__(self, directory: Directory, now: Callable[[], float]) -> None:
        """Remove entries from `directory`."""
        self._directory = directory
        self._now = now

    async def remove_expired(self, contender: Contender, until: float) -> None:
        """Remove an expired contender."""
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
