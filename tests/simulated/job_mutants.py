"""Bugs to plant in jobs that run once, and in the cells below them, to see that the simulation notices."""

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import simulation.jobs
from simulation.node import TableNode
from tenure.contracts.cells import Cell
from tenure.core import cells
from tenure.jobs import once, record
from tenure.jobs.once import Once
from tests.planting import methods_of, module_with
from tests.simulated.mutants import Mutant, Patch, both, replaced, wrapped


def in_record(function: str, before: str, after: str) -> Callable[[], Patch]:
    """Return a way to change the text of a function of the record."""
    return replaced(once, function, getattr(module_with(record, (before, after), everywhere=True), function))


def by_operator(function: str, before: str, after: str) -> Callable[[], Patch]:
    """Return a way to change the text of what an operator does."""
    return replaced(simulation.jobs, function, getattr(module_with(record, (before, after), everywhere=True), function))


def _begin(*given: Any) -> Any:  # noqa: ANN401 - as it is called
    """Begin a run by the function that stands there, also if another bug is planted there."""
    return vars(once)["begin"](*given)


def in_call(before: str, after: str) -> Callable[[], Patch]:
    """Return a way to change the text of a call."""
    module = module_with(once, (before, after), everywhere=True)
    module.__dict__["Begun"] = once.Begun  # what the simulation knows
    module.__dict__["begin"] = _begin
    return lambda: patch.multiple(Once, **methods_of(module, "Once"))


def write_anyway(write: Callable[..., Cell], node: TableNode, name: str, value: bytes, _version: int) -> Cell:
    """Write a cell whatever its version is."""
    return write(node, name, value, node.cell(name).version)


_true_write = cells._write


def write_no_replies(name: str, state: object, _replies: object) -> bytes:
    """Return a cell that keeps no replies."""
    return _true_write(name, state, {})


JOB_MUTANTS = (
    Mutant(
        "any run of a job may end",
        in_record("finish", ' or record["run"]["id"] != run.run.id', ""),
        ("jobs",),
        first=646,
    ),
    Mutant(
        "a job that is done begins again",
        in_record("begin", 'if record["done"] is not None:', 'if record["done"] is not None and now < record["now"]:'),
        ("jobs",),
    ),
    Mutant(
        "a run that fell silent is no attempt",
        in_record("begin", 'record["attempts"] + 1, ', 'record["attempts"] + (not silent), '),
        ("jobs",),
    ),
    Mutant(
        "attempts of a job are not counted",
        in_record("begin", 'if record["attempts"] >= rules.attempts', "if False"),
        ("jobs",),
    ),
    Mutant(
        "a run of a job that an operator repeats counts",
        in_record("finish", 'if run.get("repeated")', "if False"),
        ("jobs",),
    ),
    Mutant(
        "a job that an operator repeats gives up its run",
        by_operator("repeat", 'run = state["run"] and {**state["run"], "repeated": True}', "run = None"),
        ("jobs",),
    ),
    Mutant(
        "a job that an operator forgets gives up its run",
        in_record("finish", "anew = held and", "anew = False and"),
        ("jobs",),
    ),
    Mutant(
        "the end of a run resumes its job",
        in_record("finish", '"now": now, **(state or {})}', '"now": now, **(state or {}), "paused": False}'),
        ("jobs",),
    ),
    Mutant(
        "a paused job begins",
        both(
            in_record("begin", 'if record.get("paused")', "if False"),
            in_call('if job is not None and job.get("paused"):', "if False:"),
        ),
        ("jobs",),
    ),
    Mutant(
        "a run that is revoked is done all the same",
        in_record("finish", 'or record["run"]["id"] != run.run.id', "and not held"),
        ("jobs",),
    ),
    Mutant(
        "a job that is done again tells its first result",
        in_record("finish", "facts | (result or {})", '{**facts, **record.setdefault("first", result)}'),
        ("jobs",),
    ),
    Mutant("a clock that stepped back stalls a job", in_record("rebase", "step <= 0", "True"), ("jobs",)),
    Mutant("a job begins under a lease that has ended", in_call("and owned[-1].trusted():", "and True:"), ("jobs",)),
    Mutant(
        "a job that begins late gives up the run of another",
        in_call("if not owned[-1].trusted():", "if False:"),
        ("jobs",),
        first=1998,
    ),
    Mutant("a cell is written whatever its version is", wrapped(TableNode, "write_cell", write_anyway), ("jobs",)),
    Mutant(
        "a cell keeps no replies",
        replaced(cells, "_write", write_no_replies),
        ("jobs",),
        first=761,
    ),
)
