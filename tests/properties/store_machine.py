"""Histories of a store, and beside it the grant table itself, asked the same."""

# ruff: noqa: D102, PLR0917 - a rule's name says what happens; Hypothesis gives its arguments by name

from collections.abc import Callable, Coroutine, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from holdfast.contracts.messages import (
    Adjust,
    Ask,
    Granted,
    Leave,
    NameView,
    Notice,
    Release,
    Renewal,
    RenewReply,
    Reply,
)
from holdfast.contracts.runtime import Datagrams
from holdfast.contracts.store import Store
from holdfast.runtimes.threads import ThreadsRuntime, drive
from holdfast.stores.memory import MemoryStore, MemoryTable
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.table.state import NameState
from holdfast.table.step import TOMBSTONE, Step

NAMES = ("name", "n\0ame", "名")
VOTED = "vote"
"""A name that is only asked for votes."""

SECOND = 1_000_000
START = 5_000 * 3_600 * SECOND

picks = st.integers(0, 2**16)
lengths = st.sampled_from([1, 100, 1_000, 1_000, 60_000]).map(lambda thousandths: thousandths * 1_000)


class Clocks:
    """The store's clock and the wall clock, moved by hand."""

    def __init__(self) -> None:
        self.now = START
        self.stamp = 2 * START

    def clock(self) -> int:
        return self.now

    def wall(self) -> int:
        return self.stamp


class _ByHand(ThreadsRuntime):
    """A runtime that receives datagrams when told to, so that they come before a test looks."""

    def __init__(self) -> None:
        super().__init__()
        self._receivers: list[tuple[Datagrams, Callable[[bytes], None]]] = []

    def listen(self, source: Datagrams, receive: Callable[[bytes], None]) -> Callable[[], None]:
        self._receivers.append((source, receive))
        return self._receivers.clear

    def pump(self) -> None:
        for source, receive in self._receivers:
            while True:
                try:
                    datagram = source.recv(4096)
                except BlockingIOError:
                    break
                receive(datagram)


class Client:
    """A client of the store under test."""

    def __init__(self, make: Callable[[ThreadsRuntime], Store]) -> None:
        self.runtime = _ByHand()
        self.store = make(self.runtime)
        self.notices: list[Notice] = []
        self.inbox = drive(self.store.open(self.notices.append, self.until()))

    def until(self) -> float:
        return self.runtime.now() + 10

    def heard(self) -> list[Notice]:
        self.runtime.pump()
        heard = list(self.notices)
        self.notices.clear()
        return heard


def one_after_another(steps: dict[str, Step], asks: list[Ask]) -> list[Reply]:
    """Ask the oracle for several names, up to the first that is not granted."""
    replies: list[Reply] = []
    for ask in asks:
        replies.append(steps[ask.name].acquire(ask))
        if not isinstance(replies[-1], Granted):
            break
    return replies


