"""`manage.py tenure ls`: the command `tenure` at a store of the settings."""

import argparse
import os
import sys

from django.core.management.base import BaseCommand, CommandError, CommandParser

from tenure.cli import run_app
from tenure.django import DEFAULT, arguments
from tenure.errors import UsageError
from tenure.stores.urls import VARIABLE


class TenureCommand(BaseCommand):
    """The command. It gets the URL by the environment, so that no list of processes shows a password."""

    help = "Runs the command `tenure` at a store of the settings, for instance `manage.py tenure --using default ls`."
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the alias, and the words of the command."""
        parser.add_argument("--using", default=DEFAULT, help="The alias in TENURE; stands before the command.")
        parser.add_argument("words", nargs=argparse.REMAINDER, help="The command and its options: `tenure --help`.")

    def handle(self, *, using: str, words: list[str], **_: object) -> None:
        """Run the command, and exit with its status."""
        try:
            given = arguments(using)
        except UsageError as error:
            raise CommandError(str(error)) from error
        url = given.get("url")
        if not isinstance(url, str | None) or given.keys() & {"quorum", "store"}:
            raise CommandError(f"TENURE[{using!r}] has no URL that is text: give it one, of a quorum redlock://...")
        if url is not None:
            os.environ[VARIABLE] = url
        if status := run_app(words or ["--help"], namespace=given.get("namespace", "")):
            sys.exit(status)


Command = TenureCommand  # the name by which Django finds it
