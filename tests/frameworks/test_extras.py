"""Adapters whose package is not installed say what to install."""

import subprocess
import sys

import pytest

MISSING = {
    "tenure.celery": ("celery", "tenure.celery needs Celery: pip install 'tenure[celery]'"),
    "tenure.compat.redis": ("redis", "tenure.compat.redis needs redis-py: pip install 'tenure[redis]'"),
    "tenure.compat.redis.asyncio": ("redis", "tenure.compat.redis needs redis-py: pip install 'tenure[redis]'"),
    "tenure.console": ("starlette", "the console needs Starlette: pip install 'tenure[web]'"),
    "tenure.django": ("asgiref", "tenure.django needs Django: pip install 'tenure[django]'"),
    "tenure.fastapi": ("fastapi", "tenure.fastapi needs FastAPI: pip install 'tenure[fastapi]'"),
    "tenure.pydantic_ai": ("pydantic_ai", "tenure.pydantic_ai needs pydantic-ai: pip install 'tenure[pydantic-ai]'"),
}
"""Modules, the package that each needs, and what its import says without it."""

IMPORT = """
import importlib
import sys

module, package = sys.argv[1:]
sys.modules[package] = None  # as if it were not installed
try:
    importlib.import_module(module)
except ImportError as error:
    print(error, error.name, sep="|")
"""


def imported(module: str, without: str) -> str:
    """Import a module in a process where another one is missing; return the error."""
    return subprocess.check_output([sys.executable, "-c", IMPORT, module, without], text=True, timeout=60)


@pytest.mark.parametrize("module", MISSING)
def test_an_adapter_without_its_package_says_what_to_install(module: str) -> None:
    """By an ImportError, whose name begins with that of the package."""
    package, message = MISSING[module]
    assert imported(module, package).startswith(f"{message}|{package}")


def test_another_module_that_is_missing_is_told_as_it_is() -> None:
    """To install the package of the adapter would not help."""
    assert imported("tenure.console", "tenure.console.html").startswith("import of tenure.console.html halted")
