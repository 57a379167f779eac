"""A table of rows in a folder on a shared volume: a folder a row, a file a version of it.

**The condition.** The file of version 8 comes to its name `,8` by link(2), whole and on disk, and link fails if there
is such a name. So of all who have read version 7 one writes, whatever the caches of their machines say. The newest
version is the one with the greatest number.

**Old versions** are removed by the writers of later ones, but for the last few (KEPT). A writer that stood still may
link its file to a number that was removed. It sees so afterwards, when it lists the folder: the newest version is at
least KEPT ahead, which it may also be if others wrote on top of this write in between. Then the outcome is unknown. A
file that came so late is older than the newest version, so nobody reads it.

**Network file systems.** A link whose reply was lost and that is sent again fails; then the name has this writer's own
file. A listing may be old: whoever writes on top of an old version is refused. Nobody else's clock counts.
"""

import errno
import os
import re
import uuid
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tenure.errors import OutcomeUnknown, StoreError, StoreUnavailable
from tenure.escaping import shown
from tenure.stores.rows import Row

KEPT = 16
"""How many versions of a row are kept: so many writes may come between a write and the look after it."""

LONGEST = 120
"""How many characters a name in the folder has at most. A longer key is a folder within a folder."""

MARK = ","
"""What the names of files begin with. No key contains it."""

LITTER_AFTER = 3600.0
"""A file that was never linked is removed so many seconds later, by the clock of the volume: its writer has died."""

TRIES = 100
"""How often a read looks for the newest version before it gives up because others write all the time."""

REMOVED = {errno.ENOENT, errno.ESTALE}
"""The errors of a read of a version that was removed, locally and over NFS: others have written later ones."""

HOPELESS = {
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ENAMETOOLONG),
    *(errno.EOPNOTSUPP, errno.ENOSYS, errno.EXDEV),
}
"""The errors after which no repetition helps. A file system without links answers with one of them."""


class FolderTable:
    """The rows of a folder. A volume that is gone may stop a call for ever, whatever its timeout is."""

    def __init__(self, folder: Path) -> None:
        """Use a folder that exists: one that was made where a volume is not mounted would be a client's own."""
        self._folder = folder

    def read(self, key: str, timeout: float) -> Row:  # noqa: ARG002 - see the class
        """Return a row; `Row()` if there is none."""
        row = self._row(key)[-1]
        with self._errors(StoreUnavailable):
            for _ in range(TRIES):
                newest = max(self._versions(row), default=0)
                if not newest:
                    return Row()
                try:
                    return Row((row / f"{MARK}{newest}").read_bytes(), newest)
                except OSError as error:
                    if error.errno not in REMOVED:
                        raise
        raise StoreUnavailable(f"a row in {self._folder} was not read: others have written it all the time")

    def write(self, key: str, value: bytes, version: int | None, timeout: float) -> int | None:  # noqa: ARG002
        """Write a row if it has this version still; return its new version, or None."""
        folders, number = self._row(key), (version or 0) + 1
        row, mine = folders[-1], folders[-1] / f"{MARK}new-{uuid.uuid4().hex}"
        try:
            with self._errors(StoreUnavailable):
                for each in folders if version is None else ():
                    with suppress(FileExistsError):
                        each.mkdir()
                with mine.open("xb") as file:
                    file.write(value)
                    file.flush()
                    os.fsync(file.fileno())
            with self._errors(OutcomeUnknown):
                if not self._link(mine, row / f"{MARK}{number}"):
                    return None
                self._settle(row, number, mine)
                return number
        finally:
            with suppress(OSError):
                mine.unlink()

    def keys(self, prefix: str, after: str, most: int, timeout: float) -> list[str]:  # noqa: ARG002
        """Return up to `most` keys that begin with `prefix` and follow `after`, in the order of their bytes."""
        return sorted(key for key in self._keys(self._folder) if key.startswith(prefix) and key > after)[:most]

    def close(self) -> None:
        """Do nothing: no file is open between two calls."""

    def _link(self, mine: Path, target: Path) -> bool:
        """Give a file its name; return False if another file has it."""
        try:
            os.link(mine, target)
        except FileExistsError:  # or this was sent twice, because the first reply was lost
            return os.path.samefile(mine, target)
        return True

    def _settle(self, row: Path, number: int, mine: Path) -> None:
        """Make sure that a version that was linked is not an old one, and remove what is old."""
        versions = self._versions(row)
        newest = max(versions, default=number)
        if newest >= number + KEPT:
            raise OutcomeUnknown(f"a row in {self._folder} was written {KEPT} times during one write of it")
        with suppress(OSError):  # the next writer does it
            for each in versions:
                if each <= newest - KEPT:
                    (row / f"{MARK}{each}").unlink(missing_ok=True)
            oldest = mine.stat().st_mtime - LITTER_AFTER
            for name in os.listdir(row):
                if name.startswith(f"{MARK}new-") and (row / name).stat().st_mtime < oldest:
                    (row / name).unlink()

    def _versions(self, row: Path) -> list[int]:
        """List the versions of a row. Opening a folder anew is what makes a network file system look."""
        try:
            names = os.listdir(row)
        except (FileNotFoundError, NotADirectoryError):
            os.stat(self._folder)  # raises if the volume is not mounted
            return []
        return [int(name[1:]) for name in names if name[0] == MARK and name[1:].isdecimal()]

    def _row(self, key: str) -> list[Path]:
        """Return the folder of a row, after those that it is in. Where `A` and `a` are one name, keys stay two."""
        name = re.sub("[A-Z]", lambda each: f"+{each[0].lower()}", key)
        parts = [name[at : at + LONGEST] for at in range(0, len(name), LONGEST)]
        return [self._folder.joinpath(*parts[: depth + 1]) for depth in range(len(parts))]

    def _keys(self, folder: Path, before: str = "") -> Iterator[str]:
        with self._errors(StoreUnavailable):
            names = os.listdir(folder)
        for name in names:
            if MARK not in name:
                yield re.sub(r"\+(.)", lambda each: each[1].upper(), before + name)
                if len(name) == LONGEST:
                    yield from self._keys(folder / name, before + name)

    @contextmanager
    def _errors(self, kind: type[StoreError]) -> Generator[None]:
        """Translate an error of the system."""
        try:
            yield
        except OSError as error:
            kind = StoreError if error.errno in HOPELESS else kind
            why = shown(error.strerror or type(error).__name__)
            folder = shown(str(self._folder))
            hint = (
                "is its volume mounted, and does the folder exist?"
                if isinstance(error, FileNotFoundError)
                else ("it must be on a file system with hard links, which this user may write")
            )
            raise kind(f"a request to the folder {folder} failed ({why}): {hint}") from error
