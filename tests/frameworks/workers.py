"""An app for several workers, which notes what they do: its tasks run on one of them, and its route holds a lock."""

import asyncio
import os
from typing import Annotated

from fastapi import FastAPI

from tenure import AsyncClient, AsyncLease
from tenure.fastapi import Held, every, lifespan, only_one
from tenure.runtimes.clocks import steady

TTL = 2.0


def note(what: str) -> None:
    """Append a line: what, the process, and the steady clock, which all processes share."""
    line = f"{what} {os.getpid()} {steady()}\n"
    descriptor = os.open(os.environ["NOTES"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, line.encode())
    os.close(descriptor)


@only_one("scheduler", ttl=TTL)
async def lead() -> None:
    """Note every moment of the leader."""
    while True:
        note("leads")
        await asyncio.sleep(0.02)


@every(1, "tick")
async def tick() -> None:
    """Note a tick."""
    note("ticks")


app = FastAPI(lifespan=lifespan(lambda: AsyncClient(namespace=os.environ["SPACE"]), tasks=[lead, tick]))


@app.post("/orders/{order}")
async def pay(lease: Annotated[AsyncLease, Held("orders:{order}")], order: int) -> tuple[int, int]:
    """Hold the lock of an order."""
    return order, lease.token
