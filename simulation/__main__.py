"""`python -m simulation` runs the simulation."""

import sys

from simulation.command import main

if __name__ == "__main__":
    sys.exit(main())
