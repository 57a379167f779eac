"""The replacement of a function of the code under test, in an object, a class or a module."""

import contextlib
import inspect
from collections.abc import Callable
from typing import Any

import pytest

from tenure.errors import UsageError

Function = Callable[..., Any]

BINDING: tuple[Any, ...] = (staticmethod, classmethod)
"""The wrappers of functions that a class does not bind to its objects."""


def title_of(function: Function, name: str) -> str:
    """Return the title of the function `name` in a report."""
    return str(getattr(function, "__qualname__", name))


def replace(owner: object, name: str, wrap: Callable[[Function], Function]) -> Callable[[], None]:
    """Replace the function `owner.name` by `wrap` of it, and return a function that undoes the replacement.

    Raises UsageError if `owner.name` is no function, or a function whose work does not happen in its call.
    """
    _refuse_special(owner, name)
    static: Any = inspect.getattr_static(owner, name, None) if inspect.isclass(owner) else None
    bind = next((kind for kind in BINDING if isinstance(static, kind)), None)
    function: Function = getattr(owner, name) if bind is None else static.__func__
    _refuse_what_is_no_call(owner, name, function)
    wrapped = wrap(function)
    patch = pytest.MonkeyPatch()
    try:
        patch.setattr(owner, name, wrapped if bind is None else bind(wrapped))
    except (AttributeError, TypeError) as error:
        raise UsageError(
            f"{name!r} of {owner!r} cannot be replaced ({error}). Give a function of your own that calls it."
        ) from None
    return patch.undo


def _refuse_special(owner: object, name: str) -> None:
    if name.startswith("__") and name.endswith("__") and not inspect.isclass(owner):
        kind = type(owner).__name__
        raise UsageError(f"Python looks up {name} in the class: give the class, {kind}, instead of the object.")


def _refuse_what_is_no_call(owner: object, name: str, function: object) -> None:
    """Raise UsageError for an object that is not callable, or that does its work after its call has returned."""
    if not callable(function):
        raise UsageError(f"{name!r} of {owner!r} is no function. Give the function that writes or takes long.")
    code = getattr(function, "__code__", None)
    is_context = getattr(code, "co_filename", "") == contextlib.__file__
    if is_context or inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise UsageError(
            f"{title_of(function, name)} is a {'context manager' if is_context else 'generator'}: it does its work "
            "after the call, where `tenure_chaos` does not see it. Give the function called inside it that writes "
            "or takes long."
        )
