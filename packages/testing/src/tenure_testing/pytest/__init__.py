"""The types of the fixtures of Tenure's pytest plugin, for annotations in users' tests. See docs/testing.md.

The plugin itself is the module `tenure_testing.plugin`, which pytest always loads. It imports this package only when a
test uses a fixture or the marker.
"""

from tenure_testing.pytest.chaos import Chaos
from tenure_testing.pytest.sections import Section, Sections

__all__ = ["Chaos", "Section", "Sections"]
