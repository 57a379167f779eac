"""One contender for a hot lock: it acquires, holds and releases in a loop, and counts its grants and waits."""

import asyncio
import time
from dataclasses import dataclass, field

from bench.contenders import Handle, clock
from tenure import AsyncLock


@dataclass(slots=True)
class Share:
    """The grants and waits of one process."""

    grants: int = 0
    """The grants within the window."""
    waits: list[float] = field(default_factory=list[float])
    """All waits, in seconds, including the last wait, which ended after the window."""

    def note(self, asked: float, got: float, until: float) -> bool:
        """Record an acquisition; return whether there is time for another."""
        self.waits.append(got - asked)
        in_time = got < until
        self.grants += in_time
        return in_time


def contend(handle: Handle, hold: float, until: float) -> Share:
    """Acquire, hold and release in a loop."""
    share = Share()
    while True:
        asked = clock()
        more = share.note(asked, handle.acquire(), until)
        if hold:
            time.sleep(hold)
        handle.release()
        if not more:
            return share


async def contend_asyncio(lock: AsyncLock, hold: float, until: float) -> Share:
    """Acquire, hold and release in a loop, in a task."""
    share = Share()
    while True:
        asked = clock()
        lease = await lock.acquire()
        more = share.note(asked, clock(), until)
        if hold:
            await asyncio.sleep(hold)
        await lease.release()
        if not more:
            return share
