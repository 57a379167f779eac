"""Errors escape and shorten foreign text: nobody can forge a line of a log."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

import pytest

from tenure import (
    AsyncClient,
    Client,
    LeaseLost,
    LockEvent,
    LockTimeout,
    OutcomeUnknown,
    StoreError,
    StoreUnavailable,
    TenureError,
)
from tenure.contracts.messages import Busy
from tenure.errors import Wait
from tenure.escaping import MOST, escape, shown
from tenure.stores.memory import MemoryTable, memory_source
from tenure.stores.quorum.votes import say
from tenure.stores.redis.links.errors import to_store_error
from tenure.stores.redis.links.link import RedisAddress, ReplyError
from tests import virtual
from tests.core.test_losses import Broken
from tests.hazards.helpers import disturbed

EVIL = "evil\x1b[2J\nCRITICAL: forged\u202e\u2028\x00\ud800"


def assert_harmless(text: str) -> None:
    """Check that the text has only printable characters."""
    assert escape(text) == text
    assert r"evil\x1b[2J\nCRITICAL: forged" in text


@pytest.mark.parametrize("timeout", [0, 0.01])
def test_an_owner_forges_nothing_in_a_timeout(timeout: float) -> None:
    """The owner of the holder is escaped and shortened."""
    source = memory_source(MemoryTable())
    evil, client = Client(store=source, owner=EVIL[:-1] + "x" * 400), Client(store=source)
    with evil, client, evil.lock("name"), pytest.raises(LockTimeout) as refused:
        client.lock("name").acquire(timeout=timeout)
    assert_harmless(str(refused.value))
    assert "x" * MOST not in str(refused.value)


def test_a_name_forges_nothing_in_a_timeout() -> None:
    """The advice to inspect the name is escaped too: it names a command."""
    with Client(store=memory_source(MemoryTable())) as client:
        lock = client.lock(EVIL[:-1])
        with lock, pytest.raises(LockTimeout) as refused:
            lock.acquire(timeout=0)
    assert_harmless(str(refused.value))


def test_nobody_forges_anything_in_a_deadlock_or_a_vote() -> None:
    """Others choose the owners and the names of threads and tasks."""
    assert_harmless(str(Wait(EVIL, EVIL, EVIL, f"1 {EVIL}", f"2 {EVIL}")))
    assert_harmless(say(Busy(1000, (EVIL,), 0)))


def test_a_server_forges_nothing_in_an_error() -> None:
    """The text of a server may be quoted: in the error, and in the Redis reply that is the cause."""
    for error in (StoreError(EVIL), StoreUnavailable(EVIL), OutcomeUnknown(EVIL), ReplyError(EVIL)):
        assert_harmless(str(error))
    assert len(str(StoreError("x" * 100_000))) < 2100
    text = to_store_error(RedisAddress("localhost", 1), ReplyError(f"ERR {EVIL * 1000}"))
    assert_harmless(str(text))
    assert len(str(text)) < 1000


async def wait_for_oneself(client: AsyncClient, name: str) -> None:
    """Acquire a lock in its own `async with`."""
    async with client.lock(name):
        await client.lock(name).acquire()


def test_nobody_forges_anything_anywhere(caplog: pytest.LogCaptureFixture) -> None:
    """All errors, logs and events of a run in which names, owners and the store's errors are hostile."""
    caplog.set_level(logging.DEBUG)
    name, said = EVIL[:-1], StoreUnavailable(EVIL)
    texts: list[str] = []
    broken = Broken()

    def note(event: LockEvent) -> None:
        texts.append(event.detail)

    async def main() -> None:
        table = virtual.table()
        source = disturbed(memory_source(table), broken)
        async with (
            AsyncClient(store=source, owner=name, on_event=note, retry_for=2) as client,
            AsyncClient(store=memory_source(table), owner=f"other {name}") as other,
        ):
            lease = await client.lock(name, ttl=10, on_lost=lambda error: texts.append(str(error))).acquire()
            texts.append(repr(lease))
            for refused in (
                other.lock(name).acquire(timeout=1),
                other.semaphore(name, 7).acquire(timeout=1),
                other.multilock([name, "free"]).acquire(timeout=1),
                other.election(name).campaign(timeout=1),
                client.lock(name).acquire(timeout=1),
                wait_for_oneself(client, f"fourth {name}"),
            ):
                texts.append(await error_of(refused))
            broken.failing.update(acquire=said, renew=said, release=said, withdraw=said)
            texts.append(await error_of(client.lock("another").acquire()))
            await asyncio.sleep(20)
            texts.append(await error_of(lease.__aexit__(None, None, None)))
            broken.failing.clear()
            async with client.lock(f"second {name}", max_hold=2, on_lost=fail).acquire() as lease:
                texts.append(await error_of(client.lock(f"second {name}", lock_delay=5).acquire(timeout=0)))
            lease = await client.lock(f"third {name}", ttl=10, lock_delay=50).acquire()
            await other.revoke(f"third {name}", force=True)
            await asyncio.sleep(1)
            texts.append(await error_of(lease.extend()))
            texts.append(await error_of(other.lock(f"third {name}").acquire(timeout=0)))
            await lease.release()

    virtual.run(main)
    texts += [record.getMessage() for record in caplog.records]
    assert sum(r"evil\x1b[2J\nCRITICAL: forged" in text for text in texts) > 15
    for text in texts:
        assert escape(text) == text
        assert len(text) < 2500


def fail(error: LeaseLost) -> None:
    """Raise in a callback."""
    raise error


async def error_of(work: Coroutine[Any, Any, object]) -> str:
    """Return the text of an error and its notes."""
    with pytest.raises(TenureError) as caught:
        await work
    return str(caught.value)


def test_what_is_plain_stays_as_it_is() -> None:
    """Letters of any language are shown as they are."""
    for text in ("node-1:42", "Jürgens Rechner", "作業者", "a b"):
        assert shown(text) == escape(text) == text
    assert shown("x" * 1000) == "x" * MOST + "..."
