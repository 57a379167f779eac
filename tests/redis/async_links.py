"""What the tests of the asyncio link share: links, ears, and event loops that must not be left with a complaint."""

import asyncio
import gc
import os
import stat
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tenure.runtimes.aio import AsyncioRuntime
from tenure.stores.redis.links.aio import RedisAsyncLink
from tenure.stores.redis.links.aio_pipeline import Pipeline
from tenure.stores.redis.links.link import RedisAccess, RedisAddress, RedisCallbacks
from tenure.stores.redis.scripts import Script

TEST_TIMEOUT = 60.0
"""How long to wait, in seconds, for what must happen: only ever used up by a failure."""

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {"asyncio": asyncio.new_event_loop}

if find_spec("uvloop") is not None:
    import uvloop

    LOOPS["uvloop"] = uvloop.new_event_loop

ECHO = Script("echo", "return {ARGV[1], KEYS[1]}", guarded=False)
WHO = Script("who", "return ARGV[#ARGV]", guarded=False)
COUNT = Script("count", "return redis.call('INCR', KEYS[1])", guarded=False)
FAIL = Script("fail", "redis.call('INCR', 'failures') return redis.error_reply('OUCH ' .. ARGV[1])", guarded=False)


def run(main: Callable[[], Coroutine[Any, Any, None]], loop: str = "asyncio") -> None:
    """Run `main` to its end, and see that it leaves no task, and that asyncio has nothing to complain of."""
    complaints: list[dict[str, Any]] = []

    async def bounded() -> None:
        async with asyncio.timeout(TEST_TIMEOUT):
            await main()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.get_loop().set_exception_handler(lambda _loop, context: complaints.append(context))
        runner.run(bounded())
        gc.collect()
    assert complaints == []


class Ears:
    """What a link has heard."""

    def __init__(self) -> None:
        """Start with nothing."""
        self.pushes: asyncio.Queue[bytes] = asyncio.Queue()
        self.gaps: asyncio.Queue[None] = asyncio.Queue()

    def callbacks(self) -> RedisCallbacks:
        """Return what to give to a link."""
        return RedisCallbacks(self.pushes.put_nowait, lambda: self.gaps.put_nowait(None))


@asynccontextmanager
async def link_to(
    where: tuple[str, int] | RedisAddress,
    ears: Ears | None = None,
    access: RedisAccess | None = None,
    **options: Any,  # noqa: ANN401 - of any link
) -> AsyncGenerator[RedisAsyncLink]:
    """Make a link to a server, and close it."""
    callbacks = (ears or Ears()).callbacks()
    address = where if isinstance(where, RedisAddress) else RedisAddress(*where)
    link = RedisAsyncLink(AsyncioRuntime(), access or RedisAccess(), address, callbacks, **options)
    try:
        yield link
    finally:
        await link.close()


def soon(seconds: float = TEST_TIMEOUT) -> float:
    """Return a deadline so many seconds from now."""
    return AsyncioRuntime().now() + seconds


async def echo(link: RedisAsyncLink, word: str, until: float | None = None) -> bytes:
    """Have the server say a word, and see that the reply belongs to this request."""
    answer = await link.run(ECHO, (word,), (word,), until or soon())
    assert answer.value == [word.encode(), word.encode()]
    return answer.run_id


async def client_id(link: RedisAsyncLink) -> int:
    """Return what tells a link's connection from all others at the server."""
    number: int = await link.command("CLIENT", "ID", until=soon())
    return number


def pipe_of(link: RedisAsyncLink) -> Pipeline:
    """Return the connection of a link."""
    pipe = link._line.pipe
    assert pipe is not None
    return pipe


async def happens(condition: Callable[[], object]) -> None:
    """Wait until a condition is true."""
    while not condition():  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(0.002)


async def is_lost(pipe: Pipeline) -> None:
    """Wait until a connection is found to be lost."""
    await happens(lambda: pipe.lost)


def sockets() -> set[tuple[int, int]]:
    """Return the sockets that this process has open: their descriptors, and what tells them from others."""
    found: set[tuple[int, int]] = set()
    for each in Path("/dev/fd").iterdir():
        with suppress(OSError):  # it was the folder's own
            status = os.fstat(int(each.name))
            if stat.S_ISSOCK(status.st_mode):
                found.add((int(each.name), status.st_ino))
    return found
