"""What it means that a TLS handshake comes to nothing: mostly that the server speaks none, which it does not say.

Some such servers wait for the rest of what they take for a request, some close the connection, some answer in their
own words. A certificate that is not trusted, or an alert, shows that a server does speak TLS.
"""

import ssl
from collections.abc import Generator
from contextlib import contextmanager

OTHER_WORDS = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE"})
"""How OpenSSL calls an answer that is none of TLS."""


class HandshakeFailed(OSError):
    """A server took the connection, and did not answer the TLS handshake. Never raised to users."""

    def __init__(self, why: str = "timed out") -> None:
        super().__init__(why)


def understood(error: OSError) -> OSError:
    """Return what an error of a handshake means: HandshakeFailed, or the error itself."""
    if isinstance(error, TimeoutError):
        return HandshakeFailed()
    if isinstance(error, ConnectionError | ssl.SSLEOFError):
        return HandshakeFailed("it closed the connection")
    if isinstance(error, ssl.SSLError) and error.reason in OTHER_WORDS:
        return HandshakeFailed("it answered something else")
    return error


@contextmanager
def handshake() -> Generator[None, None, None]:
    """Have a handshake that is not answered raise HandshakeFailed."""
    try:
        yield
    except OSError as error:
        meaning = understood(error)
        if meaning is error:
            raise
        raise meaning from error


def advice(server: str, failed: HandshakeFailed, scheme: str) -> str:
    """Say that a server did not answer the handshake, and by which scheme it is named if it has no TLS."""
    return (
        f"{server} did not answer the TLS handshake ({failed}); write {scheme}:// for a server without TLS, and check "
        "the host and the port of the URL"
    )
