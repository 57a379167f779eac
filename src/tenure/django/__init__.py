"""Adapter for Django 5.2 and later: clients from the settings, a decorator for views, management commands.

Put "tenure.django" into INSTALLED_APPS, and the stores into TENURE:

    TENURE = {"default": {"URL": "redis://localhost", "NAMESPACE": "shop"}}

The keys of a store are the arguments of a Client, in capital letters.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import wraps
from typing import Any, Generic, TypeVar, Unpack, cast

from tenure.client import AsyncClient, Client
from tenure.errors import LockTimeout, Stopped, StoreError, UsageError
from tenure.primitives.decorating import name_from_call, retry_after
from tenure.primitives.options import PlainOptions
from tenure.stores.extras import needed_by

with needed_by("tenure.django", "Django", "django", "django", "asgiref"):
    from asgiref.sync import iscoroutinefunction
    from django.conf import settings
    from django.core.signals import setting_changed
    from django.db import connections, transaction
    from django.http import HttpRequest, HttpResponse

__all__ = ["async_locks", "lock", "locks"]

DEFAULT = "default"

C = TypeVar("C", Client, AsyncClient)
F = TypeVar("F", bound=Callable[..., Any])


def configured() -> Mapping[str, Mapping[str, object]]:
    """Return the stores in the settings; without TENURE the default one. Raises UsageError if they are none."""
    stores: object = getattr(settings, "TENURE", {DEFAULT: {}})
    if not isinstance(stores, dict) or not all(
        isinstance(each, dict) for each in cast("dict[str, object]", stores).values()
    ):
        raise UsageError('TENURE in the settings is not like {"default": {"URL": "redis://localhost"}}')
    return cast("Mapping[str, Mapping[str, object]]", stores)


def arguments(alias: str) -> dict[str, Any]:
    """Return the arguments of the client of a store. Raises UsageError if there is no such store."""
    stores = configured()
    if alias not in stores:
        raise UsageError(f"TENURE in the settings has no store {alias!r}, only: {', '.join(stores) or 'none'}")
    for key in stores[alias]:
        if key != key.upper():
            raise UsageError(f"TENURE in the settings has the key {key!r}: write {key.upper()!r}")
    return {key.lower(): value for key, value in stores[alias].items()}


class Clients(Generic[C]):
    """The clients of this process by the aliases of their stores: `locks["default"]`. Each is made when it is needed.

    A forked child goes on with the clients of its parent, which start anew there. They are closed at the end of the
    process, or, those for asyncio, with their event loop.
    """

    def __init__(self, kind: type[C]) -> None:
        """Make no client yet."""
        self._kind: type[C] = kind
        self._made: dict[str, C] = {}

    def __getitem__(self, alias: str) -> C:
        made = self._made.get(alias)
        return self._made.setdefault(alias, self._kind(**arguments(alias))) if made is None else made

    def __iter__(self) -> Iterator[str]:
        return iter(configured())

    def forget(self) -> list[C]:
        """Forget all clients, and return them."""
        made, self._made = self._made, {}
        return list(made.values())


locks: Clients[Client] = Clients(Client)
"""The clients for threads: `with locks["default"].lock("orders:42", timeout=5):`."""

async_locks: Clients[AsyncClient] = Clients(AsyncClient)
"""The clients for asyncio: `async with async_locks["default"].lock("orders:42", timeout=5):`."""


def _settings_changed(*, setting: str, **_: object) -> None:
    """Begin anew in a test that overrides the setting."""
    if setting == "TENURE":
        async_locks.forget()
        for client in locks.forget():
            client.close()


setting_changed.connect(_settings_changed)


# -- the decorator -------------------------------------------------------------------------------------------


class _AllDatabases:
    """Stands for the set of all databases in `_non_atomic_requests`: Django begins no transaction around a view."""

    def __init__(self, left_out: Iterable[str]) -> None:
        """Remember the databases that the view leaves out of its own transactions."""
        self.left_out = set(left_out)

    def __contains__(self, alias: object) -> bool:
        return True

    def add(self, alias: str) -> None:
        """Leave a database out, as `@non_atomic_requests` around the lock asks."""
        self.left_out.add(alias)


def lock(
    name: str,
    *,
    using: str = DEFAULT,
    ttl: float | None = None,
    timeout: float | None = 10.0,
    status: int = 409,
    **options: Unpack[PlainOptions],
) -> Callable[[F], F]:
    """Have each call of a view, or of any function, hold a lock: `@lock("orders:{order_id}")`; also of async ones.

    The name is filled from the arguments of the call. The lock is released before the response is sent, and so before a
    streaming response is made. With ATOMIC_REQUESTS the transaction of the view is begun under the lock, and committed
    before the release.

    Args:
        name: the name of the lock, a format string.
        using: the alias of the store in the settings.
        ttl: the crash bound, in seconds; default: that of the client.
        timeout: how long to wait, in seconds; None: for ever.
        status: what a view answers if the lock is busy for so long. It answers 503 if the store is away. Nothing was
            done then, and Retry-After says when to come again. Functions that are no views raise instead.
        options: those of `Client.lock`, but `busy`.

    Raises UsageError if a plain function is called within `transaction.atomic()`, as the lock would be released before
    the commit; LeaseLost if the lease was lost: the function may have done its work.
    """
    if "busy" in options:
        raise UsageError("the decorator of Django takes no busy=: give timeout=0 to wait for nothing")
    options.setdefault("template", name)

    def decorate(function: F) -> F:
        name_of = name_from_call(function, name)
        left_out = getattr(function, "_non_atomic_requests", ())
        databases = left_out if isinstance(left_out, _AllDatabases) else _AllDatabases(left_out)
        begins = databases is not left_out  # else the lock below begins the transactions

        @wraps(function)
        def locked(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - those of the function
            _refuse_in_transaction(name)
            try:
                lease = locks[using].lock(name_of(*args, **kwargs), ttl=ttl, timeout=timeout, **options).acquire()
            except (LockTimeout, StoreError, Stopped) as error:
                return _refusal(error, args, status, timeout)
            with lease:
                atomic = begins and _is_view(args)
                return (_in_transactions(function, databases) if atomic else function)(*args, **kwargs)

        @wraps(function)
        async def locked_async(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - those of the function
            made = async_locks[using].lock(name_of(*args, **kwargs), ttl=ttl, timeout=timeout, **options)
            try:
                lease = await made.acquire()
            except (LockTimeout, StoreError, Stopped) as error:
                return _refusal(error, args, status, timeout)
            async with lease:
                return await function(*args, **kwargs)

        if iscoroutinefunction(function):  # pyright: ignore[reportDeprecated] - Django marks views for it
            return cast("F", locked_async)
        vars(locked)["_non_atomic_requests"] = databases
        return cast("F", locked)

    return decorate


def _is_view(args: tuple[object, ...]) -> bool:
    return bool(args) and isinstance(args[0], HttpRequest)


def _in_transactions(view: Callable[..., Any], databases: _AllDatabases) -> Callable[..., Any]:
    """Return a view in the transactions that Django would have begun around it."""
    for alias, database in connections.settings.items():
        if database["ATOMIC_REQUESTS"] and alias not in databases.left_out:
            view = transaction.atomic(using=alias)(view)
    return view


def _refuse_in_transaction(name: str) -> None:
    """Raise UsageError within `atomic()`. The blocks around a test of Django's TestCase are not the user's."""
    for connection in connections.all(initialized_only=True):
        if not all(getattr(block, "_from_testcase", False) for block in connection.atomic_blocks):
            raise UsageError(
                f"a function under the lock {name!r} was called within transaction.atomic(), so the lock would be "
                "released before the commit: call it outside of the transaction, and begin that in the function"
            )


def _refusal(
    error: LockTimeout | StoreError | Stopped, args: tuple[object, ...], status: int, timeout: float | None
) -> HttpResponse:
    """Return what a view answers if the lock was not granted; any other function raises the error."""
    if not _is_view(args):
        raise error
    busy = isinstance(error, LockTimeout)
    text = "busy: try again later" if busy else "locks are not available: try again later"
    return HttpResponse(text, content_type="text/plain", status=status if busy else 503, headers=retry_after(timeout))
