from argparse import ArgumentParser
from collections.abc import Sequence
from typing import Any

class CommandError(Exception):
    """What a command says before it exits with 1."""

class CommandParser(ArgumentParser):
    """The parser of a command."""

class OutputWrapper:
    """An output of a command."""

    def write(self, msg: str) -> None:
        """Write a line."""

class BaseCommand:
    """A management command."""

    help: str
    requires_system_checks: Sequence[str]
    stdout: OutputWrapper
    stderr: OutputWrapper

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the options."""

    def handle(self, *args: Any, **options: Any) -> str | None:
        """Do the work."""
