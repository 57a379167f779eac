"""Changes of what is there: the weight and the owner of a lease, and the capacity of a name."""

from collections.abc import Callable

from tenure.contracts.deadlines import seconds
from tenure.contracts.messages import AdjustRequest, RenewReply
from tenure.stores.ordered.contenders import Contender, ContenderRegistry
from tenure.stores.ordered.directory import Directory
from tenure.stores.ordered.entries import Entry, Kind, Record
from tenure.stores.ordered.granting import decide
from tenure.stores.ordered.outcomes import Outcomes
from tenure.stores.ordered.texts import text_of


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
            if not await self._directory.rewrite(adjust.name, entry, text_of(contender), until):
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
