"""Many leases are renewed, and many waiters are shown, in parts: between them the server has time for others."""

import asyncio
from typing import Any

import pytest

from tenure import AsyncClient
from tenure.stores.redis import scripts
from tenure.stores.redis.links.link import Words
from tenure.stores.redis.names import state_key
from tenure.stores.redis.scripts import Script
from tenure.stores.redis.servers import ScriptRunner
from tenure.stores.redis.store import AT_ONCE, RedisStore
from tests.planting import planted
from tests.servers import RedisServer
from tests.servers.waiting import wait_until

MANY = 2 * AT_ONCE + 1


def test_no_script_renews_or_shows_too_many(redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each script takes AT_ONCE at most, and together they take all."""
    calls: list[tuple[Script, int]] = []
    call = ScriptRunner.call

    def noted(self: ScriptRunner, script: Script, name: str, keys: Words, *rest: Any) -> Any:  # noqa: ANN401
        calls.append((script, len(keys)))
        return call(self, script, name, keys, *rest)

    monkeypatch.setattr(ScriptRunner, "call", noted)

    async def main() -> None:
        async with AsyncClient(redis_server.url) as here:
            session = here.session()
            until = session.runtime.now() + 60
            held = [await here.lock(f"parts {number}", ttl=30).acquire() for number in range(MANY)]
            renewals = [lease.background_renewal() for lease in session.renewer.kept()]
            calls.clear()
            assert await session.store.renew(renewals, until) == [None] * MANY
            assert max(keys for script, keys in calls if script is scripts.RENEW) == 1 + 3 * AT_ONCE

            gate = here.semaphore("parts", 1, ttl=30)
            first = await gate.acquire()
            waiting = [asyncio.create_task(gate.acquire()) for _ in range(MANY)]
            try:
                queue = f"{state_key(first.name)}:q"
                await asyncio.to_thread(wait_until, lambda: redis_server.command("ZCARD", queue) == MANY, "all wait")
                calls.clear()
                assert len((await session.store.inspect(first.name, until)).waiters) == MANY
                assert len([script for script, _ in calls if script is scripts.INSPECT]) == 3
            finally:
                for task in waiting:
                    task.cancel()
                await asyncio.gather(*waiting, return_exceptions=True)
            for lease in [first, *held]:
                await lease.release()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("method", "right", "wrong"),
    [
        (
            "renew",
            "AT_ONCE):\n        replies += await self._renew(renewals[first : first + AT_ONCE],",
            "10**6):\n        replies += await self._renew(renewals[first:],",
        ),
        ("inspect", "number(AT_ONCE)", "number(10**6)"),
        ("inspect", "pages[0].waiters = ", "pages[-1].waiters = "),
    ],
)
def test_one_script_for_all_is_noticed(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch, method: str, right: str, wrong: str
) -> None:
    """Each bug fails the test of the parts."""
    monkeypatch.setattr(RedisStore, method, planted(RedisStore, method, right, wrong))
    with pytest.raises(AssertionError):
        test_no_script_renews_or_shows_too_many(redis_server, monkeypatch)
