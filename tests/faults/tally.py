"""The count of those who are inside, and many acquisitions that are counted so, in both forms of the API."""

import os
import random
import threading
from collections import Counter
from collections.abc import Sequence
from functools import partial
from itertools import cycle, islice

from tenure import AsyncClient, Outcome
from tenure.runtimes import clocks
from tenure_testing.conformance.kit import Kit, Running, Violation
from tests.faults.resource import Numbers
from tests.faults.scenes import client_at, play
from tests.servers import Proxy

ROUNDS = int(os.environ.get("TENURE_ROUNDS", "10000"))
"""How many acquisitions go through a proxy that swallows replies and requests."""

RIDE_OUT = 30.0
"""For how long clients repeat requests, in seconds: only a failure uses it up."""

TTL = 30.0
"""The ttl of the leases, in seconds. Whoever waits for a lease that nobody releases waits for as long.

It is so long that a release can be repeated several times before the lease ends.
"""

LOST_AFTER = 5.0
"""For how long a client waits for a reply, in seconds. Some hundred replies are lost in a test."""

PATIENCE = 180.0
"""For how long a worker waits for a lease, in seconds, and all of them for one more: three leases that nobody ends."""

SOON = 10.0
"""Within how many seconds all names must be free when the workers are done."""


class Tally:
    """Counts who is inside, for threads and tasks."""

    def __init__(self) -> None:
        """Start with nobody."""
        self.most = self.inside = self.entries = 0
        self.last_token = 0
        self.tokens_grow = True
        self._mutex = threading.Lock()

    def enter(self, token: int) -> None:
        """Note a holder."""
        with self._mutex:
            self.inside += 1
            self.entries += 1
            self.most = max(self.most, self.inside)
            self.tokens_grow = self.tokens_grow and token > self.last_token
            self.last_token = token

    def leave(self) -> None:
        """Note that the holder is done."""
        with self._mutex:
            self.inside -= 1


class Crowd:
    """Workers that acquire names again and again, and the numbers that these names protect."""

    def __init__(self, names: Sequence[str], rounds: int) -> None:
        """Acquire these names, `rounds` times all together."""
        self.tallies = {name: Tally() for name in names}
        self._outcomes: list[Outcome] = []
        """The outcome of each release. It is a list, because several threads add to it."""
        self._rounds = rounds
        self._numbers = Numbers()
        self._orphans: list[str] = []
        self._unknown: set[str] = set()

    def go_through(
        self, proxy: Proxy, url: str, form: str, *, to: str, clients: int, swallowed: float, lost: float
    ) -> None:
        """Let clients, with a worker each, acquire the names through a proxy, and check all answers.

        `url` leads through the proxy, and `to` to the server itself. The proxy swallows replies and loses requests with
        these probabilities.
        """

        async def scene(kit: Kit) -> None:
            there = [client_at(kit, url, operation_timeout=LOST_AFTER, retry_for=RIDE_OUT) for _ in range(clients)]
            for client in there:
                await client.names()
            proxy.swallow(None, probability=swallowed)
            proxy.lose(None, probability=lost)
            await self.work(kit, there, workers=clients)
            proxy.heal()
            await self.leaves_nothing(kit, kit.client())

        play(form, to, scene)
        assert proxy.counts.swallowed > self._rounds / 100
        assert proxy.counts.lost
        self.check()

    async def work(self, kit: Kit, clients: Sequence[AsyncClient], workers: int) -> None:
        """Have the workers acquire the names, in an order of chance, and share the clients."""
        order = list(islice(cycle(self.tallies), self._rounds))
        random.Random(workers).shuffle(order)
        shares = [order[place::workers] for place in range(workers)]
        running = [
            kit.start(partial(self._acquire_all, clients[place % len(clients)], share))
            for place, share in enumerate(shares)
        ]
        for each in running:
            await self._ended(each)

    async def _ended(self, worker: Running[None]) -> None:
        """Return when a worker is done. Raises Violation if meanwhile nobody acquires anything for too long."""
        while True:
            before = self._entries()
            try:
                return await worker.result(PATIENCE)
            except Violation:
                if self._entries() == before:
                    raise

    def _entries(self) -> int:
        return sum(tally.entries for tally in self.tallies.values())

    async def _acquire_all(self, client: AsyncClient, names: Sequence[str]) -> None:
        for name in names:
            began = clocks.steady()
            lease = await client.lock(name, ttl=TTL).acquire(timeout=PATIENCE)
            if clocks.steady() - began > 0.9 * TTL and name not in self._unknown:
                self._orphans.append(name)
            self.tallies[name].enter(lease.token)
            value = self._numbers.read(name, lease.token)
            lease.check()
            self._numbers.write(name, lease.token, value + 1)
            self.tallies[name].leave()
            outcome = await lease.release()
            self._outcomes.append(outcome)
            if outcome is not Outcome.RELEASED:
                self._unknown.add(name)

    def check(self) -> None:
        """Check that no two held a name at once, that its tokens grew, and that no acquisition was lost or orphaned."""
        assert self._orphans == []
        assert {name: tally.most for name, tally in self.tallies.items()} == dict.fromkeys(self.tallies, 1)
        assert all(tally.tokens_grow for tally in self.tallies.values())
        assert self._entries() == self._rounds
        assert self._numbers.total() == self._rounds
        outcomes = Counter(self._outcomes)
        assert outcomes.keys() <= {Outcome.RELEASED, Outcome.UNKNOWN}, outcomes
        assert outcomes.total() == self._rounds
        assert outcomes[Outcome.UNKNOWN] <= self._rounds / 100  # of one release every request has failed

    async def leaves_nothing(self, kit: Kit, onlooker: AsyncClient) -> None:
        """Wait until nobody holds or waits for any name. A lease whose release was lost may last to its ttl."""
        for name in self.tallies:

            async def unused(name: str = name) -> bool:
                view = await onlooker.inspect(name)
                return not view.holders and not view.waiters

            within = SOON + TTL if name in self._unknown else SOON
            await kit.until(unused, f"{name!r} without holders and waiters", within)
