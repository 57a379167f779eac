"""The app that INSTALLED_APPS names: it brings the checks of the settings, and the management commands."""

from django.apps import AppConfig
from django.core.checks import register

from tenure.django.checks import check_settings


class TenureConfig(AppConfig):
    """The app."""

    name = "tenure.django"
    label = "tenure"
    verbose_name = "Tenure"

    def ready(self) -> None:
        """Register the checks."""
        register(check_settings)
