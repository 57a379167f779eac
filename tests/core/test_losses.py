"""What is reported of a loss and of a silent store: the cause, once, and nothing that is not known."""

import asyncio
import logging

import pytest

from tenure import (
    AsyncClient,
    AsyncLease,
    Client,
    LeaseLost,
    LockEvent,
    LockTimeout,
    Outcome,
    StoreError,
    StoreUnavailable,
)
from tenure.core.lease import EXPIRED
from tenure.stores.memory import MemoryTable, memory_source
from tests import virtual
from tests.hazards.helpers import disturbed

FORGED = "\x1b[2J\nCRITICAL: forged " + "x" * 5000


class Broken:
    """A hook that fails the operations of its list."""

    def __init__(self, **failing: Exception) -> None:
        self.failing = failing

    async def __call__(self, operation: str, done: bool) -> None:
        """Fail before the operation."""
        if not done and operation in self.failing:
            raise self.failing[operation]


def messages(caplog: pytest.LogCaptureFixture, level: int = logging.WARNING) -> list[str]:
    """Return the log from a level on."""
    return [record.getMessage() for record in caplog.records if record.levelno >= level]


def test_a_loss_names_the_error_of_the_last_renewal_everywhere(caplog: pytest.LogCaptureFixture) -> None:
    """In `check`, `on_lost`, on leaving the body, in the event and in the log; as text and as `__cause__`."""
    last_error = StoreError("the server is a replica (READONLY)")
    broken = Broken()
    told: list[LeaseLost] = []
    events: list[LockEvent] = []

    async def body(lease: AsyncLease) -> None:
        async with lease:
            await asyncio.sleep(60)

    async def main() -> None:
        store = disturbed(virtual.source(), broken)
        async with AsyncClient(store=store, on_event=events.append) as client:
            lock = client.lock("name", ttl=10, on_lost=told.append)
            lease = await lock.acquire()
            broken.failing["renew"] = last_error
            with pytest.raises(
                LeaseLost, match=r"last renewal failed: the server is a replica \(READONLY\)\. "
            ) as left:
                await body(lease)
            with pytest.raises(LeaseLost) as checked:
                lease.check()
            assert {left.value.__cause__, checked.value.__cause__, told[0].__cause__} == {last_error}
            assert str(left.value) == str(checked.value) == str(told[0])

    virtual.run(main)
    (lost,) = [event for event in events if event.event == "lost"]
    assert "READONLY" in lost.detail
    assert lost.error is last_error
    assert len(messages(caplog)) == 2, "the lease is at risk, then it is lost"
    assert all("READONLY" in message for message in messages(caplog))


def test_a_loss_does_not_name_an_error_that_was_overcome() -> None:
    """Only errors since the last successful renewal count; a forced revocation has no error as its cause."""
    broken = Broken()

    async def main() -> None:
        async with AsyncClient(store=disturbed(virtual.source(), broken)) as client:
            lease = await client.lock("name", ttl=10).acquire()
            broken.failing["renew"] = StoreUnavailable("nobody listens")
            await asyncio.sleep(4)
            broken.failing.clear()
            await asyncio.sleep(4)
            await client.revoke("name", force=True)
            await asyncio.sleep(0.1)
            with pytest.raises(LeaseLost, match=r"is lost: it was revoked by force\. ") as caught:
                lease.check()
            assert caught.value.__cause__ is None
            lease = await client.lock("third", ttl=10).acquire()
            broken.failing["renew"] = StoreUnavailable("nobody listens")
            await asyncio.sleep(4)
            broken.failing.clear()
            await asyncio.sleep(4)
            virtual.stand_still(20)
            with pytest.raises(LeaseLost, match="may have stood still") as caught:
                lease.check()
            assert caught.value.__cause__ is None
            lease = await client.lock("other", ttl=10).acquire()
            broken.failing["renew"] = StoreUnavailable("nobody listens")
            await asyncio.sleep(5)
            await client.revoke("other", force=True)
            await asyncio.sleep(0.1)
            with pytest.raises(LeaseLost, match=r"is lost: it was revoked by force\. ") as caught:
                lease.check()
            assert caught.value.__cause__ is None

    virtual.run(main)


def test_a_loss_without_a_renewal_says_that_the_process_stood_still() -> None:
    """The reason blames no store: the loop was blocked, or the process was stopped."""

    async def main() -> None:
        async with AsyncClient(store=virtual.source()) as client:
            lease = await client.lock("name", ttl=10).acquire()
            virtual.stand_still(20)
            with pytest.raises(LeaseLost, match="this process or its event loop may have stood still"):
                lease.check()

    virtual.run(main)


def test_many_leases_at_risk_are_one_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """A server that fails does not fill the log with a line for each lease; its text cannot forge a line."""
    broken = Broken()

    async def main() -> None:
        async with AsyncClient(store=disturbed(virtual.source(), broken)) as client:
            leases = [await client.lock(f"{number}", ttl=30).acquire() for number in range(50)]
            broken.failing["renew"] = StoreUnavailable(FORGED)
            await asyncio.sleep(15)
            broken.failing.clear()
            for lease in leases:
                await lease.release()

    virtual.run(main)
    (line,) = messages(caplog)
    assert "49 more are at risk" in line
    assert line.isprintable()
    assert len(line) < 1000


