"""The parts of a URL that names servers, for all stores.

No error of this file repeats a value of the URL, because it may be a password, or the rest of an unescaped one.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, NamedTuple, NoReturn
from urllib.parse import SplitResult, parse_qsl, unquote

from tenure.errors import UsageError

ESCAPE = "In a password write %40 for `@`, %2F for `/`, %3F for `?`, %23 for `#`."

HOST = re.compile(r"(?:\[([^\[\]\s/\\]+)\]|([^\[\]:\s/\\]+))(?::([0-9]{1,9}))?")
TWO_PORTS = re.compile(r"[^\[\]]*:[^\[\]]*:[^\[\]]*")
PORTS = range(1, 65536)


class Login(NamedTuple):
    """The user and the password in front of the hosts."""

    user: str
    password: str | None
    """None if the user is not followed by a colon."""


@dataclass(slots=True, frozen=True)
class Option:
    """An option after the `?`."""

    read: Callable[[str], Any]
    """Converts the text of the value. Raises ValueError or KeyError if the text is not valid."""
    takes: str
    """The valid values, as the rest of a sentence that begins with the option."""


@dataclass(slots=True, frozen=True)
class UrlParts:
    """A URL of servers, and the store that it belongs to."""

    split: SplitResult = field(repr=False)
    store: str
    """The store's name for users: Redis, etcd."""
    forms: str
    """The valid forms of the URL, for error messages."""

    def query(self, known: Iterable[str]) -> dict[str, str]:
        """Return the options. Raises UsageError if one is unknown, or if there is a fragment after them."""
        if self.split.fragment:
            raise UsageError(f"{self._a_url()} takes nothing after `#`. {ESCAPE}")
        query = dict(parse_qsl(self.split.query, keep_blank_values=True))
        refuse_unknown(self.split, query, known, self._a_url())
        return query

    def take(self, query: dict[str, str], options: Mapping[str, Option]) -> dict[str, Any]:
        """Remove options from a query, and return their values. Raises UsageError if a value is not valid."""
        return {key: self._read(key, query.pop(key), option) for key, option in options.items() if key in query}

    def hosts(self, port: int) -> list[tuple[str, int]]:
        """Return the hosts with their ports, or with the default port. Raises UsageError if one is not valid."""
        hosts = self.split.netloc.rpartition("@")[2] or "localhost"
        return [self._host(each, port) for each in hosts.split(",")]

    def login(self) -> Login | None:
        """Return the user and the password, or None."""
        login, at, _ = self.split.netloc.rpartition("@")
        user, colon, password = login.partition(":")
        return Login(unquote(user), unquote(password) if colon else None) if at else None

    def path(self) -> str:
        """Return the path, still escaped. Raises UsageError if it may be the rest of a password."""
        if "@" in self.split.path:
            raise UsageError(f"the path of the {self.store} URL contains an `@`. {ESCAPE}")
        return self.split.path

    def _read(self, key: str, text: str, option: Option) -> Any:  # noqa: ANN401 - whatever the option is
        try:
            return option.read(text)
        except (ValueError, KeyError):
            raise UsageError(f"the option {key} of the {self.store} URL {option.takes}.") from None

    def _host(self, text: str, port: int) -> tuple[str, int]:
        found = HOST.fullmatch(text)
        if found is None or int(found[3] or port) not in PORTS:
            self._refuse_host(text)
        host = found[1] or found[2]
        try:
            host.encode("idna")  # as each resolver does, which would raise UnicodeError
        except UnicodeError:
            raise UsageError(
                f"a host in the {self.store} URL has, between two dots, a part that is empty or longer than 63 "
                f"characters, or a character that names do not have; {self.forms}."
            ) from None
        return host, int(found[3] or port)

    def _refuse_host(self, text: str) -> NoReturn:
        if TWO_PORTS.fullmatch(text):
            raise UsageError(
                f"a host of the {self.store} URL has two ports, or is an IPv6 address without brackets; {self.forms}."
            )
        raise UsageError(f"a host or a port in the {self.store} URL is not valid; {self.forms}.")

    def _a_url(self) -> str:
        return f"{'an' if self.store[0] in 'aeiou' else 'a'} {self.store} URL"


def refuse_unknown(split: SplitResult, given: Iterable[str], known: Iterable[str], url: str) -> None:
    """Raise UsageError if an option of a URL is unknown, and suggest one.

    The message repeats nothing of a query with an `@`, because what precedes it may be the rest of a password.
    """
    known = sorted(known)
    unknown = sorted(set(given).difference(known))
    if not unknown:
        return
    if "@" in split.query + split.fragment:
        raise UsageError(f"{url} has an unknown option; the options are {', '.join(known)}. {ESCAPE}")
    if near := get_close_matches(unknown[0].lower(), known, 1):
        raise UsageError(f"{unknown[0]!r} is not an option of {url}; did you mean {near[0]}?")
    raise UsageError(f"{unknown[0]!r} is not an option of {url}; the options are {', '.join(known)}. {ESCAPE}")


# -- values of options -------------------------------------------------------------------------------------------


def flag(text: str) -> bool:
    """Convert a text to a boolean."""
    return {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}[text.lower()]


def number(text: str) -> int:
    """Convert a text to a whole number from 0 on."""
    if not text.isdecimal():
        raise ValueError
    return int(text)


def one_of(*words: str) -> Callable[[str], str]:
    """Return a converter that accepts one of a few words, in any case."""
    known = {word.lower(): word for word in words}
    return lambda text: known[text.lower()]


def seconds(least: float, most: float) -> Callable[[str], float]:
    """Return a converter to a duration within bounds, in seconds."""

    def read(text: str) -> float:
        if not least <= (duration := float(text)) <= most:
            raise ValueError
        return duration

    return read


def text(key: str, example: str) -> Option:
    """Return an option that accepts any text."""
    return Option(str, f"must be a text, as ?{key}={example}")


def switch(key: str) -> Option:
    """Return an option that is true or false."""
    return Option(flag, f"must be true or false, as ?{key}=true")
