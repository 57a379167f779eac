"""Where the command finds the URL of its store, and what of it the command under a lock gets to see.

A password stands in no list of processes unasked: it is read from the environment or from a file, and the command under
a lock finds it in its environment only with `--pass-url`.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, parse_qsl, urlencode, urlsplit

from holdfast.cli.say import tell
from holdfast.client import Client
from holdfast.errors import UsageError
from holdfast.stores.urls import FILE_VARIABLE, VARIABLE, read_url

HINT = (
    "every user of this machine can read the password in --url from the list of processes. Put the URL into the "
    f"environment as {VARIABLE}, or into a file, and give that as --url-file."
)

ALONE = (
    "memory:// is in the memory of this process: no other process sees what is held there, nor waits for it. Give the "
    "URL of a store that they share, as redis://host, or leave it out for the lock file of this user."
)


@dataclass(slots=True, frozen=True)
class Address:
    """The URL of a store, and where it was found."""

    url: str | None
    """None: the lock file of this user."""
    file: Path | None = None
    """The file that it was read from, if any."""
    in_the_open: bool = False
    """Whether it stands in the list of processes, with a password."""

    def client(self, **options: Any) -> Client:  # noqa: ANN401 - those of a client
        """Return a client of the store, and warn if others can read its password, or cannot see the store."""
        client = Client(self.url, **options)
        self.warn()
        return client

    def warn(self) -> None:
        """Tell if others can read the password, or cannot see the store."""
        if self.in_the_open:
            tell(HINT)
        if self.url is not None and self.url.startswith("memory:"):
            tell(ALONE)

    def environment(self, *, pass_url: bool) -> dict[str, str | None]:
        """Return what a command under a lock finds in its environment, to lock in the same store.

        A URL with a password loses it, so that the command is refused by the store: without the variable it would
        lock in another one. None stands for what the command does not find.
        """
        if self.url is None:
            return {}
        if pass_url:
            return {VARIABLE: self.url}
        if self.file is not None:
            return {VARIABLE: None, FILE_VARIABLE: str(self.file.absolute())}
        return {VARIABLE: without_password(self.url)}


def find_address(url: str | None, file: Path | None) -> Address:
    """Return the address that the options give, else the environment. Raises UsageError if they contradict."""
    if url is not None and file is not None:
        raise UsageError("--url and --url-file contradict each other; give one of them.")
    if url is not None:
        return Address(url, in_the_open=without_password(url) != url)
    if file is None and VARIABLE in os.environ:
        return Address(os.environ[VARIABLE])
    if file is None and FILE_VARIABLE in os.environ:
        file = Path(os.environ[FILE_VARIABLE])
    return Address(None) if file is None else Address(read_url(file), file)


def without_password(url: str) -> str:
    """Return a URL without its passwords; "" if it cannot be read."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return ""
    login, at, hosts = parts.netloc.rpartition("@")
    user, colon, _ = login.partition(":")
    query = parse_qsl(parts.query, keep_blank_values=True)
    kept = [(key, value) for key, value in query if not key.lower().endswith("password")]
    if not colon and kept == query:
        return url
    netloc = f"{user}{at}{hosts}" if user else hosts
    return SplitResult(parts.scheme, netloc, parts.path, urlencode(kept), parts.fragment).geturl()
