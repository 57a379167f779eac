"""The steps of the SQL store, while other clients use the same rows."""

from collections.abc import Callable, Sequence

import pytest

from simulation.sql.direct import DirectSqlDatabase, capabilities_of
from simulation.sql.server import SqlRules, SqlServer
from tenure.contracts.messages import (
    AcquireRequest,
    Granted,
    Queued,
    ReleaseRequest,
    RenewRequest,
    Withdrawn,
    WithdrawRequest,
)
from tenure.errors import OutcomeUnknown, StoreUnavailable
from tenure.runtimes.threads import ThreadsRuntime, drive
from tenure.stores.sql import rows
from tenure.stores.sql.database import SqlSnapshot, SqlWrite
from tenure.stores.sql.rows import row_of
from tenure.stores.sql.store import SqlStore
from tenure.table.state import NameState, Queue, Waiter
from tenure.table.times import TOMBSTONE
from tests.planting import planted

SECOND = 1_000_000
RULES = SqlRules(60 * SECOND)
NEVER = 1e12


def ask(name: str, request_id: str, channel: str = "") -> AcquireRequest:
    """Return a request for ten seconds."""
    return AcquireRequest(name, request_id, channel, "somebody", 10 * SECOND, SECOND, 4 * SECOND)


class Hurried(DirectSqlDatabase):
    """A database in which another client is always a bit faster: it makes the row of `a`."""

    async def write(self, write: SqlWrite, until: float) -> frozenset[str]:
        """Write nothing, as if another client had written the rows."""
        return frozenset()

    async def transact(self, names: Sequence[str], work: Callable[[SqlSnapshot], SqlWrite], until: float) -> bool:
        """Have another client make a row between the lock and the write."""
        write = work(self._server.read(names, RULES))
        self._server.acquire(ask("a", "another"), RULES)
        return len(self._server.write(write, RULES)) == len(write.rows)


def test_a_multi_acquire_that_comes_second_leaves_no_name_behind() -> None:
    """It is granted all names or those up to the first that is taken, also if it had to lock the rows."""
    server = SqlServer(lambda: 1_000 * SECOND, lambda names, at, granted: None)
    store = SqlStore("here", ThreadsRuntime(), Hurried(server, RULES), capabilities_of(RULES))
    replies = drive(store.acquire_many([ask("a", "mine"), ask("b", "mine too")], NEVER))
    assert [type(reply) for reply in replies] == [Queued]
    assert "b" not in server.data.rows
    assert isinstance(drive(store.acquire(ask("b", "later"), NEVER)), Granted)


class Copied(DirectSqlDatabase):
    """A database behind a proxy that has sent a write twice: the first copy was done, and the second is refused."""

    async def write(self, write: SqlWrite, until: float) -> frozenset[str]:
        """Write, and return what the second copy brings."""
        await super().write(write, until)
        return frozenset()

    async def transact(self, names: Sequence[str], work: Callable[[SqlSnapshot], SqlWrite], until: float) -> bool:
        """Fail, and do nothing."""
        raise StoreUnavailable("no connection is free")


def test_a_refusal_that_is_not_explained_is_no_outcome() -> None:
    """The first copy of a write was done, the second is refused, and then the rows cannot be read: nobody knows."""
    server = SqlServer(lambda: 1_000 * SECOND, lambda names, at, granted: None)
    store = SqlStore("here", ThreadsRuntime(), Copied(server, RULES), capabilities_of(RULES))
    with pytest.raises(OutcomeUnknown, match="no connection is free"):
        drive(store.acquire_many([ask("a", "mine"), ask("b", "mine too")], NEVER))


def test_a_planted_bug_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error after a refusal that says that nothing was done."""
    monkeypatch.setattr(SqlStore, "_take", planted(SqlStore, "_take", "unsure=True", "unsure=False"))
    with pytest.raises(StoreUnavailable) as found:
        test_a_refusal_that_is_not_explained_is_no_outcome()
    assert not isinstance(found.value, OutcomeUnknown)


def test_a_row_names_each_channel_of_its_first_waiters_once() -> None:
    """Several waiters of one client count as one: the database looks whether the clients of the others listen."""
    channels = ["one", "one", "", "one", *(f"c{number}" for number in range(rows.HEADS))]
    waiters = [Waiter(ask("name", f"r{number}", channel), 1, 2) for number, channel in enumerate(channels)]
    row = row_of("name", 1, NameState(5, queue=Queue(waiters)))
    assert row.heads.split() == ["one", *(f"c{number}" for number in range(rows.HEADS - 1))]


def test_no_tombstone_lasts_longer_after_the_clock_stepped_back() -> None:
    """A grant by one statement leaves it to the next step to see that the clock stepped back."""
    now = [1_000 * SECOND]
    server = SqlServer(lambda: now[0], lambda names, at, granted: None)
    store = SqlStore("here", ThreadsRuntime(), DirectSqlDatabase(server, RULES), capabilities_of(RULES))
    drive(store.withdraw(WithdrawRequest("name", "gone", unsure=True), NEVER))
    now[0] -= 500 * SECOND
    granted = drive(store.acquire(ask("name", "mine"), NEVER))
    assert isinstance(granted, Granted)
    drive(store.renew([RenewRequest("name", "mine", granted.token, SECOND)], NEVER))
    drive(store.release(ReleaseRequest("name", "mine", granted.token), NEVER))
    assert isinstance(drive(store.acquire(ask("name", "gone"), NEVER)), Withdrawn)
    now[0] += TOMBSTONE
    assert isinstance(drive(store.acquire(ask("name", "gone"), NEVER)), Granted)
