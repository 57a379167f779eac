"""The text of an entry: the owner and the ttl as the store keeps them and `inspect` shows them."""

import json
from dataclasses import dataclass

from tenure.contracts.deadlines import seconds
from tenure.contracts.messages import HolderView, WaiterView
from tenure.stores.ordered.contenders import Contender
from tenure.stores.ordered.entries import Detail, Entry


@dataclass(slots=True, frozen=True)
class EntryText:
    """The text of an entry, for people to read."""

    owner: str
    ttl: int
    """In microseconds."""

    def text(self) -> str:
        """Encode the text as JSON."""
        return json.dumps([self.owner, self.ttl], separators=(",", ":"))


def read_text(text: str) -> EntryText:
    """Decode the text of an entry; an unreadable text yields the owner "?" and the ttl 0."""
    try:
        owner, ttl = json.loads(text)
        return EntryText(str(owner), int(ttl))
    except (TypeError, ValueError):
        return EntryText("?", 0)


def text_of(contender: Contender) -> str:
    """Return the text of a contender's entry."""
    return EntryText(contender.text, contender.ttl).text()


def holder_view(entry: Entry, detail: Detail) -> HolderView:
    """Return the view of a holder. Nobody else knows how much of the ttl has passed, so the view shows all of it."""
    told = read_text(detail.text)
    ttl = seconds(told.ttl)
    return HolderView(told.owner, entry.token_at(detail.position), entry.weight, detail.age, ttl, ttl)


def waiter_view(entry: Entry, detail: Detail) -> WaiterView:
    """Return the view of a waiter. A waiter whose entry exists is alive."""
    return WaiterView(read_text(detail.text).owner, entry.weight, detail.age, alive=True)
