"""The command `tenure`: finds the command that the arguments name, runs it, and turns its errors into statuses.

It needs no other package; with the extra `cli` it draws tables.
"""

import io
import os
import signal
import sys
from collections.abc import Sequence

SIGPIPE = 13
"""The number of the signal, where the system has none."""

GROUPS = {
    "job": "Pause a job that runs once, let it go on, let it run again, or forget it.",
    "quarantine": "End a quarantine: the time in which a store that may have forgotten its leases grants nothing.",
}

TEXT = """\
Distributed locks that you can trust.

Every command exits with 0 if it succeeded; 64: wrong usage; 69: the store failed; 128+N: signal N ended the command. \
The help of a command lists its other statuses."""

HELP = ("-h", "--help")


def main() -> None:
    """Run the command and exit with its status."""
    _open_closed_streams()
    if "_ARGCOMPLETE" in os.environ:
        _complete()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a name may contain characters that the terminal lacks
    sys.exit(run_app())


def _open_closed_streams() -> None:
    """Open /dev/null for each standard stream that is closed, as supervisors start programs.

    Else a file of the store would get the stream's descriptor, and `sys.stdout` would be None. A command under the lock
    inherits the streams.
    """
    for name in ("stdin", "stdout", "stderr"):  # by number: the system gives out the lowest descriptor that is free
        if getattr(sys, name) is None:
            stream = open(os.devnull, "r" if name == "stdin" else "w")  # noqa: SIM115, PTH123 - open to the end
            os.set_inheritable(stream.fileno(), True)  # noqa: FBT003 - takes no keyword
            setattr(sys, name, stream)


def _complete() -> None:
    """Print what can follow the words that the shell tells in the environment, and end the process."""
    import argparse

    import argcomplete

    from tenure.cli.commands import COMMANDS, find

    parser = argparse.ArgumentParser("tenure", allow_abbrev=False)
    parser.add_argument("--version", action="version", version="")
    commands = parser.add_subparsers()
    groups = {group: commands.add_parser(group).add_subparsers() for group in GROUPS}
    for name in COMMANDS:
        group, _, word = name.rpartition(" ")
        (groups[group] if group else commands).add_parser(word, parents=[find(name).parser()], add_help=False)
    argcomplete.autocomplete(parser)


def run_app(arguments: Sequence[str] | None = None, namespace: str = "") -> int:
    """Run the command with `arguments` (default: those of the process) and return the status to exit with.

    `namespace` is that of a command that is given none.
    """
    from tenure.cli.output import Status, tell
    from tenure.errors import StoreError, TenureError, UsageError

    try:
        status = _run(sys.argv[1:] if arguments is None else arguments, namespace)
        sys.stdout.flush()
    except BrokenPipeError:  # nobody reads the output any more
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter flushes the rest at exit
        return Status.SIGNALLED + int(getattr(signal, "SIGPIPE", SIGPIPE))
    except TenureError as error:
        tell(error)
        statuses = {UsageError: Status.USAGE, StoreError: Status.STORE}
        return next((status for kind, status in statuses.items() if isinstance(error, kind)), Status.LEASE_LOST)
    except KeyboardInterrupt:
        return Status.SIGNALLED + signal.SIGINT
    return status


def _run(words: Sequence[str], namespace: str) -> int:
    """Run the command that the words name. Raises TenureError."""
    from tenure.cli.commands import COMMANDS, find
    from tenure.cli.output import Status

    group = words[0] if words and words[0] in GROUPS else ""
    count = 2 if group else 1
    if len(words) < count or words[count - 1] in HELP:
        print(_help(group))
        return Status.DONE if len(words) >= count else Status.USAGE
    if words[0] == "--version":
        from tenure import __version__

        print(f"tenure {__version__}")
        return Status.DONE
    name = " ".join(words[:count])
    if name not in COMMANDS:
        raise _unknown(words, name, group)
    return find(name).call(words[count:], namespace)


def _unknown(words: Sequence[str], name: str, group: str) -> Exception:
    import difflib

    from tenure.cli.commands import COMMANDS, shown
    from tenure.errors import UsageError

    behind = next((word for word in words if word in COMMANDS), None)
    if behind and words[0].startswith("-"):
        option = words[0].partition("=")[0]
        return UsageError(
            f"an option stands after the command, as in `tenure {behind} {option} ...`. See `tenure --help`."
        )
    near = difflib.get_close_matches(name, COMMANDS, 1)
    hint = f" Did you mean `tenure {near[0]}`?" if near else ""
    what = "option" if words[0].startswith("-") else "command"
    return UsageError(f"there is no {what} {shown(name)}.{hint} See `{f'tenure {group}'.rstrip()} --help`.")


def _help(group: str) -> str:
    """Return the help of a group of commands, or of all."""
    from tenure.cli.commands import COMMANDS, fill, find, listed

    commands = listed((name, find(name).summary()) for name in COMMANDS if name.startswith(f"{group} ".lstrip()))
    if group:
        return f"usage: tenure {group} COMMAND ...\n\n{fill(GROUPS[group])}\n\ncommands:\n{commands}"
    return (
        f"usage: tenure [--version] [--help] COMMAND ...\n\n{fill(TEXT)}\n\ncommands:\n{commands}\n\n"
        "`tenure COMMAND --help` lists the options of a command."
    )