class StoreMachine(RuleBasedStateMachine):
    """Some clients of a store, and beside it the grant table itself, asked the same."""

    def __init__(self) -> None:
        super().__init__()
        self.clocks = Clocks()
        self.opened = self.open_store()
        self.states: dict[str, NameState] = {}
        self.clients = [Client(self.make) for _ in range(3)]
        self.asks: list[Ask] = []
        self.groups: list[list[Ask]] = []
        """Asks that were made together."""

    def open_store(self) -> object:
        """Prepare what all clients share."""
        raise NotImplementedError

    def make(self, runtime: ThreadsRuntime) -> Store:
        """Make a client's store."""
        raise NotImplementedError

    def teardown(self) -> None:
        """Close the clients."""
        for client in self.clients:
            drive(client.store.close())

    def table(self, name: str) -> Step:
        """Return a step of the oracle."""
        state = self.states.setdefault(name, NameState())
        inboxes = {client.inbox for client in self.clients}
        return Step(state, self.clocks.now, self.clocks.stamp, lambda inbox: not inbox or inbox in inboxes)

    def check(
        self,
        client: int,
        names: Sequence[str],
        ask: Callable[[Store, float], Coroutine[Any, Any, object]],
        expect: Callable[[dict[str, Step]], object],
        *,
        ttl: int | None = None,
        buries: str = "",
    ) -> None:
        """Have a client ask its store, and compare its reply and all notices with those of the oracle.

        `ttl` is the longest one that is asked for, and `buries` a request that is given up by this.
        """
        asker, steps = self.clients[client % 3], {name: self.table(name) for name in names}
        self.prepare(client % 3, steps, ttl)
        answer = drive(ask(asker.store, asker.until()))
        assert answer == expect(steps)
        notices = [notice for step in steps.values() for notice in step.notices]
        for each in self.clients:
            assert each.heard() == [notice for notice in notices if notice.inbox == each.inbox]
        self.conclude(client % 3, steps, ttl, buries)

    def prepare(self, client: int, steps: dict[str, Step], ttl: int | None) -> None:
        """Tell the oracle what it can't know."""

    def conclude(self, client: int, steps: dict[str, Step], ttl: int | None, buries: str) -> None:
        """Look at more than replies and notices."""

    def recent(self, pick: int) -> Ask:
        """Return one of the last few asks."""
        return self.asks[-1 - pick % min(len(self.asks), 8)]

    def token(self, ask: Ask) -> int:
        """Return the token by which a request holds, or one that is not its own."""
        state = self.states.get(ask.name, NameState())
        return next((each.token for each in state.holders if each.request == ask.request), state.counter)

    @rule(
        client=picks,
        name=st.sampled_from([NAMES[0], *NAMES]),
        ttl=lengths,
        patience=lengths,
        weight=st.sampled_from([1, 1, 3]),
        capacity=st.sampled_from([1, 1, 1, 3, 3, 4]),
        lock_delay=st.sampled_from([0, 0, SECOND]),
        proposal=st.sampled_from([0, 2**52]),
        wait=st.sampled_from([True, True, False]),
        span=st.sampled_from([1, 1, 7]),
        reachable=st.sampled_from([True, True, True, False]),
    )
    def ask(
        self,
        client: int,
        name: str,
        ttl: int,
        patience: int,
        weight: int,
        capacity: int,
        lock_delay: int,
        proposal: int,
        wait: bool,
        span: int,
        reachable: bool,
    ) -> None:
        inbox = self.clients[client % 3].inbox if reachable else ""
        request = f"r{len(self.asks)}"
        owner = f"owner {len(self.asks)} é"
        times = (ttl, ttl // 8, patience)
        self.asks.append(Ask(name, request, inbox, owner, *times, weight, capacity, lock_delay, proposal, wait, span))
        self.ask_again(client, 0)

    @rule(
        name=st.sampled_from(NAMES),
        capacity=st.sampled_from([1, 1, 3]),
        weight=st.sampled_from([1, 1, 3]),
        patience=st.sampled_from([100_000, SECOND]),
        span=st.sampled_from([1, 7]),
    )
    def a_crowd_comes(self, name: str, capacity: int, weight: int, patience: int, span: int) -> None:
        for client in range(3):
            self.ask(client, name, SECOND, patience, weight, capacity, 0, 0, True, span, True)

    @rule(
        client=picks,
        base=st.integers(0, 3),
        ttl=lengths,
        proposal=st.sampled_from([0, START, START + 10_000, 2**52]),
        wait=st.sampled_from([True, True, False]),
        span=st.sampled_from([1, 7]),
    )
    def ask_for_a_vote(self, client: int, base: int, ttl: int, proposal: int, wait: bool, span: int) -> None:
        inbox = self.clients[client % 3].inbox
        number, times = len(self.asks), (ttl, SECOND // 5, SECOND)
        request = f"v{base}/{number}"
        self.asks.append(Ask(VOTED, request, inbox, f"owner {number}", *times, 1, 1, 0, proposal, wait, span, True))
        self.ask_again(client, 0)

    @rule(client=picks, pick=picks, ahead=st.sampled_from([0, 1, 1, 7, 1000]))
    def raise_a_token(self, client: int, pick: int, ahead: int) -> None:
        if self.asks:
            ask = self.recent(pick)
            token = self.token(ask)
            for _ in range(2):  # the first reply is lost
                self.change(client, Adjust(ask.name, ask.request, token, raise_to=token + ahead))

    @rule(client=picks, base=st.integers(0, 3))
    def wait_for_no_vote_any_more(self, client: int, base: int) -> None:
        self.give_up(client, Leave(VOTED, f"v{base}", unsure=False))

    @rule(client=picks, pick=picks)
    def ask_again(self, client: int, pick: int) -> None:
        if self.asks:
            ask = self.recent(pick)
            self.check(
                client,
                [ask.name],
                lambda store, until: store.acquire(ask, until),
                lambda steps: steps[ask.name].acquire(deepcopy(ask)),
                ttl=ask.ttl + ask.lock_delay,
            )

    @rule(
        client=picks,
        names=st.permutations(NAMES),
        count=st.integers(1, len(NAMES)),
        ttl=lengths,
        weight=st.sampled_from([1, 1, 3]),
        capacity=st.sampled_from([1, 1, 3]),
        wait=st.sampled_from([True, True, False]),
        span=st.sampled_from([1, 1, 7]),
    )
    def ask_for_several(
        self,
        client: int,
        names: list[str],
        count: int,
        ttl: int,
        weight: int,
        capacity: int,
        wait: bool,
        span: int,
    ) -> None:
        inbox = self.clients[client % 3].inbox
        number, times = len(self.asks), (ttl, ttl // 8, SECOND)
        asks = [
            Ask(name, f"r{number + i}", inbox, f"owner {number} é", *times, weight, capacity, 0, 0, wait, span)
            for i, name in enumerate(names[:count])
        ]
        self.asks += asks
        self.groups.append(asks)
        self.ask_for_several_again(client, 0)

    @rule(client=picks, pick=picks)
    def ask_for_several_again(self, client: int, pick: int) -> None:
        if self.groups:
            asks = self.groups[-1 - pick % min(len(self.groups), 3)]
            self.check(
                client,
                [ask.name for ask in asks],
                lambda store, until: store.acquire_many(asks, until),
                lambda steps: one_after_another(steps, deepcopy(asks)),
                ttl=asks[0].ttl + asks[0].lock_delay,
            )

    def let_go(self, client: int, release: Release) -> None:
        """Release."""
        self.check(
            client,
            [release.name],
            lambda store, until: store.release(release, until),
            lambda steps: steps[release.name].release(release),
            buries=release.request if release.unsure else "",
        )

    @rule(client=picks, pick=picks, unsure=st.booleans(), keep=st.sampled_from([0, 0, 700_000]))
    def release(self, client: int, pick: int, unsure: bool, keep: int) -> None:
        if self.asks:
            ask = self.recent(pick)
            self.let_go(client, Release(ask.name, ask.request, self.token(ask), unsure, keep))

    @rule(client=picks, pick=picks, keep=st.sampled_from([0, 0, 50_000, 2 * SECOND]))
    def release_by_a_holder(self, client: int, pick: int, keep: int) -> None:
        held = {each.request for state in self.states.values() if state.queue for each in state.holders}
        if asks := [each for each in self.asks if each.request in held]:
            ask = asks[pick % len(asks)]
            self.let_go(client, Release(ask.name, ask.request, self.token(ask), keep=keep))

    @rule(client=picks, keep=st.sampled_from([50_000, SECOND]))
    def holders_are_too_quick(self, client: int, keep: int) -> None:
        for name, state in self.states.items():
            held = [(each.request, each.token) for each in state.holders]
            for request, token in [*held, *held[:1]]:  # the first reply of the first was lost
                self.let_go(client, Release(name, request, token, keep=keep))

    @rule(
        client=picks,
        name=st.sampled_from(NAMES),
        before=st.sampled_from([0, 0, 1, 3]),
        after=st.sampled_from([1, 2, 3, 4]),
    )
    def resize(self, client: int, name: str, before: int, after: int) -> None:
        before = before or self.states.get(name, NameState()).capacity
        self.check(
            client,
            [name],
            lambda store, until: store.resize(name, before, after, until),
            lambda steps: steps[name].resize(before, after),
        )

    @rule(client=picks, name=st.sampled_from(NAMES))
    def ask_back(self, client: int, name: str) -> None:
        self.check(
            client, [name], lambda store, until: store.ask_back(name, until), lambda steps: steps[name].ask_back()
        )

    def keep(self, client: int, renewals: list[Renewal]) -> None:
        """Renew, and look who is told that somebody waits."""
        expected = [replace(each) for each in renewals]

        async def renew(store: Store, until: float) -> list[tuple[RenewReply, bool]]:
            replies = await store.renew(renewals, until)
            return [(reply, each.wanted) for reply, each in zip(replies, renewals, strict=True)]

        self.check(
            client,
            [each.name for each in renewals],
            renew,
            lambda steps: [(steps[each.name].renew(each), each.wanted) for each in expected],
            ttl=max(each.ttl + (each.ask.lock_delay if each.ask else 0) for each in renewals),
        )

    @rule(client=picks, chosen=st.lists(picks, min_size=1, max_size=4), ttl=lengths)
    def renew(self, client: int, chosen: list[int], ttl: int) -> None:
        if self.asks:
            asks = sorted((self.recent(pick) for pick in chosen), key=lambda ask: ask.name)
            self.keep(client, [Renewal(ask.name, ask.request, self.token(ask), ttl) for ask in asks])

    @rule(
        client=picks,
        pick=picks,
        weight=st.sampled_from([0, 1, 1, 2, 4]),
        owner=st.sampled_from(["", "a new one é"]),
        off=st.sampled_from([0, 0, 0, 1]),
    )
    def adjust(self, client: int, pick: int, weight: int, owner: str, off: int) -> None:
        if self.asks:
            ask = self.recent(pick)
            self.change(client, Adjust(ask.name, ask.request, self.token(ask) + off, weight, owner))

    @rule(client=picks, pick=picks, weight=st.sampled_from([1, 2]))
    def a_holder_makes_room(self, client: int, pick: int, weight: int) -> None:
        held = [(name, each) for name, state in self.states.items() for each in state.holders if each.weight > 1]
        if held:
            name, holder = held[pick % len(held)]
            self.change(client, Adjust(name, holder.request, holder.token, weight))

    def change(self, client: int, adjust: Adjust) -> None:
        """Adjust."""
        self.check(
            client,
            [adjust.name],
            lambda store, until: store.adjust(adjust, until),
            lambda steps: steps[adjust.name].adjust(adjust),
        )

    @rule(client=picks, pick=picks, unsure=st.booleans())
    def leave(self, client: int, pick: int, unsure: bool) -> None:
        if self.asks:
            self.give_up(client, Leave(self.recent(pick).name, self.recent(pick).request, unsure))

    def give_up(self, client: int, leave: Leave) -> None:
        """Leave."""
        self.check(
            client,
            [leave.name],
            lambda store, until: store.leave(leave, until),
            lambda steps: steps[leave.name].leave(leave),
            buries=leave.request if leave.unsure else "",
        )

    @rule(client=picks, back=st.sampled_from([0, 0, 1_000 * SECOND]))
    def a_queue_falls_silent_and_the_holders_let_go(self, client: int, back: int) -> None:
        for name, state in self.states.items():
            if state.queue and state.holders:
                self.step_back(back)
                self.give_up(client, Leave(name, "nobody", unsure=False))
                by = min(state.queue[0].ask.patience + 1, 10 * SECOND) if state.queue else 0
                self.clocks.now, self.clocks.stamp = self.clocks.now + by, self.clocks.stamp + by
                for holder in list(state.holders):
                    self.let_go(client, Release(name, holder.request, holder.token))

    def step_back(self, by: int) -> None:
        """Let the store's clock step back, if it can."""

    @rule(client=picks, name=st.sampled_from(NAMES))
    def revoke(self, client: int, name: str) -> None:
        self.check(client, [name], lambda store, until: store.revoke(name, until), lambda steps: steps[name].revoke())

    @rule(client=picks)
    def look(self, client: int) -> None:
        asker = self.clients[client % 3]
        for name in (*NAMES, VOTED):
            assert drive(asker.store.inspect(name, asker.until())) == self.shown(client % 3, name)
        in_use = [name for name in (*NAMES, VOTED) if name in self.states and self.in_use(name)]
        assert drive(asker.store.names("", asker.until())).names == sorted(in_use)
        some = [name for name in in_use if name.startswith("n\0")]
        assert drive(asker.store.names("n\0", asker.until())).names == some

    def view(self, name: str) -> NameView:
        """Return what the oracle shows."""
        step = self.table(name)
        step.state = deepcopy(step.state)
        return step.view(name)

    def shown(self, client: int, name: str) -> NameView:
        """Return what a client is shown."""
        return self.view(name)

    def in_use(self, name: str) -> bool:
        """Tell whether a name is held or waited for."""
        return self.states[name].idle_after() > self.clocks.now

    @rule(by=lengths)
    def time_goes_by(self, by: int) -> None:
        self.clocks.now += by
        self.clocks.stamp += by

    @rule(pick=picks, off=st.sampled_from([-1, 0, 1]))
    def time_comes_to_an_end_of_something(self, pick: int, off: int) -> None:
        ends = [holder.expires_at for state in self.states.values() for holder in state.holders]
        ends += [waiter.fresh_until for state in self.states.values() for waiter in state.queue]
        ends += [state.blocked_until for state in self.states.values()]
        if later := sorted({end + off for end in ends if end + off > self.clocks.now}):
            self.clocks.stamp += later[pick % len(later)] - self.clocks.now
            self.clocks.now = later[pick % len(later)]

    @rule(by=st.sampled_from([TOMBSTONE, 2 * 3_600 * SECOND]))
    def much_time_goes_by(self, by: int) -> None:
        self.clocks.now += by

    @rule(by=st.integers(-START, SECOND))
    def wall_clock_steps(self, by: int) -> None:
        self.clocks.stamp = max(0, self.clocks.stamp + by)

    @rule(client=picks)
    def a_client_comes_anew(self, client: int) -> None:
        drive(self.clients[client % 3].store.close())
        self.clients[client % 3] = Client(self.make)


class MemoryMachine(StoreMachine):
    """The memory store."""

    def open_store(self) -> object:
        """Make a table."""
        self._table = MemoryTable(self.clocks.clock, self.clocks.wall)
        return self._table

    def make(self, runtime: ThreadsRuntime) -> Store:
        """Make a client's store."""
        return MemoryStore(runtime, self._table)


class SqliteMachine(StoreMachine):
    """The embedded store."""

    def open_store(self) -> object:
        """Make a folder for a lock file."""
        self._folder = TemporaryDirectory()
        return self._folder

    def make(self, runtime: ThreadsRuntime) -> Store:
        """Make a client's store."""
        path = Path(self._folder.name) / "locks.db"
        return SqliteStore(runtime, path, self.clocks.clock, self.clocks.wall)

    def teardown(self) -> None:
        """Close the clients and remove the file."""
        super().teardown()
        self._folder.cleanup()
