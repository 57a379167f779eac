"""What goes wrong on the way to a server and back, and the sentences that say so, for whatever server it is."""

import os
from typing import NamedTuple

from tenure.errors import OutcomeUnknown, StoreUnavailable

BROKEN = (OSError, ValueError)
"""The errors after which a connection is never used again: of the socket, and of what was received."""


class Unsent(ConnectionError):
    """No part of a request was sent: another connection may carry it. Never raised to users."""


class OtherProcess(Exception):
    """The server is another process than the request is for, and nothing was sent. Never raised to users."""


class TooLate(StoreUnavailable):
    """No time was left for a request, and nothing was sent: it says nothing of the server."""


def too_late(server: str, advice: str = "raise `timeout` or `operation_timeout`") -> TooLate:
    """Return the error of a request for which no time was left."""
    return TooLate(f"the request to {server} timed out before it was sent: {advice}")


def why(error: BaseException) -> str:
    """Return in a few words why a connection failed."""
    if isinstance(error, TimeoutError):
        return "timed out"
    if isinstance(error, ConnectionError) and error.errno:  # asyncio adds the address to strerror, and drops the reason
        return os.strerror(error.errno)
    system = error.strerror if isinstance(error, OSError) else None
    return (system or str(error) or type(error).__name__).rstrip(".")


class ServerErrors(NamedTuple):
    """The errors of the servers of one kind. An address is shown as `str` shows it."""

    kind: str
    """How the servers are called."""
    check: str
    """What of the URL to check if none is reached."""

    def cannot_reach(self, address: object, error: BaseException) -> StoreUnavailable:
        """Return the error of a connection that was not made: nothing was sent."""
        return StoreUnavailable(
            f"cannot reach the {self.kind} server at {address} ({why(error)}); check that it runs, that this machine "
            f"may connect to it, and {self.check}"
        )

    def unanswered(self, address: object, error: BaseException) -> OutcomeUnknown:
        """Return the error of a request that was sent and got no reply."""
        return OutcomeUnknown(
            f"the {self.kind} server at {address} did not answer ({why(error)}); the request may or may not have been "
            "carried out; try again, and check the server and the network"
        )

    def too_late(self, address: object) -> StoreUnavailable:
        """Return the error of a request for which no time was left."""
        return too_late(f"the {self.kind} server at {address}")

    def closed(self) -> StoreUnavailable:
        """Return the error of a request to a closed client."""
        return StoreUnavailable(f"this client of {self.kind} is closed; make a new one")
