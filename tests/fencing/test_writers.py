"""Of holders that all trust their leases, only those write that are not late, over every kind of connection."""

from collections.abc import Iterator

import pytest

from tenure import StaleTokenError
from tests.fencing.kinds import Kind
from tests.fencing.writers import TEST_TIMEOUT, Writer


@pytest.fixture
def old(kind: Kind, account: str) -> Iterator[Writer]:
    """Return a holder, with an account of 100."""
    kind.database.open_account(account, 100)
    with Writer(kind, account) as writer:
        yield writer


@pytest.fixture
def new(old: Writer) -> Iterator[Writer]:
    """Return a later holder, while the older one trusts its lease."""
    with Writer(old.kind, old.name) as writer:
        assert writer.token > old.token
        yield writer


def test_a_late_writer_is_refused(old: Writer, new: Writer) -> None:
    """It gets an error that says why, what it wrote before is not there, and what the new holder wrote is."""
    new.raises_fence(200)
    with pytest.raises(StaleTokenError) as refused:
        old.guard()
    old.rollback()
    assert all(str(part) in str(refused.value) for part in (old.name, old.token, new.token, "tenure_fences"))
    assert old.kind.database.value_of(old.name) == 200


def test_a_late_writer_loses_what_its_transaction_wrote_before(old: Writer, new: Writer) -> None:
    """A guard that comes last refuses the late writer, too: its transaction is rolled back."""
    if old.kind.database.name == "sqlite":
        new.raises_fence(200)
        old.write(50)
    else:
        old.write(50)
        new.guard()
        new.execute("INSERT INTO accounts VALUES ({name}, 1)", name=f"{new.name[:50]}-2")
        new.commit()
    with pytest.raises(StaleTokenError):
        old.guard()
    old.rollback()
    assert old.kind.database.value_of(old.name) == (200 if old.kind.database.name == "sqlite" else 100)


def test_a_holder_guards_as_often_as_it_likes(old: Writer) -> None:
    """Its own token is never stale: not in the same transaction, and not in the next one."""
    old.guard()
    old.raises_fence(150)
    old.raises_fence(160)
    assert old.kind.database.value_of(old.name) == 160


def test_the_first_touch_makes_the_fence(old: Writer) -> None:
    """The table has the name of the lock and the token, once the transaction is committed, and not before."""
    old.guard()
    stored: str | bytes = old.name.encode() if old.kind.database.name == "mariadb" else old.name
    if old.kind.database.name != "sqlite":
        assert stored not in old.kind.database.fences()
    old.commit()
    assert old.kind.database.fences()[stored] == old.token


def test_a_rollback_takes_the_fence_back(old: Writer, new: Writer) -> None:
    """A holder that wrote nothing in the end has shut nobody out."""
    new.guard()
    new.write(200)
    new.rollback()
    old.raises_fence(101)
    assert old.kind.database.value_of(old.name) == 101


@pytest.mark.parametrize("touched", [True, False], ids=["touched before", "first touch"])
class TestSideBySide:
    """Two open transactions, where the fence is there already, and where both would make it."""

    def prepare(self, old: Writer, touched: bool) -> None:
        """Have the fence made before."""
        if touched:
            old.raises_fence(100)

    def test_the_later_holder_waits_for_the_earlier_one(self, old: Writer, new: Writer, touched: bool) -> None:
        """And then reads what that has written: no update is lost."""
        self.prepare(old, touched)
        old.guard()
        guarding = new.starts_to_guard()
        new.kind.database.await_waiting()
        old.write(old.read() + 1)
        assert not guarding.done()
        old.commit()
        guarding.result(TEST_TIMEOUT)
        new.write(new.read() + 1)
        new.commit()
        assert new.kind.database.value_of(new.name) == 102

    def test_the_earlier_holder_is_refused_after_the_later_one(self, old: Writer, new: Writer, touched: bool) -> None:
        """It waits until it is sure that the later one is not rolled back."""
        self.prepare(old, touched)
        new.guard()
        guarding = old.starts_to_guard()
        old.kind.database.await_waiting()
        new.write(new.read() + 1)
        assert not guarding.done()
        new.commit()
        with pytest.raises(StaleTokenError):
            guarding.result(TEST_TIMEOUT)
        old.rollback()
        assert old.kind.database.value_of(old.name) == 101

    def test_the_earlier_holder_goes_on_if_the_later_one_gives_up(
        self, old: Writer, new: Writer, touched: bool
    ) -> None:
        """A transaction that is rolled back refuses nobody."""
        self.prepare(old, touched)
        new.guard()
        new.write(200)
        guarding = old.starts_to_guard()
        old.kind.database.await_waiting()
        new.rollback()
        guarding.result(TEST_TIMEOUT)
        old.write(old.read() + 1)
        old.commit()
        assert old.kind.database.value_of(old.name) == 101

    def test_the_later_holder_goes_on_if_the_earlier_one_gives_up(
        self, old: Writer, new: Writer, touched: bool
    ) -> None:
        """It reads what was there before."""
        self.prepare(old, touched)
        old.guard()
        old.write(50)
        guarding = new.starts_to_guard()
        new.kind.database.await_waiting()
        old.rollback()
        guarding.result(TEST_TIMEOUT)
        new.write(new.read() + 1)
        new.commit()
        assert new.kind.database.value_of(new.name) == 101
