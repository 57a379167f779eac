"""The options of the URL of a bucket: where it is, and the keys to it.

No error of this file repeats a value of the URL, because it may be a secret. What the URL does not say, obstore takes
from the environment: `AWS_ACCESS_KEY_ID`, `GOOGLE_APPLICATION_CREDENTIALS`, `AZURE_STORAGE_ACCOUNT_NAME`, or the
identity of the machine.
"""

from collections.abc import Mapping
from typing import Any
from urllib.parse import SplitResult, unquote

from obstore import exceptions
from obstore.store import AzureStore, GCSStore, S3Store

from tenure.errors import UsageError
from tenure.stores.objects.table import cause_of
from tenure.stores.urlparts import Option, UrlParts, seconds, switch, text

LONGEST = "60s"
"""How long a request lasts at most for which nobody waits any more."""

COMMON: Mapping[str, Option] = {
    "allow_http": switch("allow_http"),
    "poll": Option(seconds(0.05, 60.0), "must be from 0.05 to 60 seconds, as ?poll=1"),
}

KINDS: Mapping[str, tuple[type[Any], Mapping[str, Option]]] = {
    "s3": (
        S3Store,
        {
            "endpoint": text("endpoint", "https://s3.example.com"),
            "region": text("region", "eu-central-1"),
            "access_key_id": text("access_key_id", "AKIA..."),
            "secret_access_key": text("secret_access_key", "..."),
            "session_token": text("session_token", "..."),
            "skip_signature": switch("skip_signature"),
        },
    ),
    "gs": (GCSStore, {"service_account": text("service_account", "/etc/locks.json")}),
    "az": (
        AzureStore,
        {
            "endpoint": text("endpoint", "https://account.blob.core.windows.net"),
            "account_name": text("account_name", "account"),
            "account_key": text("account_key", "..."),
        },
    ),
}


def bucket_of(parts: SplitResult) -> tuple[Any, str, float | None]:
    """Return a bucket of obstore, its title, and how long a waiter waits between two looks at most; None: as usual."""
    kind, options = KINDS[parts.scheme]
    url = UrlParts(parts, parts.scheme, f"write {parts.scheme}://bucket/prefix?allow_http=false")
    given = url.take(url.query([*options, *COMMON]), {**options, **COMMON})
    if not parts.netloc or "@" in parts.netloc or ":" in parts.netloc:
        raise UsageError(
            f"the {parts.scheme} URL names a bucket and no login or port, as {parts.scheme}://bucket/prefix; what else "
            f"it needs are options ({', '.join(options)}) or stands in the environment."
        )
    prefix, poll = unquote(url.path()).strip("/"), given.pop("poll", None)
    client = {"timeout": LONGEST, "allow_http": given.pop("allow_http", False)}
    try:
        made = kind(
            parts.netloc, prefix=prefix or None, client_options=client, retry_config={"max_retries": 0}, **given
        )
    except (exceptions.BaseError, ValueError, OSError) as error:
        raise UsageError(f"the options of the {parts.scheme} URL are not valid ({cause_of(error)}).") from None
    return made, f"{parts.scheme}://{parts.netloc}{'/' * bool(prefix)}{prefix}", poll
