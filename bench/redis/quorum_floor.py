"""The floors of a quorum: scripts over one bare socket a node, sent to all nodes before the first reply is read.

They are no locks: they cannot handle a node that does not reply.
"""

from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from functools import partial
from socket import create_connection
from urllib.parse import urlsplit

from bench.redis.floor import LET_GO, BareSocket, OwnScripts, granted_token, pack
from bench.redis.redlocks import LEAST, OWN, TTL
from tenure.stores.redis.links.wire import number

KEY, VALUE = "bare", "0123456789abcdef0123456789abcdef"

Pair = Callable[[], object]


def least_pair(bares: Sequence[BareSocket]) -> Pair:
    """Return the two commands of every Redlock. It awaits the replies of a majority, and then reads the others."""
    majority = len(bares) // 2 + 1
    first, rest = bares[:majority], bares[majority:]
    (let_go,) = {bare.exchange("SCRIPT", "LOAD", LET_GO) for bare in bares}
    take = pack((b"SET", KEY, VALUE, "NX", "PX", number(int(TTL * 1000))))
    release = pack((b"EVALSHA", let_go, b"1", KEY, VALUE))

    def pair() -> None:
        for bare in bares:
            bare.send(take)
        taken = [bare.reply() for bare in first]
        for bare in bares:
            bare.send(release)
        released = [bare.reply() for bare in first]
        for bare in rest:
            taken.append(bare.reply())
            released.append(bare.reply())
        assert set(taken) == {b"OK"}  # noqa: S101 - else this is no floor
        assert set(released) == {1}  # noqa: S101

    return pair


def own_pair(bares: Sequence[BareSocket]) -> Pair:
    """Return a pair of Tenure's own scripts for one node."""
    each = [(bare, OwnScripts(bare)) for bare in bares]

    def pair() -> None:
        for bare, mine in each:
            bare.send(pack(mine.acquire()))
        taken = [granted_token(bare.reply()) for bare in bares]
        assert None not in taken  # noqa: S101
        for (bare, mine), token in zip(each, taken, strict=True):
            bare.send(pack(mine.release(token or 0)))
        released = [bare.reply() for bare in bares]
        assert set(released) == {1}  # noqa: S101

    return pair


@contextmanager
def _over(make: Callable[[Sequence[BareSocket]], Pair], nodes: Sequence[str]) -> Generator[Pair]:
    with ExitStack() as stack:
        places = [urlsplit(node) for node in nodes]
        connected = [create_connection((place.hostname or "", place.port or 0)) for place in places]
        yield make([BareSocket(stack.enter_context(closing(each))) for each in connected])


PAIRS: dict[str, Callable[[Sequence[str]], AbstractContextManager[Pair]]] = {
    OWN: partial(_over, own_pair),
    LEAST: partial(_over, least_pair),
}
