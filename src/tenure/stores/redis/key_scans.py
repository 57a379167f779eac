"""What takes a scan of the keys of all servers: the names in use, and in a Cluster the end of the quarantine."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from tenure.contracts.deadlines import seconds
from tenure.contracts.messages import Page
from tenure.contracts.runtime import Runtime
from tenure.stores.redis import scripts
from tenure.stores.redis.links.link import RedisAddress, Word
from tenure.stores.redis.names import MARKERS, marked_by, name_of, pattern, state_key
from tenure.stores.redis.servers import START, RedisServers, ScriptRunner

PAGE = 250
"""For how many names one request finds out whether they are in use; few enough to delay other requests only briefly."""


@dataclass(slots=True)
class _Listing:
    """The position of a listing of names."""

    address: RedisAddress | None = None
    """The master whose keys were scanned last, with the cursor."""
    cursor: bytes = START
    done: set[RedisAddress] = field(default_factory=set[RedisAddress])
    """The masters whose keys were all scanned."""
    seen: set[str] = field(default_factory=set[str])
    """The names that were found: a scan may return a key twice."""


class KeyScans:
    """The operations of one client that scan keys."""

    def __init__(self, runtime: Runtime, servers: RedisServers, runner: ScriptRunner, client_fields: bytes) -> None:
        """Scan the keys at `servers`. `client_fields` are the packed fields that the scripts receive."""
        self._runtime = runtime
        self._servers = servers
        self._topology = servers.topology
        self._clustered = servers.topology.clustered
        self._runner = runner
        self._client_fields = client_fields

    async def names(self, prefix: str, until: float, rest: object = None) -> Page:
        """Return a page of the names in use, from some keys at one master.

        Each request may take the whole given time; in a Cluster there is one request per name. A master that took over
        meanwhile is scanned from its first key on. A name whose slot is being moved may be missed.
        """
        timeout = max(0.0, until - self._runtime.now())
        so_far = rest if isinstance(rest, _Listing) else _Listing()
        left = [address for address in await self._topology.masters(until) if address not in so_far.done]
        if not left:
            return Page([])
        address = left[0]
        cursor = so_far.cursor if address == so_far.address else START
        cursor, keys = await self._servers.scan(address, cursor, pattern(prefix), until)
        found = sorted({name for key in keys if (name := name_of(key)) is not None} - so_far.seen)
        at_once = 1 if self._clustered else PAGE
        used: list[str] = []
        for first in range(0, len(found), at_once):
            used += await self._in_use(found[first : first + at_once], self._runtime.now() + timeout)
        so_far.seen.update(found)
        so_far.address, so_far.cursor = address, cursor
        if cursor == START:
            so_far.done.add(address)
        return Page(used, so_far if cursor != START or len(left) > 1 else None)

    async def _in_use(self, names: Sequence[str], until: float) -> list[str]:
        """Return which of the names are in use. In a Cluster `names` must contain one name only."""
        name = names[0]
        keys: list[Word] = [self._runner.marker(name)]
        for each in names:
            state = state_key(each)
            keys += [state, state + ":q"]
        answer = await self._runner.call(scripts.IN_USE, name, tuple(keys), (self._client_fields,), until)
        return [each for each, used in zip(names, answer.value, strict=True) if used]

    async def end_quarantine(self, until: float) -> float:
        """End the quarantine of every node; in a Cluster that of every slot whose marker exists."""
        timeout = max(0.0, until - self._runtime.now())
        names = {""}
        if self._clustered:
            names = set[str]()
            for address in await self._topology.masters(until):
                cursor, more = START, True
                while more:
                    cursor, keys = await self._servers.scan(address, cursor, MARKERS, self._runtime.now() + timeout)
                    names |= {marked for key in keys if (marked := marked_by(key))}
                    more = cursor != START
        longest = 0
        for name in sorted(names):
            until = self._runtime.now() + timeout
            answer = await self._runner.run(scripts.END_QUARANTINE, name, "", (self._client_fields,), until)
            longest = max(longest, int(answer.value))
        return seconds(longest)
