"""The decorators: the check of the functions that they take, and the format of the name from the call's arguments."""

import inspect
import string
from collections.abc import Callable
from typing import ParamSpec

from tenure.errors import UsageError

P = ParamSpec("P")


def title_of(function: object) -> str:
    """Return the name of a function for an error."""
    return str(getattr(function, "__qualname__", function))


def refuse_generator(function: object, entry: str) -> None:
    """Raise UsageError if `function` would run after its call has returned; `entry` is what to write inside it."""
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        message = f"{title_of(function)} is a generator: take the lock inside it, with `{entry}`"
        raise UsageError(message)


def name_from_call(function: Callable[P, object], template: str) -> Callable[P, str]:
    """Return a function that formats `template` with the arguments of a call of `function`."""
    signature = inspect.signature(function)
    try:
        fields = [field for _, field, _, _ in string.Formatter().parse(template) if field is not None]
    except ValueError as error:
        message = f"the name {template!r} is not a format string ({error}): write {{{{ and }}}} for braces"
        raise UsageError(message) from None
    for field in fields:
        root = field.partition(".")[0].partition("[")[0]
        if root not in signature.parameters:
            known = ", ".join(signature.parameters) or "none"
            title = title_of(function)
            message = f"the name {template!r} uses {{{root}}}, but {title} has no such parameter: use one of {known}"
            raise UsageError(message)

    def name_of(*args: P.args, **kwargs: P.kwargs) -> str:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return template.format(**bound.arguments)

    return name_of
