"""The parser of the command's arguments, and the options that several commands share.

It stands on argparse, so that the command needs no package but Tenure.
"""

import argparse
import difflib
import re
import shutil
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from inspect import cleandoc
from pathlib import Path
from typing import NoReturn

from tenure.cli.diagnostics import Status
from tenure.client import DEFAULT_TTL
from tenure.errors import UsageError

LEAST_WIDTH, MOST_WIDTH = 40, 100
"""The bounds of the width of a help text."""

A_URL = re.compile(r"\S+://\S+")

Options = argparse.Namespace


class Parser(argparse.ArgumentParser):
    """A parser whose errors are UsageErrors, and whose help keeps the paragraphs of its text."""

    def __init__(self, name: str, usage: str, text: str) -> None:
        """Parse the arguments after `tenure NAME`; `text` explains the command."""
        super().__init__(
            prog=f"tenure {name}".rstrip(),
            usage=f"%(prog)s {usage}",
            formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, width=width()),
            allow_abbrev=False,
        )
        self.text = text

    def error(self, message: str) -> NoReturn:
        """Raise a UsageError that says which help to read. It shows no URL, for a URL may contain a password."""
        end = "" if message.endswith("?") else "."
        raise UsageError(f"{A_URL.sub('(a URL)', message)}{end} See `{self.prog} --help`.")

    def nearest(self, words: Sequence[str]) -> str:
        """Return a hint at the option that the first option among some words resembles; empty if there is none."""
        near = difflib.get_close_matches(first_option(words), self._option_string_actions, 1, 0.75)
        return f". Did you mean {near[0]}?" if near else ""

    def format_help(self) -> str:
        """Return the help, in the width of the terminal."""
        self.description = fill(self.text)
        return super().format_help()


def width() -> int:
    """Return the width of a help text."""
    return max(LEAST_WIDTH, min(shutil.get_terminal_size().columns - 2, MOST_WIDTH))


def listed(names: Iterable[tuple[str, str]]) -> str:
    """Return the list of commands in a help text, with what each does."""
    indent = " " * 19
    return "\n".join(
        textwrap.fill(f"  {name:17}{text}", width(), subsequent_indent=indent, break_on_hyphens=False)
        for name, text in names
    )


def fill(text: str) -> str:
    """Return a text whose paragraphs are wrapped one by one."""
    return "\n\n".join(textwrap.fill(paragraph, width()) for paragraph in text.split("\n\n"))


@dataclass(slots=True, frozen=True)
class Command:
    """One command: what it does is the docstring of `run`."""

    name: str
    usage: str
    """The arguments, as the usage line of the help shows them."""
    add_options: Callable[[Parser], None]
    run: Callable[[Options], int]
    dashes: bool = False
    """Whether the words after `--` are the option `after_dashes` (None without `--`)."""

    def text(self) -> str:
        """Return the text of its help."""
        return cleandoc(self.run.__doc__ or "")

    def summary(self) -> str:
        """Return what it does, in a line."""
        return self.text().split("\n", 1)[0].partition(": `")[0].partition(". ")[0].rstrip(".")

    def parser(self) -> Parser:
        """Return its parser."""
        parser = Parser(self.name, f"[OPTIONS] {self.usage}".rstrip(), self.text())
        self.add_options(parser)
        return parser

    def parse(self, words: Sequence[str]) -> Options:
        """Parse the words after the command. Raises UsageError; SystemExit if they ask for help, which is printed."""
        parser, after = self.parser(), None
        if not self.dashes:
            options, rest = parser.parse_known_args(words)
        else:
            if "--" in words:
                at = words.index("--")
                words, after = words[:at], list(words[at + 1 :])
            options, rest = parser.parse_known_intermixed_args(words)
            options.after_dashes = after
        if rest:
            hint = parser.nearest(rest) or (". Write `--` before the command" if self.dashes and after is None else "")
            parser.error(_left_over(rest) + hint)
        return options


def _left_over(words: Sequence[str]) -> str:
    """Say what is wrong with words that nobody understands. A word may be a URL with a password."""
    option = first_option(words)
    return f"there is no option {option}" if option else f"there is no argument {shown(words[0])}"


