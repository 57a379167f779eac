"""The entries of a name in an ordered store. `granting.py` decides from their list who holds the name.

A fencing token is the position of an entry in the store, and a number below RANGE. A store numbers what is written to
it, and puts no number by for later. So each position stands for RANGE tokens, of which the contender that was added
there uses as many as its request reserves, from the first on. The tokens of a later contender are larger, because its
position is.
"""

from dataclasses import dataclass
from enum import StrEnum

from tenure.contracts.limits import MOST_TOKENS
from tenure.contracts.messages import AcquireRequest
from tenure.errors import StoreError

RANGE = 1024
"""How many tokens each position stands for. Tokens are compared across clients, so this never changes."""


def first_token(position: int) -> int:
    """Return the first of the tokens that belong to a position in the store."""
    return position * RANGE


def position_of(token: int) -> int:
    """Return the position in the store that a token belongs to."""
    return token // RANGE


def largest_token(position: int) -> int:
    """Return the last of the tokens that belong to a position in the store."""
    return first_token(position) + RANGE - 1


def check_tokens(request: AcquireRequest, position: int) -> None:
    """Raise StoreError if a position cannot give a request its tokens.

    ZooKeeper counts the elections of a leader in the upper half of its positions. A token above MOST_TOKENS would not
    be exact in every resource that compares tokens.
    """
    if request.span > RANGE:
        raise StoreError(
            f"a request for {request.name!r} reserves {request.span} tokens, and this store can reserve {RANGE}: "
            "reserve fewer"
        )
    if not 0 < position <= position_of(MOST_TOKENS):
        raise StoreError(
            f"the store cannot number a lease of {request.name!r}: its position {position:#x} is beyond "
            f"{position_of(MOST_TOKENS):#x}, so that the fencing token would be above 2**53 - 1. A ZooKeeper counts "
            "its elections there, and this one has had 2**11 of them or more (its epoch). Move the locks to a new "
            "ensemble, or to another store, and reset the fences, as docs/tokens.md says of such a move."
        )


class Kind(StrEnum):
    """The kind of an entry. The values are written into stores, and never change."""

    CONTENDER = "c"
    """A holder or a waiter. Belongs to its client's session, and vanishes with it."""
    PLACEHOLDER = "k"
    """A holder that is no client, and takes room for a time: until `min_hold` has passed, or a lock delay is over."""
    BLOCK = "b"
    """Tells that a lock delay begins if the holder vanishes. Outlives the session."""
    SIZE = "s"
    """A change of the capacity. Outlives the session."""
    LIGHT = "l"
    """A reduced weight of a contender. Belongs to its client's session."""


@dataclass(slots=True, frozen=True)
class Record:
    """The content of an entry that is to be added."""

    kind: Kind
    request_id: str
    """The request of the contender that it is or concerns: hex digits, dashes, slashes. A SIZE has an id of its own."""
    weight: int = 1
    """How much of the capacity it takes; of LIGHT: the new weight of its contender."""
    capacity: int = 1
    """The capacity that the contender requests; of SIZE: the new capacity of the name."""
    before: int = 0
    """Of SIZE: the capacity to be changed. Of BLOCK: the order of its contender. Of PLACEHOLDER: 1 for a lock delay. Of
    CONTENDER: how many tokens it reserves besides one."""
    counts_for: float = 0.0
    """Of PLACEHOLDER and BLOCK: how many seconds it counts, from now or from the detection that the holder vanished."""
    text: str = ""
    """What people read of the entry, and what the store has to know of it. It may change."""
    place: int = 0
    """Of PLACEHOLDER: the order of the contender that it replaces."""


@dataclass(slots=True)
class Entry:
    """One entry of a name."""

    kind: Kind
    request_id: str
    order: int
    """Its position. Unique within a name, except that a PLACEHOLDER has the order of the contender that it replaces."""
    weight: int = 1
    capacity: int = 1
    before: int = 0
    position: int = 0
    """The number that the store gave to its addition (its position); 0 if this listing does not tell it."""
    key: str = ""
    """The key under which the directory finds the entry again."""
    session: str = ""
    """Of CONTENDER and LIGHT: the session that the entry belongs to."""

    @property
    def token(self) -> int:
        """The fencing token, the last that it reserves; 0 if this listing does not tell its position."""
        return self.token_at(self.position)

    def token_at(self, position: int) -> int:
        """Return its fencing token, from a position that was told apart from the listing."""
        reserved = self.before if self.kind is Kind.CONTENDER else 0
        return first_token(position) + reserved if position else 0


@dataclass(slots=True)
class Detail:
    """What a listing may leave out of an entry."""

    text: str
    position: int
    age: float
    """The seconds since it was added, as exact as the clocks of the client and the store agree."""
    session: str = ""
    """The session that the entry belongs to, if any."""


@dataclass(slots=True)
class Listing:
    """The entries of a name at one moment."""

    entries: list[Entry]
    """The entries in their order."""
    joined: int = 0
    """The order of the last contender that ever joined, as far as it is known; 0 if it is not known."""
    newest: int = 0
    """A number at least as large as the positions of all earlier contenders, and no larger than those of all later."""
