"""The command `tenure`: finds the command that the arguments name, runs it, and turns its errors into statuses."""

import difflib
import os
import signal
import sys
from collections.abc import Sequence

from tenure.cli.commands import COMMANDS
from tenure.cli.diagnostics import Status, tell
from tenure.cli.lock_commands import LOCK_COMMANDS
from tenure.cli.parser import Command, fill, listed, shown
from tenure.errors import LockTimeout, StoreError, TenureError, UsageError

SIGPIPE = 13
"""The number of the signal, where the system has none."""

ALL = {command.name: command for command in (*LOCK_COMMANDS, *COMMANDS)}
"""The commands by their names. The name of a command that belongs to a group has two words."""

GROUPS = {
    "job": "Pause a job that runs once, let it go on, let it run again, or forget it.",
    "quarantine": "End a quarantine: the time in which a store that may have forgotten its leases grants nothing.",
}

TEXT = """\
Distributed locks that you can trust.

Every command exits with 0 if it succeeded; 64: wrong usage; 69: the store failed; 128+N: signal N ended the command. \
The help of a command lists its other statuses."""

HELP = ("-h", "--help")


def run_app(arguments: Sequence[str] | None = None) -> int:
    """Run the command with `arguments` (default: those of the process) and return the status to exit with."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    try:
        status = _run(words)
        sys.stdout.flush()
    except BrokenPipeError:  # nobody reads the output any more
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter flushes the rest at exit
        return Status.SIGNALLED + int(getattr(signal, "SIGPIPE", SIGPIPE))
    except TenureError as error:
        tell(error)
        return _status_of(error)
    except KeyboardInterrupt:
        return Status.SIGNALLED + signal.SIGINT
    return status


def _run(words: Sequence[str]) -> int:
    """Run the command that the words name. Raises TenureError."""
    if not words or words[0] in HELP:
        print(_help())
        return Status.DONE if words else Status.USAGE
    if words[0] == "--version":
        from tenure import __version__

        print(f"tenure {__version__}")
        return Status.DONE
    if words[0] in GROUPS and (len(words) == 1 or words[1] in HELP):
        print(_help_of(words[0]))
        return Status.DONE if words[1:] else Status.USAGE
    command, rest = _find(words)
    try:
        options = command.parse(rest)
    except SystemExit:  # the parser has printed the help
        return Status.DONE
    return command.run(options)


def _find(words: Sequence[str]) -> tuple[Command, Sequence[str]]:
    """Return the command that the first words name, and the words after it."""
    count = 2 if words[0] in GROUPS else 1
    name = " ".join(words[:count])
    command = ALL.get(name)
    if command is not None:
        return command, words[count:]
    behind = next((word for word in words if word in ALL), None)
    if behind and words[0].startswith("-"):
        option = words[0].partition("=")[0]
        raise UsageError(
            f"an option stands after the command, as in `tenure {behind} {option} ...`. See `tenure --help`."
        )
    near = difflib.get_close_matches(name, ALL, 1)
    hint = f" Did you mean `tenure {near[0]}`?" if near else ""
    group = f" {words[0]}" if count > 1 else ""
    what = "option" if words[0].startswith("-") else "command"
    raise UsageError(f"there is no {what} {shown(name)}.{hint} See `tenure{group} --help`.")


def _help() -> str:
    commands = listed((name, command.summary()) for name, command in ALL.items())
    return (
        f"usage: tenure [--version] [--help] COMMAND ...\n\n{fill(TEXT)}\n\ncommands:\n{commands}\n\n"
        "`tenure COMMAND --help` lists the options of a command."
    )


def _help_of(group: str) -> str:
    of_group = listed((name, each.summary()) for name, each in ALL.items() if name.startswith(f"{group} "))
    return f"usage: tenure {group} COMMAND ...\n\n{fill(GROUPS[group])}\n\ncommands:\n{of_group}"


def _status_of(error: TenureError) -> int:
    statuses = {UsageError: Status.USAGE, LockTimeout: Status.NOT_GRANTED, StoreError: Status.STORE}
    return next((status for kind, status in statuses.items() if isinstance(error, kind)), Status.LEASE_LOST)
