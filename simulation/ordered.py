"""Ordered stores in the simulation: the shipped store over a directory in which every operation is a message.

The ensemble works like etcd. A session ends when it is not renewed for its length, by the ensemble's clock. Only a
renewal proves that a session lives, for the whole length. Wake-ups are messages, and may be lost with a connection.
"""

import contextlib
import random
from collections.abc import Callable, Sequence
from typing import TypeVar

from simulation.checker import Checker
from simulation.ensemble import Ensemble
from simulation.network import RECOVERY, Answer, Link
from simulation.node import Node, StepWatcher
from simulation.runtime import SimRuntime, World
from tenure.contracts.deadlines import micros
from tenure.contracts.messages import AcquireRequest, Granted, Page, Reply
from tenure.errors import StoreError, StoreUnavailable
from tenure.stores.ordered import Detail, Entry, Kind, Listing, Record, Watcher
from tenure.stores.ordered.granting import Decision, decide
from tenure.stores.ordered.store import OrderedStore
from tenure.table.state import PLACEHOLDER, Holder, NameState, Queue, Waiter

T = TypeVar("T")

LENGTH = 2.0
"""The length of a session without a renewal, in seconds."""

RECONNECTS = 0.1
"""How long a client takes to connect again, in seconds."""


class OrderedNode(Node):
    """The ensemble as a node for the checks and the disasters."""

    refuses_for = 2**62  # for ever
    keeps_dead_waiters = True

    def __init__(self, world: World, watcher: StepWatcher, rate: float, offset: float) -> None:
        """Start empty."""
        super().__init__(world, rate, offset)
        self.ensemble = Ensemble(self._seconds, self._changed)
        self.requests: dict[str, AcquireRequest] = {}
        """The acquire requests, by id."""
        self.told: set[str] = set()
        """The requests whose clients know that they hold."""
        self.dead: set[str] = set()
        """Sessions whose clients have died."""
        self._watcher = watcher
        self._granted: dict[tuple[str, int], int] = {}
        """The time of a grant, by request and order: a lost entry may be requested again, with the last place."""
        self._counters: dict[str, int] = {}
        self._known: set[str] = set()

    def _seconds(self) -> float:
        return self._offset + self.world.time * self._rate

    def _changed(self, name: str) -> None:
        self._known.add(name)
        self._watcher.after_step(self, name)

    def look_at(self, session: str) -> None:
        """End a session in time even without a request."""
        known = self.ensemble.sessions.get(session)
        if known is not None:
            self.ensemble.expire()
            self.world.after(max(0.001, (known.ends_at - self._seconds()) / self._rate), lambda: self.look_at(session))

    # -- for the checks ------------------------------------------------------------------------------------

    def clock(self) -> int:
        """Return the ensemble's clock."""
        return micros(self._seconds())

    def state(self, name: str) -> NameState:
        """Return the state of a name that its entries represent."""
        kept = self.ensemble.names.get(name, [])
        decision = decide([each.entry for each in kept])
        state = NameState(self._counters.get(name, 0), decision.capacity or 1)
        for each in kept:
            if each.entry in decision.placeholders or each.entry in decision.blocks:
                ends_at = micros(self.ensemble.ends_at(each))
                if each.entry.before and each.entry.capacity == 1:
                    state.blocked_until = max(state.blocked_until, ends_at)
                else:
                    state.holders.append(self._holder(each.entry, PLACEHOLDER + each.entry.request_id, ends_at, 0))
        for entry in decision.holders:
            delay = (
                self.requests[entry.request_id].lock_delay
                if entry.capacity == 1 and entry.request_id in self.told
                else 0
            )
            state.holders.append(self._holder(entry, entry.request_id, self._ends_at(entry), delay))
            state.counter = self._counters[name] = max(state.counter, entry.token)
        state.queue = self._queue(decision)
        return state

    def _holder(self, entry: Entry, request_id: str, ends_at: int, delay: int) -> Holder:
        granted_at = self._granted.setdefault((request_id, entry.order), self.clock())
        channel = entry.session if request_id == entry.request_id else ""
        return Holder(
            request_id, channel, "", entry.token, entry.weight, ends_at - granted_at, delay, granted_at, ends_at
        )

    def _queue(self, decision: Decision) -> Queue:
        queue = Queue()
        for entry in decision.waiters:
            request = self.requests[entry.request_id]
            request.channel = entry.session
            queue.join(Waiter(request, 0, self._ends_at(entry)))
        return queue

    def _ends_at(self, entry: Entry) -> int:
        session = self.ensemble.sessions.get(entry.session)
        return micros(session.ends_at) if session is not None else self.clock()

    def has_told(self, request_id: str) -> bool:
        """Tell whether a holder has received the reply with its grant."""
        return request_id not in self.requests or request_id in self.told

    def names(self) -> list[str]:
        """Return all names that were ever used."""
        return sorted(self._known)

    def listens(self, channel: str) -> bool:
        """Tell whether a session and its client are alive."""
        return channel in self.ensemble.sessions and channel not in self.dead

    # -- requests of others --------------------------------------------------------------------------------

    def revoke(self, name: str) -> None:
        """Remove the holders of a name, and notify them."""
        victims = decide(self.ensemble.listing(name).entries).holders
        sessions = {kept.entry.request_id: kept.entry.session for kept in self.ensemble.names.get(name, [])}
        self.ensemble.change("", name, victims, ())
        for entry in victims:
            self.ensemble.tell(sessions[entry.request_id], f"revoked {entry.request_id} {entry.token}")

    def touch(self, name: str) -> None:
        """Send a request about a name, which removes its expired entries."""
        for kept in list(self.ensemble.names.get(name, [])):
            if kept.entry.kind in {Kind.PLACEHOLDER, Kind.BLOCK} and kept.counts_for:
                self.ensemble.remains(name, kept.entry)

    # -- disasters -----------------------------------------------------------------------------------------

    def restart(self, downtime: float) -> None:
        """Elect another leader, which takes `downtime` and renews all sessions."""
        self.down_until = self.world.time + downtime
        for session in self.ensemble.sessions.values():
            session.watches.clear()
            session.ends_at = max(session.ends_at, self._seconds() + (downtime * self._rate) + session.length)
        self.world.after(downtime + RECONNECTS, self._tell_gaps)

    def _tell_gaps(self) -> None:
        for session in list(self.ensemble.sessions.values()):
            session.push("gap", "")

    def forget(self, downtime: float, rng: random.Random) -> str:  # noqa: ARG002 - it forgets nothing
        """Restart: a majority remembers the whole state."""
        self.restart(downtime)
        return "a restart"

    def fail_over(self, downtime: float, rng: random.Random) -> str:
        """Restart: a majority remembers the whole state."""
        return self.forget(downtime, rng)


