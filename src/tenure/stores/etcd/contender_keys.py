"""The keys of one client's contenders in etcd, which the client uses again and again.

Until a compaction, etcd keeps every deleted key in its index, and each listing of a name visits all of them. With a new
key for each contender, an acquisition would take longer the more acquisitions there were before.

A key is used again once its entry is gone and all replies to its join have arrived. Then no copy of the join is under
way that could add the entry of an ended request. A removal compares the position of the entry, so a late copy of it
removes no later entry. A key is never used again after a removal that could not compare the position.
"""

from dataclasses import dataclass
from itertools import count
from weakref import WeakValueDictionary

from tenure.stores.ordered.entries import Kind

Place = tuple[str, str]
"""A name, and the request of a contender."""


@dataclass(slots=True, eq=False, weakref_slot=True)
class ContenderKey:
    """The key of one contender."""

    session: str
    number: int
    tail: str
    """The key, without the prefix of its name."""
    copies: int = 0
    """How many copies of its join may be under way."""
    retired: bool = False
    """Whether it is never used again."""


class ContenderKeys:
    """The keys that the contenders of one client have. A key belongs to a session; no other session ever uses it."""

    def __init__(self) -> None:
        """Begin without keys."""
        self._known: WeakValueDictionary[Place, ContenderKey] = WeakValueDictionary()
        """All keys. The entry of a contender refers to its key, and both are forgotten together."""
        self._unsure: dict[Place, ContenderKey] = {}
        """Those whose join has no reply."""
        self._free: list[int] = []
        self._numbers = count()

    def find(self, place: Place) -> ContenderKey | None:
        """Return the key of a contender; None if it has none."""
        return self._known.get(place)

    def take(self, place: Place, session: str) -> ContenderKey:
        """Return the key of a contender that is about to join. It is unsure until `settle`."""
        key = self._known.get(place)
        if key is None or key.session != session:
            number = self._number()
            key = ContenderKey(session, number, f"{Kind.CONTENDER}{session}-{number}")
        key.copies += 1
        self._known[place] = self._unsure[place] = key
        return key

    def _number(self) -> int:
        """Return the number that was given back last, or a new one."""
        try:
            return self._free.pop()
        except IndexError:
            return next(self._numbers)

    def settle(self, place: Place, key: ContenderKey) -> None:
        """Take note that a join was carried out or refused, and that no other copy of it was sent."""
        key.copies -= 1
        if not key.copies and self._unsure.get(place) is key:
            self._unsure.pop(place, None)

    def give_back(self, place: Place, key: ContenderKey) -> None:
        """Take a key away from its contender, whose entry is gone, and use it again unless it is unsure or retired."""
        if self.drop(place, key) and not key.copies and not key.retired:
            self._free.append(key.number)

    def drop(self, place: Place, key: ContenderKey) -> bool:
        """Take a key away from its contender for good; return whether the contender had it."""
        if self._known.get(place) is not key:
            return False
        self._unsure.pop(place, None)
        return self._known.pop(place, None) is key

    def forget(self, session: str) -> None:
        """Forget the keys of an ended session: they have vanished with it, and no server adds them any more."""
        for place, key in list(self._known.items()):
            if key.session == session:
                self.drop(place, key)
