"""Render the guarantee table of docs/guarantees.md from the promises of the simulation's scenarios.

Usage: python -m scripts.guarantees   (from the top of the project)
"""

from pathlib import Path

from simulation.guarantees import guarantee_table

PAGE = Path(__file__).parents[1] / "docs" / "guarantees.md"
START, END = "<!-- guarantees -->", "<!-- /guarantees -->"

before, _, rest = PAGE.read_text(encoding="utf-8").partition(START)
_, _, after = rest.partition(END)
PAGE.write_text(f"{before}{START}\n{guarantee_table()}\n{END}{after}", encoding="utf-8")
