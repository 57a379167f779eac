"""A table for threads in asyncio: its calls have threads of their own."""

import asyncio
import threading

from tenure import AsyncClient
from tenure.stores.rows import row_source
from tests.rows.tables import DictTable, Rows

LONG = 20.0


async def lock_while_threads_are_busy() -> bool:
    """Use a lock while the program keeps all threads of its loop busy; return whether they still are."""
    loop, over = asyncio.get_running_loop(), threading.Event()
    busy = [loop.run_in_executor(None, over.wait) for _ in range(100)]
    end = loop.call_later(LONG, over.set)
    async with AsyncClient(store=row_source("a dict", lambda: DictTable(Rows()))) as client, client.lock("a", ttl=90):
        were_busy = not over.is_set()
    end.cancel()
    over.set()
    await asyncio.gather(*busy)
    return were_busy


def test_a_busy_program_loses_no_lease() -> None:
    """Renewals do not wait for the threads that `asyncio.to_thread` gives to the program's own work."""
    assert asyncio.run(lock_while_threads_are_busy())


def test_the_threads_end_with_the_client() -> None:
    """Nothing of it is left."""
    before = set(threading.enumerate())
    asyncio.run(lock_while_threads_are_busy())
    for each in set(threading.enumerate()) - before:
        each.join(LONG)
    assert set(threading.enumerate()) <= before
