"""Refuses functions of the user whose call returns before they have run.

A lock is held, and a job is running, for as long as the call of a function takes. The call of an async function, a
generator function or a context manager returns before its body has run. Such a function is refused when it is given, if
it shows what it is. A result that still has to run is always refused.
"""

import functools
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Iterator
from contextlib import AsyncContextDecorator, ContextDecorator
from typing import Any, TypeVar

from tenure.errors import UsageError

R = TypeVar("R")

JOB = "job"

UNRUN: tuple[tuple[type, str], ...] = (
    (Coroutine, "a coroutine"),
    (Awaitable, "an awaitable"),
    (Generator, "a generator"),
    (AsyncGenerator, "an async generator"),
    (ContextDecorator, "a context manager"),  # what @contextmanager makes; a file, which is open already, is none
    (AsyncContextDecorator, "an async context manager"),
)
"""Results of a call that has not run yet, in the words of an error."""

UNRUN_TYPES = tuple(kind for kind, _ in UNRUN)


def title_of(function: object) -> str:
    """Return the name of a function for an error, without the arguments of a partial."""
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__qualname__", type(function).__qualname__))


def refuse_async(function: object, what: str = "lock") -> None:
    """Raise UsageError if `function`, for `what` of a Client, is async or a generator.

    A plain function that wraps one is taken, because it may run it, as one with `asyncio.run` does.
    """
    _refuse_generator(function, what, "with")
    if any(map(inspect.iscoroutinefunction, _parts(function))):
        raise UsageError(f"{title_of(function)} is async: give it to a {what} of an AsyncClient")


def refuse_sync(function: object, what: str = "lock") -> None:
    """Raise UsageError unless `function`, for `what` of an AsyncClient, is async or wraps an async one."""
    _refuse_generator(function, what, "async with")
    if not any(map(inspect.iscoroutinefunction, (*_parts(function), *_wrapped(function)))):
        raise UsageError(f"{title_of(function)} is not async: give it to a {what} of a Client")


def refuse_async_callback(callback: object, option: str) -> None:
    """Raise UsageError if a callback is async: nobody would await it."""
    if callback is not None and any(map(inspect.iscoroutinefunction, _parts(callback))):
        raise UsageError(
            f"{title_of(callback)} is async, and {option} calls a plain function: let it start a task or set an event"
        )


def _refuse_generator(function: object, what: str, entry: str) -> None:
    for part in _parts(function):
        if inspect.isgeneratorfunction(part) or inspect.isasyncgenfunction(part):
            instead = (
                f"take the {what} inside it, with `{entry}`" if what != JOB else "run it in a function, to its end"
            )
            raise UsageError(f"{title_of(function)} is a generator: {instead}")


def _parts(function: object) -> Iterator[object]:
    """Yield what a call surely calls: the function, the `__call__` of an object, what contextlib has wrapped."""
    while isinstance(function, functools.partial):
        function = function.func
    yield function
    if not inspect.isroutine(function) and not inspect.isclass(function):
        yield getattr(type(function), "__call__", None)  # noqa: B004 - the method of the type, to look at
    for each in _wrapped(function):
        if getattr(function, "__globals__", {}).get("__name__") != "contextlib":
            return
        yield each
        function = each


def _wrapped(function: object) -> Iterator[object]:
    """Yield the functions that a function wraps, as `functools.wraps` notes them."""
    seen = {id(function)}
    while (function := getattr(function, "__wrapped__", None)) is not None and id(function) not in seen:
        seen.add(id(function))
        yield function


def awaitable(function: Callable[..., object], result: Awaitable[R]) -> Awaitable[R]:
    """Return what a call of an async function returned. Raises UsageError if it is not awaitable."""
    if not inspect.isawaitable(result):
        raise UsageError(f"{title_of(function)} is not async: it returned {type(result).__qualname__}, no awaitable")
    return result


def finished(function: Callable[..., object], value: R) -> R:
    """Return what a function returned. Raises UsageError if that still has to run."""
    if value is None or not isinstance(value, UNRUN_TYPES):
        return value
    raise UsageError(
        f"{title_of(function)} returned {_closed(value)}, which still has to run: run it inside the function, so that "
        "it has ended when the function returns"
    )


def _closed(value: Any) -> str:  # noqa: ANN401 - of any kind in UNRUN
    """Close a result, so that the interpreter does not warn of it; return its kind, for an error."""
    if inspect.iscoroutine(value) or inspect.isgenerator(value):
        value.close()
    return next(name for kind, name in UNRUN if isinstance(value, kind))
