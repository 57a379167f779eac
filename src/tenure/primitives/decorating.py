"""The decorators: the format of the name from the arguments of a call, and what a refused web request is answered."""

import inspect
import re
import string
from collections.abc import Callable, Sequence
from functools import partial
from math import ceil
from types import MethodType
from typing import ParamSpec, cast

from tenure.callables import title_of
from tenure.contracts.limits import check_name
from tenure.errors import UsageError

P = ParamSpec("P")


def retry_after(timeout: float | None) -> dict[str, str]:
    """Return the header that says when to come again: after as long as the request has waited, at least a second."""
    return {"Retry-After": str(max(1, ceil(timeout or 0)))}


def fields_of(template: str) -> set[str]:
    """Return the arguments that a name is filled from. Raises UsageError if it is no name, or no format string."""
    try:
        parts = list(string.Formatter().parse(check_name(template)))
    except ValueError as error:
        message = f"the name {template!r} is not a format string ({error}): write {{{{ and }}}} for braces"
        raise UsageError(message) from None
    return {re.split(r"[.\[]", field)[0] for _, field, _, _ in parts if field is not None}


def name_from_call(function: Callable[P, object], template: str) -> Callable[P, str]:
    """Return a function that formats `template` with the arguments of a call of `function`."""
    names_of = names_from_call(function, [template])
    return lambda *args, **kwargs: names_of(*args, **kwargs)[0]


def names_from_call(function: Callable[P, object], templates: Sequence[str]) -> Callable[P, list[str]]:
    """Return a function that formats all `templates` with the arguments of a call of `function`."""
    fields = {field: template for template in templates for field in fields_of(template)}
    if not fields:  # the function may have no signature, or that of a function to which it gives arguments itself
        fixed = [template.format() for template in templates]
        return lambda *_args, **_kwargs: fixed
    title, signature = title_of(function), _signature_of(function)
    rest = next((each.name for each in signature.parameters.values() if each.kind is each.VAR_KEYWORD), None)
    for field, template in fields.items():
        if field not in signature.parameters and (rest is None or not field.isidentifier()):
            known = ", ".join(signature.parameters) or "none"
            message = f"the name {template!r} uses {{{field}}}, but {title} has no such parameter: use one of {known}"
            raise UsageError(message)

    def names_of(*args: P.args, **kwargs: P.kwargs) -> list[str]:
        try:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            values = {**bound.arguments.get(rest or "", {}), **bound.arguments}
            return [template.format(**values) for template in templates]
        except (TypeError, LookupError) as error:
            raise TypeError(
                f"the name {next(iter(fields.values()))!r} cannot be filled from this call of {title} ({error}): if a "
                "decorator supplies the argument, put the lock below that decorator"
            ) from error

    return names_of


def _signature_of(function: Callable[..., object]) -> inspect.Signature:
    """Return the signature of a function that may wrap another, without the arguments that a partial gives.

    Django's `method_decorator` hands over a partial of a bound method that says it wraps the method with its `self`.
    """
    stops = (partial, MethodType)
    shown = inspect.unwrap(function, stop=lambda each: isinstance(each, stops) or hasattr(each, "__signature__"))
    if isinstance(shown, partial):
        bare = cast("partial[object]", shown)
        shown = partial(bare.func, *bare.args, **bare.keywords)  # without what it says it wraps
    try:
        return inspect.signature(shown)
    except ValueError as error:
        raise UsageError(f"{title_of(function)} shows no parameters ({error}): wrap it in a function") from None
