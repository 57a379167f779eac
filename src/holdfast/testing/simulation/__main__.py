"""`python -m holdfast.testing.simulation` runs the simulation."""

import sys

from holdfast.testing.simulation.command import main

if __name__ == "__main__":
    sys.exit(main())
