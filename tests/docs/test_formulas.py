"""Each formula of the grant table stands once in a language, where ARCHITECTURE.md says."""

import re
from collections.abc import Mapping
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


def rows(page: str) -> list[list[str]]:
    """Return the names of each row: the title of the formula, then the names in each language."""
    table = page.split("| formula |", 1)[1].split("\n\n", 1)[0].splitlines()[2:]
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
ROWS = rows((ROOT / "ARCHITECTURE.md").read_text("utf-8"))


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
