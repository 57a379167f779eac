"""When a waiter in the store's queue repeats its request."""

import pytest

from tenure import AsyncClient, LockTimeout
from tenure.contracts.deadlines import micros
from tenure.contracts.messages import Notification, NotificationKind
from tenure.runtimes import clocks
from tenure.stores.memory import memory_source
from tests import virtual
from tests.hazards.helpers import disturbed


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
