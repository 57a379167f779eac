"""Each formula of the grant table stands once in a language, and each rule, where ARCHITECTURE.md says."""

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tenure.stores.redis import scripts

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "tenure"

LANGUAGES = (
    ("table/*.py", r"(?m)^ *def {}\("),
    ("stores/redis/lua/*.lua", r"(?m)^(?:--@define|local function|function) {}\("),
    ("stores/postgresql/schema.sql", r"(?m)^CREATE OR REPLACE FUNCTION @{}\("),
    ("stores/mysql/statements.py", r"(?m)^{} = "),
)
"""The files of each column of the table, and how a formula is defined there."""

Sources = Mapping[str, str]


def rows(page: str, of: str) -> list[list[str]]:
    """Return the names of each row of the table of formulas or rules: its title, then the names in each language."""
    table = page.split(f"| {of} |", 1)[1].split("\n\n", 1)[0].splitlines()[2:]
    return [[cell.strip(" `") for cell in row.split("|")[1:-1]] for row in table]


def texts(files: str) -> Sources:
    """Return files of the distribution, by their names."""
    return {path.name: path.read_text("utf-8") for path in sorted(SOURCE.glob(files))}


def words(text: str) -> str:
    """Return a text of Lua without comments and layout."""
    return " ".join(re.findall(r"\w+|[^\w\s]", re.sub(r"--.*", "", text)))


def copies(name: str, sources: Sources) -> list[str]:
    """Return the files that write a macro's text, whatever stands for its parameters."""
    parameters, body = FORMULAS[name]
    text = re.sub(r"\w+", lambda word: ".{1,60}?" if word[0] in parameters else word[0], re.escape(words(body)))
    return [file for file, source in sources.items() for _ in re.finditer(text, words(source))]


LUA = texts("stores/redis/lua/*.lua")
PAGE = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
ROWS = rows(PAGE, "formula")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0].replace(" ", "-"))
def test_a_formula_is_defined_once_in_a_language(row: list[str]) -> None:
    """The table names where."""
    for name, (files, defined) in zip(row[1:], LANGUAGES, strict=True):
        found = re.findall(defined.format(name), "\n".join(texts(files).values()))
        assert not name or len(found) == 1, (name, found)


FORMULAS = {
    name: (set(parameters.split(", ")), body)
    for name, parameters, body in scripts._DEFINITION.findall(LUA["formulas.lua"])
}
"""The parameters and the text of each macro of a formula."""


@pytest.mark.parametrize("name", FORMULAS)
def test_no_script_writes_a_formula_again(name: str) -> None:
    """It is used, by its name; a script with a copy of its text is noticed."""
    assert copies(name, LUA) == ["formulas.lua"]
    assert len(re.findall(rf"@{name}\(", "".join(LUA.values()))) > 1, "a macro for one use is none"
    parameters, body = FORMULAS[name]
    copied = re.sub(r"\w+", lambda word: f"{word[0]}[1]" if word[0] in parameters else word[0], body)
    assert copies(name, {**LUA, "release.lua": LUA["release.lua"] + copied}) == ["formulas.lua", "release.lua"]


# -- rules -----------------------------------------------------------------------------------------------------


def defined(files: str) -> Iterator[str]:
    """Yield the functions that files of Python define; those of classes also with the class, as `Step.acquire`."""
    for source in texts(files).values():
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield node.name
            elif isinstance(node, ast.ClassDef):
                methods = [each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
                yield from (f"{node.name}.{each.name}" for each in methods)


def named(files: str, pattern: str) -> list[str]:
    """Return what a pattern finds in files."""
    return re.findall(pattern, "\n".join(texts(files).values()))


SQL = r"(?m)^CREATE OR REPLACE FUNCTION @(\w+)\("
STATEMENTS = r"(?m)^([A-Z_]+) = \(|^    def ([a-z_]+)\("
RULES = rows(PAGE, "rule")
NAMED = (
    list(defined("table/*.py")),
    [*named(LANGUAGES[1][0], r"(?m)^(?:local function|function) (\w+)\("), *LUA],
    named("stores/postgresql/schema.sql", SQL),
    ["".join(found) for found in named("stores/mysql/statements.py", STATEMENTS)],
    list(defined("stores/ordered/*.py")),
)
"""What each column of the table of rules may name."""


def wrong_names(row: list[str]) -> list[str]:
    """Return the names of a row that are not defined exactly once in the place of their column."""
    cells = [re.findall(r"[\w.]+", cell) for cell in row[1:]]
    return [name for names, place in zip(cells, NAMED, strict=True) for name in names if place.count(name) != 1]


@pytest.mark.parametrize("row", RULES, ids=lambda row: row[0].replace(" ", "-"))
def test_a_rule_stands_where_the_table_says(row: list[str]) -> None:
    """Each function has one definition; a name that is another's, or nobody's any more, is noticed."""
    assert wrong_names(row) == []
    moved = [[*row[:at], f"{row[at]}_before", *row[at + 1 :]] for at in range(1, len(row)) if row[at]]
    assert [len(wrong_names(each)) for each in moved] == [1] * len(moved)


def test_no_rule_is_left_out() -> None:
    """The table has every number of a rule of the grant table, and every operation of a step that changes a name."""
    numbers = {number for row in RULES for number in re.findall(r"\d+", row[0].partition("(")[2])}
    step = (SOURCE / "table" / "step.py").read_text("utf-8")
    assert numbers == set(re.findall(r"(?m)^(\d+)\. ", step))
    operations = {name for name in defined("table/step.py") if re.fullmatch(r"Step\.[a-z]\w*", name)}
    unchanging = {"Step.request_revocation", "Step.view"}
    assert operations - unchanging == set(re.findall(r"Step\.\w+", " ".join(row[1] for row in RULES)))
