"""Bugs to plant in counters, limits and stocks, and in the cells below them, to see that the simulation notices.

Units that move behind a reader's back are too seldom for it: tests/table/test_stock.py has them in every order.
"""

import types
from collections.abc import Callable
from unittest.mock import patch

from simulation.node import TableNode
from tenure.core import cells, slots
from tenure.core.segments import SegmentedStock
from tenure.table import limit, stock
from tenure.table.limit import SmoothRule, WindowRule
from tenure.table.stock import Transit
from tests.planting import methods_of, module_with, planted
from tests.simulated.job_mutants import write_anyway, write_no_replies
from tests.simulated.mutants import Mutant, Patch, replaced, wrapped


def in_rules(module: types.ModuleType, function: str, before: str, after: str) -> Callable[[], Patch]:
    """Return a way to change the text of the rules, as one of their functions uses it."""
    return replaced(module, function, getattr(module_with(module, (before, after), everywhere=True), function))


def in_rule(rule: type, method: str, before: str, after: str) -> Callable[[], Patch]:
    """Return a way to change the text of one rule of limits."""
    return replaced(rule, method, planted(rule, method, before, after))


def in_cells(before: str, after: str) -> Callable[[], Patch]:
    """Return a way to change the text of what makes the changes of a client."""
    methods = methods_of(module_with(cells, (before, after)), "Cells")
    return lambda: patch.multiple(cells.Cells, **methods)


async def wait_for_nothing(*_: object) -> None:
    """Use a slot before it has come."""


async def lose_units(segments: SegmentedStock, sender: int, transit: Transit) -> None:
    """End a transfer at its sender alone."""
    await segments._cells.change(segments._names[sender], stock.sent(transit, segments._count))


HERE = ("quantities",)

QUANTITY_MUTANTS = (
    Mutant("a repeated addition counts twice", replaced(cells, "_write", write_no_replies), HERE),
    Mutant("a cell that others have written is overwritten", wrapped(TableNode, "write_cell", write_anyway), HERE),
    Mutant(
        "each caller of a batch changes the first state",
        in_cells("share.change, after.state, ", "share.change, seen.content.state, "),
        HERE,
    ),
    Mutant(
        "a batch without a reply is forgotten",
        in_cells("line.late = [*line.late, batch]", "line.late = []"),
        HERE,
    ),
    Mutant(
        "a refused batch counts as made",
        in_cells("        if cell.written:\n", "        if True:\n"),
        HERE,
    ),
    Mutant(
        "a batch is over as soon as the cell does not show it",
        in_cells("if each.addition or each.version == seen.cell.version]", "if False]"),
        HERE,
    ),
    Mutant(
        "a slot is given to several",
        in_rules(limit, "reserve", "limit.keep(rule, rule.add(kept, present, slot, units))", "pass"),
        HERE,
    ),
    Mutant(
        "a limit lets twice its burst pass",
        in_rule(SmoothRule, "slot", "arrival - self.burst * self.per", "arrival - 2 * self.burst * self.per"),
        HERE,
    ),
    Mutant(
        "a window forgets what lies half of it back",
        in_rule(WindowRule, "add", "each.last + self.per > present", "each.last + self.per // 2 > present"),
        HERE,
    ),
    Mutant(
        "units are given back twice",
        in_rule(WindowRule, "settle", "each.units + more", "each.units + 2 * more"),
        HERE,
    ),
    Mutant("a slot is used early", replaced(slots, "_sleep", wait_for_nothing), HERE),
    Mutant("a unit more is taken than is there", in_rules(stock, "take", "free < units", "free + 1 < units"), HERE),
    Mutant("a stock confirms what has expired", in_rules(stock, "confirm", "None) is not None", "None) != 0"), HERE),
    Mutant(
        "expired units come back again and again",
        in_rules(stock, "reserve", "self.add(self.reserved.pop(each)[0])", "self.add(self.reserved[each][0])"),
        HERE,
    ),
    Mutant("a transfer is received twice", in_rules(stock, "receive", ">= number", "> number"), HERE),
    Mutant("units are lost on their way", replaced(SegmentedStock, "_complete", lose_units), HERE),
    Mutant(
        "a stock is sold out when one segment is",
        in_rules(stock, "sold_out", "sum(each.available(now) for each in reading) < units", "reading[0].free < units"),
        HERE,
    ),
)
