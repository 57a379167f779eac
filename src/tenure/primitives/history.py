"""The history of a name, as people and programs read it."""

from dataclasses import dataclass
from datetime import datetime  # noqa: TID251 - reads no clock
from typing import Any

from tenure.contracts.deadlines import seconds
from tenure.core.history import history_cell
from tenure.core.session import Session
from tenure.jobs.windows import instant


@dataclass(slots=True, frozen=True)
class HistoryEntry:
    """A grant of a name with the end of its lease, or an acquisition that was not granted. Times are UTC.

    They are instants of the store's clock; those of different clients are up to a request apart.
    """

    at: datetime
    """When it was granted, or not."""
    what: str
    """What it is: "granted" or "not granted"."""
    token: int
    """The fencing token; 0 if there is none."""
    owner: str
    """The client that acquired it."""
    waited: float
    """How many seconds that took."""
    ended: datetime | None
    """When the lease ended. None: it goes on, or its end was not written because the process died."""
    how: str
    """How it ended: "released", "released: unknown", "released: detached", "handed on", "dropped", or "lost: " and the
    cause.

    Or why it was not granted: "timeout", "cancelled", "stopped" or "error".
    """


async def history_of(session: Session, full_name: str) -> tuple[list[HistoryEntry], datetime]:
    """Return the history of a name, the oldest entry first, and the present instant of the store's clock."""
    return await session.cells.read(history_cell("", full_name), _read)


def _read(state: Any, now: int) -> tuple[list[HistoryEntry], datetime]:  # noqa: ANN401 - what JSON knows
    return [
        HistoryEntry(instant(at), what, token, owner, seconds(waited), instant(ended) if ended else None, how)
        for at, what, _, token, owner, waited, ended, how in state or ()
    ], instant(now)
