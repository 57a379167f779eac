"""What a client asks a server when it connects: whether it is memcached, which process, and how it is set.

A restart of the server begins the CAS values anew. So a CAS value is only ever compared in the process that gave it.
The process is identified by its id and the second of its start, which is the difference of two statistics.
"""

from collections.abc import Iterable

from tenure.errors import StoreError
from tenure.stores.memcached import errors
from tenure.stores.memcached.link import MemcachedAddress, MemcachedRequest, MemcachedServer
from tenure.stores.memcached.protocol import SETTINGS, STAT, STATS, MetaReply

QUESTIONS = (MemcachedRequest(STATS, 0), MemcachedRequest(SETTINGS, 0))
"""Asked one after the other, because a server that is no memcached may answer anything to the first."""


def server_of_greeting(address: MemcachedAddress, replies: Iterable[MetaReply]) -> MemcachedServer:
    """Return what a server says of itself. Raises StoreError if it is no memcached, or cannot keep locks."""
    said: dict[bytes, bytes] = {}
    for reply in replies:
        if reply.code == STAT:
            key, _, value = reply.rest.partition(b" ")
            said[key] = value
        elif not reply.goes_on():
            raise _refusal(address, reply)
    try:
        started_at = int(said[b"time"]) - int(said[b"uptime"])
        process = f"{int(said[b'pid'])}@{started_at}"
    except (KeyError, ValueError):
        raise StoreError(errors.not_memcached(address, "its statistics name no process")) from None
    if said.get(b"cas_enabled") == b"no":
        raise errors.without_cas(address)
    return MemcachedServer(process, said.get(b"evictions") != b"off")


def _refusal(address: MemcachedAddress, reply: MetaReply) -> StoreError:
    if reply.code.endswith(b"ERROR"):  # memcached speaks so
        return errors.refused(address, reply)
    return StoreError(errors.not_memcached(address, f"it says {reply.line()[:100]!r}"))
