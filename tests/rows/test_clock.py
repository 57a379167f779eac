"""The time of a row never runs faster than real time, and everything that has ended comes to its end."""

from dataclasses import replace

import pytest

from tenure.contracts.messages import (
    AcquireRequest,
    Busy,
    Granted,
    Notification,
    NotificationKind,
    ReleaseRequest,
    RenewRequest,
)
from tenure.contracts.runtime import Runtime
from tenure.errors import OutcomeUnknown, StoreError, StoreUnavailable
from tenure.runtimes.threads import ThreadsRuntime, complete
from tenure.stores.rows import Row, row_source
from tenure.stores.rows.contract import LONGEST_KEY, first_key, safe_key
from tenure.stores.rows.store import RowStore
from tests.rows.tables import DictTable, Rows, WatchedDictTable

SECOND = 1_000_000


class Clocked(ThreadsRuntime):
    """A machine with clocks of its own, which the test sets."""

    def __init__(self, wall: int) -> None:
        super().__init__()
        self.local = 0.0
        self.now = lambda: self.local
        self.wall = lambda: wall


def store(rows: Rows, runtime: Runtime) -> RowStore:
    """Open one client's store."""
    made = row_source("a dict", lambda: DictTable(rows)).make(runtime)
    assert isinstance(made, RowStore)
    complete(made.open(lambda _: None, runtime.now() + 10))
    return made


def ask(number: str, ttl: int = 10 * SECOND, *, wait: bool = False) -> AcquireRequest:
    """Make a request."""
    return AcquireRequest("name", number, "", number, ttl, SECOND, 4 * SECOND, wait=wait)


def acquire(at: RowStore, request: AcquireRequest, clock: Clocked) -> object:
    """Send a request."""
    return complete(at.acquire(request, clock.local + 10))


@pytest.mark.parametrize("ahead", [-3_600, 0, 3_600])
def test_wall_clock_decides_nothing(ahead: int) -> None:
    """A client whose wall clock is an hour off takes over neither sooner nor later."""
    rows, here, there = Rows(), Clocked(10**15), Clocked(10**15 + ahead * SECOND)
    ours, theirs = store(rows, here), store(rows, there)
    granted = acquire(ours, ask("a"), here)
    assert isinstance(acquire(theirs, ask("b"), there), Busy)
    there.local += 9.999
    assert isinstance(acquire(theirs, ask("b"), there), Busy)
    there.local += 0.001
    taken = acquire(theirs, ask("b"), there)
    assert isinstance(granted, Granted)
    assert isinstance(taken, Granted)
    assert taken.token > granted.token


def test_newcomer_watches_a_dead_holder_for_its_ttl() -> None:
    """However long ago the row was written: nobody knows how long that is."""
    rows, clock = Rows(), Clocked(10**15)
    acquire(store(rows, clock), ask("a"), clock)
    clock.local += 1_000_000
    newcomer = store(rows, clock)
    assert isinstance(acquire(newcomer, ask("b"), clock), Busy)
    clock.local += 10
    assert isinstance(acquire(newcomer, ask("b"), clock), Granted)


def test_renewal_is_seen_though_the_time_of_the_row_stands_still() -> None:
    """Somebody else wrote the row at the instant of the renewal: it ends no later than before, and counts anew."""
    rows, here, there = Rows(), Clocked(10**15), Clocked(10**15)
    ours, theirs = store(rows, here), store(rows, there)
    granted = acquire(ours, ask("a"), here)
    assert isinstance(granted, Granted)
    acquire(theirs, ask("w", wait=True), there)
    for _ in range(5):
        here.local += 6
        there.local += 6
        renewal = RenewRequest("name", "a", granted.token, 10 * SECOND)
        assert complete(ours.renew([renewal], here.local + 10)) == [None]
        assert not isinstance(acquire(theirs, ask("w", wait=True), there), Granted)


def test_dead_holder_ends_though_others_write_all_the_time() -> None:
    """Waiters that come one after another stop the time of the row, and yet the first of them gets it."""
    rows, clock = Rows(), Clocked(10**15)
    acquire(store(rows, clock), ask("dead"), clock)
    waiting = store(rows, clock)
    seconds = 0
    while not isinstance(acquire(waiting, ask("first", wait=True), clock), Granted):
        acquire(store(rows, clock), ask(f"newcomer {seconds}", wait=True), clock)
        clock.local += 1
        seconds += 1
        assert seconds <= 10, "the holder is dead for longer than its ttl"
    assert seconds == 10


