"""The end of a request by its client: a release, or a withdrawal."""

from collections.abc import Callable

from tenure.contracts.messages import NotGranted, ReleaseRequest, WithdrawRequest
from tenure.errors import StoreUnavailable
from tenure.outcome import Outcome
from tenure.stores.ordered.caretaker import OPERATION, Caretaker
from tenure.stores.ordered.contenders import WOKEN_TTL, Contender, ContenderRegistry
from tenure.stores.ordered.directory import Directory
from tenure.stores.ordered.granting import decide
from tenure.stores.ordered.inspector import Inspector
from tenure.stores.ordered.outcomes import Outcomes
from tenure.stores.ordered.removal import EntryRemover


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
        await self._directory.watch(name, request_id, (), until)
        if contender is not None:
            await self._remover.remove(contender, until)
        if contender is not None or withdraw.unsure:
            self._contenders.end(request_id, None)
        return left
