"""The error mapping of the memcached store: errors of servers and connections become errors of Tenure."""

from tenure.doctor.memcached import MemcachedFacts
from tenure.errors import StoreError, StoreUnavailable
from tenure.stores.memcached.protocol import BUSY, SERVER_ERROR, MetaReply
from tenure.transport.errors import ServerErrors, why
from tenure.transport.link import ServerAddress

SERVER = ServerErrors("memcached", "the host and the port of the URL. Its names are not moved to another server")


class OutOfMemory(StoreUnavailable):
    """The server has no memory for the item, and has deleted the item that it was to replace."""


def no_greeting(address: ServerAddress, error: BaseException) -> StoreUnavailable:
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
    return StoreUnavailable(not_memcached(address, why(error)))


def not_memcached(address: ServerAddress, why: str) -> str:
    """Return the message for a server that is no memcached."""
    return (
        f"the server at {address} does not answer as memcached does ({why}); check the host and the port of the URL, "
        "which is 11211 as a rule"
    )


def refused(address: ServerAddress, reply: MetaReply) -> StoreError:
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


class WithoutCas(StoreError):
    """The server runs without CAS values, and these are the facts about it."""

    def __init__(self, address: ServerAddress, facts: MemcachedFacts) -> None:
        super().__init__(
            f"the memcached server at {address} runs with -C, without the CAS values that make a lock safe; run it "
            "without -C"
        )
        self.facts = facts


def without_cas(address: ServerAddress) -> WithoutCas:
    """Return the error of a server that gave an item without a CAS value."""
    return WithoutCas(address, MemcachedFacts(str(address), cas=False))


def foreign(address: ServerAddress, name: str) -> StoreError:
    """Return the error of an item that Tenure did not write."""
    return StoreError(
        f"the item of {name!r} in the memcached server at {address} was not written by Tenure, or not by this "
        "version; give the URL a prefix of its own, as memcached://host/locks"
    )


def collision(address: ServerAddress, name: str) -> StoreError:
    """Return the error of two names with the same digest."""
    return StoreError(f"the key of {name!r} in the memcached server at {address} belongs to another name; rename one")
