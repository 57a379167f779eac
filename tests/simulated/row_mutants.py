"""Bugs to plant in the store over a table of rows, one at a time: changes of its text."""

import inspect
from collections.abc import Callable
from dataclasses import replace

from simulation import Faults, Plan, rows
from tenure.stores.rows import access, store
from tests.planting import module_with
from tests.simulated.mutants import Mutant, Patch, replaced


def rewritten(right: str, wrong: str) -> Callable[[], Patch]:
    """Return a way to plant a change of the module that says what is right."""
    module = next(each for each in (store, access) if right in inspect.getsource(each))
    planted = module_with(module, (right, wrong))
    if module is access:
        return replaced(store, "TableAccess", vars(planted)["TableAccess"])
    methods = {name: vars(planted)["RowStore"].__dict__[name] for name in ("_run", "_age", "_take")}
    return replaced(rows, "SimulatedRowStore", type("Planted", (rows.SimulatedRowStore,), methods))


def crowd(plan: Plan) -> Plan:
    """Have many clients at one name, whose requests are late, and whose clocks disagree."""
    faults = Faults(straggler=0.2, cancel=0.3, pauses=2, crashes=1, disorder=5.0)
    return replace(plan, clients=4, tasks=2, rounds=4, names=1, duration=5.0, faults=faults)


def row(bug: str, change: tuple[str, str], scenario: str = "polled") -> Mutant:
    """Return a bug of the store."""
    return Mutant(bug, rewritten(*change), (f"rows_{scenario}",), crowd)


ROW_MUTANTS = (
    row(
        "the time of a row is the wall clock of whoever looks",
        ("now = state.used_at + max(1, int((self._runtime.now() - seen.since) * 1e6))", "now = wall"),
    ),
    row(
        "a new version does not begin the count of what is seen anew",
        ("SeenRow(row, now, parts)", "SeenRow(row, before.since if before is not None else now, parts)"),
    ),
    row(
        "a renewal that changes nothing is not written",
        ("told or step.promised or", "told or"),
        "weights",
    ),
    row(
        "a renewal does not restart the watch of others",
        ("pulses |= dict.fromkeys(step.promised & pulses.keys(), number)", "pass"),
        "weights",
    ),
    row(
        "a part that was prolonged counts from when it was seen first",
        ("if part in known and known[part][0] == sign else", "if part in known else"),
    ),
    row(
        "all holders end with the one that has ended",
        (
            "if over(holder.request_id, holder.ttl):",
            "if any(over(each.request_id, each.ttl) for each in state.holders):",
        ),
        "weights",
    ),
    row(
        "a lock delay ends at once",
        ("if state.blocked_until and over(DELAY, state.block):", "if state.blocked_until:"),
    ),
    row(
        "a client writes on top of what it does not know any more",
        (
            "await self._access.write(key, value, seen.row.version, until)",
            "await self._access.write(key, value, (await self._access.read(key, until)).row.version, until)",
        ),
    ),
)
"""The bugs."""
