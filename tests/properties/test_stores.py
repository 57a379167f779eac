"""Every store answers as the grant table does: the same replies, the same notices, the same views, in any history."""

# ruff: noqa: D102, PLR0917 - a rule's name says what happens; Hypothesis gives its arguments by name

from collections.abc import Callable
from contextlib import AbstractContextManager
from copy import deepcopy
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from holdfast.core.messages import Ask, Leave, NameView, Notice, Release, Renewal
from holdfast.core.state import NameState
from holdfast.core.table import TOMBSTONE, Step
from holdfast.runtimes.runtime import Datagrams
from holdfast.runtimes.threads import ThreadsRuntime, drive
from holdfast.stores import memory, tabled
from holdfast.stores.memory import MemoryStore, MemoryTable
from holdfast.stores.sqlite import codec
from holdfast.stores.sqlite import database as sqlite_database
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.stores.store import Store
from tests.properties import mutants, thorough

NAMES = ("name", "n\0ame", "名")
SECOND = 1_000_000
START = 5_000 * 3_600 * SECOND

picks = st.integers(0, 2**16)
lengths = st.sampled_from([1, 100, 1_000, 1_000, 60_000]).map(lambda thousandths: thousandths * 1_000)


class _Clocks:
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


class _Client:
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


class StoreMachine(RuleBasedStateMachine):
    """Some clients of a store, and beside it the grant table itself, asked the same."""

    def __init__(self) -> None:
        super().__init__()
        self.clocks = _Clocks()
        self.opened = self.open_store()
        self.states: dict[str, NameState] = {}
        self.clients = [_Client(self.make) for _ in range(3)]
        self.asks: list[Ask] = []

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

    def compare(self, answer: object, expected: object, steps: list[Step]) -> None:
        """Compare replies and notices."""
        assert answer == expected
        notices = [notice for step in steps for notice in step.notices]
        for client in self.clients:
            assert client.heard() == [each for each in notices if each.inbox == client.inbox]

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
        capacity=st.sampled_from([3, 3, 3, 4]),
        lock_delay=st.sampled_from([0, 0, SECOND]),
        proposal=st.sampled_from([0, 2**52]),
        wait=st.sampled_from([True, True, False]),
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
        reachable: bool,
    ) -> None:
        inbox = self.clients[client % 3].inbox if reachable else ""
        request = f"r{len(self.asks)}"
        owner = f"owner {len(self.asks)} é"
        times = (ttl, ttl, ttl // 2, ttl // 8, patience)
        self.asks.append(Ask(name, request, inbox, owner, *times, weight, capacity, lock_delay, proposal, wait))
        self.ask_again(client, 0)

    @rule(client=picks, pick=picks)
    def ask_again(self, client: int, pick: int) -> None:
        if self.asks:
            ask, asker, step = self.recent(pick), self.clients[client % 3], self.table(self.recent(pick).name)
            answer = drive(asker.store.acquire(ask, asker.until()))
            self.compare(answer, step.acquire(deepcopy(ask)), [step])

    @rule(client=picks, pick=picks, unsure=st.booleans())
    def release(self, client: int, pick: int, unsure: bool) -> None:
        if self.asks:
            ask, asker = self.recent(pick), self.clients[client % 3]
            release = Release(ask.name, ask.request, self.token(ask), unsure)
            step = self.table(ask.name)
            self.compare(drive(asker.store.release(release, asker.until())), step.release(release), [step])

    @rule(client=picks, pick=picks)
    def release_by_a_holder(self, client: int, pick: int) -> None:
        held = {each.request for state in self.states.values() if state.queue for each in state.holders}
        if asks := [each for each in self.asks if each.request in held]:
            ask, asker = asks[pick % len(asks)], self.clients[client % 3]
            release, step = Release(ask.name, ask.request, self.token(ask)), self.table(ask.name)
            self.compare(drive(asker.store.release(release, asker.until())), step.release(release), [step])

    @rule(client=picks, chosen=st.lists(picks, min_size=1, max_size=4), ttl=lengths)
    def renew(self, client: int, chosen: list[int], ttl: int) -> None:
        if self.asks:
            asker = self.clients[client % 3]
            asks = [self.recent(pick) for pick in chosen]
            renewals = [Renewal(ask.name, ask.request, self.token(ask), ttl) for ask in asks]
            steps = {each.name: self.table(each.name) for each in renewals}
            expected = [steps[each.name].renew(each) for each in renewals]
            self.compare(drive(asker.store.renew(renewals, asker.until())), expected, list(steps.values()))

    @rule(client=picks, pick=picks, unsure=st.booleans())
    def leave(self, client: int, pick: int, unsure: bool) -> None:
        if self.asks:
            ask, asker = self.recent(pick), self.clients[client % 3]
            leave = Leave(ask.name, ask.request, unsure)
            step = self.table(ask.name)
            self.compare(drive(asker.store.leave(leave, asker.until())), step.leave(leave), [step])

    @rule(client=picks, name=st.sampled_from(NAMES))
    def revoke(self, client: int, name: str) -> None:
        asker, step = self.clients[client % 3], self.table(name)
        self.compare(drive(asker.store.revoke(name, asker.until())), step.revoke(), [step])

    @rule(client=picks)
    def look(self, client: int) -> None:
        asker = self.clients[client % 3]
        for name in NAMES:
            assert drive(asker.store.inspect(name, asker.until())) == self.view(name)
        in_use = [name for name in NAMES if name in self.states and self.in_use(name)]
        assert drive(asker.store.names("", asker.until())) == sorted(in_use)
        assert drive(asker.store.names("n\0", asker.until())) == [name for name in in_use if name.startswith("n\0")]

    def view(self, name: str) -> NameView:
        """Return what the oracle shows."""
        step = self.table(name)
        step.state = deepcopy(step.state)
        return step.view(name)

    def in_use(self, name: str) -> bool:
        """Tell whether a name is held or waited for."""
        return self.states[name].idle_after() > self.clocks.now

    @rule(by=lengths)
    def time_goes_by(self, by: int) -> None:
        self.clocks.now += by
        self.clocks.stamp += by

    @rule(by=st.sampled_from([TOMBSTONE, 2 * 3_600 * SECOND]))
    def much_time_goes_by(self, by: int) -> None:
        self.clocks.now += by

    @rule(by=st.integers(-START, SECOND))
    def wall_clock_steps(self, by: int) -> None:
        self.clocks.stamp = max(0, self.clocks.stamp + by)

    @rule(client=picks)
    def a_client_comes_anew(self, client: int) -> None:
        drive(self.clients[client % 3].store.close())
        self.clients[client % 3] = _Client(self.make)


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


MACHINES = [MemoryMachine, SqliteMachine]


@pytest.fixture(autouse=True)
def _nothing_is_swept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep what the oracle keeps: names that nobody uses, which a store may forget but for their counters."""
    for module in (memory, sqlite_database):
        monkeypatch.setattr(module, "RETENTION", 2**60)


@pytest.mark.parametrize("machine", MACHINES, ids=["memory", "sqlite"])
def test_a_store_answers_as_the_grant_table_does(machine: type[StoreMachine]) -> None:
    """In any history a store gives the table's replies, sends its notices and shows its views."""
    run_state_machine_as_test(machine, settings=thorough(100, 40))


HUNT = settings(thorough(2_000, 40), derandomize=True, phases=[Phase.generate])


def _fails(machine: type[StoreMachine]) -> AbstractContextManager[Any]:
    return pytest.raises(AssertionError)


@pytest.mark.parametrize("mutant", [mutants.LastComesFirst, mutants.TombstonesAreIgnored, mutants.PushesAreForgotten])
@pytest.mark.parametrize("machine", MACHINES, ids=["memory", "sqlite"])
def test_a_store_with_a_wrong_table_is_noticed(
    machine: type[StoreMachine], mutant: type[Step], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that takes wrong steps does not answer as the table does."""
    for module in (tabled, memory, sqlite_database):
        monkeypatch.setattr(module, "Step", mutant)
    with _fails(machine):
        run_state_machine_as_test(machine, settings=HUNT)


def _without_tombstones(state: NameState) -> None:
    state.tombstones = {}


def _without_last_release(state: NameState) -> None:
    state.last_released = ""


def _without_delay(state: NameState) -> None:
    state.blocked_until = 0


@pytest.mark.parametrize("forget", [_without_tombstones, _without_last_release, _without_delay])
def test_a_file_that_forgets_is_noticed(forget: Callable[[NameState], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock file that loses a part of a state does not answer as the table does."""
    true_load = codec.load

    def load(name: str, counter: int, text: str) -> NameState:
        state = true_load(name, counter, text)
        forget(state)
        return state

    monkeypatch.setattr(codec, "load", load)
    with _fails(SqliteMachine):
        run_state_machine_as_test(SqliteMachine, settings=HUNT)
