"""The fencing tokens of an ordered store: the position of an entry in the store, and a number below RANGE.

A store numbers what is written to it, and puts no number by for later. So each position stands for RANGE tokens, of
which the contender that was added there uses as many as its request reserves, from the first on. The tokens of a later
contender are larger, because its position is.
"""

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
