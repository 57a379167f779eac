"""The page of guarantees says what is checked, and nothing else."""

from pathlib import Path

from simulation.guarantees import guarantee_table

PAGE = Path(__file__).parents[2] / "docs" / "guarantees.md"


def test_the_page_states_what_the_simulation_checks() -> None:
    """Its guarantee table is the one that the scenarios give. (If not: python -m scripts.guarantees)."""
    text = PAGE.read_text(encoding="utf-8")
    stated = text.partition("<!-- guarantees -->")[2].partition("<!-- /guarantees -->")[0]
    assert stated.strip() == guarantee_table()
