"""The channels of one client: where it listens for notifications.

A client listens at one channel, its home, at the server that holds all names. In a Cluster it listens at a channel for
each name, at the server of that name.
"""

import logging
from collections.abc import Callable

from tenure.contracts.runtime import Runtime
from tenure.errors import StoreUnavailable
from tenure.stores.redis.links.errors import ELSEWHERE
from tenure.stores.redis.links.link import RedisAddress, ReplyError
from tenure.stores.redis.names import state_key
from tenure.stores.redis.servers.servers import HOPS, RedisServers

log = logging.getLogger("tenure")

IDLE_CHANNEL = 60.0
"""For how many seconds an unused channel is kept. A waiter sends its request every second or two."""


class RedisChannels:
    """The subscriptions of one client."""

    def __init__(self, runtime: Runtime, servers: RedisServers, channel: str, on_gap: Callable[[], None]) -> None:
        """Subscribe nowhere yet. `on_gap` is called when notifications may have been missed between two servers."""
        self._runtime = runtime
        self._servers = servers
        self._topology = servers.topology
        self._channel = channel
        self._on_gap = on_gap
        self.home: RedisAddress | None = None
        """The server at which this client listens, except in a Cluster."""
        self.by_name: dict[str, tuple[RedisAddress, float]] = {}
        """In a Cluster: for each name the server at which the client listens, and the instant of the last use."""

    async def listen_at_home(self, address: RedisAddress, until: float) -> None:
        """Listen at the server that holds all names, and no longer at the server that held them before."""
        before, self.home = self.home, address
        channel = f"tenure:channel:{self._channel}"
        try:
            await self._servers.link(address).listen(channel, until)
        except BaseException as error:  # an interrupt, too: the client does not listen there
            self.home = before
            if isinstance(error, ReplyError):
                raise self._servers.refused(address, error) from error
            if isinstance(error, StoreUnavailable):
                self._topology.doubt(address)
            raise
        if before is not None:
            log.warning("the Redis master is now %s, and was %s", address, before)
            await self._servers.link(before).ignore(channel)
            self._on_gap()

    async def listen_for(self, name: str, until: float) -> None:
        """In a Cluster: listen at the channel of a name, at the name's server; drop channels that are idle."""
        address = await self._topology.server(name, until)
        before = self.by_name.get(name)
        self.by_name[name] = (address, self._runtime.now())
        if before is not None and before[0] == address:
            return
        try:
            await self._listen_at(address, name, until)
        except BaseException:
            self.by_name.pop(name, None)
            raise
        if before is not None:
            await self._servers.link(before[0]).ignore(self._channel_of(name))
        await self._drop_idle_channels()

    async def _listen_at(self, address: RedisAddress, name: str, until: float) -> None:
        for _ in range(HOPS):
            try:
                await self._servers.link(address).listen(self._channel_of(name), until)
                return
            except ReplyError as error:
                if error.code not in ELSEWHERE:
                    raise self._servers.refused(address, error) from error
                address = self._topology.moved(error, address)
                self.by_name[name] = (address, self._runtime.now())
            except StoreUnavailable:
                self._topology.doubt(address)
                raise
        raise StoreUnavailable(f"the cluster redirects the subscription for {name!r} again and again; see CLUSTER INFO")

    async def _drop_idle_channels(self) -> None:
        now = self._runtime.now()
        for name, (address, used_at) in list(self.by_name.items()):
            if now - used_at > IDLE_CHANNEL:
                del self.by_name[name]
                await self._servers.link(address).ignore(self._channel_of(name))

    def _channel_of(self, name: str) -> str:
        return f"{state_key(name)}:channel:{self._channel}"
