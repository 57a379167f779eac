"""The writes of the code under test: each must happen while a lease is held, or be refused by a fence."""

import asyncio
import functools
import inspect
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, cast

from tenure.errors import StaleTokenError, UsageError
from tenure_testing.pytest.functions import Function, title_of
from tenure_testing.pytest.places import caller
from tenure_testing.pytest.points import Points


@dataclass(slots=True, frozen=True)
class Unprotected:
    """A write without a valid lease, and without a fence."""

    what: str
    place: str
    why: str

    def __str__(self) -> str:
        return f"{self.place}  ({self.what}: {self.why})"


class Writes:
    """The judge of all calls of functions that write."""

    def __init__(self, points: Points) -> None:
        """Judge the writes by the leases of `points`."""
        self._points = points
        self.count = 0
        """The number of writes, including refused ones."""
        self.unprotected: list[Unprotected] = []
        self.over = False
        """Whether the test has ended. A function that is still replaced then only calls its original."""

    def watched(self, original: Function, name: str, token: str | None) -> Function:
        """Return a replacement of `name` that judges each call; `token` is the parameter for the fencing token."""
        what = title_of(original, name)
        token_of = _finder(original, what, token)

        def judge(arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
            self.count += 1
            self._points.must_see()
            given = token_of(arguments, options)
            if given is not None:
                self._refuse_stale(what, given)
            elif why := self._points.objection():
                self.unprotected.append(Unprotected(what, caller(what), why))

        async def suspending(coroutine: Coroutine[Any, Any, Any]) -> object:
            result: object = await coroutine
            await asyncio.sleep(0)  # a fake may not suspend, but the real function does
            return result

        @functools.wraps(original)
        def write(*arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - the types of the original
            if self.over:
                return original(*arguments, **options)
            judge(arguments, options)
            result = original(*arguments, **options)
            if inspect.iscoroutine(result):
                return suspending(result)
            if not _in_loop():
                self._points.spent("just after this write", what)
            return result

        @functools.wraps(original)
        async def write_async(*arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - as above
            result = write(*arguments, **options)
            return await result

        return write_async if inspect.iscoroutinefunction(original) else write

    def slow(self, original: Function, name: str) -> Function:
        """Return a replacement of `name` during whose calls a lease may be lost."""

        @functools.wraps(original)
        def call(*arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - as above
            result = original(*arguments, **options)
            if not self.over:
                self._points.spent("during this call", title_of(original, name))
            return result

        return call

    def _refuse_stale(self, what: str, given: object) -> None:
        token = _number(what, given)
        if self._points.leases.is_stale(token):
            raise StaleTokenError(
                f"token {token} is stale: its lease has ended, and `tenure_chaos` assumes that the next holder has "
                f"called {what}. Nothing was written."
            )


def _finder(original: Function, what: str, token: str | None) -> Callable[[tuple[Any, ...], dict[str, Any]], object]:
    """Return a function that finds the token among the arguments of a call.

    Raises UsageError if `original` has no parameter `token`.
    """
    if token is None:
        return lambda _arguments, _options: None
    try:
        signature = inspect.signature(original)
    except ValueError:
        message = f"tenure_chaos.watch(..., token={token!r}): {what} has no signature. Leave `token` out."
        raise UsageError(message) from None
    if token not in signature.parameters and all(
        each.kind is not each.VAR_KEYWORD for each in signature.parameters.values()
    ):
        raise UsageError(
            f"tenure_chaos.watch(..., token={token!r}): {what}{signature} has no parameter of this name. "
            "Give the parameter that takes the fencing token."
        )

    def find(arguments: tuple[Any, ...], options: dict[str, Any]) -> object:
        return options[token] if token in options else signature.bind(*arguments, **options).arguments.get(token)

    return find


def _number(what: str, given: object) -> int:
    try:
        return int(cast("int", given))
    except (TypeError, ValueError):
        message = f"{what} was given {given!r}, of type {type(given).__name__}, as a fencing token. Pass `lease.token`."
        raise UsageError(message) from None


def _in_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
