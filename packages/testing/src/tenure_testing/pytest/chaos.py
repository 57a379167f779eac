"""The faults that a test can cause: a lost lease, a stolen name, a store that is down, a paused process."""

import itertools
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager

import pytest

from tenure.client import Client
from tenure.contracts.runtime import Runtime
from tenure.contracts.store import StoreSource
from tenure.core.lease import EXPIRED, REVOKED, CoreLease, report_loss
from tenure.lease import AsyncLease, Lease
from tenure.primitives.multilock import AsyncMultiLease, MultiLease
from tenure.stores.memory import forget_table, share_table
from tenure.stores.urls import VARIABLE
from tenure_testing.pytest.functions import replace
from tenure_testing.pytest.instruments import instrumented
from tenure_testing.pytest.leases import Acquired, Leases
from tenure_testing.pytest.points import Points
from tenure_testing.pytest.stores import ForcedStore, TestStore, TestTable, unavailable
from tenure_testing.pytest.writes import Writes

AnyLease = Lease | AsyncLease | MultiLease | AsyncMultiLease

BEYOND = 1.0
"""How many seconds after the end of the last lease a pause without a given length ends."""

THIEF = "tenure_chaos.steal()"

_numbers = itertools.count(1)


class Chaos:
    """The store of one test and its faults: the fixture `tenure_chaos`."""

    def __init__(self, target: int | None = None) -> None:
        """Make the store. At point number `target` of the test a lease is lost; 0: points are only counted."""
        self._name = f"tenure-test-{next(_numbers)}"
        self.url = f"memory://{self._name}"
        """The URL of the store of this test, which is also in TENURE_URL."""
        self._leases = Leases()
        self.points = Points(self._leases, self._lose, target)
        """Internal: the points at which a lease may be lost."""
        self.writes = Writes(self.points)
        """Internal: the writes of the code under test."""
        self._down = False
        self._table = TestTable(self._arrive)
        self._stolen: list[Lease] = []
        self._undo = ExitStack()
        self._begin()

    def _begin(self) -> None:
        share_table(self._name, self._table)
        self._undo.callback(forget_table, self._name)
        self._undo.enter_context(instrumented(self._table, self.points))
        self._patches = pytest.MonkeyPatch()
        self._undo.callback(self._patches.undo)
        self._patches.setenv(VARIABLE, self.url)
        self._thief = Client(store=self.source(lambda runtime: ForcedStore(runtime, self._table)), owner=THIEF)
        self._thief.session()  # a test may call `steal` in an event loop, where the thief's client never waits
        self._undo.callback(self._thief.close)

    def close(self) -> None:
        """End the test: close its clients, and undo all replacements. Internal."""
        self._down = False
        self.writes.over = True
        for session in self._leases.sessions():
            if isinstance(session.face, Client):
                session.face.close()
        self._undo.close()

    def source(self, make: Callable[[Runtime], TestStore]) -> StoreSource:
        """Return the source of the stores that `make` makes. Internal."""
        return StoreSource(self.url, TestStore.capabilities, make)

    def store(self, runtime: Runtime) -> TestStore:
        """Make the access of one client to the store of this test. Internal."""
        return self._table.store(runtime)

    # -- faults --------------------------------------------------------------------------------------------

    def lose(self, lease: AnyLease) -> None:
        """End a lease now, as if it had expired: its holder is notified, and the next waiter is granted.

        Raises UsageError if the lease is not of the store of this test.
        """
        self._lose(self._leases.find(lease))

    def steal(self, name: str, ttl: float = 30.0) -> Lease:
        """Take `name` (with its namespace) by force for another client, ahead of all waiters; return its lease.

        The former holders are notified at once. The lease ends with the test, unless it is released before.
        """
        victims = [(each, held) for each in self._leases.all() for held in each.held if held.grant.name == name]
        lease = self._thief.lock(name, ttl=ttl).acquire(timeout=0)
        for acquired, held in victims:
            self._declare_lost(acquired, held, REVOKED)
        self._stolen.append(lease)
        return lease

    def store_down(self) -> "Outage":
        """Make every request fail with StoreUnavailable, until `store_up()` or the end of a `with`."""
        self._down = True
        return Outage(self.store_up)

    def store_up(self) -> None:
        """Make the store answer again."""
        self._down = False

    def pause(self, seconds: float | None = None) -> None:
        """Pause this process for so long, by moving clocks; default: until all leases have expired.

        No lease is renewed meanwhile. The holders of expired leases are notified.
        """
        with self.paused(seconds):
            pass

    @contextmanager
    def paused(self, seconds: float | None = None) -> Generator[None, None, None]:
        """Pause this process, and act as another process in the `with`; the first one notices nothing before its end.

        If `seconds` is long enough, the leases of this process have expired when the `with` begins. Their holders are
        notified when it ends. The clients that were used before are paused; use new ones, or `steal`.
        """
        asleep = [store for store in self._table.stores if not isinstance(store, ForcedStore)]
        kept = [(each, session.renewer) for session in self._leases.sessions() for each in session.renewer.kept()]
        length = self._longest([each for each, _ in kept]) + BEYOND if seconds is None else seconds
        for store in asleep:
            store.is_paused = True
        self._table.advance(length, asleep)
        try:
            yield
        finally:
            for each, renewer in kept:
                _sleep(each, length)
                renewer.moved(each)
            for store in asleep:
                store.is_paused = False
            self._table.wake()

    # -- writes --------------------------------------------------------------------------------------------

    def watch(self, owner: object, attribute: str, *, token: str | None = None) -> None:
        """Judge every call of `owner.attribute`, a function that writes, until the end of the test.

        The test fails if the function is called after the loss of a lease that the calling thread or task has acquired
        or checked last. A caller without such a lease fails the test if no lease is held at all. With `token`, the
        name of the parameter for the fencing token, a stale token raises StaleTokenError instead, as a protected
        resource would.

        Raises UsageError if `attribute` is no function, or a function whose work does not happen in its call.

        Args:
            owner: an object, class or module.
            attribute: the name of a function or method of the owner, async or not.
            token: the name of the parameter that takes the fencing token.

        """
        self._undo.callback(replace(owner, attribute, lambda original: self.writes.watched(original, attribute, token)))

    def slow(self, owner: object, attribute: str) -> None:
        """Treat every call of `owner.attribute` as slow, until the end of the test.

        This is for code that does not await: a test marked `tenure_lose_lease` also loses the lease in each call.
        """
        self._undo.callback(replace(owner, attribute, lambda original: self.writes.slow(original, attribute)))

    @property
    def lost_at(self) -> str:
        """The place where this run of a test marked `tenure_lose_lease` lost its lease; "" if it lost none."""
        return self.points.hit

    # -- internal ------------------------------------------------------------------------------------------

    def _arrive(self, store: TestStore) -> None:
        if store.runtime.form == "threads":
            self.points.request()
        if self._down:
            raise unavailable()

    def _lose(self, acquired: Acquired) -> None:
        held = acquired.held[0]
        self._declare_lost(acquired, held, EXPIRED)
        self._table.expire(held.grant.name, held.grant.request_id)

    def _declare_lost(self, acquired: Acquired, held: CoreLease, because: str) -> None:
        lost = acquired.session.renewer.lose(held, because) if held.trusted() else None
        if lost is not None:
            report_loss(lost)

    def _longest(self, leases: list[CoreLease]) -> float:
        return max(self._table.longest(), *(each.valid_until - each.runtime.now() for each in leases), 0.0)


class Outage:
    """An outage of the store until the end of a `with`."""

    def __init__(self, end: Callable[[], None]) -> None:
        """Call `end` to end the outage."""
        self._end = end

    def __enter__(self) -> None:
        """Do nothing: the store is down already."""

    def __exit__(self, *_: object) -> None:
        """Make the store answer again."""
        self._end()


def _sleep(held: CoreLease, seconds: float) -> None:
    """Move every deadline of a lease nearer, and report its loss if a deadline has passed."""
    with held.mutex:
        held.kept_until -= seconds
        held.valid_until -= seconds
        held.ends_at -= seconds
        held.due_at -= seconds
        held.lingers_until -= seconds
        held.grant.free_at -= seconds if held.grant.free_at else 0.0
    held.trusted()
