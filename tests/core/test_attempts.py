"""When a waiter in the store's queue repeats its request."""

import sys
from dataclasses import replace

import pytest

from tenure import AsyncClient, LockTimeout
from tenure.contracts.deadlines import micros
from tenure.contracts.messages import AcquireRequest, Busy, Notification, NotificationKind, Queued, Reply
from tenure.contracts.runtime import Runtime
from tenure.contracts.store import Store
from tenure.core.attempt import Attempt
from tenure.runtimes import clocks
from tenure.stores.memory import memory_source
from tests import virtual
from tests.hazards.helpers import DisturbedStore, disturbed
from tests.planting import planted


@pytest.mark.parametrize("after", [0.0, 0.3])
def test_a_push_that_overtakes_the_reply_counts(after: float) -> None:
    """A notification names an earlier retry time than the reply to an older request that arrives after it."""
    asked: list[float] = []

    async def main() -> None:
        table = virtual.table()

        async def overtake(operation: str, done: bool) -> None:
            if operation != "acquire":
                return
            if not done:
                asked.append(clocks.steady())
            elif len(asked) == 1:
                (request_id,) = waiting.session().attempts
                waiting.session().deliver(Notification("", NotificationKind.HEAD, request_id, after=micros(after)))

        waiting = AsyncClient(store=disturbed(memory_source(table), overtake))
        async with AsyncClient(store=memory_source(table)) as holding, waiting, holding.lock("name"):
            with pytest.raises(LockTimeout):
                await waiting.lock("name").acquire(timeout=1.0)

    virtual.run(main)
    assert asked[1] - asked[0] == pytest.approx(after, abs=0.01)


@pytest.mark.parametrize("queued", [True, False])
def test_a_push_counts_that_another_thread_hears_as_the_waiter_notes_its_retry_time(
    queued: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The waiter does not put its own retry time in the place of the earlier one, of which nothing else would tell."""
    asked: list[float] = []

    async def answer(operation: str, done: bool) -> None:
        if operation == "acquire" and not done:
            asked.append(clocks.steady())

    class Unqueued(DisturbedStore):
        async def acquire(self, request: AcquireRequest, until: float) -> Reply:
            reply = await super().acquire(request, until)
            return Busy(1_000_000, stands=True) if isinstance(reply, Queued) and not queued else reply

    async def main() -> None:
        table = memory_source(virtual.table())

        def make(runtime: Runtime) -> Store:
            return Unqueued(table.make(runtime), answer, local=True)

        source = replace(table, make=make)
        waiting = AsyncClient(store=source)
        async with AsyncClient(store=table) as holding, waiting, holding.lock("name"):
            session = waiting.session()
            now, heard = session.runtime.now, False

            def hear_meanwhile() -> float:
                nonlocal heard
                if not heard and sys._getframe(1).f_code.co_name in {"_wait_for_push", "_wait_at_random"}:
                    heard = True
                    (request_id,) = session.attempts
                    session.deliver(Notification("", NotificationKind.HEAD, request_id, after=0))
                return now()

            monkeypatch.setattr(session.runtime, "now", hear_meanwhile)
            with pytest.raises(LockTimeout):
                await waiting.lock("name").acquire(timeout=0.4)

    virtual.run(main)
    assert asked[1] - asked[0] < 0.1


@pytest.mark.parametrize(
    ("method", "right", "wrong"),
    [("_wait_for_push", "self._retry_at = self", "self._notified_at = self"), ("_wake_at", "self._notified_at, ", "")],
)
def test_a_notification_that_is_lost_is_found(
    method: str, right: str, wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted bugs: the retry time of the reply replaces that of a notification, or the waiter wakes by it alone."""
    monkeypatch.setattr(Attempt, method, planted(Attempt, method, right, wrong))

    def keep() -> None:
        test_a_push_that_overtakes_the_reply_counts(0.3)
        test_a_push_counts_that_another_thread_hears_as_the_waiter_notes_its_retry_time(True, monkeypatch)

    with pytest.raises((AssertionError, IndexError)):  # too late, or not at all
        keep()
