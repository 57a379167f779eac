"""A state that is patched is the state that a step has made, whatever stood there and whatever is in it."""

import sqlite3
import types

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tenure.stores.mysql import statements
from tests.planting import module_with

SHORT = ("LONG = 2_000", "LONG = 1")
"""Short texts are patched, too."""

lines = st.lists(st.sampled_from((b"a", b"aa", b"ab", b"b'", "é".encode(), "è".encode(), b"")), max_size=6).map(
    b"\n".join
)


def value_of(expression: str, column: bytes) -> bytes:
    """Return what the server makes of an expression: SQLite knows such literals, and is taught the functions."""
    database = sqlite3.connect(":memory:")
    database.create_function("CONCAT", -1, lambda *parts: b"".join(map(_as_bytes, parts)))
    database.create_function("SUBSTRING", 3, _substring)
    ((found,),) = database.execute(f"SELECT {expression} FROM (SELECT ? AS state)", (column,)).fetchall()  # noqa: S608
    database.close()
    return _as_bytes(found)


def _substring(text: str | bytes, at: int, size: int) -> bytes:
    found = _as_bytes(text)[at - 1 :][:size] if at > 0 else b""
    assert len(found) == size
    return found


def _as_bytes(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode()


def check(module: types.ModuleType) -> None:
    """Compare many patches with what they stand for."""

    @given(lines, lines)
    @example(b"x\na\na\ny", b"x\na\na\na\ny")  # what stays at either end overlaps
    @example(b"aa", b"\nb\na\n")  # the text before has no lines
    @example("x\né\ny".encode(), "x\nè\ny".encode())
    @settings(max_examples=300, derandomize=True, database=None)
    def compare(before: bytes, after: bytes) -> None:
        assert value_of(module.patch("state", before, after), before) == after

    compare()


def test_a_patch_makes_the_text() -> None:
    """Of any two texts, also without lines, with the same lines twice, and cut within a character."""
    check(module_with(statements, SHORT))
    check(statements)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("before.find(NEWLINE) + 1", "before.find(NEWLINE)"),
        ("before.rfind(NEWLINE)", "len(before)"),
        ("if start else b", "if True else b"),
        ("_common(old[head:][::-1], lines[head:][::-1])", "_common(old[::-1], lines[::-1])"),
        ("{at + 1}, {size}", "{at}, {size}"),
        ("(end - tail, tail)", "(end - tail + 1, tail)"),
        ("len(lines) - tail]", "len(lines)]"),
        ("if value.isascii() else raw(value)", ""),
        ("low = middle\n", "low = middle + 1\n"),
    ],
)
def test_a_planted_bug_is_found(right: str, wrong: str) -> None:
    """Each makes another text, or none."""

    def look() -> None:
        check(module_with(statements, SHORT, (right, wrong)))
        check_size(module_with(statements, (right, wrong)))

    with pytest.raises((AssertionError, UnicodeDecodeError, sqlite3.Error, ExceptionGroup)):
        look()


def test_a_long_queue_is_not_sent_again() -> None:
    """A waiter that asks again, and one that joins, cost a statement that does not grow with the queue."""
    check_size(statements)


def check_size(module: types.ModuleType) -> None:
    """Patch the state of a long queue."""
    waiters = [b'[1,20,"r%d","channel","owner",10,1,10,1,1,0,0,true,1,false]' % number for number in range(600)]
    state = b'[1,[["h"]],[\n' + b",\n".join(waiters) + b'\n],0,0,{},"",7]'
    joined = state.replace(b"\n],0", b',\n[2,30,"r600"]\n],0').replace(b",7]", b",8]")
    again = state.replace(b'20,"r300"', b'40,"r300"').replace(b'"h"', b'"i"')
    for after in (joined, again):
        patch = module.patch("state", state, after)
        assert len(patch) < 500
        assert value_of(patch, state) == after
