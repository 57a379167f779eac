"""A traceback of an error ends with the address of what docs/errors.md says of it."""

import re
import traceback
from pathlib import Path

import pytest

import tenure
from tenure.errors import DOCS

PAGE = (Path(__file__).parents[2] / "docs" / "errors.md").read_text("utf-8")
SECTIONS = set(re.findall(r"^## (\w+)$", PAGE, re.MULTILINE))
CLASSES = {name: kind for name in tenure.__all__ if isinstance(kind := getattr(tenure, name), type)}
PUBLIC = {name for name, kind in CLASSES.items() if issubclass(kind, BaseException)}


def test_each_public_error_has_a_section_and_a_row() -> None:
    """And each section is one of them."""
    assert SECTIONS == PUBLIC
    assert {*re.findall(r"^\| \[`(\w+)`\]", PAGE, re.MULTILINE)} == PUBLIC - {"TenureError"}
    assert all(section.count("**What to do.**") == 1 for section in re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:-1])


@pytest.mark.parametrize("name", sorted(PUBLIC - {"BlockedEventLoop"}))
def test_a_traceback_ends_with_the_address_of_its_section(name: str) -> None:
    """And has it once, however it was made; its text does not have it."""
    arguments: dict[str, tuple[object, ...]] = {"SelfDeadlock": ("name", 7, "Do this."), "DeadlockDetected": ([],)}
    error = CLASSES[name](*arguments.get(name, ("it happened",)))
    address = f"{DOCS}errors.html#{name.lower()}"
    assert traceback.format_exception_only(error)[-1] == f"{address}\n"
    assert error.__notes__ == [address]
    assert DOCS not in str(error)


def test_an_error_of_a_store_has_the_section_of_what_it_is() -> None:
    """A class that is not public has none of its own."""

    class Refused(tenure.StoreUnavailable):
        pass

    assert Refused("no").__notes__ == tenure.StoreUnavailable("no").__notes__
