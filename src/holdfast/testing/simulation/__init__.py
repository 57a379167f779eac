"""Deterministic simulation: the shipped protocol in virtual time, under every fault.

`simulate(Plan.draw(scenario, seed))` carries out one run; `python -m holdfast.testing.simulation` many.
"""

from holdfast.testing.simulation.faults import Faults
from holdfast.testing.simulation.invariants import Invariant, Violation
from holdfast.testing.simulation.plan import Plan
from holdfast.testing.simulation.run import Report, simulate
from holdfast.testing.simulation.scenarios import BY_NAME, SCENARIOS, Scenario

__all__ = ["BY_NAME", "SCENARIOS", "Faults", "Invariant", "Plan", "Report", "Scenario", "Violation", "simulate"]
