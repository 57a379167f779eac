"""The checks of the settings, for `manage.py check`. They connect to no store: `manage.py tenure doctor` does."""

import os

from django.conf import settings
from django.core import mail
from django.core.checks import CheckMessage, Error, Warning  # noqa: A004 - as Django calls it

from tenure.client import Client
from tenure.django import DEFAULT, arguments, configured
from tenure.errors import UsageError
from tenure.stores.urls import FILE_VARIABLE, VARIABLE

PROCESS_ONLY = "memory:// keeps its locks in one process: others do not see them"


def is_in_memory(alias: str) -> bool:
    """Return whether the locks of a store are those of this process alone."""
    return str(arguments(alias).get("url")).startswith("memory:")


def check_settings(app_configs: object = None, **_: object) -> list[CheckMessage]:  # noqa: ARG001 - of Django
    """Return what is wrong in TENURE: what would be refused when a client is made, and what no server can want."""
    if not hasattr(settings, "TENURE"):
        if VARIABLE in os.environ or FILE_VARIABLE in os.environ:
            return []
        text = "TENURE is not in the settings: locks are those of this user on this machine"
        return [Warning(text, 'Add TENURE = {"default": {"URL": "redis://localhost"}}.', id="tenure.W001")]
    try:
        stores = configured()
    except UsageError as error:
        return [Error(str(error), id="tenure.E001")]
    found: list[CheckMessage] = []
    if DEFAULT not in stores:
        found.append(Error(f"TENURE in the settings has no {DEFAULT!r}", id="tenure.E001"))
    for alias in stores:
        place = f"TENURE[{alias!r}]"
        try:
            Client(**arguments(alias))
        except UsageError as error:
            found.append(Error(str(error), obj=place, id="tenure.E002"))
            continue
        if is_in_memory(alias) and not settings.DEBUG and not hasattr(mail, "outbox"):  # which tests have
            found.append(Warning(PROCESS_ONLY, "Name a server.", obj=place, id="tenure.W002"))
    return found
