"""The public names as text, a line each: what docs/stable.md promises to keep.

`python -m tests.packaging.public`, from the top of the project, writes them into public.txt, which the tests compare.
"""

import ast
import enum
import importlib
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast, get_args, get_origin, get_overloads

from tenure.cli.commands import COMMANDS, Command, find
from tenure.primitives import options
from tenure.stores.urls import SCHEMES
from tenure_testing import plugin

FILE = Path(__file__).with_name("public.txt")

MODULES = (
    *("tenure", "tenure.console", "tenure.doctor", "tenure.events", "tenure.fencing", "tenure.metrics"),
    *("tenure.compat.redis", "tenure.compat.redis.asyncio"),
    *("tenure.celery", "tenure.django", "tenure.fastapi", "tenure.pydantic_ai", "tenure.starlette"),
    "tenure.stores.rows",
    *("tenure_testing.conformance", "tenure_testing.pytest"),
)
"""The modules whose `__all__` is public."""

SOURCES = {each: f"{each}_source" for each in ("redis", "postgresql", "mysql", "objects")}
"""The functions in `tenure.stores` that make a store of a client, an engine or a bucket of the user's."""

MADE_BY_USERS = re.compile(r"(Async)?(Client|RedisPyLock)|Limiter|\w+Guard|StoredObject|Stop|StoreConformance|Row")
"""The classes that a user makes; objects of the others come out of calls."""

OPTIONS = (
    options.Options,
    options.PlainOptions,
    options.MultiLockOptions,
    options.ElectionOptions,
    options.OnceOptions,
)
"""The keywords of `lock`, `semaphore` and the others."""

INTERNAL = {
    *(f"{client}.{name}" for client in ("AsyncClient", "Client") for name in ("after_fork_in_child", "session")),
    *(f"{view}.read_metadata" for view in ("HolderView", "WaiterView")),
    *(f"Stop.{name}" for name in ("check", "watching")),
    *(f"Chaos.{name}" for name in ("close", "source", "store")),
    *(f"Report.{name}" for name in ("add", "merge")),
    "Sections.verdict",
}
"""What other modules of the same package call."""

SPECIAL = {f"__{name}__" for name in ("aenter", "aiter", "anext", "await", "call", "enter", "iter", "next", "str")}


STATUS = re.compile(r"(?<![-\w])\d+(?:\+N)?")


class Source:
    """A piece of a signature, as its source has it."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def signature(function: Callable[..., object], name: str) -> str:
    """Return the signature of a function, with its types as the source names them and the values of its defaults."""
    types, returned, kind = _annotations(function)
    found = inspect.signature(function)
    parameters = [
        each.replace(
            annotation=types.get(each.name, each.empty),
            default=Source("...") if " at 0x" in repr(each.default) else each.default,
        )
        for each in found.parameters.values()
    ]
    return f"{kind} {name}{found.replace(parameters=parameters, return_annotation=returned)}"


def _annotations(function: Callable[..., object]) -> tuple[dict[str, object], object, str]:
    """Return the types of a function's parameters and of what it returns, and how its definition begins."""
    try:
        source = textwrap.dedent(inspect.getsource(function))
    except OSError:  # made by dataclass
        return {}, inspect.Signature.empty, "def"
    (node,) = ast.parse(source).body
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    arguments = node.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    types = {each.arg: _source(each.annotation) for each in every if each is not None}
    return types, _source(node.returns), "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"


def _source(node: ast.expr | None) -> object:
    return inspect.Parameter.empty if node is None else Source(ast.unparse(node).strip("'"))


def of_member(kind: type, name: str) -> Iterator[str]:
    """Describe a member of a class; yield nothing if Tenure does not define it, or only refuses it."""
    owner = next((each for each in kind.__mro__ if name in vars(each)), object)
    value = cast("Any", vars(owner).get(name))
    if not owner.__module__.startswith("tenure"):
        return
    if isinstance(value, enum.Enum):
        yield f"{name} = {value.value!r}"
    elif isinstance(value, property):
        yield signature(cast("Any", value).fget, name).replace("def ", "property ", 1)
    elif inspect.isfunction(
        function := inspect.unwrap(cast("Callable[..., object]", getattr(value, "__func__", value)))
    ):
        forms = [signature(each, name) for each in get_overloads(function) or [function]]
        for form in forms:
            if not form.endswith("-> Never"):
                before, arrow, returned = form.rpartition("-> ")
                yield f"{before}{arrow}{_arguments(kind).get(returned, returned)}"


