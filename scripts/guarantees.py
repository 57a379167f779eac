"""Write the guarantee table of the README anew, from what the simulation's scenarios promise.

Usage: python -m scripts.guarantees   (from the top of the project)
"""

from pathlib import Path

from simulation.guarantees import guarantee_table

README = Path(__file__).parents[1] / "README.md"
START, END = "<!-- guarantees -->", "<!-- /guarantees -->"

before, _, rest = README.read_text(encoding="utf-8").partition(START)
_, _, after = rest.partition(END)
README.write_text(f"{before}{START}\n{guarantee_table()}\n{END}{after}", encoding="utf-8")
