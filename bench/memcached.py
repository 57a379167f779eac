"""The cost of one uncontended pair of acquire and release in memcached."""

import socket
from collections.abc import Callable, Generator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from bench.contenders import NAME
from bench.harness import Bound, Report, Size, duration, ratios, spread
from bench.timing import Measure, awaiting, blocking, lease_pair, measure_pairs, pair_report, placed
from tenure import Client
from tenure.stores.memcached.protocol import pack_add, pack_swap
from tenure.stores.memcached.records import RETENTION, LockRecord, RecordState
from tests.servers import MemcachedServer

THREADS, ASYNCIO = "memcached threads", "memcached asyncio"
BARE = "bare socket, add and delete"
OWN = "bare socket, own commands"

LIMIT = 1.5

MEANINGS = {
    THREADS: "tenure.Client, one memcached server",
    BARE: "floor: add, then compare-and-delete; nothing remembers the last fencing token",
    OWN: "floor: Tenure's two compare-and-swaps, and nothing else",
    ASYNCIO: "tenure.AsyncClient, one memcached server",
}

TTL = 30
REQUEST = "0123456789abcdef0123456789abcdef-1234"


def run(size: Size, folder: Path) -> Report:
    """Compare the pairs of all contenders, with the client and the server on two cores; note the ratio on one core."""
    apart = _measure(size, folder / "apart", cores=2)
    report = pair_report("memcached_pair", apart, MEANINGS, {"over bare": BARE, "over own": OWN})
    over_bare, over_own = (ratios(apart[THREADS], apart[floor]).median for floor in (BARE, OWN))
    own_work = spread(one - other for one, other in zip(apart[THREADS], apart[OWN], strict=True)).median
    why = (
        f"beside the two commands the client works for {duration(own_work)}, in Python, on the lease and the connection"
    )
    report.bounds = [Bound(f"{THREADS} / {BARE} (and {over_own:.3g} of its own commands)", over_bare, LIMIT, why=why)]
    together = _measure(size, folder / "together", cores=1)
    report.notes.append(
        f"client and server run on two cores; on one core a pair takes {duration(spread(together[THREADS]).median)}, "
        f"which is {ratios(together[THREADS], together[BARE]).median:.3g} of the {BARE} there"
    )
    return report


def _measure(size: Size, folder: Path, cores: int) -> dict[str, list[float]]:
    """Measure all contenders with this process on the first core, and the server on the last of so many cores."""
    with ExitStack() as stack:
        server = stack.enter_context(MemcachedServer(folder))
        stack.enter_context(placed(server.pid, cores))
        return measure_pairs(_open_all(stack, server), size.pairs, size.pair_rounds)


def _open_all(stack: ExitStack, server: MemcachedServer) -> dict[str, Measure]:
    enter, url = stack.enter_context, server.url
    return {
        THREADS: blocking(lease_pair(enter(Client(url)).lock(NAME))),
        BARE: blocking(bare_pair(enter(bare_exchange(server)))),
        OWN: blocking(own_pair(enter(bare_exchange(server)))),
        ASYNCIO: enter(awaiting(url)),
    }


@contextmanager
def bare_exchange(server: MemcachedServer) -> Generator[Callable[[bytes], bytes]]:
    """Yield a function that sends a command and returns the one packet of its reply."""
    with closing(socket.create_connection(server.address)) as connected:
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        send, receive = connected.sendall, connected.recv

        def exchange(packed: bytes) -> bytes:
            send(packed)
            return receive(65_536)

        yield exchange


def bare_pair(exchange: Callable[[bytes], bytes]) -> Callable[[], object]:
    """Return the two commands of a plain lock: add, and compare-and-delete."""
    value = REQUEST.encode()

    def pair() -> None:
        stored = exchange(pack_add(b"bare", value, TTL))
        deleted = exchange(b"md bare C%b\r\n" % stored[4:-2])
        assert (stored[:4], deleted) == (b"HD c", b"HD\r\n")  # noqa: S101 - else this is no floor

    return pair


def own_pair(exchange: Callable[[bytes], bytes]) -> Callable[[], object]:
    """Return the two commands that Tenure sends for a name that it knows."""
    held = LockRecord(RecordState.HELD, REQUEST, 1_700_000_000_000_000, TTL * 1_000_000, owner="host/1234").to_bytes()
    free = LockRecord(RecordState.FREE, REQUEST, 1_700_000_000_000_000).to_bytes()
    version = exchange(pack_add(b"own", free, RETENTION))[4:-2]

    def pair() -> None:
        nonlocal version
        version = exchange(pack_swap(b"own", held, TTL + RETENTION, version))[4:-2]
        version = exchange(pack_swap(b"own", free, RETENTION, version))[4:-2]
        assert version.isdigit()  # noqa: S101

    return pair
