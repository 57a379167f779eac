"""Have the system find out that the machine at the other end of a connection is gone, also while nothing is sent."""

import contextlib
import socket
from typing import Any, Protocol

DEAD_AFTER = 30
"""How long a machine that is gone stays unnoticed, in seconds."""

PROBES = 3
"""How many probes in a row go unanswered before that."""

INTERVAL = 5
"""How long a probe may remain unanswered, in seconds."""

FIRST_PROBE = DEAD_AFTER - PROBES * INTERVAL
"""After how many seconds of silence the first probe is sent."""

OPTIONS = {
    "TCP_KEEPIDLE": FIRST_PROBE,
    "TCP_KEEPALIVE": FIRST_PROBE,  # the same on macOS
    "TCP_KEEPINTVL": INTERVAL,
    "TCP_KEEPCNT": PROBES,
    "TCP_USER_TIMEOUT": DEAD_AFTER * 1000,  # for what was sent and not acknowledged, which stops the probes; Linux
}


class SocketLike(Protocol):
    """A socket, or what an event loop shows of one."""

    @property
    def family(self) -> int:
        """The family of its address."""
        ...

    def setsockopt(self, level: int, optname: int, value: int, /) -> None:
        """Set an option."""
        ...


def keep_alive(connected: SocketLike) -> None:
    """Break a TCP connection once the other end has been silent for DEAD_AFTER, as far as this system can."""
    if connected.family not in {socket.AF_INET, socket.AF_INET6}:
        return
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in OPTIONS.items():
        if (option := getattr(socket, name, None)) is not None:
            with contextlib.suppress(OSError):  # an older system than Python was built for
                connected.setsockopt(socket.IPPROTO_TCP, option, value)


def keep_transport_alive(transport: Any) -> None:  # noqa: ANN401 - a transport of any event loop
    """Do the same for the connection of a transport, if its event loop shows the socket."""
    if (connected := transport.get_extra_info("socket")) is not None:
        with contextlib.suppress(OSError, AttributeError):  # it is closed already, or shows less than a socket
            keep_alive(connected)
