"""The types of the fixtures of Tenure's pytest plugin, for annotations in users' tests. See docs/testing.md.

The plugin itself is the module `pytest_tenure`, which pytest always loads. It imports this package only when a test
uses a fixture or the marker.
"""

from tenure.testing.pytest.chaos import Chaos
from tenure.testing.pytest.sections import Section, Sections

__all__ = ["Chaos", "Section", "Sections"]
