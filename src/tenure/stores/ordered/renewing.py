"""The renewal of leases: a proof that the session lives and that the entries exist."""

import logging
from collections.abc import Callable, Sequence

from tenure.contracts.deadlines import seconds
from tenure.contracts.messages import RenewReply, RenewRequest
from tenure.errors import StoreError
from tenure.outcome import Outcome
from tenure.stores.ordered.caretaker import Caretaker
from tenure.stores.ordered.contenders import Contender, ContenderRegistry
from tenure.stores.ordered.directory import Directory
from tenure.stores.ordered.granting import decide
from tenure.stores.ordered.outcomes import Outcomes
from tenure.stores.ordered.texts import text_of
from tenure.stores.ordered.trust import SessionTrust

log = logging.getLogger("tenure")

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
        there = iter(await self._directory.check(entries, until) if entries else [])
        replies: list[RenewReply] = []
        for renewal, contender in zip(renewals, contenders, strict=True):
            if contender is None or not next(there):
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
        if renewal.ttl > contender.ttl and contender.entry is not None:
            contender.ttl = renewal.ttl
            await self._directory.rewrite(contender.request.name, contender.entry, text_of(contender), until)
        renewal.ttl = min(renewal.ttl, 0 if contender.entry is None else self._trust.trusted(contender.entry, sent))
        self._caretaker.look_by(contender.ends_at)
        return None
