"""What a command is: its arguments on argparse, those that several share, and the store that they name.

A command stands in the module that does its work, as a function whose docstring is its help. A module is imported when
one of its commands is called.
"""

import argparse
import os
import re
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from inspect import cleandoc
from operator import methodcaller
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import SplitResult, parse_qsl, urlencode, urlsplit

from tenure.cli.output import Status, tell
from tenure.client import DEFAULT_TTL, Client
from tenure.errors import LockTimeout, UsageError
from tenure.primitives.base import TO_WAIT
from tenure.stores.urls import FILE_VARIABLE, VARIABLE, read_url

_MODULES = (
    "run: hold, once: once, lock: hold, elect: elect, acquire: hold, wait: names, ls: names, top: names, show: names, "
    "why: names, log: names, revoke: names, renew: hold, release: names, drain: names, schema: stores, jobs: jobs, "
    "job pause: jobs, job resume: jobs, job run: jobs, job forget: jobs, counter: jobs, limit: jobs, stock: jobs, "
    "quarantine end: stores, exporter: http, doctor: stores, serve: http, mcp: mcp, demo: stores"
)
COMMANDS = {name: module for name, _, module in (each.partition(": ") for each in _MODULES.split(", "))}
"""The commands in the order of the help, and the module of each. A command of a group has a name of two words."""

LEAST_WIDTH, MOST_WIDTH = 40, 100
A_URL = re.compile(r"\S+://\S+")

Options = argparse.Namespace
Argument = Callable[[Any], object]
"""Adds an argument to a parser, or to a group of its arguments."""


class Ended(Exception):
    """A signal has ended the wait of a command."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


# -- the parser ----------------------------------------------------------------------------------------------


class _Formatter(argparse.HelpFormatter):
    """Keeps the paragraphs of a text, in the width of the terminal."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=width())

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        del width, indent
        return fill(text)


class Parser(argparse.ArgumentParser):
    """A parser whose errors are UsageErrors."""

    def error(self, message: str) -> NoReturn:
        """Raise a UsageError that says which help to read. It shows no URL, for a URL may contain a password."""
        end = "" if message.endswith("?") else "."
        raise UsageError(f"{A_URL.sub('(a URL)', message)}{end} See `{self.prog} --help`.")

    def format_help(self) -> str:
        """Return the help. Only here is the width of the terminal asked for, as the modules for that start slowly."""
        self.formatter_class = _Formatter
        return super().format_help()

    def refuse(self, words: Sequence[str], hint: str) -> NoReturn:
        """Say what is wrong with words that nobody understands. A word may be a URL with a password."""
        option = next((word.partition("=")[0] for word in words if word.startswith("-")), "")
        if option:
            import difflib

            near = difflib.get_close_matches(option, self._option_string_actions, 1, 0.75)
            hint = f". Did you mean {near[0]}?" if near else hint
        self.error((f"there is no option {option}" if option else f"there is no argument {shown(words[0])}") + hint)


def width() -> int:
    """Return the width of a help text."""
    import shutil

    return max(LEAST_WIDTH, min(shutil.get_terminal_size().columns - 2, MOST_WIDTH))


def listed(names: Iterable[tuple[str, str]]) -> str:
    """Return the list of commands in a help text, with what each does."""
    wrap = partial(textwrap.fill, width=width(), subsequent_indent=" " * 19, break_on_hyphens=False)
    return "\n".join(wrap(f"  {name:17}{text}") for name, text in names)


def fill(text: str) -> str:
    """Return a text whose paragraphs are wrapped one by one."""
    return "\n\n".join(textwrap.fill(paragraph, width()) for paragraph in text.split("\n\n"))


def shown(word: str) -> str:
    """Return a word of the arguments as a message shows it."""
    return "(a URL)" if "://" in word else repr(word)


# -- commands ------------------------------------------------------------------------------------------------