def test_a_silent_store_is_logged_once_after_a_second(caplog: pytest.LogCaptureFixture) -> None:
    """The log has one line while the store is silent, and one when it answers again."""
    broken = Broken()

    async def main() -> None:
        async with AsyncClient(store=disturbed(virtual.source(), broken), retry_for=30) as client:
            await client.names()
            broken.failing["acquire"] = StoreUnavailable("nobody listens")
            waiting = [asyncio.create_task(client.lock(f"{number}").acquire()) for number in range(3)]
            await asyncio.sleep(0.9)
            assert not messages(caplog)
            await asyncio.sleep(9)
            (line,) = messages(caplog)
            assert "nobody listens" in line
            broken.failing.clear()
            for lease in await asyncio.gather(*waiting):
                await lease.release()

    virtual.run(main)
    assert len(messages(caplog)) == 2
    assert "the store answers again" in messages(caplog)[1]


def test_an_error_that_lasts_is_not_logged_again_for_the_withdrawal(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The caller gets the error for a wrong password once; the same answer to the withdrawal adds nothing."""
    refused = StoreError("wants a password")

    async def main() -> None:
        async with AsyncClient(store=disturbed(virtual.source(), Broken(acquire=refused, withdraw=refused))) as client:
            with pytest.raises(StoreError, match="wants a password"):
                await client.lock("name").acquire()

    virtual.run(main)
    assert not messages(caplog)


def test_a_timeout_under_a_lock_delay_says_so() -> None:
    """Nobody holds the name then, so there is no holder to name."""

    async def main() -> None:
        async with AsyncClient(store=virtual.source()) as client:
            lock = client.lock("name", ttl=10, lock_delay=30)
            lease = await lock.acquire()
            await client.revoke("name", force=True)
            with pytest.raises(LockTimeout, match="its lock_delay keeps the name from everybody for another 28"):
                await lock.acquire(timeout=2)
            with pytest.raises(LockTimeout, match="its lock_delay keeps the name from everybody for another 28"):
                await lock.acquire(timeout=0)
            with pytest.raises(LockTimeout, match="its lock_delay keeps the name from everybody for another 27"):
                await client.multilock(["name", "other"]).acquire(timeout=1)
            with pytest.raises(LockTimeout, match="its lock_delay keeps the name from everybody for another 26"):
                await client.election("name").campaign(timeout=1)
            await lease.release()

    virtual.run(main)


def test_a_timeout_under_a_min_hold_says_so() -> None:
    """The holder that is named may have released its lease already."""

    async def main() -> None:
        async with AsyncClient(store=virtual.source()) as client:
            lock = client.lock("name", ttl=10, min_hold=10)
            await (await lock.acquire()).release()
            with pytest.raises(LockTimeout, match=r"was released, and the min_hold of .* for another 8\.0 s"):
                await lock.acquire(timeout=2)
            with pytest.raises(LockTimeout, match="keeps the name until min_hold=10 s after its grant"):
                await lock.acquire(timeout=0)

    virtual.run(main)


@pytest.mark.parametrize("past_its_end", [False, True])
def test_a_lease_that_the_store_no_longer_knows_has_expired(past_its_end: bool) -> None:
    """Its record was deleted: a renewal would be refused, and the release does not claim that it lasted."""

    async def main() -> Outcome:
        table = MemoryTable()
        async with AsyncClient(store=memory_source(table)) as client:
            lease = await client.lock("name", ttl=30).acquire()
            table._states.clear()
            client.session().renewer.discard(lease._core)
            await asyncio.sleep(40 if past_its_end else 3)
            return await lease.release()

    assert virtual.run(main) is Outcome.EXPIRED


def test_a_lost_lease_is_never_released() -> None:
    """Its holder was told to stop, so it is not RELEASED even if the store still had it: max_hold ended it."""

    async def main() -> None:
        async with AsyncClient(store=virtual.source()) as client, AsyncClient(store=virtual.source()) as other:
            lease = await client.lock("name", ttl=30, max_hold=5).acquire()
            assert await lease.lost.wait(10)
            assert await lease.release() is Outcome.EXPIRED
            async with other.lock("name", timeout=0):
                pass

    virtual.run(main)


def test_a_renewal_that_fails_after_the_loss_does_not_change_its_cause() -> None:
    """The cause of a loss is the error at that time, however late it is read."""
    with Client(store=memory_source(MemoryTable())) as client:
        lease = client.lock("name").acquire()
        held, renewals = lease._core, client.session().renewer._renewals
        renewals._failed([held], first := StoreUnavailable("first"))
        held.lose(EXPIRED)
        renewals._failed([held], StoreUnavailable("second"))
        with pytest.raises(LeaseLost, match="first") as caught:
            lease.check()
        lease.release()
    assert caught.value.__cause__ is first
