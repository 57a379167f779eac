"""What the tests of the demo share with those of the command."""

from tests.cli.conftest import command

__all__ = ["command"]
