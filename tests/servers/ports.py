"""Ports for servers that many test processes start at once on one machine.

A server gets its port before it binds it, so two processes may choose the same. A UDP socket on that port, which no
server here uses, reserves it for one of them: other processes can't bind it, and it closes with its process. Ports are
below the range that the system uses for outgoing connections.
"""

import random
import socket
from collections.abc import Iterable
from contextlib import ExitStack

LOCALHOST = "127.0.0.1"
FIRST, LAST = 10_000, 32_767
ATTEMPTS = 200


class PortTakenError(OSError):
    """Another process has the port."""


class Reservation:
    """A reservation of a port, and of ports at fixed distances from it, against other test processes."""

    def __init__(self, port: int, distances: Iterable[int] = ()) -> None:
        """Reserve the port, and those at `distances`. Raises `PortTakenError` if one is in use."""
        self.port = port
        with ExitStack() as held:
            for each in (port, *(port + distance for distance in distances)):
                held.enter_context(_keep(each))
            self._core = held.pop_all()

    def give_up(self) -> None:
        """End the reservation."""
        self._core.close()


def reserve(port: int | None = None, distances: tuple[int, ...] = ()) -> Reservation:
    """Reserve `port`, or any free port. Raises `PortTakenError`."""
    if port is not None:
        return Reservation(port, distances)
    for _ in range(ATTEMPTS):
        try:
            return Reservation(_chance.randint(FIRST, LAST - max(distances, default=0)), distances)
        except PortTakenError:
            continue
    raise PortTakenError(f"None of {ATTEMPTS} ports between {FIRST} and {LAST} is free: are old servers still running?")


_chance = random.SystemRandom()
"""A generator of its own: tests that seed the common one alike must not choose the same ports."""


def _keep(port: int) -> socket.socket:
    """Bind the port for UDP, once nothing listens there for TCP."""
    renewer = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        renewer.bind((LOCALHOST, port))
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((LOCALHOST, port))
    except OSError as error:
        renewer.close()
        raise PortTakenError(f"Port {port} of {LOCALHOST} is in use: choose another, or leave it to chance.") from error
    return renewer
