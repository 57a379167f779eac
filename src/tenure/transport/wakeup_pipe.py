"""What wakes a listening thread, whatever it listens to."""

import contextlib
import socket


class WakeUpPipe:
    """Wakes a thread that waits in poll()."""

    def __init__(self) -> None:
        self._inside, self._outside = socket.socketpair()
        self._inside.settimeout(0)
        self._outside.settimeout(0)

    def fileno(self) -> int:
        """Return the descriptor to wait on."""
        return self._inside.fileno()

    def wake(self) -> None:
        """Wake the thread, from any other. It does not matter whether it is there any more."""
        with contextlib.suppress(OSError):
            self._outside.send(b".")

    def drain(self) -> None:
        """Take the bytes that came. Call it before looking at what there is to do: what comes later wakes again."""
        with contextlib.suppress(BlockingIOError):
            self._inside.recv(4096)

    def close(self) -> None:
        """Close both ends."""
        self._inside.close()
        self._outside.close()
