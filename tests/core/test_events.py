"""Listeners receive the events of a client's locks; a listener that fails harms nobody."""

import asyncio
import logging
import threading
from contextlib import suppress

import pytest

from tenure import AsyncClient, Client, EventKind, LockEvent, LockTimeout
from tests import virtual
from tests.hazards.helpers import TEST_TIMEOUT, eventually

ACQUIRED, CONTENDED, GAVE_UP, HANDED_ON, RENEWED, LOST, RELEASED = (
    EventKind.ACQUIRED,
    EventKind.CONTENDED,
    EventKind.GAVE_UP,
    EventKind.HANDED_ON,
    EventKind.RENEWED,
    EventKind.LOST,
    EventKind.RELEASED,
)


def kinds(told: list[LockEvent]) -> list[EventKind]:
    """Return the recorded events."""
    return [each.event for each in told]


def test_a_lock_that_is_used_emits_events() -> None:
    """The events have the name, the owner, the token, the time of the wait and of the hold."""
    told: list[LockEvent] = []
    with Client("memory://", namespace="app", owner="me", on_event=told.append) as client, client.lock("name") as lease:
        before = lease.remaining()
        eventually(lambda: lease.remaining() < before - 0.05, "some time passed")
    assert [(each.event, each.name, each.owner) for each in told] == [
        (ACQUIRED, "name", "me"),
        (RELEASED, "name", "me"),
    ]
    assert [each.token for each in told] == [lease.token, lease.token]
    assert told[0].waited is not None
    assert told[0].waited >= 0.0
    assert told[1].held is not None
    assert 0.05 <= told[1].held < 30.0
    assert told[1].cause == "released"


def test_the_asyncio_client_emits_events() -> None:
    """The listener runs in the event loop."""
    told: list[LockEvent] = []

    async def use() -> None:
        async with AsyncClient("memory://", on_event=told.append) as client, client.lock("name"):
            pass

    asyncio.run(use())
    assert kinds(told) == [ACQUIRED, RELEASED]


def test_a_wait_and_a_hand_off_within_the_client_emit_events() -> None:
    """The store takes part in neither."""
    told: list[LockEvent] = []
    with Client("memory://", on_event=told.append) as client:
        lock = client.lock("name")
        first = lock.acquire()
        waiting = threading.Thread(target=lambda: lock.acquire().release())
        waiting.start()
        eventually(lambda: CONTENDED in kinds(told), "it waits")
        first.release()
        waiting.join(10.0)
    assert kinds(told).count(CONTENDED) == 1
    assert told[0].event is ACQUIRED
    assert kinds(told).count(ACQUIRED) == 2
    assert sum(kind in {HANDED_ON, RELEASED} for kind in kinds(told)) == 2
    assert max(each.waited or 0.0 for each in told if each.event is ACQUIRED) > 0.0


def test_a_wait_for_another_process_emits_one_event() -> None:
    """There is one event, however often the waiter repeats its request."""
    told: list[LockEvent] = []

    async def main() -> None:
        source = virtual.source()
        async with AsyncClient(store=source) as holder, AsyncClient(store=source, on_event=told.append) as client:
            async with holder.lock("name"):
                with pytest.raises(LockTimeout):
                    await client.lock("name").acquire(timeout=10)
            await (await client.lock("name").acquire(timeout=5)).release()

    virtual.run(main)
    assert kinds(told) == [CONTENDED, GAVE_UP, ACQUIRED, RELEASED]
    assert [each.id for each in told] == [1, 1, 2, 2]
    assert (told[1].cause, told[1].waited) == ("timeout", 10.0)


def test_a_renewal_emits_an_event() -> None:
    """The event has the remaining time of the lease."""
    told: list[LockEvent] = []

    async def main() -> None:
        client = AsyncClient(store=virtual.source(), on_event=told.append)
        async with client, client.lock("name", ttl=30):
            await asyncio.sleep(15)

    virtual.run(main)
    assert kinds(told) == [ACQUIRED, RENEWED, RELEASED]
    assert told[1].seconds is not None
    assert 29.0 < told[1].seconds <= 30.0


def test_a_loss_emits_an_event() -> None:
    """There is one event, with the reason: a lease ends once, and its release ends nothing more."""
    told: list[LockEvent] = []

    async def main() -> None:
        async with AsyncClient(store=virtual.source(), on_event=told.append) as client:
            lease = await client.lock("name", max_hold=10).acquire()
            assert await lease.lost.wait(20)
            await asyncio.sleep(0)
            await lease.release()

    virtual.run(main)
    loss = next(each for each in told if each.event is LOST)
    assert "max_hold" in loss.detail
    assert loss.cause == "max_hold"
    assert loss.held == pytest.approx(10, abs=0.1)
    assert [kind for kind in kinds(told) if kind is not RENEWED] == [ACQUIRED, LOST]


@pytest.mark.parametrize("error", [RuntimeError, SystemExit])
def test_a_listener_that_fails_is_logged(caplog: pytest.LogCaptureFixture, error: type[BaseException]) -> None:
    """The lock still works."""

    def fail(event: LockEvent) -> None:
        raise error(event.name)

    with caplog.at_level(logging.ERROR, "tenure"), Client("memory://", on_event=fail) as client:
        client.lock("name").acquire().release()
    assert "on_event" in caplog.text


def test_an_interrupt_of_a_listener_leaves_no_waiter_in_the_local_queue() -> None:
    """The contender leaves the queue when Ctrl-C interrupts the listener of its wait."""

    def interrupt(event: LockEvent) -> None:
        if event.event is CONTENDED:
            raise KeyboardInterrupt

    with Client("memory://", on_event=interrupt) as client:
        lock = client.lock("name", timeout=TEST_TIMEOUT)
        with lock, pytest.raises(KeyboardInterrupt):
            lock.acquire()
        lock.acquire().release()


def test_an_interrupt_of_a_listener_does_not_stop_the_hand_off() -> None:
    """The lease is handed off although Ctrl-C interrupts the listener of the release."""

    def interrupt(event: LockEvent) -> None:
        told.append(event.event)
        if told.count(HANDED_ON) == 1 and event.event is HANDED_ON:
            raise KeyboardInterrupt

    def enter() -> None:
        with suppress(KeyboardInterrupt), lock:
            entered.append(True)
            eventually(lambda: told.count(CONTENDED) == 2, "somebody waits behind")

    told: list[EventKind] = []
    entered: list[bool] = []
    with Client("memory://", on_event=interrupt) as client:
        lock = client.lock("name", timeout=TEST_TIMEOUT)
        with lock:
            waiting = [threading.Thread(target=enter, daemon=True) for _ in range(2)]
            for thread in waiting:
                thread.start()
            eventually(lambda: told.count(CONTENDED) == 2, "both wait")
        for thread in waiting:
            thread.join(2 * TEST_TIMEOUT)
        assert len(entered) == 2
        assert HANDED_ON in told
