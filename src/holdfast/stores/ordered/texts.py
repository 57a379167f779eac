"""What people read of entries: who it is, and for how long, as written into the store and shown from there."""

import json
from dataclasses import dataclass

from holdfast.contracts.deadlines import seconds
from holdfast.contracts.messages import HolderView, WaiterView
from holdfast.stores.ordered.contenders import Contender
from holdfast.stores.ordered.entries import Detail, Entry


@dataclass(slots=True, frozen=True)
class Said:
    """The text of an entry: what people are to read."""

    owner: str
    ttl: int
    """In microseconds."""

    def text(self) -> str:
        """Write it."""
        return json.dumps([self.owner, self.ttl], separators=(",", ":"))


def said(text: str) -> Said:
    """Read the text of an entry, whoever wrote it."""
    try:
        owner, ttl = json.loads(text)
        return Said(str(owner), int(ttl))
    except (TypeError, ValueError):
        return Said("?", 0)


def text_of(contender: Contender) -> str:
    """Return what people are to read of a place."""
    return Said(contender.text, contender.ttl).text()


def holder_view(entry: Entry, detail: Detail) -> HolderView:
    """Show a holder, which lives for its whole ttl as far as anybody else knows."""
    told = said(detail.text)
    ttl = seconds(told.ttl)
    return HolderView(told.owner, detail.token, entry.weight, detail.age, ttl, ttl)


def waiter_view(entry: Entry, detail: Detail) -> WaiterView:
    """Show a waiter; whoever is there is alive."""
    return WaiterView(said(detail.text).owner, entry.weight, detail.age, alive=True)
