"""The outcomes of requests that have ended: what the contender registry remembers, and what the entries tell."""

from tenure.errors import StoreUnavailable
from tenure.outcome import Outcome
from tenure.stores.ordered.contenders import ContenderRegistry
from tenure.stores.ordered.directory import Directory
from tenure.stores.ordered.entries import Kind
from tenure.stores.ordered.granting import decide


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
        listing = await self._directory.look(name, until)
        if past is None or not past.order:
            return Outcome.TAKEN_OVER if decide(listing.entries).holders else Outcome.EXPIRED
        later = any(each.kind is Kind.CONTENDER and each.order > past.order for each in listing.entries)
        return Outcome.TAKEN_OVER if later or listing.joined > past.order + past.added else Outcome.EXPIRED
