"""Plants bugs in methods and modules: a part of the source is replaced, as a maintainer may get it wrong."""

import gc
import inspect
import sys
import textwrap
import types
from collections.abc import Callable
from typing import Any, cast

import pytest


def planted(owner: type, method: str, right: str, wrong: str) -> object:
    """Return a method of a class with `wrong` in place of `right`, which must be in its source once."""
    source = textwrap.dedent(inspect.getsource(getattr(owner, method)))
    assert source.count(right) == 1, f"{method} does not say {right!r} any more"
    space: dict[str, Any] = dict(vars(sys.modules[owner.__module__]))
    exec(source.replace(right, wrong), space)  # noqa: S102 - the source is our own
    return cast("object", space[method])


def module_with(module: types.ModuleType, *changes: tuple[str, str], everywhere: bool = False) -> types.ModuleType:
    """Return a copy of a module in which each change, of what is right to what is wrong, is made.

    What is right must be in its source once; with `everywhere`, once or more often, and all of it is changed. The copy
    has the name of the original, by which dataclasses find it.
    """
    source = inspect.getsource(module)
    for right, wrong in changes:
        found = source.count(right)
        assert found == 1 or (everywhere and found), f"{module.__name__} says {right!r} {found} times"
        source = source.replace(right, wrong)
    copy = types.ModuleType(module.__name__)
    exec(compile(source, f"{module.__name__} with a bug", "exec"), copy.__dict__)  # noqa: S102 - the source is our own
    return copy


def methods_of(module: types.ModuleType, kind: str) -> dict[str, Any]:
    """Return the functions in a class of a module, by name."""
    named = dict(vars(cast("type", vars(module)[kind])))
    return {name: method for name, method in named.items() if inspect.isroutine(method)}


def assert_fails(test: Callable[[], object]) -> None:
    """Require that a test fails while a bug is planted, and by what it checks rather than by a mistake in the bug."""
    with pytest.raises(BaseException) as failure:  # noqa: PT011 - pytest's own failures are no Exception
        test()
    gc.collect()  # the tasks that the failure has left behind, while the caller ignores their warnings
    assert not isinstance(failure.value, (TypeError, AttributeError, NameError))
