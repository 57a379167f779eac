"""Adapter for FastAPI: a lock that is held while a route works, and what `tenure.starlette` has.

For FastAPI 0.121 and later.
"""

import logging
from collections.abc import AsyncGenerator
from typing import Any, Unpack

from tenure.client import AsyncClient
from tenure.errors import LockTimeout, Stopped, StoreError, UsageError
from tenure.explanation import Cause
from tenure.lease import AsyncLease
from tenure.primitives.decorating import fields_of, retry_after
from tenure.primitives.options import PlainOptions
from tenure.starlette import every, lifespan, only_one
from tenure.stores.extras import needed_by

with needed_by("tenure.fastapi", "FastAPI", "fastapi", "fastapi", "starlette"):
    from fastapi import Depends, HTTPException
    from starlette.requests import HTTPConnection

__all__ = ["Held", "every", "lifespan", "only_one"]

MOST_NAME = 512
"""The most bytes of a name."""

log = logging.getLogger("tenure")


def Held(  # noqa: N802 - as `Depends`
    name: str, *, ttl: float | None = None, timeout: float = 0.0, status: int = 409, **options: Unpack[PlainOptions]
) -> Any:  # noqa: ANN401 - as `Depends`
    """Return a dependency that holds a lock while the route runs.

    Write `lease: Annotated[AsyncLease, Held("orders:{id}")]` among its parameters. The name is filled from those of the
    path. The lease is released before the response is sent, and so before a `StreamingResponse` is made and a
    background task begins. If the lease is lost, an async route is cancelled; a plain one, which runs in a thread, goes
    on, and learns of it by `lease.check()`. Both are answered 500.

    Args:
        name: the name of the lock, a format string.
        ttl: the crash bound, in seconds; default: that of the client.
        timeout: how long to wait, in seconds. If the lock is still busy, or the store away, the route is not called.
        status: the answer if the lock is busy: 409 or 423. It is 503 if the store is away or in quarantine, or the
            client drained, and 422 if a filled name has more than 512 bytes. A Retry-After tells when to come again.
        options: those of `AsyncClient.lock`.
    """
    fields_of(name)  # a name that is no format string is refused now, not with the first request
    retry = retry_after(timeout)
    options.setdefault("template", name)

    async def held(connection: HTTPConnection) -> AsyncGenerator[AsyncLease]:
        client: object = getattr(connection.state, "tenure", None)
        if not isinstance(client, AsyncClient):
            raise UsageError(
                "this app has no client: make it by FastAPI(lifespan=lifespan(url)), and in a test enter `with "
                "TestClient(app)`"
            )
        try:
            filled = name.format(**connection.path_params)
        except LookupError as error:
            known = ", ".join(connection.path_params) or "none"
            raise UsageError(f"Held({name!r}) uses {error}, but the path has the parameters {known}") from None
        if len(filled.encode()) > MOST_NAME:
            raise HTTPException(422, "the path is too long")
        try:
            lease = await client.lock(filled, ttl=ttl, timeout=timeout, **options).acquire()
        except (LockTimeout, StoreError, Stopped) as error:
            if isinstance(error, LockTimeout) and not _in_quarantine(error):
                raise HTTPException(status, f"{filled} is busy: try again later", retry) from None
            log.warning("%r is not held for a request, which is answered 503 (%s)", filled, error)
            raise HTTPException(503, "locks are not available: try again later", retry) from None
        async with lease:
            yield lease

    return Depends(held, scope="function")


def _in_quarantine(error: LockTimeout) -> bool:
    return error.explanation is not None and error.explanation.cause is Cause.QUARANTINE
