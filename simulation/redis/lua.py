"""The interpreter of scripts: one for the whole process, for it takes a millisecond to start.

`prelude.lua` defines what a script can see and do. Scripts keep state only in the keyspace, so that runs can share the
interpreter without affecting each other.

Scripts run in the interpreter of LuaJIT, if there is one: it implements Lua 5.1, the version in Redis, and is faster.
Lua 5.1 compiles each script, too, so that no script uses a feature of LuaJIT alone or exceeds a limit of Lua 5.1.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from importlib import import_module
from importlib.resources import files
from typing import Any

from tenure.errors import UsageError
from tenure.stores.redis.links.link import ReplyError

Call = Callable[[bytes, list[bytes]], Any]
"""Carries out a command of a script."""

ARRAY = 2


class ScriptError(ReplyError):
    """A script failed, which is a bug of the script."""


def source_of(text: str) -> str:
    """Return the part of a script that is compiled: all but the first line, which is for the server."""
    return "\n" + text.partition("\n")[2]


class Interpreter:
    """Lua 5.1 with the environment that Redis gives a script."""

    def __init__(self) -> None:
        """Start the interpreter. Raises UsageError if there is none."""
        try:
            like_redis: Any = import_module("lupa.lua51")
        except ImportError:
            raise UsageError("the simulation of Redis runs its Lua scripts with lupa: pip install 'lupa>=2'") from None
        lua = _luajit() or like_redis
        self._call: Call = _nothing
        self._compiled: dict[str, Any] = {}
        self._check = like_redis.LuaRuntime(encoding=None).eval("function(text) return loadstring(text) ~= nil end")
        runtime = lua.LuaRuntime(encoding=None, source_encoding="utf-8", unpack_returned_tuples=True)
        runtime.execute("if jit then jit.off() end")  # a hook cannot stop compiled code
        prelude = (files("simulation.redis") / "prelude.lua").read_bytes()
        self._load, self._run = runtime.execute(prelude, self._command)
        self._broken: type[Exception] = lua.LuaError

    def run(self, source: str, keys: Sequence[bytes], args: Sequence[bytes], call: Call) -> Any:  # noqa: ANN401
        """Run a script; `call` carries out its commands. Return its reply as hiredis does.

        Raises ScriptError if the script fails. Its changes before the failure stay, as in Redis.
        """
        script = self._compiled.get(source)
        if script is None:
            if not self._check(source.encode()):
                raise ScriptError("ERR Error compiling script: it is not Lua 5.1")
            script = self._compiled[source] = self._load(source.encode())
        self._call = call
        try:
            kind, value, *more = self._run(script, len(keys), *keys, *args)
            return _array(value, iter(more)) if kind == ARRAY else value if kind else None
        except self._broken as error:
            raise ScriptError(f"ERR {str(error).splitlines()[0]}") from None

    def _command(self, name: bytes, *words: Any) -> Any:  # noqa: ANN401 - whatever Lua hands over
        return self._call(name, [word if type(word) is bytes else _text(word) for word in words])


@cache
def interpreter() -> Interpreter:
    """Return the interpreter of this process."""
    return Interpreter()


def _luajit() -> Any:  # noqa: ANN401 - a module of lupa
    try:
        return import_module("lupa.luajit21")
    except ImportError:
        return None


def _text(word: object) -> bytes:
    """Return a number as Redis passes it to a command."""
    if isinstance(word, bool) or not isinstance(word, (int, float)):
        raise ReplyError("ERR Lua redis lib command arguments must be strings or integers")
    return b"%.17g" % word


def _array(size: int, flat: Iterator[Any]) -> list[Any]:
    """Read `size` values from pairs of a kind and a value."""
    values: list[Any] = []
    for _ in range(size):
        kind, value = next(flat), next(flat)
        values.append(_array(value, flat) if kind == ARRAY else value if kind else None)
    return values


def _nothing(name: bytes, words: list[bytes]) -> object:
    raise AssertionError(name, words)
