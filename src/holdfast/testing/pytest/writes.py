"""The writes of the code under test: each must happen while a lease is held, or be refused by a fence."""

import asyncio
import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from holdfast.errors import StaleTokenError, UsageError
from holdfast.testing.pytest.leases import Leases
from holdfast.testing.pytest.places import caller

Function = Callable[..., Any]


@dataclass(slots=True, frozen=True)
class Unprotected:
    """A write that must not have happened."""

    what: str
    place: str
    why: str

    def __str__(self) -> str:
        return f"{self.place}  ({self.what}: {self.why})"


class Writes:
    """Judges the calls of the functions that write."""

    def __init__(self, leases: Leases, spent: Callable[[str], None]) -> None:
        """Judge by `leases`; `spent` is called after what may take long and does not await, with what it was."""
        self._leases = leases
        self._spent = spent
        self.count = 0
        """How many writes there were, refused ones included."""
        self.unprotected: list[Unprotected] = []

    def watched(self, original: Function, name: str, token: str | None) -> Function:
        """Return the function `name` such that each call is judged; `token` is its parameter for the fencing token."""
        what = getattr(original, "__qualname__", name)
        token_of = _finder(original, what, token)

        def judge(arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
            self.count += 1
            given = token_of(arguments, options)
            if given is not None:
                self._refuse_stale(what, given)
            elif why := self._leases.objection():
                self.unprotected.append(Unprotected(what, caller(), why))

        @functools.wraps(original)
        def write(*arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - whatever the original takes and returns
            judge(arguments, options)
            result = original(*arguments, **options)
            if not _in_loop():
                self._spent("just after this write")
            return result

        @functools.wraps(original)
        async def write_async(*arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - as above
            judge(arguments, options)
            result = await original(*arguments, **options)
            await asyncio.sleep(0)  # a fake may not suspend, but what it stands for does
            return result

        return write_async if inspect.iscoroutinefunction(original) else write

    def slow(self, original: Function) -> Function:
        """Return `original` such that a lease may be lost during each call."""

        @functools.wraps(original)
        def call(*arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - as above
            result = original(*arguments, **options)
            self._spent("during this call")
            return result

        return call

    def _refuse_stale(self, what: str, token: int) -> None:
        if self._leases.is_stale(token):
            raise StaleTokenError(
                f"token {token} is stale: its lease has ended, and `holdfast_chaos` takes it that the next holder has "
                f"been at {what}. Nothing was written."
            )


def _finder(
    original: Function, what: str, token: str | None
) -> Callable[[tuple[Any, ...], dict[str, Any]], int | None]:
    """Return what finds the token in the arguments of a call. Raises UsageError if the function takes no such one."""
    if token is None:
        return lambda _arguments, _options: None
    signature = inspect.signature(original)
    if token not in signature.parameters and all(
        each.kind is not each.VAR_KEYWORD for each in signature.parameters.values()
    ):
        raise UsageError(
            f"holdfast_chaos.watch(..., token={token!r}): {what}{signature} has no parameter of this name. "
            "Name the parameter that takes the fencing token."
        )

    def find(arguments: tuple[Any, ...], options: dict[str, Any]) -> int | None:
        return options[token] if token in options else signature.bind(*arguments, **options).arguments.get(token)

    return find


def _in_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
