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

from tenure.contracts.messages import (
    AcquireRequest,
    AdjustRequest,
    Granted,
    NameView,
    Notification,
    ReleaseRequest,
    RenewReply,
    RenewRequest,
    Reply,
    WithdrawRequest,
)
from tenure.contracts.runtime import Datagrams
from tenure.contracts.store import Store, renew_together
from tenure.runtimes.threads import ThreadsRuntime, complete
from tenure.stores.memory import MemoryStore, MemoryTable
from tenure.stores.sqlite.store import SqliteStore
from tenure.table.state import NameState
from tenure.table.step import Step
from tenure.table.times import TOMBSTONE

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
        self.notifications: list[Notification] = []
        self.channel = complete(self.store.open(self.notifications.append, self.until()))

    def until(self) -> float:
        return self.runtime.now() + 10

    def heard(self) -> list[Notification]:
        self.runtime.pump()
        heard = list(self.notifications)
        self.notifications.clear()
        return heard


def one_after_another(steps: dict[str, Step], requests: list[AcquireRequest]) -> list[Reply]:
    """Ask the oracle for several names, up to the first that is not granted."""
    replies: list[Reply] = []
    for request in requests:
        replies.append(steps[request.name].acquire(request))
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
        self.requests: list[AcquireRequest] = []
        self.groups: list[list[AcquireRequest]] = []
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
            complete(client.store.close())

    def table(self, name: str) -> Step:
        """Return a step of the oracle."""
        state = self.states.setdefault(name, NameState())
        channels = {client.channel for client in self.clients}
        return Step(state, self.clocks.now, self.clocks.stamp, lambda channel: not channel or channel in channels)

    def check(
        self,
        client: int,
        names: Sequence[str],
        request: Callable[[Store, float], Coroutine[Any, Any, object]],
        expect: Callable[[dict[str, Step]], object],
        *,
        ttl: int | None = None,
        buries: str = "",
    ) -> None:
        """Have a client ask its store, and compare its reply and all notifications with those of the oracle.

        `ttl` is the longest one that is asked for, and `buries` a request that is given up by this.
        """
        requester, steps = self.clients[client % 3], {name: self.table(name) for name in names}
        self.prepare(client % 3, steps, ttl)
        answer = complete(request(requester.store, requester.until()))
        assert answer == expect(steps)
        notifications = [notification for step in steps.values() for notification in step.notifications]
        self.settle()
        for each in self.clients:
            heard, sent = each.heard(), [notice for notice in notifications if notice.channel == each.channel]
            assert heard == sent, f"{heard} instead of {sent}"
        self.conclude(client % 3, steps, ttl, buries)

    def prepare(self, client: int, steps: dict[str, Step], ttl: int | None) -> None:
        """Tell the oracle what it can't know."""

    def acquired(self, step: Step, request: AcquireRequest) -> Reply:
        """Return the oracle's reply to a request for one name."""
        return step.acquire(request)

    def settle(self) -> None:
        """Return when all notifications have come."""

    def conclude(self, client: int, steps: dict[str, Step], ttl: int | None, buries: str) -> None:
        """Look at more than replies and notifications."""

    def recent(self, pick: int) -> AcquireRequest:
        """Return one of the last few requests."""
        return self.requests[-1 - pick % min(len(self.requests), 8)]

    def token(self, request: AcquireRequest) -> int:
        """Return the token by which a request holds, or one that is not its own."""
        state = self.states.get(request.name, NameState())
        return next((each.token for each in state.holders if each.request_id == request.request_id), state.counter)

    @rule(
        client=picks,
        name=st.sampled_from([NAMES[0], *NAMES]),
        ttl=lengths,
        waiter_ttl=lengths,
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
        waiter_ttl: int,
        weight: int,
        capacity: int,
        lock_delay: int,
        proposal: int,
        wait: bool,
        span: int,
        reachable: bool,
    ) -> None:
        channel = self.clients[client % 3].channel if reachable else ""
        request_id = f"r{len(self.requests)}"
        owner = f"owner {len(self.requests)} é"
        times = (ttl, ttl // 8, waiter_ttl)
        self.requests.append(
            AcquireRequest(name, request_id, channel, owner, *times, weight, capacity, lock_delay, proposal, wait, span)
        )
        self.ask_again(client, 0)

    @rule(
        name=st.sampled_from(NAMES),
        capacity=st.sampled_from([1, 1, 3]),
        weight=st.sampled_from([1, 1, 3]),
        waiter_ttl=st.sampled_from([100_000, SECOND]),
        span=st.sampled_from([1, 7]),
    )
    def a_crowd_comes(self, name: str, capacity: int, weight: int, waiter_ttl: int, span: int) -> None:
        for client in range(3):
            self.ask(client, name, SECOND, waiter_ttl, weight, capacity, 0, 0, True, span, True)

    @rule(
        client=picks,
        base=st.integers(0, 3),
        ttl=lengths,
        proposal=st.sampled_from([0, START, START + 10_000, 2**52]),
        wait=st.sampled_from([True, True, False]),
        span=st.sampled_from([1, 7]),
    )
    def ask_for_a_vote(self, client: int, base: int, ttl: int, proposal: int, wait: bool, span: int) -> None:
        channel = self.clients[client % 3].channel
        number, times = len(self.requests), (ttl, SECOND // 5, SECOND)
        request_id = f"v{base}/{number}"
        self.requests.append(
            AcquireRequest(VOTED, request_id, channel, f"owner {number}", *times, 1, 1, 0, proposal, wait, span, True)
        )
        self.ask_again(client, 0)

    @rule(client=picks, pick=picks, ahead=st.sampled_from([0, 1, 1, 7, 1000]))
    def raise_a_token(self, client: int, pick: int, ahead: int) -> None:
        if self.requests:
            request = self.recent(pick)
            token = self.token(request)
            for _ in range(2):  # the first reply is lost
                self.change(client, AdjustRequest(request.name, request.request_id, token, raise_to=token + ahead))

    @rule(client=picks, base=st.integers(0, 3))
    def wait_for_no_vote_any_more(self, client: int, base: int) -> None:
        self.give_up(client, WithdrawRequest(VOTED, f"v{base}", unsure=False))

    @rule(client=picks, pick=picks)
    def ask_again(self, client: int, pick: int) -> None:
        if self.requests:
            request = self.recent(pick)
            self.check(
                client,
                [request.name],
                lambda store, until: store.acquire(request, until),
                lambda steps: self.acquired(steps[request.name], deepcopy(request)),
                ttl=request.ttl + request.lock_delay,
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
        channel = self.clients[client % 3].channel
        number, times = len(self.requests), (ttl, ttl // 8, SECOND)
        requests = [
            AcquireRequest(
                name, f"r{number + i}", channel, f"owner {number} é", *times, weight, capacity, 0, 0, wait, span
            )
            for i, name in enumerate(names[:count])
        ]
        self.requests += requests
        self.groups.append(requests)
        self.ask_for_several_again(client, 0)

    @rule(client=picks, pick=picks)
    def ask_for_several_again(self, client: int, pick: int) -> None:
        if self.groups:
            requests = self.groups[-1 - pick % min(len(self.groups), 3)]
            self.check(
                client,
                [request.name for request in requests],
                lambda store, until: store.acquire_many(requests, until),
                lambda steps: one_after_another(steps, deepcopy(requests)),
                ttl=requests[0].ttl + requests[0].lock_delay,
            )

    def let_go(self, client: int, release: ReleaseRequest) -> None:
        """Release, and compare what is said of a revocation, too."""
        expected = replace(release)
        self.check(
            client,
            [release.name],
            lambda store, until: store.release(release, until),
            lambda steps: steps[release.name].release(expected),
            buries=release.request_id if release.unsure else "",
        )
        assert release.unrevoked_for == expected.unrevoked_for

    @rule(client=picks, pick=picks, unsure=st.booleans(), keep=st.sampled_from([0, 0, 700_000]))
    def release(self, client: int, pick: int, unsure: bool, keep: int) -> None:
        if self.requests:
            request = self.recent(pick)
            self.let_go(client, ReleaseRequest(request.name, request.request_id, self.token(request), unsure, keep))

    @rule(client=picks, pick=picks, keep=st.sampled_from([0, 0, 50_000, 2 * SECOND]))
    def release_by_a_holder(self, client: int, pick: int, keep: int) -> None:
        held = {each.request_id for state in self.states.values() if state.queue for each in state.holders}
        if requests := [each for each in self.requests if each.request_id in held]:
            request = requests[pick % len(requests)]
            self.let_go(client, ReleaseRequest(request.name, request.request_id, self.token(request), keep=keep))

    @rule(client=picks, keep=st.sampled_from([50_000, SECOND]))
    def holders_are_too_quick(self, client: int, keep: int) -> None:
        for name, state in self.states.items():
            held = [(each.request_id, each.token) for each in state.holders]
            for request_id, token in [*held, *held[:1]]:  # the first reply of the first was lost
                self.let_go(client, ReleaseRequest(name, request_id, token, keep=keep))

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
    def request_revocation(self, client: int, name: str) -> None:
        self.check(
            client,
            [name],
            lambda store, until: store.request_revocation(name, until),
            lambda steps: steps[name].request_revocation(),
        )

    def keep(self, client: int, renewals: list[RenewRequest]) -> None:
        """Renew, and look who is told that somebody waits."""
        expected = [replace(each) for each in renewals]

        async def renew(store: Store, until: float) -> list[tuple[RenewReply, bool]]:
            replies = await renew_together(store, renewals, until)
            return [(reply, each.contended) for reply, each in zip(replies, renewals, strict=True)]

        self.check(
            client,
            [each.name for each in renewals],
            renew,
            lambda steps: [(steps[each.name].renew(each), each.contended) for each in expected],
            ttl=max(each.ttl + (each.request.lock_delay if each.request else 0) for each in renewals),
        )

    @rule(client=picks, chosen=st.lists(picks, min_size=1, max_size=4), ttl=lengths)
    def renew(self, client: int, chosen: list[int], ttl: int) -> None:
        if self.requests:
            requests = sorted((self.recent(pick) for pick in chosen), key=lambda request: request.name)
            self.keep(
                client,
                [RenewRequest(request.name, request.request_id, self.token(request), ttl) for request in requests],
            )

    @rule(
        client=picks,
        pick=picks,
        weight=st.sampled_from([0, 1, 1, 2, 4]),
        owner=st.sampled_from(["", "a new one é"]),
        off=st.sampled_from([0, 0, 0, 1]),
    )
    def adjust(self, client: int, pick: int, weight: int, owner: str, off: int) -> None:
        if self.requests:
            request = self.recent(pick)
            self.change(
                client, AdjustRequest(request.name, request.request_id, self.token(request) + off, weight, owner)
            )

    @rule(client=picks, pick=picks, weight=st.sampled_from([1, 2]))
    def a_holder_makes_room(self, client: int, pick: int, weight: int) -> None:
        held = [(name, each) for name, state in self.states.items() for each in state.holders if each.weight > 1]
        if held:
            name, holder = held[pick % len(held)]
            self.change(client, AdjustRequest(name, holder.request_id, holder.token, weight))

    @rule(client=picks, pick=picks, ahead=st.sampled_from([1, 1, 7]), keep=st.booleans())
    def hand_over(self, client: int, pick: int, ahead: int, keep: bool) -> None:
        if self.requests and not self.recent(pick).votes:
            request, token, channel = self.recent(pick), self.token(self.recent(pick)), self.clients[client % 3].channel
            following = replace(request, request_id=f"r{len(self.requests)}", channel=channel, owner="the next")
            adjust = AdjustRequest(request.name, request.request_id, token, 0, "the next", token + ahead)
            adjust = replace(adjust, successor=following.request_id, channel=channel, ttl=0 if keep else request.ttl)
            self.requests.append(following)
            for _ in range(2):  # the first reply is lost
                self.change(client, adjust)

    def change(self, client: int, adjust: AdjustRequest) -> None:
        """Adjust."""
        self.check(
            client,
            [adjust.name],
            lambda store, until: store.adjust(adjust, until),
            lambda steps: steps[adjust.name].adjust(adjust),
        )

    @rule(client=picks, pick=picks, unsure=st.booleans())
    def withdraw(self, client: int, pick: int, unsure: bool) -> None:
        if self.requests:
            self.give_up(client, WithdrawRequest(self.recent(pick).name, self.recent(pick).request_id, unsure))

    def give_up(self, client: int, withdraw: WithdrawRequest) -> None:
        """Leave."""
        self.check(
            client,
            [withdraw.name],
            lambda store, until: store.withdraw(withdraw, until),
            lambda steps: steps[withdraw.name].withdraw(withdraw),
            buries=withdraw.request_id if withdraw.unsure else "",
        )

    @rule(client=picks, back=st.sampled_from([0, 0, 1_000 * SECOND]))
    def a_queue_falls_silent_and_the_holders_let_go(self, client: int, back: int) -> None:
        for name, state in self.states.items():
            if state.queue and state.holders:
                self.step_back(back)
                self.give_up(client, WithdrawRequest(name, "nobody", unsure=False))
                by = min(state.queue[0].request.waiter_ttl + 1, 10 * SECOND) if state.queue else 0
                self.clocks.now, self.clocks.stamp = self.clocks.now + by, self.clocks.stamp + by
                for holder in list(state.holders):
                    self.let_go(client, ReleaseRequest(name, holder.request_id, holder.token))

    def step_back(self, by: int) -> None:
        """Let the store's clock step back, if it can."""

    @rule(client=picks, name=st.sampled_from(NAMES))
    def revoke(self, client: int, name: str) -> None:
        self.check(client, [name], lambda store, until: store.revoke(name, until), lambda steps: steps[name].revoke())

    @rule(client=picks)
    def look(self, client: int) -> None:
        requester = self.clients[client % 3]
        for name in (*NAMES, VOTED):
            assert complete(requester.store.inspect(name, requester.until())) == self.shown(client % 3, name)
        in_use = [name for name in (*NAMES, VOTED) if name in self.states and self.in_use(name)]
        assert complete(requester.store.names("", requester.until())).names == sorted(in_use)
        some = [name for name in in_use if name.startswith("n\0")]
        assert complete(requester.store.names("n\0", requester.until())).names == some

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
        complete(self.clients[client % 3].store.close())
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
