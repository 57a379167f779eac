"""A table of rows in a bucket: an object a row, written if it has its ETag still (If-Match), or if it is not there.

The versions of a row are what the bucket compares: an ETag, in Google's a generation. No two values of a row are alike,
so an ETag that is a digest of the value does not come again.

**The end of the process.** obstore answers a request from a thread of its own, which needs the interpreter for that,
and for a moment more. If the interpreter ends meanwhile, it ends that thread, which aborts the process before Python
3.14: frames of Rust do not bear that. So at the end, after all clients are closed, requests that are under way are
cancelled, and the end waits until obstore has let go of all futures that it gave out.
"""

import asyncio
import os
import re
import time
import weakref
from contextlib import suppress
from typing import Any

import obstore
from obstore import exceptions
from obstore.store import MemoryStore

from tenure.errors import StoreError, StoreUnavailable
from tenure.runtimes.ending import call_at_the_very_end
from tenure.stores.rows import Row

REFUSED = (exceptions.AlreadyExistsError, exceptions.PreconditionError)

HOPELESS = (
    exceptions.PermissionDeniedError,
    exceptions.UnauthenticatedError,
    exceptions.InvalidPathError,
    exceptions.NotSupportedError,
)
"""The errors after which no repetition helps."""

NO_CREDENTIALS = "no credentials were found: name them in the environment or the URL, or give the machine a role"

CAUSES = (
    ("169.254.169.254", NO_CREDENTIALS),
    ("metadata.google.internal", NO_CREDENTIALS),
    ("Account must be specified", "name the account as ?account_name="),
    ("BadScheme", "the endpoint has no TLS: if it may have none, add &allow_http=true"),
    ("kind: Connect", "it cannot be reached"),
)
"""What is found in the text of an error, which may contain a signature, and what is told instead of the text. The first
two are the addresses at which clouds give credentials to their machines."""

LONGEST = 200
"""How many characters a part of a path has at most."""

JOINT = "+/"
"""What is between two parts of a long key. No key contains it, so a part has no name that is a whole key's, too."""

ENDING = 2.0
"""How long the end of the process waits for requests under way, in seconds."""

_used_by: list[int] = []
"""The process that has sent requests. Its threads, in which obstore works, do not exist in a forked child."""

_under_way: set["weakref.ref[asyncio.Future[Any]]"] = set()
"""The futures that obstore may yet need the interpreter for: it lets go of each when it has done all with it."""

_ending: list[bool] = []
"""Not empty once the process ends."""


class ObjectTable:
    """The rows of a bucket."""

    def __init__(self, bucket: Any, title: str) -> None:  # noqa: ANN401 - any of the stores of obstore
        """Use a bucket of obstore."""
        self._bucket = bucket
        self._title = title

    async def read(self, key: str, timeout: float) -> Row:
        """Return a row; `Row()` if there is none."""
        try:
            async with asyncio.timeout(timeout):
                self._begin()
                found = await _sent(obstore.get_async(self._bucket, _path(key)))
                return Row(bytes(await _sent(found.bytes_async())), _version(found.meta))
        except FileNotFoundError:
            return Row()
        except exceptions.BaseError as error:
            raise self._error(error, StoreUnavailable) from None

    async def write(self, key: str, value: bytes, version: Any, timeout: float) -> Any:  # noqa: ANN401
        """Write a row if it has this version still; return its new version, or None."""
        try:
            async with asyncio.timeout(timeout):
                self._begin()
                mode: Any = "create" if version is None else version
                return _version(
                    await _sent(obstore.put_async(self._bucket, _path(key), value, mode=mode, use_multipart=False))
                )
        except REFUSED:
            return None
        except FileNotFoundError:
            raise StoreError(f"{self._title} is not there: make the bucket") from None
        except HOPELESS as error:
            raise self._error(error, StoreError) from None

    async def keys(self, prefix: str, after: str, most: int, timeout: float) -> list[str]:
        """Return up to `most` keys that begin with `prefix` and follow `after`, in the order of their bytes."""
        found: list[str] = []
        try:
            async with asyncio.timeout(timeout):
                self._begin()
                start = _path(max(prefix[:-1], after))
                pages: Any = obstore.list(self._bucket, offset=start, chunk_size=most)  # pyright: ignore[reportUnknownMemberType]
                with suppress(StopAsyncIteration):
                    while len(found) < most:
                        keys = [each["path"].replace(JOINT, "") for each in await _sent(anext(pages))]
                        found += [key for key in keys if key.startswith(prefix)]
                        if keys[-1] > f"{prefix}\x7f":
                            break
        except exceptions.BaseError as error:
            raise self._error(error, StoreUnavailable) from None
        return sorted(found)[:most]

    async def close(self) -> None:
        """Do nothing: obstore keeps its connections for the next table."""

    def _begin(self) -> None:
        """Refuse to wait in a forked child for threads that it does not have, and to begin anything at the end."""
        if _ending:
            raise StoreUnavailable(f"the request to {self._title} was not sent: the process ends")
        if not _used_by:
            _used_by.append(os.getpid())
        elif _used_by[0] != os.getpid():
            raise StoreError(
                f"{self._title} cannot be used by a process that was forked from one that has used a bucket: start "
                "processes by `spawn`, or use the first client after the fork."
            )

    def _error(self, error: Exception, kind: type[StoreError]) -> StoreError:
        """Translate an error."""
        kind = StoreError if isinstance(error, HOPELESS) else kind
        return kind(f"a request to {self._title} failed ({cause_of(error)})")


async def _sent(future: Any) -> Any:  # noqa: ANN401 - asyncio.Future, which obstore declares as a coroutine
    """Return the reply to a request."""
    _under_way.add(weakref.ref(future, _under_way.discard))
    try:
        return await future
    finally:
        del future  # else an error would keep it, by its traceback


def _end_requests() -> None:
    """Cancel all requests, begin no more, and wait until no thread of obstore needs the interpreter any more."""
    _ending.append(True)
    until = time.monotonic() + ENDING
    while _under_way and _used_by == [os.getpid()] and time.monotonic() < until:
        for each in _under_way.copy():
            if (future := each()) is not None:
                with suppress(RuntimeError):  # its loop is closed
                    future.get_loop().call_soon_threadsafe(future.cancel)
            del future
        MemoryStore()  # with each call obstore lets go of what its threads have left
        time.sleep(0.001)


call_at_the_very_end(_end_requests)


def cause_of(error: Exception) -> str:
    """Return what is told of an error of obstore. Its text may contain a signature, so no part of it is."""
    text = str(error)
    if told := next((told for sign, told in CAUSES if sign in text), ""):
        return told
    status = re.search(r"status code: (\d{3})", text)
    return f"HTTP {status[1]}" if status else type(error).__name__


def _path(key: str) -> str:
    """Return the path of a row: some servers take no part of a path that is longer than the name of a file."""
    return JOINT.join(key[at : at + LONGEST] for at in range(0, len(key), LONGEST)) if len(key) > LONGEST else key


def _version(meta: Any) -> dict[str, str]:  # noqa: ANN401
    """Return what a write compares; obstore takes no field that is None."""
    return {each: meta[each] for each in ("e_tag", "version") if meta[each] is not None}
