"""Templates: the first data of a database server, made once and copied for each server.

A database server needs about half a second to make its first data. All processes of a test run share the templates.
"""

import fcntl
import subprocess
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from tests.servers.homes import Home


class _Shelf:
    """Where the templates are: a folder of this process alone, unless `share` names one."""

    folder: Path | None = None


def share(folder: Path) -> None:
    """Keep the templates in a folder that other processes use too."""
    _Shelf.folder = folder


def furnish(home: Home, name: str, make: Callable[[Home], None]) -> None:
    """Fill the data folder of a home from the template `name`. `make` fills it if there is no such template yet."""
    archive = _folder() / f"{name}.tar"
    with _alone(archive.with_suffix(".lock")):
        if not archive.exists():
            make(home)
            _pack(home, archive)
            return
    with archive.open("rb") as packed:  # opened by this process: the user of the home may not reach the folder
        home.run(["tar", "-xf", "-"], stdin=packed)


def _folder() -> Path:
    if _Shelf.folder is None:
        _Shelf.folder = Home().folder
    return _Shelf.folder


@contextmanager
def _alone(lock: Path) -> Generator[None, None, None]:
    """Exclude the other processes that share the folder."""
    with lock.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _pack(home: Home, archive: Path) -> None:
    """Pack the data folder of a home. The archive has its name only when it is complete."""
    partial = archive.with_suffix(".partial")
    command = ["tar", "-cf", str(partial), "-C", str(home.folder), home.data.name]
    subprocess.run(command, check=True, timeout=60)
    partial.rename(archive)
