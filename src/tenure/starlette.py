"""Adapter for Starlette: a client that lives as long as the app, and background tasks that run on one worker.

For Starlette 0.47 and later. Each process of the app has its own client, which is made when its lifespan begins.
"""

import asyncio
import logging
import random
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from contextvars import ContextVar
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from tenure.callables import refuse_sync
from tenure.client import AsyncClient
from tenure.errors import LeaseLost, Stopped, StoreError, UsageError
from tenure.primitives.decorating import name_from_call

__all__ = ["every", "lifespan", "only_one"]

P = ParamSpec("P")
R = TypeVar("R")
State = Mapping[str, Any]

PAUSE, LONGEST_PAUSE = 1.0, 60.0
"""The shortest and the longest time after a failure until a worker stands again, in seconds."""

LOOK_EVERY = 15.0
"""How often a worker looks for a tick that no worker has begun, at least, in seconds."""

log = logging.getLogger("tenure")
_client: ContextVar[AsyncClient] = ContextVar("client")
"""The client of the lifespan in which a task was started."""


def lifespan(
    url: str | Callable[[], AsyncClient] | None = None,
    inner: Callable[[Any], AbstractAsyncContextManager[State | None]] | None = None,
    *,
    tasks: Iterable[Callable[[], Coroutine[Any, Any, object]]] = (),
) -> Callable[[Any], AbstractAsyncContextManager[State]]:
    """Return a lifespan with a client of the store at `url`, which routes find as `request.state.tenure`.

    Args:
        url: the URL of the store, or a function that makes the AsyncClient; default: the environment's TENURE_URL. The
            client connects when it is first used, and is closed at the end, which releases all its leases.
        inner: the app's own lifespan. It runs within this one, and the state that it yields is kept.
        tasks: async functions to run beside the app, from the end of the inner lifespan's start. They are cancelled
            and awaited before it ends. An error of one is logged.
    """
    beside = tuple(tasks)
    for each in beside:
        refuse_sync(each, "lifespan")

    @asynccontextmanager
    async def composed(app: object) -> AsyncGenerator[State]:
        async with url() if callable(url) else AsyncClient(url) as client:
            _client.set(client)
            async with inner(app) if inner is not None else nullcontext() as state:
                started = [asyncio.create_task(_run(each)) for each in beside]
                try:
                    yield {**(state or {}), "tenure": client}
                finally:
                    for task in started:
                        task.cancel()
                    await asyncio.gather(*started, return_exceptions=True)

    return composed


async def _run(function: Callable[[], Coroutine[Any, Any, object]]) -> None:
    try:
        await function()
    except Stopped:  # the client is drained
        log.debug("%s has stopped", function.__qualname__)
    except Exception:
        log.exception("%s has failed, and does not run any more in this process", function.__qualname__)


def _client_here() -> AsyncClient:
    try:
        return _client.get()
    except LookupError:
        raise UsageError(
            "there is no client here: give the function to `lifespan(url, tasks=[...])`, or start it in the lifespan "
            "that you gave to `lifespan`"
        ) from None


def only_one(
    name: str, *, ttl: float | None = None
) -> Callable[[Callable[P, Coroutine[Any, Any, R]]], Callable[P, Coroutine[Any, Any, R]]]:
    """Have an async function run on one worker at a time, of all that call it: the holder of the lock `name`.

    The others wait. If the worker dies, another one begins after `ttl` seconds (default: that of the client); if it
    ends, at once. If the lease is lost, the function is cancelled. After a loss or an error of the function, which is
    logged, or while the store is away, the worker stands again, after a pause of 1 s, which doubles up to 60 s. If the
    function returns, so does the call, and another worker begins. The name is formatted from the call's arguments.

    Call it in a task of a `lifespan`. Raises UsageError elsewhere, or if the client is closed; Stopped if it is
    drained.
    """

    def decorate(function: Callable[P, Coroutine[Any, Any, R]]) -> Callable[P, Coroutine[Any, Any, R]]:
        refuse_sync(function)
        name_of = name_from_call(function, name)

        @wraps(function)
        async def alone(*args: P.args, **kwargs: P.kwargs) -> R:
            lock = _client_here().lock(name_of(*args, **kwargs), ttl=ttl, template=name)
            pause, now = PAUSE, asyncio.get_running_loop().time
            while True:
                try:
                    lease = await lock.acquire()
                except StoreError as error:
                    log.warning("this worker cannot stand for %r, and tries again (%s)", lock.name, error)
                    await asyncio.sleep(PAUSE)
                    continue
                began = now()
                try:
                    async with lease:
                        return await function(*args, **kwargs)
                except LeaseLost:  # logged by the lease
                    _client_here().session()  # raises UsageError if the client was closed
                    log.warning("this worker stands again for %r", lock.name)
                except Exception:
                    log.exception("%r has failed on this worker, which stands again", lock.name)
                pause = PAUSE if now() > began + LONGEST_PAUSE else pause
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)

        return alone

    return decorate


def every(
    seconds: float,
    name: str | None = None,
    *,
    ttl: float | None = None,
    attempts: int = 1,
    at_most: float | None = None,
) -> Callable[[Callable[[], Coroutine[Any, Any, object]]], Callable[[], Coroutine[Any, Any, None]]]:
    """Have an async function run once in each window of so many `seconds`, on one of the workers that call it.

    It is a job (`AsyncClient.once`) called `name` (default: the function's module and name), with its record, its
    `attempts`, `at_most` and `ttl`. The call never returns. Errors of the function are logged. A tick begins within 15
    seconds, or a quarter of the window if that is shorter, and at once if this machine's clock agrees with the store's.

    Call it in a task of a `lifespan`. Raises UsageError elsewhere, or if the client is closed; Stopped if it is
    drained.
    """

    def decorate(function: Callable[[], Coroutine[Any, Any, object]]) -> Callable[[], Coroutine[Any, Any, None]]:
        refuse_sync(function, "job")

        @wraps(function)
        async def ticking() -> None:
            client = _client_here()
            job = client.once(
                name or f"{function.__module__}.{function.__qualname__}",
                window=seconds,
                ttl=ttl,
                attempts=attempts,
                at_most=at_most,
            )
            while True:
                try:
                    await job.run(function)
                except Stopped:
                    raise
                except StoreError as error:
                    log.warning("this worker cannot run %r, and tries again (%s)", job, error)
                except Exception:
                    client.session()  # raises UsageError if the client is closed: no later tick can run
                    log.exception("%r has failed", job)
                apart = random.uniform(0, min(1.0, seconds / 10))  # noqa: S311 - keeps the workers apart
                await asyncio.sleep(min(seconds - time.time() % seconds + apart, LOOK_EVERY, seconds / 4))

        return ticking

    return decorate
