"""The guarantee table of docs/guarantees.md, rendered from the promises of the scenarios."""

from simulation.invariants import Invariant
from simulation.scenarios import SCENARIOS, Scenario

COLUMNS: tuple[tuple[str, frozenset[Invariant]], ...] = (
    ("one holder at a time", frozenset({Invariant.EXCLUSION, Invariant.BACKED})),
    ("fencing tokens increase", frozenset({Invariant.TOKENS})),
    ("stale writes refused", frozenset({Invariant.FENCE})),
    ("first come, first served", frozenset({Invariant.FIFO, Invariant.ONCE})),
    ("holder notified of a loss in time", frozenset({Invariant.LOSS, Invariant.OVERHELD})),
    ("nothing left of a withdrawn request", frozenset({Invariant.CLEAN})),
    ("every waiter granted after the faults", frozenset({Invariant.DRAINED, Invariant.NO_ERRORS})),
)
"""The columns, and the invariants that must all hold for a "yes"."""


def guarantee_table() -> str:
    """Return the table in Markdown."""
    head = ["fault", "store", *(title for title, _ in COLUMNS)]
    rows = [
        head,
        ["---"] * len(head),
        *(_row(scenario) for scenario in SCENARIOS if not scenario.row),
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _row(scenario: Scenario) -> list[str]:
    return [scenario.description, scenario.stores, *(_cell(scenario, behind) for _, behind in COLUMNS)]


def _cell(scenario: Scenario, behind: frozenset[Invariant]) -> str:
    missing, limited = sorted(behind - scenario.promises), sorted(behind & scenario.exceptions.keys())
    if missing:
        return f"no: {scenario.exceptions[missing[0]]}"
    return f"yes, but {scenario.exceptions[limited[0]]}" if limited else "yes"
