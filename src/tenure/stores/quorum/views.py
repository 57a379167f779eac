"""The view of a name on a quorum, put together from the views of its nodes."""

from collections import Counter
from collections.abc import Sequence
from typing import TypeVar

from tenure.contracts.messages import HolderView, NameView, WaiterView
from tenure.contracts.owner_metadata import read_metadata

V = TypeVar("V", HolderView, WaiterView)


def view_of(name: str, views: Sequence[NameView], needed: int) -> NameView:
    """Return who holds a name and who waits for it, according to at least `needed` nodes."""
    shown = NameView(name, 1, max(view.last_token for view in views))
    shown.holders = majority([view.holders for view in views], needed)
    shown.waiters = majority([view.waiters for view in views], needed)
    shown.blocked_for = max(view.blocked_for for view in views)
    shown.quarantined_for, shown.quarantined_since = sorted(
        (view.quarantined_for, view.quarantined_since) for view in views
    )[needed - 1]
    return shown


def majority(shown: Sequence[Sequence[V]], needed: int) -> list[V]:
    """Return the holders, or the waiters, that `needed` nodes show, each in its most frequent form; `shown` is by node.

    Several contenders may show the same owner: the second of them at one node is the second at another.
    """
    found: dict[tuple[str, str, int], list[V]] = {}
    for at_node in shown:
        alike: Counter[tuple[str, str]] = Counter()
        for each in at_node:
            metadata = read_metadata(each.owner)
            who: tuple[str, str] = (metadata.owner, metadata.actor)
            alike[who] += 1
            found.setdefault((*who, alike[who]), []).append(each)
    return [_most_said(seen) for seen in found.values() if len(seen) >= needed]


def _most_said(seen: Sequence[V]) -> V:
    said = Counter(each.owner for each in seen).most_common(1)[0][0]
    return next(each for each in seen if each.owner == said)
