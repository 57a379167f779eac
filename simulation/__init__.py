"""A deterministic simulation: the shipped protocol in virtual time, under every fault.

`simulate(Plan.draw(scenario, seed))` does one run, `python -m simulation` does many.
"""

from simulation.faults import Faults
from simulation.invariants import Invariant, Violation
from simulation.plan import Plan
from simulation.run import Report, simulate
from simulation.scenarios import BY_NAME, SCENARIOS, Scenario

__all__ = ["BY_NAME", "SCENARIOS", "Faults", "Invariant", "Plan", "Report", "Scenario", "Violation", "simulate"]
