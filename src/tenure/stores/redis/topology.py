"""The topology: which server holds a name. It is a fixed server, the master named by Sentinels, or a Cluster's node.

Every request asks the topology, so the usual case is a look-up. A caller whose reply casts doubt on the topology
reports that, and the next request looks again.
"""

# ruff: noqa: D102 - the contracts say what these methods do

from collections.abc import Callable
from typing import Any, Protocol

from tenure.contracts.runtime import Event, Runtime
from tenure.errors import StoreError, StoreUnavailable
from tenure.stores.redis.links.errors import elsewhere, to_store_error
from tenure.stores.redis.links.link import RedisAddress, RedisLink, ReplyError
from tenure.stores.redis.names import SLOTS, slot_of

OpenLink = Callable[[RedisAddress], RedisLink]


def words_of(reply: Any) -> list[Any]:  # noqa: ANN401 - whatever the server answers
    """Return a reply of names and values as a list of both in turn. In RESP3 it is a map."""
    return [each for pair in reply.items() for each in pair] if hasattr(reply, "items") else list(reply)


class Topology(Protocol):
    """Knows which server holds which name."""

    clustered: bool

    @property
    def known(self) -> RedisAddress | None:
        """The one server that holds all names, if there is one and it is not in doubt."""
        ...

    def known_for(self, name: str) -> RedisAddress | None:
        """Return the server that holds a name, if it is known and not in doubt. Asks nobody."""
        ...

    async def server(self, name: str, until: float) -> RedisAddress:
        """Return the server that holds a name. Raises StoreUnavailable if no server can tell."""
        ...

    async def masters(self, until: float) -> list[RedisAddress]:
        """Return every server that holds names."""
        ...

    def doubt(self, address: RedisAddress) -> None:
        """Report that a server did not reply, or did not reply like a master."""

    def moved(self, error: ReplyError, sender: RedisAddress) -> RedisAddress:
        """Process a MOVED or ASK reply, and return the server to use instead."""
        ...

    async def close(self) -> None:
        """Close the links that were opened to find out."""

    def abandon(self) -> None:
        """In a forked child: drop the links."""


class OneServer:
    """One server that never changes."""

    clustered = False

    def __init__(self, address: RedisAddress) -> None:
        self._address = self.known = address

    def known_for(self, name: str) -> RedisAddress | None:  # noqa: ARG002 - whatever the name
        return self.known

    async def server(self, name: str, until: float) -> RedisAddress:  # noqa: ARG002 - whatever the name
        return self._address

    async def masters(self, until: float) -> list[RedisAddress]:  # noqa: ARG002 - known
        return [self._address]

    def doubt(self, address: RedisAddress) -> None:
        pass

    def moved(self, error: ReplyError, sender: RedisAddress) -> RedisAddress:
        raise StoreError(f"the Redis server at {sender} is part of a cluster; write redis+cluster:// ({error})")

    async def close(self) -> None:
        pass

    def abandon(self) -> None:
        pass


class _Discovered:
    """The common part of the topologies that query servers: one caller queries, the others wait for it."""

    def __init__(self, runtime: Runtime, guides: list[RedisAddress], open_link: OpenLink) -> None:
        self._runtime = runtime
        self._guides = guides
        self._open_link = open_link
        self._links: dict[RedisAddress, RedisLink] = {}
        self._mutex = runtime.mutex()
        self._looking: Event | None = None

    async def _look(self, until: float) -> None:
        """Query the servers, or wait for the caller that does. Raises StoreError if no server can tell."""
        with self._mutex:
            looking, mine = self._looking, self._looking is None
            if mine:
                looking = self._looking = self._runtime.event()
        if looking is not None and not mine:
            await looking.wait(until)
            return
        try:
            await self._query_servers(until)
        finally:
            with self._mutex:
                self._looking = None
            if looking is not None:
                looking.set()

    async def _query_servers(self, until: float) -> None:
        """Query one server after another, each for a part of the time; one that can tell comes first the next time."""
        first: StoreError | None = None
        for count, guide in enumerate(list(self._guides)):
            now = self._runtime.now()
            share = (until - now) / (len(self._guides) - count)
            try:
                if await self._exchange(guide, now + share):
                    self._guides.remove(guide)
                    self._guides.insert(0, guide)
                    return
            except ReplyError as error:
                first = first or to_store_error(guide, error)
            except StoreError as error:
                first = first or error
        raise first or StoreUnavailable(self._nobody_knows())

    async def _exchange(self, guide: RedisAddress, until: float) -> bool:
        raise NotImplementedError

    def _nobody_knows(self) -> str:
        raise NotImplementedError

    def _link(self, address: RedisAddress) -> RedisLink:
        link = self._links.get(address)
        if link is None:  # an examination may run beside a look: both use the link that is there first
            link = self._links.setdefault(address, self._open_link(address))
        return link

    async def close(self) -> None:
        for link in list(self._links.values()):  # another thread may still open one
            await link.close()

    def abandon(self) -> None:
        for link in self._links.values():
            link.abandon()