@dataclass(slots=True, frozen=True)
class Command:
    """One command: what it does is the docstring of `run`."""

    name: str
    usage: str
    """The arguments, as the usage line of the help shows them."""
    arguments: Sequence[Argument]
    dashes: bool
    """Whether the words after `--` are the option `after_dashes` (None without `--`)."""
    run: Callable[[Options], int]

    def text(self) -> str:
        """Return the text of its help."""
        return cleandoc(self.run.__doc__ or "")

    def summary(self) -> str:
        """Return what it does, in a line."""
        return self.text().split("\n", 1)[0].partition(": `")[0].partition(". ")[0].rstrip(".")

    def parser(self) -> Parser:
        """Return its parser."""
        parser = Parser(
            f"tenure {self.name}",
            f"%(prog)s [OPTIONS] {self.usage}".rstrip(),
            self.text(),
            formatter_class=partial(argparse.HelpFormatter, width=MOST_WIDTH),
            allow_abbrev=False,
        )
        for add in self.arguments:
            add(parser)
        return parser

    def call(self, words: Sequence[str], namespace: str) -> int:
        """Run it with the words after its name, and return the status to exit with. Raises TenureError."""
        try:
            options = self._parse(words)
        except SystemExit:  # the parser has printed the help
            return Status.DONE
        if not getattr(options, "namespace", namespace):
            options.namespace = namespace
        try:
            return self.run(options)
        except Ended as ended:
            return ended.status
        except LockTimeout as error:
            tell(str(error).replace(TO_WAIT, "Leave --no-wait or --timeout 0 out to wait for it"))
            return getattr(options, "conflict_status", Status.NOT_GRANTED)

    def _parse(self, words: Sequence[str]) -> Options:
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
            parser.refuse(rest, ". Write `--` before the command" if self.dashes and after is None else "")
        return options


_FOUND: dict[str, Command] = {}


def find(name: str) -> Command:
    """Return the command of a name."""
    import_module(f"tenure.cli.{COMMANDS[name]}")
    return _FOUND[name]


def command(
    name: str, usage: str, *arguments: Argument, dashes: bool = False
) -> Callable[[Callable[[Options], int]], Callable[[Options], int]]:
    """Make a function a command."""

    def add(run: Callable[[Options], int]) -> Callable[[Options], int]:
        _FOUND[name] = Command(name, usage, arguments, dashes, run)
        return run

    return add


# -- arguments -----------------------------------------------------------------------------------------------


