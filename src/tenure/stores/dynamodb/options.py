"""The options of the URL of a table of DynamoDB: where the table is, and whose credentials are used.

A URL contains no credentials, and no error of this file repeats a value of it. botocore finds them where all programs
for AWS look: in the environment, in the files of the user, or in the role of the machine, the task or the pod.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from tenure.errors import UsageError
from tenure.stores.sql.shared_steps import LONGEST_POLL
from tenure.stores.urlparts import Option, UrlParts, seconds, text

FORMS = "write dynamodb://table?region=eu-central-1"

TABLE = re.compile(r"[A-Za-z0-9_.-]{3,255}")
"""The names that DynamoDB allows."""


def _region(text: str) -> str:
    if not re.fullmatch("[a-z0-9-]+", text):
        raise ValueError
    return text


def _endpoint(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in {"http", "https"} or not parts.hostname or "@" in text or parts.path.strip("/"):
        raise ValueError
    if parts.query or parts.fragment or parts.port == 0:
        raise ValueError
    return text


OPTIONS: Mapping[str, Option] = {
    "region": Option(_region, "must be a region of AWS, as ?region=eu-central-1"),
    "endpoint": Option(_endpoint, "must be a URL with a host and no login or path, as ?endpoint=http://10.0.0.1:8000"),
    "profile": text("profile", "locks"),
    "poll": Option(seconds(0.05, 60.0), "must be from 0.05 to 60 seconds, as ?poll=1"),
}
"""All options of the URL."""


@dataclass(slots=True, frozen=True)
class DynamoDeployment:
    """A table, and how to reach it."""

    table: str
    region: str | None = None
    """None: that of the environment or of the profile."""
    endpoint: str | None = None
    """None: that of AWS in the region."""
    profile: str | None = None
    """None: the usual one."""
    poll: float = LONGEST_POLL / 1e6
    """The longest time between two looks of a waiter, in seconds."""

    @property
    def title(self) -> str:
        """A short description without secrets."""
        given = {"region": self.region, "endpoint": self.endpoint}
        options = "&".join(f"{key}={value}" for key, value in given.items() if value is not None)
        return f"dynamodb://{self.table}{'?' * bool(options)}{options}"


def deployment_of(parts: SplitResult) -> DynamoDeployment:
    """Parse a URL. Raises UsageError if it can't be understood."""
    url = UrlParts(parts, "dynamodb", FORMS)
    given = url.take(url.query(OPTIONS), OPTIONS)
    if "@" in parts.netloc:
        raise UsageError(
            "the dynamodb URL takes no login: name a profile as ?profile=locks, or set AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY, or give the machine a role."
        )
    if not TABLE.fullmatch(parts.netloc) or url.path().strip("/"):
        raise UsageError(
            "the dynamodb URL names a table (3 to 255 letters, digits, dots, - and _) and no host, port or path, as "
            "dynamodb://locks?region=eu-central-1; another server is an option, as ?endpoint=http://10.0.0.1:8000."
        )
    return DynamoDeployment(parts.netloc, **given)
