"""A program of some release: it obeys one command a line, in JSON, and answers each when it is done.

Its release is made up: `contracts/forms.py` is changed before anything else of Tenure is imported.
"""

import asyncio
import json
import sys
from collections.abc import Callable
from typing import Any

from tenure.contracts import forms

READS, WRITES, API_FORM, URL = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
forms.READS, forms.WRITES, forms.RELEASE = READS, WRITES, f"0.{max(READS, WRITES)}.0"
forms.READ_SINCE.update({form: f"0.{form}.0" for form in range(2, max(READS, WRITES) + 1)})

from tenure import AsyncClient, Client  # noqa: E402 - what it imports reads the numbers

PATIENCE = 600.0
"""For how long it repeats requests to a store that does not answer: a refusal must not be taken for that."""

OPTIONS: dict[str, Any] = {"operation_timeout": 10.0, "retry_for": PATIENCE, "owner": "program"}


class Program:
    """The commands, in either form of the API."""

    def __init__(self) -> None:
        """Make the client; the first command opens it."""
        self.client: Any = (AsyncClient if API_FORM == "asyncio" else Client)(URL, **OPTIONS)
        self.leases: dict[str, Any] = {}

    async def call(self, work: Callable[..., Any], *args: object, **options: object) -> Any:  # noqa: ANN401
        """Call a method of the API, which blocks or is awaited."""
        if API_FORM == "asyncio":
            return await work(*args, **options)
        return await asyncio.to_thread(work, *args, **options)

    async def acquire(self, name: str, timeout: float | None, delay: float = 0) -> int:
        """Acquire a lock, and return its token."""
        lock = self.client.lock(name, ttl=30, timeout=timeout, lock_delay=delay)
        lease = self.leases[name] = await self.call(lock.acquire)
        return int(lease.token)

    async def release(self, name: str) -> str:
        """Release it."""
        return str((await self.call(self.leases.pop(name).release)).value)

    async def extend(self, name: str) -> str:
        """Renew it at once."""
        await self.call(self.leases[name].extend)
        return "extended"

    async def check(self, name: str) -> str:
        """Raise LeaseLost if the lease is lost."""
        self.leases[name].check()
        return "held"

    async def inspect(self, name: str) -> list[int]:
        """Return how many hold it, and how many wait."""
        view = await self.call(self.client.inspect, name)
        return [len(view.holders), len(view.waiters)]

    async def revoke(self, name: str) -> int:
        """Take it from its holders."""
        return len(await self.call(self.client.revoke, name, force=True))

    async def names(self) -> list[str]:
        """List the names in use."""
        return list(await self.call(self.client.names))

    async def together(self, *names: str) -> str:
        """Acquire several locks at once, without waiting."""
        self.leases["together"] = await self.call(self.client.multilock(list(names), ttl=30, timeout=0).acquire)
        return "held"

    async def add(self, name: str) -> int:
        """Add to a counter."""
        return int(await self.call(self.client.counter(name).add))

    async def close(self) -> None:
        """Release what is left, and disconnect."""
        await self.call(self.client.close)

    async def obey(self, line: str) -> None:
        """Carry out one command."""
        number, command, *args = json.loads(line)
        try:
            answer = [number, await getattr(self, command)(*args), ""]
        except Exception as error:  # noqa: BLE001 - the test judges it
            answer = [number, type(error).__name__, str(error)]
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


async def main() -> None:
    """Obey until the end of the input."""
    program = Program()
    async with asyncio.TaskGroup() as tasks:
        while line := await asyncio.to_thread(sys.stdin.readline):
            tasks.create_task(program.obey(line))


asyncio.run(main())
