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
from tenure.outcome import Outcome
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


class Noting(DirectSqlDatabase):
    """A database that notes the requests of a client."""

    def __init__(self, server: SqlServer) -> None:
        super().__init__(server, RULES, "here")
        self.noted: list[str] = []

    async def acquire(self, request: AcquireRequest, until: float) -> int | Queued | SqlSnapshot:
        """Note it."""
        self.noted.append("acquire")
        return await super().acquire(request, until)

    async def release(self, name: str, request_id: str, until: float) -> SqlSnapshot | None:
        """Note it."""
        self.noted.append("release")
        return await super().release(name, request_id, until)

    async def read(self, names: Sequence[str], until: float) -> SqlSnapshot:
        """Note it."""
        self.noted.append("read")
        return await super().read(names, until)

    async def write(self, write: SqlWrite, until: float) -> frozenset[str]:
        """Note it."""
        self.noted.append("write")
        return await super().write(write, until)


def requests_for_a_name_with_waiters() -> list[str]:
    """Acquire and release a name for which another client waits, and then one for which nobody does."""
    server = SqlServer(lambda: 1_000 * SECOND, lambda names, at, granted: None)
    database = Noting(server)
    store = SqlStore("here", ThreadsRuntime(), database, capabilities_of(RULES))
    other = SqlStore("here", ThreadsRuntime(), DirectSqlDatabase(server, RULES, "there"), capabilities_of(RULES))
    for each in (store, other):
        drive(each.open(lambda _: None, NEVER))

    def release(by: SqlStore, request_id: str) -> None:
        token = server.data.rows["name"].counter
        assert drive(by.release(ReleaseRequest("name", request_id, token), NEVER)) is Outcome.RELEASED

    drive(store.acquire(ask("name", "first", "here"), NEVER))
    drive(other.acquire(ask("name", "theirs", "there"), NEVER))
    drive(store.acquire(ask("name", "second", "here"), NEVER))
    release(store, "first")
    release(other, "theirs")
    release(store, "second")
    drive(store.acquire(ask("name", "third", "here"), NEVER))
    return database.noted


def test_no_statement_is_sent_that_would_change_nothing() -> None:
    """Where others wait, a client begins with the step that follows anyway; and not when nobody waits any more."""
    first, second, third = ["acquire"], ["acquire", "write"], ["acquire"]
    assert requests_for_a_name_with_waiters() == [*first, *second, *["read", "write"] * 2, *third]


@pytest.mark.parametrize(("right", "wrong"), [("if row.plain", "if True"), ("discard", "add")])
def test_a_client_that_forgets_who_waits_would_be_noticed(
    monkeypatch: pytest.MonkeyPatch, right: str, wrong: str
) -> None:
    """It sends the statement in vain, or never again."""
    monkeypatch.setattr(SqlStore, "_note", planted(SqlStore, "_note", right, wrong))
    with pytest.raises(AssertionError):
        test_no_statement_is_sent_that_would_change_nothing()


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
