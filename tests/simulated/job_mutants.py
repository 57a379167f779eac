"""Bugs to plant in jobs that run once, and in the cells below them, to see that the simulation notices."""

import inspect
import types
from collections.abc import Callable
from unittest.mock import patch

from simulation.node import TableNode
from tenure.contracts.cells import Cell
from tenure.core import cells
from tenure.jobs import once
from tenure.jobs.once import Once
from tests.jobs.planted import planted
from tests.simulated.mutants import Mutant, Patch, replaced, wrapped


def in_record(function: str, before: str, after: str) -> Callable[[], Patch]:
    """Return a way to change the text of a function of the record."""
    return replaced(once, function, getattr(planted(before, after), function))


def in_call(before: str, after: str) -> Callable[[], Patch]:
    """Return a way to change the text of a call."""
    text = inspect.getsource(once)
    assert before in text
    module = types.ModuleType("wrong_once")
    module.__dict__["__name__"] = once.__name__  # dataclasses look their module up
    exec(compile(text.replace(before, after), "wrong_once", "exec"), module.__dict__)  # noqa: S102 - our own text
    wrong = module.__dict__["Once"]
    return lambda: patch.multiple(
        Once, begin=wrong.begin, _begin_under_lock=wrong._begin_under_lock, finish=wrong.finish
    )


def write_anyway(write: Callable[..., Cell], node: TableNode, name: str, value: bytes, _version: int) -> Cell:
    """Write a cell whatever its version is."""
    return write(node, name, value, node.cell(name).version)


_true_write = cells._write


def write_no_replies(name: str, state: object, _replies: object) -> bytes:
    """Return a cell that keeps no replies."""
    return _true_write(name, state, {})


JOB_MUTANTS = (
    Mutant(
        "any run of a job may end", in_record("finish", ' or state["run"]["id"] != run.id', ""), ("jobs",), first=646
    ),
    Mutant(
        "a job that is done begins again",
        in_record("begin", 'if record["done"] is not None:', 'if record["done"] is not None and now < record["now"]:'),
        ("jobs",),
    ),
    Mutant(
        "a run that fell silent is no attempt",
        in_record("begin", 'record["attempts"] += 1', 'record["attempts"] += not silent'),
        ("jobs",),
    ),
    Mutant(
        "attempts of a job are not counted",
        in_record("begin", 'if record["attempts"] >= rules.attempts', "if False"),
        ("jobs",),
    ),
    Mutant("a clock that stepped back stalls a job", in_record("rebase", "step <= 0", "True"), ("jobs",)),
    Mutant("a job begins under a lease that has ended", in_call("if owned[-1].trusted():", "if True:"), ("jobs",)),
    Mutant("a cell is written whatever its version is", wrapped(TableNode, "write_cell", write_anyway), ("jobs",)),
    Mutant(
        "a cell keeps no replies",
        replaced(cells, "_write", write_no_replies),
        ("jobs",),
        first=761,
    ),
)
