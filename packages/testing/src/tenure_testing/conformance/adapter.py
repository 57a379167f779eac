"""An adapter that gives the sync API the shape of the async API, so that a check is written once for both.

The async class of a sync class has the same name with the prefix `Async`, and stands in the same module. Where it has a
coroutine function, the adapter returns a coroutine that runs the sync method in place and never suspends. So a thread
can drive a check that awaits nothing else.
"""

import inspect
import sys
from collections.abc import Awaitable, Callable, Coroutine
from functools import cache
from typing import Any, cast

from tenure.client import AsyncClient, Client

_SYNC_NAMES = {"__aenter__": "__enter__", "__aexit__": "__exit__", "__anext__": "__next__"}


def adapt(client: Client | AsyncClient, keep: Callable[[object], object] | None = None) -> AsyncClient:
    """Return `client` in the shape of an `AsyncClient`.

    `keep` is called with each lease that a call returns. An `AsyncClient` needs no adapter, except for `keep`.
    """
    return cast("AsyncClient", _adapted(client, keep))


class Adapter:
    """An object of the sync or the async API in the shape of the async API; so are the objects that it returns."""

    def __init__(self, target: object, twin: type, keep: Callable[[object], object] | None) -> None:
        """Give `target` the shape of the async class `twin`."""
        self._target = target
        self._twin = twin
        self._keep = keep

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - as typed in the async class
        """Return an attribute of the target. Raises AttributeError if the target or its async class lacks it."""
        own_name = name if isinstance(self._target, self._twin) else _SYNC_NAMES.get(name, name)
        value = getattr(self._target, own_name)
        if not callable(value):
            return _adapted(value, self._keep)
        function = getattr(self._twin, name)
        if inspect.iscoroutinefunction(function):
            return self._coroutine_function(value)
        awaitable = _returned_awaitable(function)

        def call(*args: object, **kwargs: object) -> object:
            if awaitable is not None:  # the returned class wraps a coroutine, as that of `campaign` does
                return awaitable(self._coroutine_function(value)(*args, **kwargs))
            return _adapted(value(*args, **kwargs), self._keep)

        return call

    def _coroutine_function(self, function: Callable[..., Any]) -> Callable[..., Coroutine[Any, Any, object]]:
        async def call(*args: object, **kwargs: object) -> object:
            try:
                result = function(*args, **kwargs)
            except StopIteration:
                raise StopAsyncIteration from None
            if inspect.isawaitable(result):
                result = await result
            if self._keep is not None and hasattr(result, "release"):
                self._keep(result)
            return _adapted(result, self._keep)

        return call

    async def __aenter__(self) -> object:
        return await self.__getattr__("__aenter__")()

    async def __aexit__(self, *error: object) -> None:
        await self.__getattr__("__aexit__")(*error)

    def __aiter__(self) -> "Adapter":
        return self

    async def __anext__(self) -> object:
        return await self.__getattr__("__anext__")()

    def __bool__(self) -> bool:
        return bool(self._target)

    def __repr__(self) -> str:
        return f"<{self._target!r} in the shape of {self._twin.__name__}>"


def _adapted(value: object, keep: Callable[[object], object] | None) -> object:
    """Return an adapter of an object that has an async class; return any other object unchanged."""
    twin = async_class_of(type(value))
    return value if twin is None else Adapter(value, twin, keep)


def async_class_of(kind: type) -> type | None:
    """Return the async class of `kind`, which is `kind` if it is async; None if there is none."""
    name = kind.__name__ if kind.__name__.startswith("Async") else f"Async{kind.__name__}"
    for module in (kind.__module__, kind.__module__.rpartition(".")[0]):  # the two clients share but their package
        found = getattr(sys.modules.get(module), name, None)
        if isinstance(found, type):
            return found
    return None


@cache
def _returned_awaitable(function: Callable[..., object]) -> Callable[..., object] | None:
    """Return the awaitable class that a function is annotated to return; None if it returns another type."""
    kind = inspect.signature(function).return_annotation
    return kind if Awaitable in getattr(kind, "__mro__", ()) else None
