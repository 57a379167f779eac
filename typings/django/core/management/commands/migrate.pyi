from django.core.management.base import BaseCommand

class Command(BaseCommand):
    """The command `migrate`."""
