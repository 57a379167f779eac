"""The completion of commands and options in a shell, by argcomplete."""

import argparse

from tenure.cli.app import ALL, GROUPS


def complete() -> None:
    """Print what can follow the words that the shell tells in the environment, and end the process."""
    import argcomplete

    parser = argparse.ArgumentParser("tenure", allow_abbrev=False)
    parser.add_argument("--version", action="version", version="")
    commands = parser.add_subparsers()
    groups = {group: commands.add_parser(group).add_subparsers() for group in GROUPS}
    for name, command in ALL.items():
        group, _, word = name.rpartition(" ")
        (groups[group] if group else commands).add_parser(word, parents=[command.parser()], add_help=False)
    argcomplete.autocomplete(parser)
