"""Which versions of programs a test run has started; `python -m scripts.compatibility` makes a table of them."""

import subprocess
import sys
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "build" / "servers"


VERSION_OF_ZOOKEEPER = "org.apache.zookeeper.version.VersionInfoMain"


def note(command: list[str]) -> None:
    """Write which version the program of a server has; `command` is what starts it. A script of ours has none."""
    if command[0] == sys.executable:
        return
    java = command[command.index("-cp") :][:2] if "-cp" in command else []
    asks = VERSION_OF_ZOOKEEPER if java else "version" if Path(command[0]).name == "weed" else "--version"
    _note(command[0], *java, asks)


@cache
def _note(*command: str) -> None:
    """Write the first line that a program says of its version into a file of its name, once in each process."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / Path(command[0]).name).write_text(done.stdout.partition("\n")[0], "utf-8")