class Sentinels(_Discovered):
    """The master of a service, as Sentinels name it."""

    clustered = False

    def __init__(self, runtime: Runtime, sentinels: list[RedisAddress], service: str, open_link: OpenLink) -> None:
        super().__init__(runtime, sentinels, open_link)
        self._service = service
        self.known: RedisAddress | None = None

    def known_for(self, name: str) -> RedisAddress | None:  # noqa: ARG002 - one master for all names
        return self.known

    async def server(self, name: str, until: float) -> RedisAddress:  # noqa: ARG002 - one master for all names
        master = self.known
        while master is None:
            await self._look(until)
            master = self.known
            if master is None and self._runtime.now() >= until:
                raise StoreUnavailable(self._nobody_knows())
        return master

    async def masters(self, until: float) -> list[RedisAddress]:
        return [await self.server("", until)]

    def doubt(self, address: RedisAddress) -> None:
        if self.known == address:
            self.known = None

    def moved(self, error: ReplyError, sender: RedisAddress) -> RedisAddress:
        raise StoreError(f"the Redis server at {sender} is part of a cluster; write redis+cluster:// ({error})")

    async def _exchange(self, guide: RedisAddress, until: float) -> bool:
        reply = await self._link(guide).command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._service, until=until)
        if reply is None:
            return False
        self.known = RedisAddress(reply[0].decode(), int(reply[1]))
        return True

    async def count_sentinels(self, until: float) -> int:
        """Return how many Sentinels watch the service. Raises ReplyError or StoreError."""
        reply = await self._link(self._guides[0]).command("SENTINEL", "MASTER", self._service, until=until)
        words = words_of(reply)
        return 1 + int(words[words.index(b"num-other-sentinels") + 1])

    def _nobody_knows(self) -> str:
        return (
            f"no Sentinel knows a master of the service {self._service!r}; check the name after the last slash of the "
            "URL, and `SENTINEL MASTERS`"
        )


class Cluster(_Discovered):
    """The node that serves the slot of a name."""

    clustered = True
    known = None

    def __init__(self, runtime: Runtime, nodes: list[RedisAddress], link: OpenLink) -> None:
        super().__init__(runtime, nodes, link)
        self._seeds = list(nodes)
        self._slots: list[RedisAddress | None] = [None] * SLOTS
        self._stale = True

    def known_for(self, name: str) -> RedisAddress | None:
        return None if self._stale else self._slots[slot_of(name)]

    async def server(self, name: str, until: float) -> RedisAddress:
        slot = slot_of(name)
        address = self._slots[slot]
        if address is None or self._stale:
            await self._look(until)
            address = self._slots[slot]
        if address is None:
            raise StoreUnavailable(f"no node of the cluster serves slot {slot} of {name!r}; see CLUSTER INFO")
        return address

    async def masters(self, until: float) -> list[RedisAddress]:
        if self._stale:
            await self._look(until)
        return sorted({address for address in self._slots if address is not None}, key=str)

    def doubt(self, address: RedisAddress) -> None:  # noqa: ARG002 - any of them may have changed
        """Have the next request ask which node serves which slots."""
        self._stale = True

    def moved(self, error: ReplyError, sender: RedisAddress) -> RedisAddress:
        """Return the node of a MOVED or ASK; remember it for a MOVED, because an ASK holds only during a migration."""
        slot, address = elsewhere(error, sender)
        if error.code == "MOVED":
            self._slots[slot] = address
            self._stale = True
        return address

    async def _exchange(self, guide: RedisAddress, until: float) -> bool:
        reply = await self._link(guide).command("CLUSTER", "SLOTS", until=until)
        slots: list[RedisAddress | None] = [None] * SLOTS
        for first, last, master, *_replicas in reply:
            host = master[0].decode() if master[0] else guide.host
            slots[first : last + 1] = [RedisAddress(host, int(master[1]))] * (last - first + 1)
        if slots.count(None) == SLOTS:
            return False
        self._slots, self._stale = slots, False
        masters = {address for address in slots if address is not None}
        self._guides = [guide, *(masters - {guide}), *(seed for seed in self._seeds if seed not in masters | {guide})]
        return True

    def _link(self, address: RedisAddress) -> RedisLink:
        return self._open_link(address)  # the store uses the queried nodes, too, so both share a link

    def _nobody_knows(self) -> str:
        return "no node of the cluster tells which node serves which slots; see CLUSTER INFO"
