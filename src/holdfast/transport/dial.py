"""Connect a blocking socket by a deadline, however many steps that takes: each address of the host, then TLS."""

import socket
import ssl
from collections.abc import Callable

from holdfast.transport.handshake import HandshakeFailed, handshake
from holdfast.transport.keep_alive import keep_alive

SHORTEST = 0.001
"""The shortest timeout that a socket is given, in seconds: 0 would mean that it never waits."""

Secure = Callable[[socket.socket], ssl.SSLSocket]
"""Shakes hands by TLS, and returns the socket to go on with."""


def ignore_stage(error: OSError) -> None:
    """Let a step of connecting begin, and note nothing."""


def dial(
    host: str,
    port: int,
    left: Callable[[], float],
    secure: Secure | None = None,
    *,
    family: int = 0,
    on_stage: Callable[[OSError], None] = ignore_stage,
) -> socket.socket:
    """Return a socket that is connected to a host before nothing is `left`. The rest is its timeout.

    The addresses of the host share the time, so that one which does not answer leaves some for the next.
    `on_stage` is told what went wrong if the step that begins then is never done.

    Raises OSError: TimeoutError if the time was too short, HandshakeFailed if the server does not answer TLS.
    """
    on_stage(TimeoutError())
    connected = _connect(host, port, left, family)
    try:
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        keep_alive(connected)
        connected.settimeout(max(left(), SHORTEST))
        if secure is not None:
            on_stage(HandshakeFailed())
            with handshake():
                connected = secure(connected)
            on_stage(TimeoutError())
            connected.settimeout(max(left(), SHORTEST))
    except BaseException:
        connected.close()
        raise
    return connected


def _connect(host: str, port: int, left: Callable[[], float], family: int) -> socket.socket:
    """Return a socket that is connected to the first address that takes it, else raise the error of the last one."""
    found = socket.getaddrinfo(host, port, family, socket.SOCK_STREAM)
    error = OSError(f"the host {host!r} has no address")
    for place, (kind, socktype, protocol, _, address) in enumerate(found):
        seconds = left() / (len(found) - place)
        if seconds <= 0.0 and place:
            break
        try:
            connecting = socket.socket(kind, socktype, protocol)
        except OSError as unsupported:  # the system has no IPv6, say
            error = unsupported
            continue
        try:
            connecting.settimeout(max(seconds, SHORTEST))
            connecting.connect(address)
        except OSError as refused:
            connecting.close()
            error = refused
        except BaseException:
            connecting.close()
            raise
        else:
            return connecting
    raise error
