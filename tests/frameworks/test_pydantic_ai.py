"""A limiter of pydantic-ai over all processes: on a semaphore, and on a limit."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import pytest
from pydantic_ai import Agent, ConcurrencyLimitExceeded
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.models.concurrency import limit_model_concurrency
from pydantic_ai.models.test import TestModel

import tenure.pydantic_ai
from tenure import AsyncClient
from tenure.pydantic_ai import Limiter
from tests.frameworks.agents import CALLS, MOST
from tests.planting import module_with
from tests.servers import RedisServer

IMPORTS = 120.0
"""How long the processes may take, in seconds: most of it for the imports of pydantic-ai."""


def test_processes_never_make_more_requests_than_permitted(redis_server: RedisServer, space: str) -> None:
    """Thirty calls of three processes, four at a time."""
    environment = os.environ | {"TENURE_URL": f"{redis_server.url}?guard=off", "SPACE": space}
    command = [sys.executable, "-m", "tests.frameworks.agents"]
    processes = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) for _ in range(3)]
    try:
        spans = [span for each in processes for span in json.loads(each.communicate(timeout=IMPORTS)[0])]
    finally:
        for each in processes:
            each.kill()
    assert len(spans) == 3 * CALLS
    most = max(sum(began <= at < ended for began, ended in spans) for at, _ in spans)
    assert most == MOST


def test_a_stream_that_another_task_ends_gives_its_permit_back() -> None:
    """A streamed response may be closed by any task."""

    async def main() -> None:
        async with AsyncClient("memory://") as client:
            model = limit_model_concurrency(TestModel(), Limiter(client.semaphore("gpt", 1, timeout=1)))
            for _ in range(2):
                stream = model.request_stream([], None, ModelRequestParameters())
                await stream.__aenter__()
                assert (await client.inspect("gpt")).holders
                await asyncio.create_task(end(stream))

    async def end(stream: AbstractAsyncContextManager[object]) -> None:
        await stream.__aexit__(None, None, None)

    asyncio.run(main())


def test_a_permit_that_is_lost_is_given_back_first() -> None:
    """The leases are alike, but the one that is lost holds no permit any more: the others are kept."""

    async def main() -> None:
        async with AsyncClient("memory://") as client:
            lost = asyncio.Event()
            limiter = Limiter(client.semaphore("gpt", 3, on_lost=lambda _: lost.set()))
            for _ in range(3):
                await limiter.acquire("test")
            second = (await client.inspect("gpt")).holders[1]
            await client.revoke("gpt", force=True, token=second.token)
            await lost.wait()
            for left in (2, 1, 0):
                limiter.release()
                await asyncio.gather(*limiter._releases)
                assert len((await client.inspect("gpt")).holders) == left

    asyncio.run(main())


@pytest.mark.parametrize("kind", ["semaphore", "limit"])
def test_too_many_are_refused_by_the_error_of_pydantic_ai(kind: str) -> None:
    """A program that handles its errors needs no other handler. The units of a limit do not come back at the end."""

    async def main() -> None:
        async with AsyncClient("memory://") as client:
            of = client.semaphore("gpt", 1, timeout=0) if kind == "semaphore" else client.limit("gpt", 2, 60, timeout=0)
            agent = Agent(TestModel(), max_concurrency=Limiter(of))
            for _ in range(2):
                await agent.run("hello")
            async with client.semaphore("gpt", 1):
                with pytest.raises(ConcurrencyLimitExceeded, match="gpt"):
                    await agent.run("hello")

    asyncio.run(main())


BUGS: dict[str, tuple[str, str, Callable[[], None]]] = {
    "a permit is never released": (
        "task = asyncio.create_task(leases.pop(0).release())",
        "task = asyncio.create_task(asyncio.sleep(0))",
        test_a_permit_that_is_lost_is_given_back_first,
    ),
    "a lost lease stays": (
        "leases.sort(key=lambda lease: not lease.lost)",
        "pass",
        test_a_permit_that_is_lost_is_given_back_first,
    ),
    "a lease belongs to its task": (
        "asyncio.get_running_loop()",
        "asyncio.current_task()",
        test_a_stream_that_another_task_ends_gives_its_permit_back,
    ),
}
"""By what is wrong: what is right in the adapter, what is wrong, and the test that finds it."""


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the adapter, as a maintainer could get it wrong."""
    right, wrong, test = BUGS[bug]
    broken = module_with(tenure.pydantic_ai, (right, wrong), everywhere=True)
    monkeypatch.setitem(globals(), "Limiter", broken.Limiter)
    with pytest.raises((AssertionError, ConcurrencyLimitExceeded)):
        test()
