"""`manage.py migrate_once`: `migrate` under a lock, so that all replicas may start it at once.

It is a command of its own because `migrate` stays what Django, or another app, makes of it. It keeps no record of what
is done, for the database has one: whoever comes second finds nothing to migrate, also after the database was restored.
"""

from collections.abc import Callable
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.core.management.commands import migrate
from django.db import connections

from tenure.django import DEFAULT, locks
from tenure.django.checks import PROCESS_ONLY, is_in_memory
from tenure.errors import TenureError
from tenure.lease import Lease


class MigrateOnce(migrate.Command):
    """The command. It takes the options of `migrate`."""

    help = "Runs migrate under a lock: of all processes that start this at once, one migrates, and the others wait."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the options of the lock."""
        super().add_arguments(parser)
        parser.add_argument("--using", default=DEFAULT, help="The alias in TENURE of the store of the lock.")
        parser.add_argument("--timeout", type=float, help="How many seconds to wait for others. Default: for ever.")

    def handle(self, *args: object, using: str, timeout: float | None, **options: Any) -> None:  # noqa: ANN401
        """Migrate, once nobody else does."""
        database = options["database"]
        try:
            if is_in_memory(using):
                self.stderr.write(f"{PROCESS_ONLY}, so this waits for nobody.")
            with (
                locks[using].lock(f"django-migrate-{database}", timeout=timeout) as lease,
                connections[database].execute_wrapper(_while_held(lease)),
            ):
                super().handle(*args, **options)
        except TenureError as error:
            raise CommandError(str(error)) from error


def _while_held(lease: Lease) -> Callable[..., Any]:
    """Return a wrapper that refuses each statement once the lease is lost: another process may migrate by then."""

    def run(execute: Callable[..., Any], *statement: object) -> Any:  # noqa: ANN401 - of Django
        lease.check()
        return execute(*statement)

    return run


Command = MigrateOnce  # the name by which Django finds it