def first_option(words: Iterable[str]) -> str:
    """Return the first option among some words, without its value; empty if there is none."""
    return next((word.partition("=")[0] for word in words if word.startswith("-")), "")


def shown(word: str) -> str:
    """Return a word of the arguments as a message shows it."""
    return "(a URL)" if "://" in word else repr(word)


# -- values --------------------------------------------------------------------------------------------------


def number(least: float | None = None) -> Callable[[str], float]:
    """Return a parser of numbers that are at least `least`."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{shown(text)} is not a number") from None
        if least is not None and not value >= least:
            raise argparse.ArgumentTypeError(f"{shown(text)} is not at least {least:g}")
        return value

    return parse


def whole(least: int | None = None, most: int | None = None) -> Callable[[str], int]:
    """Return a parser of whole numbers from `least` to `most`."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{shown(text)} is not a whole number") from None
        if (least is not None and value < least) or (most is not None and value > most):
            bounds = f"at least {least}" if most is None else f"from {least} to {most}"
            raise argparse.ArgumentTypeError(f"{shown(text)} is not {bounds}")
        return value

    return parse


# -- options of several commands -----------------------------------------------------------------------------


def add_name(parser: Parser) -> None:
    """Add the name of a lock."""
    parser.add_argument("name", metavar="NAME", help="The name of the lock.")


def add_flag(parser: Parser, *names: str, text: str) -> None:
    """Add an option without a value."""
    parser.add_argument(*names, action="store_true", help=text)


def add_seconds(
    parser: Parser, *names: str, text: str, least: float | None = None, default: float | None = None
) -> None:
    """Add an option that is a number of seconds, of at least `least`."""
    parser.add_argument(*names, type=number(least), default=default, metavar="SECONDS", help=text)


def add_status(parser: Parser, *names: str, dest: str, default: int, text: str) -> None:
    """Add an option that is an exit status."""
    parser.add_argument(
        *names,
        type=whole(0, 255),
        default=int(default),
        dest=dest,
        metavar="STATUS",
        help=f"{text} Default: {int(default)}.",
    )


def add_store(parser: Parser) -> None:
    """Add the options that name the store."""
    parser.add_argument(
        "--url", metavar="URL", help="The store. Default: TENURE_URL in the environment, else a file of this user."
    )
    add_url_file(parser)
    parser.add_argument(
        "--namespace", metavar="TEXT", default="", help="A prefix of all names, so that programs can share a store."
    )


def add_url_file(parser: Parser) -> None:
    """Add the option that names a file with the URL."""
    parser.add_argument(
        "--url-file",
        type=Path,
        metavar="PATH",
        help="A file that contains the URL of the store. Default: TENURE_URL_FILE in the environment.",
    )


def add_json(parser: Parser) -> None:
    """Add the option for output as JSON."""
    parser.add_argument("--json", action="store_true", dest="as_json", help="Print JSON.")


def add_owner(parser: Parser) -> None:
    """Add the option that names the owner."""
    parser.add_argument("--owner", metavar="TEXT", help="The owner that others see. Default: host/pid.")


def add_pass_url(parser: Parser) -> None:
    """Add the option that passes the URL on."""
    add_flag(parser, "--pass-url", text="Pass the URL to the command in TENURE_URL, with its password.")


def add_ttl(parser: Parser) -> None:
    """Add the ttl."""
    text = f"After how long the lease of a holder that stopped renewing expires. Default: {DEFAULT_TTL:g}."
    add_seconds(parser, "--ttl", default=DEFAULT_TTL, text=text)


def add_conflict_status(parser: Parser) -> None:
    """Add the option for the status if the lock is not granted."""
    text = "The status if the lock is not granted in time."
    add_status(parser, "-E", "--conflict-exit-code", dest="conflict_status", default=Status.NOT_GRANTED, text=text)


def add_shell(parser: Parser) -> None:
    """Add the option for a script instead of a command."""
    parser.add_argument("-c", dest="shell", metavar="SCRIPT", help="Run this script with /bin/sh instead of COMMAND.")


def add_grace(parser: Parser) -> None:
    """Add the time between the signals that end a command."""
    text = "How long from SIGTERM to SIGKILL if the lease is lost. Default: 10."
    add_seconds(parser, "--grace", least=0, default=10.0, text=text)