def _arguments(kind: type) -> dict[str, str]:
    """Return what the type variables of the bases of a class stand for in it."""
    return {
        variable.__name__: argument.__name__
        for base in kind.__mro__
        for each in vars(base).get("__orig_bases__", ())
        for variable, argument in zip(getattr(get_origin(each), "__parameters__", ()), get_args(each), strict=False)
        if isinstance(argument, type)
    }


def of_fields(kind: type) -> Iterator[str]:
    """Describe the attributes of a class that its source declares, and those that an error sets."""
    for owner in reversed(kind.__mro__):
        if owner.__module__.startswith("tenure"):
            (node,) = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
            for inner in ast.walk(node) if issubclass(kind, BaseException) else getattr(node, "body", ()):
                match inner:
                    case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation) if name[0] != "_":
                        yield f"{name}: {ast.unparse(annotation)}"
                    case ast.Assign(targets=[ast.Attribute(value=ast.Name(id="self"), attr=name)]):
                        yield name
                    case _:
                        pass


def of_class(kind: type, public: set[str]) -> Iterator[str]:
    """Describe a class: its public bases, how it is made, and its public members."""
    bases = [base.__name__ for base in kind.__mro__[1:-1] if base.__name__ in public or base.__module__ == "builtins"]
    yield f"class ({', '.join(bases)})"
    if MADE_BY_USERS.fullmatch(kind.__name__):
        yield from of_member(kind, "__init__")
    yield from of_fields(kind)
    for name in sorted(dir(kind)):
        if name in SPECIAL or not (name.startswith("_") or f"{kind.__name__}.{name}" in INTERNAL):
            yield from of_member(kind, name)


def of_module(name: str) -> Iterator[str]:
    """Describe the public names of a module."""
    module = importlib.import_module(name)
    public = set(module.__all__) | set(importlib.import_module("tenure").__all__)
    for each in sorted(module.__all__):
        value = getattr(module, each)
        if inspect.isclass(value):
            yield from (f"{name}.{each}: {line}" for line in of_class(value, public))
        elif inspect.isfunction(value):
            yield f"{name}: {signature(value, each)}"
        else:
            yield f"{name}.{each}: {type(value).__name__}"


def of_command(command: Command) -> Iterator[str]:
    """Describe a command: its arguments, its options, and what it exits with."""
    parser = command.parser()
    yield f"{parser.prog} {command.usage}".rstrip()
    for action in parser._actions:
        if action.option_strings and action.dest != "help":
            choices = f" of {', '.join(map(str, action.choices))}" if action.choices else ""
            value = (
                "" if action.nargs == 0 else f" {action.metavar or action.dest.upper()}{choices} = {action.default!r}"
            )
            yield f"{parser.prog} {', '.join(action.option_strings)}{value}"
    statuses = STATUS.findall(command.text().partition("Exits with ")[2])
    yield f"{parser.prog} exits with {', '.join(statuses)}"


def lines() -> list[str]:
    """Return all lines."""
    found = [line for name in MODULES for line in of_module(name)]
    for module, name in SOURCES.items():
        function = getattr(importlib.import_module(f"tenure.stores.{module}"), name)
        found.append(f"tenure.stores.{module}: {signature(function, name)}")
    found += [f"fixture {name}" for name, value in vars(plugin).items() if "Fixture" in type(value).__name__]
    found += [f"scheme {scheme}://" for scheme in sorted(SCHEMES)]
    found += [f"option of {each.__name__}: {line}" for each in OPTIONS for line in of_fields(each)]
    found += [line for name in sorted(COMMANDS) for line in of_command(find(name))]
    return list(dict.fromkeys(found))


if __name__ == "__main__":
    FILE.write_text("".join(f"{line}\n" for line in lines()), "utf-8")
