"""A guard for a file that several processes of a machine write.

The fence stands in a file beside it, which is also locked (`flock`) during each call. The order of a write makes it
safe to die anywhere: first the fence is on the disk, then the new content in another file, then that takes the place of
the old one. So a reader sees the old content or the new one, and a holder that comes late is refused in any case.
"""

import os
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from tenure.callables import finished
from tenure.errors import StoreUnavailable, UsageError
from tenure.escaping import shown
from tenure.fencing.holders import Holder, refusal, token_of
from tenure.posix import require_posix

LOOK_AGAIN = 0.005
"""How often a call looks whether the file is free, in seconds."""

DIGITS = 20
"""How many digits the fence has. They are written in place, all at once."""


class FileGuard:
    """A file that only holders of a lock read and write, and none that comes late.

    Each call raises the fence to the token of its holder first: from then on smaller tokens are refused. An equal token
    is accepted. Raises StaleTokenError for a smaller token (then nothing was read or written), StoreUnavailable if
    other calls use the file for longer than `timeout` seconds, UsageError where there are no locks of files, and
    OSError as `open` does.
    """

    def __init__(self, path: str | os.PathLike[str], *, timeout: float = 10.0) -> None:
        """Guard the file at `path`, which need not be there yet. Its folder must be."""
        require_posix("FileGuard, which locks files,", "use a database or an object store, and their guards")
        self._path = Path(path)
        self._side = self._path.with_name(f"{self._path.name}.fence")
        self._timeout = timeout

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {str(self._path)!r}>"

    def touch(self, holder: Holder) -> None:
        """Refuse all older holders from now on."""
        with self._touched(holder):
            pass

    def read(self, holder: Holder) -> bytes | None:
        """Return the content; None if there is no file."""
        with self._touched(holder):
            return self._content()

    def write(self, holder: Holder, content: bytes) -> None:
        """Replace the content. When this returns, it is on the disk."""
        with self._touched(holder):
            self._replace(content)

    def update(self, holder: Holder, change: Callable[[bytes | None], bytes]) -> bytes:
        """Replace the content by what `change` makes of it (None: there is no file); return the new content."""
        with self._touched(holder):
            content = finished(change, change(self._content()))
            self._replace(content)
            return content

    def _content(self) -> bytes | None:
        try:
            return self._path.read_bytes()
        except FileNotFoundError:
            return None

    def _replace(self, content: bytes) -> None:
        new = self._path.with_name(f".{self._path.name}.new")  # the lock keeps others from it
        with new.open("wb") as file:
            with suppress(FileNotFoundError):
                os.fchmod(file.fileno(), self._path.stat().st_mode & 0o7777)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        new.replace(self._path)
        folder = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    @contextmanager
    def _touched(self, holder: Holder) -> Generator[None]:
        """Lock the file, and raise the fence."""
        import fcntl

        token = token_of(holder)
        side = os.open(self._side, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            give_up_at = time.monotonic() + self._timeout
            while True:
                try:
                    fcntl.flock(side, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() >= give_up_at:
                        raise StoreUnavailable(
                            f"{shown(str(self._path))} was used by others for {self._timeout:g} s: try again"
                        ) from None
                time.sleep(LOOK_AGAIN)
            seen = self._seen(side)
            if token < seen:
                raise refusal(str(self._path), holder, seen)
            if token > seen:
                os.pwrite(side, b"%0*d\n" % (DIGITS, token), 0)
                os.fsync(side)
            yield
        finally:
            os.close(side)

    def _seen(self, side: int) -> int:
        text = os.pread(side, DIGITS + 2, 0)
        if not text:
            return 0
        if len(text) != DIGITS + 1 or not text[:DIGITS].isdigit():
            raise UsageError(
                f"{shown(str(self._side))} is no fence of Tenure, or damaged: if no holder from before can still "
                "write, remove it"
            )
        return int(text)
