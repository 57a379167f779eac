"""Bugs to plant in counters, limits and stocks, and in the cells below them, to see that the simulation notices.

Units that move behind a reader's back are too seldom for it: tests/table/test_stock.py has them in every order.
"""

import inspect
import types
from collections.abc import Callable

from simulation.node import TableNode
from tenure.core import cells, slots
from tenure.core.segments import SegmentedStock
from tenure.table import limit, stock
from tenure.table.stock import Transit
from tests.simulated.job_mutants import write_anyway, write_no_replies
from tests.simulated.mutants import Mutant, Patch, replaced, wrapped


def in_rules(module: types.ModuleType, function: str, before: str, after: str) -> Callable[[], Patch]:
    """Return a way to change the text of the rules, as one of their functions uses it."""
    text = inspect.getsource(module)
    assert before in text
    wrong = types.ModuleType("wrong_rules")
    wrong.__dict__["__name__"] = module.__name__  # dataclasses look their module up
    exec(compile(text.replace(before, after), "wrong_rules", "exec"), wrong.__dict__)  # noqa: S102 - our own text
    return replaced(module, function, getattr(wrong, function))


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
        "a slot is given to several",
        in_rules(limit, "reserve", "limit.arrival, limit.last = arrival, reservation", "limit.last = reservation"),
        HERE,
    ),
    Mutant(
        "a limit lets twice its burst pass",
        in_rules(limit, "reserve", "arrival - rule.burst * rule.per", "arrival - 2 * rule.burst * rule.per"),
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
