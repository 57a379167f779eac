"""What others wrote stands escaped and bounded in errors: nobody can forge a line of somebody's log."""

import pytest

from holdfast import Client, LockTimeout
from holdfast.core.messages import Busy
from holdfast.errors import Wait
from holdfast.escaping import MOST, escape, shown
from holdfast.stores.memory import MemoryTable, memory_source
from holdfast.stores.quorum.votes import say

EVIL = "evil\x1b[2J\nCRITICAL: forged\u202e\u2028\x00\ud800"


def assert_harmless(text: str) -> None:
    """Nothing in it but what is plainly visible."""
    assert escape(text) == text
    assert r"evil\x1b[2J\nCRITICAL: forged" in text


@pytest.mark.parametrize("timeout", [0, 0.01])
def test_an_owner_forges_nothing_in_a_timeout(timeout: float) -> None:
    """Whatever the holder calls itself, and however long its name is."""
    source = memory_source(MemoryTable())
    evil, client = Client(store=source, owner=EVIL[:-1] + "x" * 400), Client(store=source)
    with evil, client, evil.lock("name"), pytest.raises(LockTimeout) as refused:
        client.lock("name").acquire(timeout=timeout)
    assert_harmless(str(refused.value))
    assert "x" * MOST not in str(refused.value)


def test_a_name_forges_nothing_in_a_timeout() -> None:
    """Nor in the advice to look at it, which names a command."""
    with Client(store=memory_source(MemoryTable())) as client:
        lock = client.lock(EVIL[:-1])
        with lock, pytest.raises(LockTimeout) as refused:
            lock.acquire(timeout=0)
    assert_harmless(str(refused.value))


def test_nobody_forges_anything_in_a_deadlock_or_a_vote() -> None:
    """Owners, and what threads and tasks are called, are chosen by others too."""
    assert_harmless(str(Wait(EVIL, EVIL, EVIL, f"1 {EVIL}", f"2 {EVIL}")))
    assert_harmless(say(Busy(1000, (EVIL,), 0)))


def test_what_is_plain_stays_as_it_is() -> None:
    """Letters of any language are shown."""
    for text in ("node-1:42", "Jürgens Rechner", "作業者", "a b"):
        assert shown(text) == escape(text) == text
    assert shown("x" * 1000) == "x" * MOST + "..."
