"""The URL of the command's store: where it is found, and how much of it a command under a lock gets.

The rule: no password appears in a list of processes unless the user put it there. A password is read from the
environment or from a file, and a command under a lock finds it in its environment only with `--pass-url`.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, parse_qsl, urlencode, urlsplit

from tenure.cli.diagnostics import tell
from tenure.client import Client
from tenure.errors import UsageError
from tenure.stores.urls import FILE_VARIABLE, VARIABLE, read_url

HINT = (
    "every user of this machine can read the password in --url from the list of processes. Set the environment "
    f"variable {VARIABLE} to the URL, or write the URL into a file and give the file as --url-file."
)

ALONE = (
    "memory:// keeps its locks in the memory of this process: no other process sees them or waits for them. Give the "
    "URL of a store that the processes share, such as redis://host, or give none to use the lock file of this user."
)


@dataclass(slots=True, frozen=True)
class Address:
    """The URL of a store, and where it was found."""

    url: str | None
    """None stands for the lock file of this user."""
    file: Path | None = None
    """The file that the URL was read from, if any."""
    in_the_open: bool = False
    """Whether the list of processes shows the URL with a password."""

    def client(self, **options: Any) -> Client:  # noqa: ANN401 - those of a client
        """Return a client of the store; warn if others can read its password or cannot reach the store."""
        client = Client(self.url, **options)
        self.warn()
        return client

    def warn(self) -> None:
        """Print a warning if other users can read the password, or if other processes cannot reach the store."""
        if self.in_the_open:
            tell(HINT)
        if self.url is not None and self.url.startswith("memory:"):
            tell(ALONE)

    def environment(self, *, pass_url: bool) -> dict[str, str | None]:
        """Return the environment variables by which a command under a lock finds the same store.

        The URL is passed without its password, so that the store refuses the command: without the variable the command
        would lock in another store. None stands for a variable that is removed.
        """
        if self.url is None:
            return {}
        if pass_url:
            return {VARIABLE: self.url}
        if self.file is not None:
            return {VARIABLE: None, FILE_VARIABLE: str(self.file.absolute())}
        return {VARIABLE: without_password(self.url)}


def find_address(url: str | None, file: Path | None) -> Address:
    """Return the address from the options, else from the environment. Raises UsageError if the options contradict."""
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
    """Return a URL without its passwords; "" if the URL cannot be parsed."""
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
