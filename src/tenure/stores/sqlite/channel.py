"""Notification channels between the processes of one machine: one datagram socket per client, beside the lock file.

A notification that cannot be sent is dropped, because a waiter polls again by itself. An address is a file name in the
folder of the sockets, not a path, so that containers reach each other even if they mount the folder in different
places.
"""

import contextlib
import errno
import logging
import os
import socket
from collections.abc import Callable
from pathlib import Path

from tenure.contracts.messages import Notification
from tenure.contracts.runtime import Runtime
from tenure.stores import table_codec as codec

log = logging.getLogger("tenure")

LONGEST_PATH = 100
"""The longest path of a socket that all systems accept, in bytes."""

ABSENT = frozenset({errno.ECONNREFUSED, errno.ENOENT})
"""The errors that prove that no process listens at an address."""


class SqliteChannel:
    """The notification channel of one client: the socket it receives on, and the socket it sends from."""

    def __init__(self, folder: Path, name: str) -> None:
        """Prepare a channel called `name` in `folder`. Nothing is opened yet."""
        self._folder = folder
        self._name = name
        self._descriptor = -1
        self._receiver: socket.socket | None = None
        self._sender = _datagram_socket()
        self._probe = _datagram_socket()
        self._stop: Callable[[], None] | None = None

    def open(self, runtime: Runtime, deliver: Callable[[Notification], None]) -> str:
        """Start to listen and return the address, or "" if the system or the file system has no such sockets."""
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            self._descriptor = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            self._sweep()
            self._receiver = self._bind()
        except OSError as error:
            log.info("no notifications in %s (%s): waiters poll instead", self._folder, error)
            return ""
        self._stop = runtime.listen(self._receiver, lambda datagram: self._receive(deliver, datagram))
        return self._name

    def listening(self, address: str) -> bool:
        """Return whether a process listens at an address; True if that cannot be found out."""
        if not address or self._descriptor < 0:
            return True
        try:
            self._probe.connect(self._path(address))
        except OSError as error:
            return error.errno not in ABSENT
        return True

    def send(self, notification: Notification) -> None:
        """Send a notification, or drop it if it cannot be sent."""
        if notification.channel and self._descriptor >= 0:
            with contextlib.suppress(OSError):
                self._sender.sendto(codec.dump_notification(notification), self._path(notification.channel))

    def close(self) -> None:
        """Stop listening and remove the socket."""
        if self._stop is not None:
            self._stop()
        if self._receiver is not None:
            with contextlib.suppress(OSError):
                os.unlink(self._name, dir_fd=self._descriptor)
        self.abandon()

    def abandon(self) -> None:
        """Close the descriptors of this process, and leave the socket file to the parent process."""
        for each in (self._receiver, self._sender, self._probe):
            if each is not None:
                each.close()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _bind(self) -> socket.socket:
        receiver = _datagram_socket()
        try:
            receiver.bind(self._path(self._name))
            os.chmod(self._name, 0o600, dir_fd=self._descriptor)
        except OSError:
            receiver.close()
            raise
        return receiver

    def _path(self, address: str) -> str:
        """Return a path to `address` that is short enough for a socket address, however deep the folder is."""
        path = str(self._folder / address)
        if len(os.fsencode(path)) <= LONGEST_PATH:
            return path
        return f"/proc/self/fd/{self._descriptor}/{address}"

    def _receive(self, deliver: Callable[[Notification], None], datagram: bytes) -> None:
        try:
            notification = codec.load_notification(self._name, datagram)
        except (ValueError, TypeError, RecursionError):
            log.warning("ignored a datagram in %s that is no notification", self._folder)
            return
        deliver(notification)

    def _sweep(self) -> None:
        """Remove the sockets of dead processes."""
        for address in os.listdir(self._descriptor):
            if not self.listening(address):
                with contextlib.suppress(OSError):
                    os.unlink(address, dir_fd=self._descriptor)


def _datagram_socket() -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    made.settimeout(0)
    return made