class SimulatedDirectory:
    """The session of one client at the ensemble, over a link."""

    trust = LENGTH
    lasts = LENGTH

    def __init__(self, runtime: SimRuntime, node: OrderedNode, link: Link, checker: Checker) -> None:
        """Use `node` over `link`."""
        self.proved_at = float("-inf")
        self._runtime = runtime
        self._node = node
        self._link = link
        self._checker = checker
        self._session = ""
        self._watcher: Watcher | None = None
        link.when_cut.append(self._cut)

    def session(self) -> str:
        """Return the session."""
        return self._session

    async def open(self, watcher: Watcher, until: float) -> None:
        """Begin a session."""
        self._watcher = watcher
        await self._begin(until)

    async def _begin(self, until: float) -> None:
        session, sent = self._runtime.new_id(), self._runtime.now()

        def work(ensemble: Ensemble) -> None:
            ensemble.begin(session, LENGTH, self._push)
            self._node.look_at(session)

        await self._call(work, until)
        if not self._session:
            self._session, self.proved_at = session, sent

    # -- events of the ensemble ----------------------------------------------------------------------------

    def _push(self, what: str, text: str) -> None:
        if what == "gap":  # the client itself knows that it may have missed events
            self._link.process.later(0.0, lambda: self._hear(what, text))
        else:
            self._link.push(lambda: self._hear(what, text), f"{text} ({what})")

    def _hear(self, what: str, text: str) -> None:
        watcher = self._watcher
        if watcher is None:
            return
        if what == "woken":
            watcher.woken(text)
        elif what == "told":
            watcher.told(text)
        elif what == "gap":
            watcher.gap()
        elif text == self._session:
            self._over(text)

    def _over(self, session: str) -> None:
        if session == self._session and self._watcher is not None:
            self._session, self.proved_at = "", float("-inf")
            self._watcher.lost()

    def _cut(self) -> None:
        known = self._node.ensemble.sessions.get(self._session)
        if known is not None:
            known.watches.clear()
        self._link.process.later(RECONNECTS, lambda: self._hear("gap", ""))

    # -- operations ----------------------------------------------------------------------------------------

    async def join(self, name: str, record: Record, until: float) -> tuple[Entry, Listing]:
        """Add a contender."""
        if not self._session:
            await self._begin(until)
        elif self._runtime.now() > self.proved_at + self.trust / 2:
            await self.keep_alive(until)
        session = self._session
        joined = await self._call(lambda ensemble: ensemble.join(session, name, record), until)
        if joined is None:
            self._over(session)
            raise StoreUnavailable("the session has ended: send the request again")
        return joined

    def _prove(self, session: str, sent: float) -> None:
        if session == self._session:
            self.proved_at = max(self.proved_at, sent)

    async def withdraw_join(self, name: str, request_id: str, entry: Entry | None, until: float) -> bool:
        """Remove a contender."""

        def work(ensemble: Ensemble) -> bool:
            there = ensemble.withdraw_join(name, request_id)
            if entry is not None:
                ensemble.forgive(request_id)
            return there

        return await self._call(work, until)

    def send_removal(self, name: str, entry: Entry, until: float, told: Callable[[bool, Listing | None], None]) -> bool:
        """Send the removal of a contender beside the caller; `told` gets its reply."""

        def work(ensemble: Ensemble) -> tuple[bool, Listing | None]:
            there = ensemble.withdraw_join(name, entry.request_id)
            ensemble.forgive(entry.request_id)
            return there, None if there else ensemble.listing(name)

        async def run() -> None:
            said: tuple[bool, Listing | None] = False, None
            with contextlib.suppress(StoreError):
                said = await self._call(work, until)
            told(*said)

        self._runtime.spawn(run, "release sent")
        return True

    def collect_replies(self) -> None:
        """Do nothing: each reply is taken as it comes."""

    async def look(self, name: str, until: float) -> Listing:
        """Return the entries of a name, and renew the session."""
        session, sent = self._session, self._runtime.now()
        alive, listing = await self._call(lambda ensemble: (ensemble.renew(session), ensemble.listing(name)), until)
        if alive:
            self._prove(session, sent)
        elif session:
            self._over(session)
        return listing

    async def look_at_all(self, names: Sequence[str], until: float) -> list[Listing]:
        """Return the entries of several names."""
        return await self._call(lambda ensemble: [ensemble.listing(name) for name in names], until)

    async def change(
        self, name: str, remove: Sequence[Entry], add: Sequence[Record], until: float, beside: Entry | None = None
    ) -> bool:
        """Remove and add entries in one step."""
        session = self._session
        return await self._call(lambda ensemble: ensemble.change(session, name, remove, add, beside), until)

    async def rewrite(self, texts: Sequence[tuple[str, Entry, str]], until: float) -> list[bool]:
        """Change the texts of entries."""
        return await self._call(lambda ensemble: [ensemble.rewrite(*each) for each in texts], until)

    async def pass_over(self, name: str, entry: Entry, text: str, until: float) -> bool:
        """Remove a contender if its text is unchanged."""
        return await self._call(lambda ensemble: ensemble.pass_over(name, entry, text), until)

    async def stir(self, name: str, entries: Sequence[Entry], until: float) -> None:
        """Wake the requests that watch these entries."""
        await self._call(lambda ensemble: ensemble.stir(name, entries), until)

    async def details(self, name: str, entries: Sequence[Entry], until: float) -> list[Detail | None]:
        """Return the details of entries."""
        return await self._call(lambda ensemble: ensemble.details(name, entries), until)

    async def watch(self, name: str, request_id: str, entries: Sequence[Entry], until: float) -> bool:
        """Watch entries."""
        session = self._session
        return await self._call(lambda ensemble: ensemble.watch(session, name, request_id, entries), until)

    async def remains(self, name: str, entry: Entry, until: float) -> float:
        """Return for how long an entry remains valid."""
        return await self._call(lambda ensemble: ensemble.remains(name, entry), until)

    async def check(self, entries: Sequence[tuple[str, Entry]], until: float) -> list[bool]:
        """Prove that entries exist in this session."""
        session, sent = self._session, self._runtime.now()
        there = await self._call(lambda ensemble: ensemble.check(session, entries), until)
        if any(there):
            self._prove(session, sent)
        return there

    async def keep_alive(self, until: float) -> None:
        """Renew the session."""
        session, sent = self._session, self._runtime.now()
        if not session:
            return
        if await self._call(lambda ensemble: ensemble.renew(session), until):
            self._prove(session, sent)
        else:
            self._over(session)

    async def names(self, prefix: str, until: float, rest: object = None) -> Page:  # noqa: ARG002 - there is one page
        """Return the names in use."""
        return Page(await self._call(lambda ensemble: ensemble.in_use(prefix), until))

    async def tell(self, session: str, message: str, until: float) -> None:
        """Send a message to a session."""
        await self._call(lambda ensemble: ensemble.tell(session, message), until)

    async def close(self) -> None:
        """End the session, if the ensemble can be reached."""
        session, self._session, self._watcher = self._session, "", None

        def work(ensemble: Ensemble) -> None:
            ensemble.end(session)

        with contextlib.suppress(StoreError):
            await self._call(work, self._runtime.now() + 1.0)

    def abandon(self) -> None:
        """Do nothing: simulated processes do not fork."""

    async def _call(self, work: Callable[[Ensemble], T], until: float) -> T:
        node, link, faults = self._node, self._link, self._link.faults
        if node.is_down():
            link.happened["connection refused"] += 1
            await self._runtime.sleep(link.delay())
            raise StoreUnavailable("connection refused")
        if faults.errors and link.world.random.random() < faults.errors:
            await self._fail(until)

        def serve(answer: Answer[T]) -> None:
            if not node.is_down():
                answer.resolve(work(node.ensemble))

        return await link.exchange(serve, until, lambda: node.takes(link.happened))

    async def _fail(self, until: float) -> None:
        """Raise the error that the ensemble answers, by `until` as every reply."""
        delay = min(self._link.delay(), max(0.0, until - self._runtime.now()))
        self._link.happened["error answered"] += 1
        self._checker.store.disturbed(self._session, self._link.world.time + delay + RECOVERY)
        await self._runtime.sleep(delay)
        raise StoreUnavailable("the ensemble replied with an error")


class SimulatedOrderedStore(OrderedStore):
    """The shipped store of one client, which may die."""

    def __init__(self, runtime: SimRuntime, node: OrderedNode, link: Link, checker: Checker) -> None:
        """Use `node` over `link`."""
        super().__init__(runtime, SimulatedDirectory(runtime, node, link, checker))
        self._node = node
        self._link = link
        shipped = self.acquire

        async def acquire(request: AcquireRequest, until: float) -> Reply:
            """Acquire, and record the request and the receipt of a grant for the checks."""
            node.requests.setdefault(request.request_id, request)
            reply = await shipped(request, until)
            if isinstance(reply, Granted):
                node.told.add(request.request_id)
            return reply

        self.acquire = acquire

    def vanish(self) -> None:
        """Record for the checks that the client of a session died; the ensemble ends the session when it expires."""
        if self._link.process.crashed:
            self._node.dead.add(self.directory.session())
