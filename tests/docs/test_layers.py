"""Imports run one way, without circles: ARCHITECTURE.md says which package may import which."""

import ast
import functools
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = [ROOT / "src" / "tenure", ROOT / "packages" / "testing" / "src" / "tenure_testing", ROOT / "demo"]

Edges = Mapping[str, set[str]]


def allowed(page: str) -> dict[str, set[str]]:
    """Return which package may import which, as the table of the page says; `*` is every one."""
    rows = page.split("| package | may import |", 1)[1].split("\n\n", 1)[0].splitlines()[2:]
    found: dict[str, set[str]] = {}
    for row in rows:
        packages, others = (set(re.findall(r"`(\w+)`", cell)) for cell in row.split("|")[1:3])
        found.update(dict.fromkeys(packages, others))
    return found


ALLOWED = allowed((ROOT / "ARCHITECTURE.md").read_text("utf-8"))


def modules(*packages: Path) -> dict[str, Path]:
    """Return all modules of some packages, by their names."""
    found: dict[str, Path] = {}
    for package in packages:
        for path in sorted(package.rglob("*.py")):
            parts = path.relative_to(package.parent).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(sources: Mapping[str, str]) -> Edges:
    """Return which of some modules each of them imports, anywhere in it, for type checking too."""
    edges: defaultdict[str, set[str]] = defaultdict(set)
    for module, source in sources.items():
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    inner = f"{node.module}.{alias.name}"
                    edges[module].add(inner if inner in sources else node.module)
            elif isinstance(node, ast.Import):
                edges[module].update(alias.name for alias in node.names)
        edges[module] = {other for other in edges[module] if other in sources and other != module}
    return edges


def circle(edges: Edges) -> list[str]:
    """Return modules that import each other in a circle; none if there is no circle."""
    path: list[str] = []
    done: set[str] = set()

    def visit(module: str) -> list[str]:
        if module in path:
            return path[path.index(module) :]
        if module in done:
            return []
        path.append(module)
        for other in sorted(edges.get(module, ())):
            if found := visit(other):
                return found
        path.pop()
        done.add(module)
        return []

    for module in sorted(edges):
        if found := visit(module):
            return found
    return []


def package_of(module: str) -> str:
    """Return the package of a module, or the module's own name if it stands beside the packages."""
    return module.split(".")[1] if "." in module else module


def wrong(edges: Edges) -> list[str]:
    """Return the imports that the table does not allow, of the packages that are in it."""
    pairs: Iterable[tuple[str, str]] = ((module, other) for module in edges for other in edges[module])
    return [
        f"{module} imports {other}"
        for module, other in pairs
        if (package := package_of(module)) in ALLOWED and package_of(other) not in {package, *ALLOWED[package]}
    ]


@functools.cache
def edges_of_all() -> Edges:
    """Return which modules of the packages each of them imports."""
    return imports({name: path.read_text("utf-8") for name, path in modules(*PACKAGES).items()})


def edges_of_tenure() -> Edges:
    """Return which modules each module of `tenure` imports."""
    return {module: others for module, others in edges_of_all().items() if module.partition(".")[0] == "tenure"}


def test_each_package_imports_only_what_it_may() -> None:
    """As the table in ARCHITECTURE.md says."""
    assert wrong(edges_of_tenure()) == []


def test_tenure_imports_only_itself() -> None:
    """It is installed without the package for tests and without the demo."""
    imported = {other for others in edges_of_tenure().values() for other in others}
    assert {other.partition(".")[0] for other in imported} == {"tenure"}


def test_no_modules_import_each_other() -> None:
    """No circle, imports for type checking and in functions included."""
    assert circle(edges_of_all()) == []


def test_the_table_has_every_package_of_the_protocol() -> None:
    """A package that nobody limits is seen."""
    free = {"tenure", "__main__", "cli"}
    assert {package_of(module) for module in modules(PACKAGES[0])} - free == set(ALLOWED)


@pytest.mark.parametrize(
    ("sources", "found"),
    [
        ({"tenure.core.a": "from tenure.stores import b", "tenure.stores.b": ""}, "stores"),
        ({"tenure.contracts.a": "import tenure.core.b", "tenure.core.b": ""}, "core"),
        (
            {"tenure.table.a": "def f():\n    from tenure.runtimes.b import c", "tenure.runtimes.b": ""},
            "runtimes",
        ),
    ],
)
def test_a_wrong_import_is_found(sources: dict[str, str], found: str) -> None:
    """Planted: at the top, as a module, and inside a function."""
    (text,) = wrong(imports(sources))
    assert found in text


def test_a_circle_is_found() -> None:
    """Planted: one that is closed for type checking only, over three modules."""
    sources = {
        "tenure.core.a": "from tenure.core.b import x",
        "tenure.core.b": "from tenure.core import c",
        "tenure.core.c": "if TYPE_CHECKING:\n    from tenure.core.a import y",
    }
    assert len(circle(imports(sources))) == 3
