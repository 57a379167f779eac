"""A coroutine that is closed awaits nothing more: Python would raise a RuntimeError in whoever closes it."""

import ast
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "tenure"


def awaits(nodes: list[ast.stmt]) -> bool:
    """Return whether statements await anything."""
    return any(isinstance(each, ast.Await | ast.AsyncFor | ast.AsyncWith) for node in nodes for each in ast.walk(node))


def late_awaits(source: str) -> Iterator[int]:
    """Yield the lines of handlers that await, and may do so while their coroutine is being closed."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Try):
            kinds = [ast.unparse(each.type) if each.type else "BaseException" for each in node.handlers]
            for kind, each in zip(kinds, node.handlers, strict=True):
                if kind == "BaseException" and awaits(each.body) and not any("GeneratorExit" in kind for kind in kinds):
                    yield each.lineno


def test_no_handler_awaits_while_its_coroutine_is_closed() -> None:
    """`except GeneratorExit: raise` stands before any `except BaseException` that awaits."""
    found = [f"{path}:{line}" for path in SOURCE.rglob("*.py") for line in late_awaits(path.read_text("utf-8"))]
    assert found == []


def test_a_handler_that_does_is_found() -> None:
    """Planted bugs: the line is missing, or the handler is bare."""
    body = "async def f():\n    try:\n        await g()\n    except {}:\n        await h()\n        raise\n"
    guarded = body.replace("    except {}", "    except GeneratorExit:\n        raise\n    except {}")
    assert list(late_awaits(body.format("BaseException"))) == [4]
    assert list(late_awaits(body.replace(" {}", ""))) == [4]
    assert not list(late_awaits(body.format("Exception")))
    assert not list(late_awaits(guarded.format("BaseException")))