def _bounded(
    kind: Callable[[str], float], what: str, least: float | None = None, most: float | None = None
) -> Callable[[str], float]:
    """Return a parser of numbers that are at least `least` and at most `most`."""

    def parse(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{shown(text)} is not {what}") from None
        if not (least is None or value >= least) or (most is not None and value > most):
            bounds = f"at least {least:g}" if most is None else f"from {least} to {most}"
            raise argparse.ArgumentTypeError(f"{shown(text)} is not {bounds}")
        return value

    return parse


whole = partial(_bounded, int, "a whole number")

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def _of_unit(text: str) -> float:
    """Return the seconds of a number that may have a unit. Raises ValueError."""
    return float(text[:-1]) * UNITS[text[-1]] if text[-1:] in UNITS else float(text)


span = partial(_bounded, _of_unit, "a number of seconds, or a duration such as 90s, 15m, 2h or 1d")
duration = span(0.001)

argument: Callable[..., Argument] = partial(methodcaller, "add_argument")
"""Declares an argument: the parameters are those of `ArgumentParser.add_argument`."""

flag = partial(argument, action="store_true")
status = partial(argument, type=whole(0, 255), metavar="STATUS")
length = partial(argument, type=duration, dest="length", metavar="DURATION")


def seconds(*names: str, least: float | None = None, **how: Any) -> Argument:  # noqa: ANN401 - as of argparse
    """Declare an option that is a number of seconds, or a duration such as 20s, of at least `least`."""
    return argument(*names, type=span(least), metavar="SECONDS", **how)


def one_of(*arguments: Argument) -> Argument:
    """Declare options of which at most one is given."""

    def add(parser: argparse.ArgumentParser) -> None:
        group = parser.add_mutually_exclusive_group()
        for each in arguments:
            each(group)

    return add


NAME = argument("name", metavar="NAME", help="The name of the lock.")
JSON = flag("--json", dest="as_json", help="Print JSON.")
YES = flag("-y", "--yes", help="Do not ask for confirmation.")
OWNER = argument("--owner", metavar="TEXT", help="The owner that others see. Default: host/pid.")
PASS_URL = flag("--pass-url", help="Pass the URL to the command in TENURE_URL, with its password.")
URL_HELP = "The store. Default: TENURE_URL in the environment"
URL_FILE = argument(
    "--url-file",
    type=Path,
    metavar="PATH",
    help="A file that contains the URL of the store. Default: TENURE_URL_FILE in the environment.",
)
NAMESPACE = partial(argument, "--namespace", metavar="TEXT", default="")
STORE = (
    argument("--url", metavar="URL", help=f"{URL_HELP}, else a file of this user."),
    URL_FILE,
    NAMESPACE(help="A prefix of all names, so that programs can share a store."),
)
URL = (argument("url", nargs="?", metavar="URL", help=f"{URL_HELP}."), URL_FILE)
NO_WAIT = (
    seconds(
        "-w",
        "--timeout",
        least=0,
        help="How long to wait for the lock, and for a store that does not answer yet. Default: for ever, but 10 s for "
        "the store.",
    ),
    flag("-n", "--no-wait", help="Exit with 75 at once if the name is held."),
)
TTL = seconds(
    "--ttl",
    help="After how long the lease of a holder that stopped renewing expires. Default: that of the URL (?ttl=), else "
    f"{DEFAULT_TTL:g}.",
)
CONFLICT_STATUS = status(
    "-E",
    "--conflict-exit-code",
    dest="conflict_status",
    default=int(Status.NOT_GRANTED),
    help=f"The status if the lock is not granted in time. Default: {Status.NOT_GRANTED}.",
)
SHELL = argument("-c", dest="shell", metavar="SCRIPT", help="Run this script with /bin/sh instead of COMMAND.")
GRACE = seconds(
    "--grace", least=0, default=10.0, help="How long from SIGTERM to SIGKILL if the lease is lost. Default: 10."
)


# -- the store -----------------------------------------------------------------------------------------------
#
# No password appears in a list of processes unless the user put it there. A password is read from the environment or
# from a file, and a command under a lock finds it in its environment only with `--pass-url`.
HINT = (
    "every user of this machine can read the password in --url from the list of processes. Set the environment "
    f"variable {VARIABLE} to the URL, or write the URL into a file and give the file as --url-file."
)

ALONE = (
    "memory:// keeps its locks in the memory of this process: no other process sees them or waits for them. Give the "
    "URL of a store that the processes share, such as redis://host, or give none to use the lock file of this user."
)


class _Client(Client):
    """A client of a process whose children begin anew: it imports nothing before it needs it."""

    def _prepare(self) -> None:
        pass


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
        client = _Client(self.url, advice=False, **options)  # `tenure doctor` prints advice
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


def find_address(options: Options) -> Address:
    """Return the address from the options, else from the environment. Raises UsageError if the options contradict."""
    url, file = options.url, options.url_file
    if url is not None and file is not None:
        raise UsageError("--url and --url-file contradict each other; give one of them.")
    if url is not None:
        return Address(url, in_the_open=without_password(url) != url)
    if file is None and VARIABLE in os.environ:
        return Address(os.environ[VARIABLE])
    if file is None and FILE_VARIABLE in os.environ:
        file = Path(os.environ[FILE_VARIABLE])
    return Address(None) if file is None else Address(read_url(file), file)


def client_of(options: Options) -> Client:
    """Return a client of the store that the options name."""
    return find_address(options).client(namespace=options.namespace)


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
