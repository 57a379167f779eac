"""The README says what is checked, and nothing else."""

from pathlib import Path

from simulation.guarantees import guarantee_table

README = Path(__file__).parents[2] / "README.md"


def test_the_readme_states_what_the_simulation_checks() -> None:
    """Its guarantee table is the one that the scenarios give. (If not: python -m scripts.guarantees)."""
    text = README.read_text(encoding="utf-8")
    stated = text.partition("<!-- guarantees -->")[2].partition("<!-- /guarantees -->")[0]
    assert stated.strip() == guarantee_table()
