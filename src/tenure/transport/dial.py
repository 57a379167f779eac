"""Connect a socket by a deadline, however many steps that takes: each address of the host, then TLS.

`dial` blocks. `dial_in_loop` awaits, and leaves TLS to the event loop.
"""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import Any

from tenure.transport.handshake import HandshakeFailed, handshake
from tenure.transport.keep_alive import keep_alive

SHORTEST = 0.001
"""The shortest timeout that a socket is given, in seconds: 0 would mean that it never waits."""

Secure = Callable[[socket.socket], ssl.SSLSocket]
"""Shakes hands by TLS, and returns the socket to go on with."""

Found = tuple[socket.AddressFamily, socket.SocketKind, int, str, Any]
"""What the resolver says of one address."""


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
    """Return a socket that is connected to a host within the seconds that are `left`; the rest is its timeout.

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
    error = OSError(f"the host {host!r} has no address")
    try:
        found = socket.getaddrinfo(host, port, family, socket.SOCK_STREAM)
    except UnicodeError as no_name:
        raise _no_name(host) from no_name
    for place, found_address in enumerate(found):
        seconds = left() / (len(found) - place)
        if seconds <= 0.0 and place:  # the first is tried in any case: its error says more than that no time was left
            break
        try:
            return _connect_one(found_address, max(seconds, SHORTEST))
        except OSError as failed:
            error = failed
    raise error


def _connect_one(found: Found, seconds: float) -> socket.socket:
    family, kind, protocol, _, address = found
    connecting = socket.socket(family, kind, protocol)
    try:
        connecting.settimeout(seconds)
        connecting.connect(address)
    except BaseException:
        connecting.close()
        raise
    return connecting


async def dial_in_loop(host: str, port: int, seconds: float, *, family: int = 0) -> socket.socket:
    """Return a non-blocking socket that is connected to a host, for the running loop to make a transport of.

    The addresses of the host share the time, as in `dial`. Raises OSError: TimeoutError if the time was too short.
    """
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    error = OSError(f"the host {host!r} has no address")
    found = await look_up(loop, host, port, family)
    for place, found_address in enumerate(found):
        share = (until - loop.time()) / (len(found) - place)
        if share <= 0.0 and place:
            break
        try:
            async with asyncio.timeout(max(share, SHORTEST)):
                return await _connect_one_in_loop(loop, found_address)
        except OSError as failed:
            error = failed
    raise error


async def look_up(loop: asyncio.AbstractEventLoop, host: str, port: int, family: int) -> Sequence[Found]:
    """Return the addresses of a host. An address instead of a name needs no resolver, and no thread for it.

    Raises OSError if the host has no address, or no thread can be started to look it up.
    """
    with contextlib.suppress(socket.gaierror, UnicodeError):
        return socket.getaddrinfo(host, port, family, socket.SOCK_STREAM, 0, socket.AI_NUMERICHOST)
    try:
        return await loop.getaddrinfo(host, port, family=family, type=socket.SOCK_STREAM)
    except UnicodeError as error:
        raise _no_name(host) from error
    except RuntimeError as error:  # from the executor of the loop
        raise OSError(f"no thread could be started to look up {host!r} ({error})") from error


def _no_name(host: str) -> OSError:
    """Return the error for a name that cannot be encoded; servers tell names, too, which no URL has checked."""
    return OSError(f"{host!r} is not a name that can be looked up")


async def _connect_one_in_loop(loop: asyncio.AbstractEventLoop, found: Found) -> socket.socket:
    family, kind, protocol, _, address = found
    connecting = socket.socket(family, kind, protocol)
    try:
        connecting.settimeout(0)
        await loop.sock_connect(connecting, address)
    except BaseException:
        connecting.close()
        raise
    return connecting
