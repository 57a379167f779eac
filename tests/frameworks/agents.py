"""A process with an agent, whose model requests are limited over all processes: prints when each began and ended."""

import asyncio
import json
import os
from typing import Any

from pydantic_ai import Agent, ModelResponse
from pydantic_ai.models.concurrency import limit_model_concurrency
from pydantic_ai.models.test import TestModel

from tenure import AsyncClient
from tenure.pydantic_ai import Limiter
from tenure.runtimes.clocks import steady

MOST, CALLS = 4, 10

spans: list[tuple[float, float]] = []


class Model(TestModel):
    """The model of pydantic-ai for tests, which takes a moment."""

    async def request(self, *arguments: Any, **keywords: Any) -> ModelResponse:  # noqa: ANN401 - as of the base
        """Answer a request, and note when."""
        began = steady()
        await asyncio.sleep(0.05)
        spans.append((began, steady()))
        return await super().request(*arguments, **keywords)


async def main() -> None:
    """Run all calls at once."""
    async with AsyncClient(namespace=os.environ["SPACE"]) as client:
        agent = Agent(limit_model_concurrency(Model(), Limiter(client.semaphore("gpt", MOST))))
        await asyncio.gather(*[agent.run("hello") for _ in range(CALLS)])
    print(json.dumps(spans))  # noqa: T201 - to the test


if __name__ == "__main__":
    asyncio.run(main())