def test_a_write_on_top_of_what_was_remembered_is_refused_and_repeated() -> None:
    """A client that believes the name free, because it released it last, learns that it is held."""
    rows, clock = Rows(), Clocked(10**15)
    ours, theirs = store(rows, clock), store(rows, clock)
    acquire(ours, ask("a", ttl=1 * SECOND), clock)
    clock.local += 2
    assert isinstance(acquire(theirs, ask("b"), clock), Busy), "it has seen the row only now"
    clock.local += 2
    assert isinstance(acquire(theirs, ask("b"), clock), Granted)
    assert isinstance(acquire(ours, ask("c"), clock), Busy)


def test_a_refusal_rests_on_a_read() -> None:
    """A client that has seen the name held, and remembers it, looks again before it says so."""
    rows, clock = Rows(), Clocked(10**15)
    ours, theirs = store(rows, clock), store(rows, clock)
    granted = acquire(ours, ask("a"), clock)
    assert isinstance(granted, Granted)
    assert isinstance(acquire(theirs, ask("b"), clock), Busy)
    complete(ours.release(ReleaseRequest("name", "a", granted.token), 10))
    assert isinstance(acquire(theirs, ask("b"), clock), Granted)


def test_a_lease_that_was_taken_by_force_leaves_nothing_behind() -> None:
    """Its client hears of the name no more, though nobody releases the lease."""
    rows, clock, heard = Rows(), Clocked(10**15), list[Notification]()
    ours = row_source("a dict", lambda: WatchedDictTable(rows)).make(clock)
    assert isinstance(ours, RowStore)
    channel = complete(ours.open(heard.append, 10))
    acquire(ours, replace(ask("a"), channel=channel), clock)
    assert ours._interests
    complete(store(rows, clock).revoke("name", 10))
    assert [each.kind for each in heard] == [NotificationKind.REVOKED]
    assert not ours._interests


def test_errors_of_a_table_say_what_may_have_happened() -> None:
    """A write that failed somehow may have been done; what the error says stays in its cause."""

    class Broken(DictTable):
        def write(self, key: str, value: bytes, version: object, timeout: float) -> int | None:
            raise OSError("password=secret")

    clock = Clocked(10**15)
    made = row_source("a broken one", lambda: Broken(Rows())).make(clock)
    complete(made.open(lambda _: None, 10))
    with pytest.raises(OutcomeUnknown, match=r"a broken one failed with OSError") as failed:
        complete(made.acquire(ask("a"), 10))
    assert "secret" not in str(failed.value)


@pytest.mark.parametrize("value", [b"hello", b"form 2 0.3.0 [1]", b"[1,2]\n[]", b"\xff\n"])
def test_foreign_rows_are_no_free_names(value: bytes) -> None:
    """A row that something else wrote, or a later release, is refused and left alone."""
    rows, clock = Rows(), Clocked(10**15)
    rows.rows[safe_key("lock", "name")] = Row(value, 7)
    with pytest.raises(StoreError):
        acquire(store(rows, clock), ask("a"), clock)
    assert rows.rows[safe_key("lock", "name")] == Row(value, 7)


@pytest.mark.parametrize("name", ["a", "..", "a/b", "a.b", "ä", "=", "日本" * 80, "x" * 512, "A"])
def test_keys_are_safe_and_differ(name: str) -> None:
    """Each is ASCII without slashes or empty parts, not too long, and found by its prefixes."""
    key = safe_key("lock", name)
    assert key.isascii()
    assert len(key) <= LONGEST_KEY
    assert all(key.split("."))
    assert not set(key) & set("/\\%*> ")
    assert key.startswith(first_key("lock", name[: len(name) // 2]))
    assert len({safe_key("lock", f"{name}{end}") for end in ("", "=", ".", "a", "=61")}) == 5


@pytest.mark.parametrize("fails", [StoreUnavailable, StoreError])
def test_a_refusal_that_is_not_explained_is_no_outcome(fails: type[StoreError]) -> None:
    """The first copy of a write was done, the second is refused, and then the row cannot be read: nobody knows."""

    class Copied(DictTable):
        copies = True

        def read(self, key: str, timeout: float) -> Row:
            if not self.copies:
                raise fails("no answer")
            return super().read(key, timeout)

        def write(self, key: str, value: bytes, version: object, timeout: float) -> int | None:
            written = super().write(key, value, version, timeout)
            if key.startswith("proof."):
                return written
            self.copies = False
            return None

    rows, clock = Rows(), Clocked(10**15)
    for kind in ("lock", "cell"):
        made = row_source("a dict", lambda: Copied(rows)).make(clock)
        assert isinstance(made, RowStore)
        complete(made.open(lambda _: None, 10))
        work = made.acquire(ask("a"), 10) if kind == "lock" else made.write_cell("name", b"1", 0, 0, 10)
        with pytest.raises(OutcomeUnknown, match="no answer"):
            complete(work)
