"""The inspector: shows the holders and waiters of a name to others, asks holders to let go, and revokes leases."""

import logging
from collections.abc import Callable, Sequence

from tenure.contracts.messages import HolderView, NameView, NotificationKind
from tenure.errors import OutcomeUnknown, StoreError
from tenure.stores.ordered.contenders import holder_view, read_text, waiter_view
from tenure.stores.ordered.directory import Directory
from tenure.stores.ordered.entries import Detail, Entry, Kind, largest_token
from tenure.stores.ordered.granting import Decision, decide

log = logging.getLogger("tenure")

TELLING = 0.5
"""How long a waiter may be busy with a message to the holder, in seconds: less than WOKEN_TTL, because a waiter that is
woken meanwhile must send its request again in that time."""


class Inspector:
    """Reads and revokes the leases of a directory's names without being a contender."""

    def __init__(self, directory: Directory, now: Callable[[], float]) -> None:
        """Create an inspector of `directory`."""
        self._directory = directory
        self._now = now

    async def inspect(self, name: str, until: float) -> NameView:
        """Return who holds and who waits. The durations are as exact as the client's and the store's clocks agree."""
        listing = await self._directory.look(name, until)
        decision = decide(listing.entries)
        holders = await self._details(name, [*decision.holders, *_left_by_releases(decision)], until)
        waiters = await self._details(name, decision.waiters, until)
        view = NameView(name, decision.capacity or 1, largest_token(listing.newest))
        view.holders = [holder_view(entry, detail) for entry, detail in holders]
        view.waiters = [waiter_view(entry, detail) for entry, detail in waiters]
        if view.holders:
            view.last_token = max(holder.token for holder in view.holders)
        delays = [entry for entry in decision.placeholders if entry.before] + decision.blocks
        for entry in delays:
            view.blocked_for = max(view.blocked_for, await self._directory.remains(name, entry, until))
        return view

    async def owners(self, name: str, decision: Decision, until: float) -> tuple[str, ...]:
        """Return the owners of the leases of a name, and of the placeholders of released leases."""
        holders = await self._details(name, [*decision.holders, *_left_by_releases(decision)], until)
        return tuple(read_text(detail.text).owner for _, detail in holders)

    async def tell_contended(self, name: str, decision: Decision, until: float) -> bool:
        """Notify the holders that have tokens for local hand-offs that another client waits; False if that failed.

        An error is only logged, because it does not concern the waiter: the waiter repeats its request, and the holder
        finds it with each renewal.
        """
        holders = [entry for entry in decision.holders if entry.before]
        until = min(until, self._now() + TELLING)
        try:
            await self._tell(NotificationKind.CONTENDED, await self._details(name, holders, until), until)
        except StoreError as error:
            log.debug("the holder of %r could not be notified that somebody waits: %s", name, error)
            return False
        return True

    async def request_revocation(self, name: str, until: float) -> list[HolderView]:
        """Send a revocation request to the holders of a name; return the holders."""
        decision = decide((await self._directory.look(name, until)).entries)
        holders = await self._details(name, decision.holders, until)
        await self._tell(NotificationKind.REVOCATION_REQUESTED, holders, until)
        return [holder_view(entry, detail) for entry, detail in holders]

    async def revoke(self, name: str, until: float, token: int = 0) -> list[HolderView]:
        """Remove the holder with a token, or with 0 all holders, and notify them. Their lock delays begin."""
        while True:
            entries = (await self._directory.look(name, until)).entries
            decision = decide(entries)
            holders = await self._details(name, [*decision.holders, *_left_by_releases(decision)], until)
            victims = [each for each in holders if token in (0, holder_view(*each).token)]
            if not victims:
                return []
            request_ids = {entry.request_id for entry, _ in victims}
            light = [each for each in entries if each.kind is Kind.LIGHT and each.request_id in request_ids]
            if await self._directory.change(name, [*(entry for entry, _ in victims), *light], [], until):
                await self._tell(NotificationKind.REVOKED, victims, until)
                return [holder_view(entry, detail) for entry, detail in victims]
            if self._now() >= until:
                raise OutcomeUnknown(
                    f"the holders of {name!r} changed during each attempt to revoke their leases: try again"
                )

    async def _tell(self, kind: NotificationKind, holders: Sequence[tuple[Entry, Detail]], until: float) -> None:
        for entry, detail in holders:
            if detail.session:
                await self._directory.tell(
                    detail.session, f"{kind} {entry.request_id} {entry.token_at(detail.position)}", until
                )

    async def _details(self, name: str, entries: Sequence[Entry], until: float) -> list[tuple[Entry, Detail]]:
        """Return entries with their details, without the entries that are gone."""
        if not entries:
            return []
        details = await self._directory.details(name, entries, until)
        return [(entry, detail) for entry, detail in zip(entries, details, strict=True) if detail is not None]


def _left_by_releases(decision: Decision) -> list[Entry]:
    """Return the PLACEHOLDER entries of leases that were released before their `min_hold` had passed."""
    return [entry for entry in decision.placeholders if not entry.before]
