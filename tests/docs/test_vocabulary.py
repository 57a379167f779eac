"""One thing has one name: no name in the code has a word that the glossary of ARCHITECTURE.md retires."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted(path for folder in ("src", "packages", "demo") for path in (ROOT / folder).rglob("*.py"))
WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


def retired(page: str) -> frozenset[str]:
    """Return the words of the third column of the glossary."""
    rows = page.split("## The words", 1)[1].split("\n## ", 1)[0].splitlines()
    cells = [row.split("|")[3] for row in rows if row.startswith("|") and row.count("|") == 4]
    return frozenset(word for cell in cells for word in re.findall(r"`(\w+)`", cell))


RETIRED = retired((ROOT / "ARCHITECTURE.md").read_text("utf-8"))


def names_in(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Return every name that a module gives to something, and in which line."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name, node.lineno
            case ast.arg(arg=name) | ast.keyword(arg=str(name)):
                yield name, node.lineno
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name, node.lineno
            case ast.alias(asname=str(name)) | ast.ExceptHandler(name=str(name)):
                yield name, node.lineno
            case _:
                pass


def words_of(name: str) -> set[str]:
    """Return the words of a name in any case: `_ask_again`, `AskAgain`, `ASK_AGAIN`."""
    return {word.lower() for word in WORD.findall(name.replace("ZooKeeper", "Zookeeper"))}


def retired_names(source: str) -> list[str]:
    """Return the names in a module that have a retired word."""
    found = [(name, line) for name, line in names_in(ast.parse(source)) if words_of(name) & RETIRED]
    return [f"{name} in line {line}" for name, line in found]


def test_the_glossary_retires_words() -> None:
    """The test reads a column that is there."""
    assert {"inbox", "keeper", "turnstile", "stile", "colour", "want"} <= RETIRED


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_has_no_retired_word_in_its_names(path: Path) -> None:
    """Neither the file's own name nor one that it gives."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    assert not [part for part in parts if words_of(part) & RETIRED]
    assert retired_names(path.read_text("utf-8")) == []


def test_a_class_has_a_name_of_its_own() -> None:
    """A name that a reader greps for is one class; those of a store are qualified by it."""
    places: dict[str, list[str]] = {}
    for path in FILES:
        for name in re.findall(r"^class (\w+)", path.read_text("utf-8"), re.MULTILINE):
            places.setdefault(name, []).append(path.name)
    assert {name: files for name, files in places.items() if len(files) > 1} == {}


@pytest.mark.parametrize(
    "source",
    [
        "class Turnstile: ...",
        "class HeldAsk: ...",
        "def pass_to_stile(): ...",
        "async def keeper(): ...",
        "def f(inbox): ...",
        "f(colour=1)",
        "def f():\n    wants = 1",
        "self._nest = 1",
        "MOST_ASKS: int = 1",
        "import a as onlooker",
        "try: ...\nexcept E as panel: ...",
    ],
)
def test_a_retired_word_is_found(source: str) -> None:
    """Planted: however it is spelt, and whatever it names."""
    assert len(retired_names(source)) == 1


def test_a_word_within_a_word_is_none() -> None:
    """`task` is no `ask`, and ZooKeeper keeps its name."""
    assert retired_names("task = mask = unwanted_nesting = 1\nclass Zookeeper: ...") == []
