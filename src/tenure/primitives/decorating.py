"""The decorators: the format of the name from the arguments of a call, and what a refused web request is answered."""

import inspect
import string
from collections.abc import Callable
from math import ceil
from typing import ParamSpec

from tenure.callables import title_of
from tenure.errors import UsageError

P = ParamSpec("P")


def retry_after(timeout: float | None) -> dict[str, str]:
    """Return the header that says when to come again: after as long as the request has waited, at least a second."""
    return {"Retry-After": str(max(1, ceil(timeout or 0)))}


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
