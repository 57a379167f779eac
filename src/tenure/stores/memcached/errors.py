"""The error mapping of the memcached store: errors of servers and connections become errors of Tenure."""

import os

from tenure.errors import OutcomeUnknown, StoreError, StoreUnavailable
from tenure.stores.memcached.link import MemcachedAddress
from tenure.stores.memcached.protocol import BUSY, SERVER_ERROR, MetaReply

BROKEN = (OSError, ValueError)
"""The errors after which a connection is never used again: of the socket, and of what was received."""


class MemcachedUnsent(Exception):
    """The server had closed the connection before the request was sent. Never raised to users."""


class OutOfMemory(StoreUnavailable):
    """The server has no memory for the item, and has deleted the item that it was to replace."""


def cannot_connect(address: MemcachedAddress, error: BaseException) -> StoreUnavailable:
    """Return the error of a connection that was not made."""
    return StoreUnavailable(
        f"cannot reach the memcached server at {address} ({_why(error)}); check that it runs, that this machine may "
        "connect to it, and the host and the port of the URL. Its names are not moved to another server"
    )


def no_greeting(address: MemcachedAddress, error: BaseException) -> StoreUnavailable:
    """Return the error of a server that took the connection, and does not answer as memcached does."""
    if isinstance(error, TimeoutError):
        return StoreUnavailable(
            f"the server at {address} took the connection and did not answer in time; check that it is memcached, and "
            "that it is not paused or overloaded"
        )
    if isinstance(error, ConnectionError):
        return StoreUnavailable(
            f"the server at {address} closed the connection without an answer; check that it is memcached, that it "
            "requires no TLS, and that it has connections left (its option -c)"
        )
    return StoreUnavailable(not_memcached(address, _why(error)))


def not_memcached(address: MemcachedAddress, why: str) -> str:
    """Return the message for a server that is no memcached."""
    return (
        f"the server at {address} does not answer as memcached does ({why}); check the host and the port of the URL, "
        "which is 11211 as a rule"
    )


def unanswered(address: MemcachedAddress, error: BaseException) -> OutcomeUnknown:
    """Return the error of a request that was sent and got no reply."""
    return OutcomeUnknown(
        f"the memcached server at {address} did not answer ({_why(error)}); the request may or may not have been "
        "carried out; try again, and check the server and the network"
    )


def too_late(address: MemcachedAddress) -> StoreUnavailable:
    """Return the error of a request for which no time was left."""
    return StoreUnavailable(
        f"the request to the memcached server at {address} timed out before it was sent: raise `timeout` or "
        "`operation_timeout`"
    )


def refused(address: MemcachedAddress, reply: MetaReply) -> StoreError:
    """Return what a reply means that is an error of the server, or none that the command can have."""
    text = reply.line()
    if reply.code == SERVER_ERROR and b"out of memory" in reply.rest:
        return OutOfMemory(
            f"the memcached server at {address} has no memory left ({text}); give it more memory (its option -m), and "
            "run it without -M, so that it evicts old items instead"
        )
    if reply.code in {BUSY, SERVER_ERROR}:
        return StoreUnavailable(f"the memcached server at {address} cannot do this now ({text}); try again")
    if b"unauthenticated" in reply.rest:
        return StoreError(f"the memcached server at {address} requires a login, which Tenure does not have ({text})")
    if b"crawler disabled" in reply.rest:
        return StoreError(
            f"the memcached server at {address} cannot list its names ({text}); run it without `-o no_lru_crawler`"
        )
    return StoreError(
        f"the memcached server at {address} refused a command ({text}); it must be memcached 1.6.10 or newer, and not "
        "a proxy in front of it"
    )


def without_cas(address: MemcachedAddress) -> StoreError:
    """Return the error of a server that runs without CAS values."""
    return StoreError(
        f"the memcached server at {address} runs with -C, without the CAS values that make a lock safe; run it "
        "without -C"
    )


def foreign(address: MemcachedAddress, name: str) -> StoreError:
    """Return the error of an item that Tenure did not write."""
    return StoreError(
        f"the item of {name!r} in the memcached server at {address} was not written by Tenure, or not by this "
        "version; give the URL a prefix of its own, as memcached://host/locks"
    )


def collision(address: MemcachedAddress, name: str) -> StoreError:
    """Return the error of two names with the same digest."""
    return StoreError(f"the key of {name!r} in the memcached server at {address} belongs to another name; rename one")


def closed() -> StoreUnavailable:
    """Return the error of a request to a closed client."""
    return StoreUnavailable("this client of memcached is closed; make a new one")


def _why(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "timed out"
    if isinstance(error, ConnectionError) and error.errno:  # asyncio adds the address to strerror
        return os.strerror(error.errno)
    system = error.strerror if isinstance(error, OSError) else None
    return (system or str(error) or type(error).__name__).rstrip(".")
