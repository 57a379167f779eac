"""For users' own tests: what the fixtures of Holdfast's pytest plugin are, to annotate them.

The plugin itself is the module `pytest_holdfast`, which pytest loads for everybody and which imports this only for
those who use it. docs/testing.md shows how.
"""

from holdfast.testing.pytest.chaos import Chaos
from holdfast.testing.pytest.sections import Section, Sections

__all__ = ["Chaos", "Section", "Sections"]
