"""The SQL store on a database, held against the grant table; also while the database fails over, and its clock steps.

`SqlMachine` uses the simulated database. A machine of a real one is derived from it: it says how to set the clock of
the database, and how a standby is promoted.
"""

# ruff: noqa: D102 - a rule's name says what happens

from copy import deepcopy
from dataclasses import replace
from typing import TYPE_CHECKING

from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from simulation.sql.direct import DirectSqlDatabase, capabilities_of
from simulation.sql.server import SqlRules, SqlServer
from tenure.contracts.deadlines import seconds
from tenure.contracts.messages import AcquireRequest, NameView, ReleaseRequest, RenewRequest, Reply, WithdrawRequest
from tenure.contracts.store import Store
from tenure.runtimes.threads import ThreadsRuntime, complete
from tenure.stores.sql.database import SqlDatabase, SqlWrite
from tenure.stores.sql.rows import row_of
from tenure.stores.sql.shared_steps import acquire_by_polling
from tenure.stores.sql.store import SqlStore
from tenure.stores.tabled import RETENTION
from tenure.table.state import NameState
from tenure.table.step import Step
from tests.properties.store_machine import NAMES, SECOND, VOTED, Client, StoreMachine, lengths, picks

if TYPE_CHECKING:
    from collections.abc import Callable

LONGEST = 30 * SECOND
"""The longest ttl of all clients: shorter than some ttls that are asked for, and longer than others."""

RULES = {
    "off": SqlRules(0, strict=False, guarded=False),
    "observed": SqlRules(LONGEST),
    "strict": SqlRules(LONGEST, strict=True),
}


class SqlMachine(StoreMachine):
    """The SQL store on the simulated database."""

    queues = False
    """Whether the database adds waiters and hands over by itself."""

    def open_store(self) -> object:
        """Start a server; how it is guarded is drawn first."""
        self.guard = "off"
        self.tokens: dict[str, int] = {}
        """By request: the token by which it ever held."""
        self.delays: dict[str, int] = {}
        """By request: the lock delay of its lease."""
        self.due = False
        """Whether the next request that reads begins a quarantine."""
        self.since, self.ends = 0, 0
        self.floor = 0
        self.stepped_back = False
        self.faster: Callable[[str, int], None] | None = None
        """Called before the next write, with its name and the number of its client: acts as another."""
        self.under_way: list[dict[str, Step]] = []
        return self.open_database()

    def open_database(self) -> object:
        """Start a server."""
        self.server = SqlServer(self.clocks.clock, lambda names, at, granted: None)
        self.channels = 0
        return self.server

    def make(self, runtime: ThreadsRuntime) -> Store:
        """Make a client's store."""
        rules = replace(RULES[self.guard], queues=self.queues)
        return SqlStore("here", runtime, self.meddled(self.database(runtime, rules)), capabilities_of(rules))

    def database(self, runtime: ThreadsRuntime, rules: SqlRules) -> SqlDatabase:
        """Return the access of one client."""
        self.channels += 1
        return DirectSqlDatabase(self.server, rules, f"channel-{self.channels}")

    def meddled(self, database: SqlDatabase) -> SqlDatabase:
        """Have another client be faster than a write, when that is its turn."""
        at_once = database.write

        async def write_later(write: SqlWrite, until: float) -> frozenset[str]:
            faster, self.faster = self.faster, None
            if faster is not None:
                outer = self.under_way[-1]
                faster(write.rows[0].name, self.writer(database))
                self.begin()
                for name, step in outer.items():
                    self.tell(name, step)
            return await at_once(write, until)

        database.write = write_later  # type: ignore[method-assign]
        return database

    def writer(self, database: SqlDatabase) -> int:
        """Return the number of the client that has this access to the database."""
        stores = [each.store for each in self.clients]
        return next(number for number, store in enumerate(stores) if vars(store)["_database"] is database)

    # -- what a real database does in its own way ----------------------------------------------------------

    def set_clock(self) -> None:
        """Have the database show the time of the test."""

    def become_another(self, *, promoted: bool) -> None:
        """Restart the server, or promote a standby."""
        self.server.started += 1
        self.server.timeline += promoted

    def names_with_rows(self) -> set[str]:
        """Return the names that have a row."""
        return set(self.server.data.rows)

    def sweep(self) -> None:
        """Delete the old rows."""
        self.server.sweep("", 500, RETENTION)

    # -- the oracle ----------------------------------------------------------------------------------------

    @initialize(guard=st.sampled_from(list(RULES)))
    def choose_the_guard(self, guard: str) -> None:
        self.guard = guard
        for client in range(len(self.clients)):  # those that are there took the rules as they were
            self.a_client_comes_anew(client)

    def table(self, name: str) -> Step:
        """Return a step of the oracle. The database has one clock, which also makes the tokens."""
        self.set_clock()
        self.states.setdefault(name, NameState(self.floor))
        step = super().table(name)
        self.tell(name, step)
        return step

    def tell(self, name: str, step: Step) -> None:
        """Tell the oracle who listens, as far as the database says so, and of the quarantine."""
        step.stamp, step.long_silence = step.now, True
        open_channels = {client.channel for client in self.clients}
        heads = row_of(name, 1, step.state).heads.split()
        silent = {channel for channel in heads if channel not in open_channels}
        step.listening = lambda channel: channel not in silent
        step.quarantined_since, step.quarantined_until = self.since, self.ends if self.guard != "off" else 0
        for holder in step.state.holders:  # a renewal that was forgotten might have lasted until the quarantine ends
            delay = self.delays.setdefault(holder.request_id, holder.lock_delay)
            ran_out, renewed_at = holder.expires_at <= step.now, holder.expires_at - holder.ttl
            if delay and ran_out and renewed_at < self.since:
                delay += max(0, step.quarantined_until - holder.expires_at)
            holder.lock_delay = delay

    def acquired(self, step: Step, request: AcquireRequest) -> Reply:
        """Return the oracle's reply; a waiter without a channel is told to poll at other times."""
        return step.acquire(request) if request.channel else acquire_by_polling(step, request)

    def prepare(self, client: int, steps: dict[str, Step], ttl: int | None) -> None:
        """Have a quarantine begin that is due; an acquire request has to do so by itself."""
        if (self.due and ttl is None) or self.stepped_back:
            self.notice(client)
        self.begin()
        for name, step in steps.items():
            self.tell(name, step)
        self.under_way.append(steps)

    def conclude(self, client: int, steps: dict[str, Step], ttl: int | None, buries: str) -> None:
        """Note what the oracle did."""
        self.under_way.pop()
        if not self.under_way:
            self.faster = None
        for step in steps.values():
            self.tokens |= {holder.request_id: holder.token for holder in step.state.holders}

    def view(self, name: str) -> NameView:
        """Return what the oracle shows. Nothing is written: afterwards it knows what it knew before."""
        before = deepcopy(self.states.get(name, NameState(self.floor)))
        view = super().view(name)
        self.states[name] = before
        return view

    def notice(self, client: int) -> None:
        """Have a client read a row."""
        self.set_clock()
        requester = self.clients[client % 3]
        complete(requester.store.inspect("another", requester.until()))

    def begin(self) -> None:
        """Begin a quarantine that is due; no quarantine lasts longer than the longest lease from now on."""
        now, longest = self.clocks.now, RULES[self.guard].longest_ttl
        if self.due:
            self.due, self.since, self.ends = False, now, now + longest
        self.ends = min(self.ends, now + longest)

    def shown(self, client: int, name: str) -> NameView:
        """Return what a client is shown, which has read the row."""
        del client
        self.begin()
        quarantine = max(0, self.ends - self.clocks.now) if self.guard != "off" else 0
        return replace(self.view(name), quarantined_for=seconds(quarantine))

    @rule(client=picks)
    def look(self, client: int) -> None:
        self.set_clock()
        requester = self.clients[client % 3]
        for name in (*NAMES, VOTED):
            assert complete(requester.store.inspect(name, requester.until())) == self.shown(client % 3, name)
        if not self.stepped_back:  # else a name that is free may be listed for as long as the clock stepped back
            in_use = [name for name in (*NAMES, VOTED) if name in self.states and self.in_use(name)]
            assert complete(requester.store.names("", requester.until())).names == sorted(in_use)
            some = [name for name in in_use if name.startswith("n\0")]
            assert complete(requester.store.names("n\0", requester.until())).names == some

    def keep(self, client: int, renewals: list[RenewRequest]) -> None:
        """Renew; a renewal of plain rows alone would not begin a quarantine that is due."""
        if self.due or self.stepped_back:  # a clock that stepped back shortens a quarantine when it is read
            self.notice(client)
            self.begin()
        super().keep(client, renewals)

    # -- what happens --------------------------------------------------------------------------------------

    @rule(promoted=st.booleans())
    def the_server_is_another_one(self, promoted: bool) -> None:
        self.become_another(promoted=promoted)
        self.due = self.due or promoted or self.guard == "strict"

    @rule(promoted=st.booleans(), ttl=lengths, client=picks)
    def the_server_is_another_one_and_a_lease_goes_on(self, promoted: bool, ttl: int, client: int) -> None:
        self.the_server_is_another_one(promoted)
        self.the_states_are_forgotten()
        for name in NAMES:
            self.whoever_ever_held_takes_it_up_again(client, name, ttl)

    def the_states_are_forgotten(self) -> None:
        """Have the promoted standby know less, if it can."""

    @rule(client=picks, name=st.sampled_from(NAMES), ttl=lengths)
    def whoever_ever_held_takes_it_up_again(self, client: int, name: str, ttl: int) -> None:
        requests = [each for each in self.requests[-8:] if each.name == name and each.request_id in self.tokens]
        for request in sorted(requests, key=lambda each: self.tokens[each.request_id]):
            self.keep(client, [RenewRequest(name, request.request_id, self.tokens[request.request_id], ttl, request)])

    @rule(client=picks, what=st.sampled_from(["ask", "ask", "leave", "renew", "release", "fail over"]), pick=picks)
    def another_client_will_be_faster(self, client: int, what: str, pick: int) -> None:
        def be_faster(name: str, writer: int) -> None:
            other = client + 1 if client % 3 == writer else client  # one client takes its steps on a name in turn
            there: list[AcquireRequest] = [each for each in self.requests[-8:] if each.name == name]
            if what == "fail over":
                self.the_server_is_another_one(promoted=True)
                return
            if what == "ask" or not there:
                self.ask(other, name, SECOND, SECOND, 1, 1, 0, 0, True, 1, True)
                return
            request = there[pick % len(there)]
            if what == "leave":
                self.give_up(other, WithdrawRequest(name, request.request_id, unsure=False))
            elif what == "release":
                self.let_go(other, ReleaseRequest(name, request.request_id, self.token(request)))
            else:
                self.keep(other, [RenewRequest(name, request.request_id, self.token(request), SECOND)])

        self.faster = be_faster

    @rule(by=st.integers(1, 100 * SECOND))
    def the_clock_steps_back(self, by: int) -> None:
        self.step_back(by)

    def step_back(self, by: int) -> None:
        """Let the one clock of the database step back."""
        self.clocks.now -= by
        self.stepped_back = self.stepped_back or by > 0

    @rule(by=st.integers(0, SECOND))
    def wall_clock_steps(self, by: int) -> None:
        """Do nothing: there is one clock."""

    @rule(client=picks)
    def a_client_comes_anew(self, client: int) -> None:
        self.set_clock()
        complete(self.clients[client % 3].store.close())
        self.await_end(self.clients[client % 3])
        self.clients[client % 3] = Client(self.make)

    def await_end(self, client: Client) -> None:
        """Return when nobody listens to the channel of a client that was closed."""

    @rule(by=st.sampled_from([0, RETENTION // 2, RETENTION, 2 * RETENTION]))
    def old_rows_are_deleted(self, by: int) -> None:
        self.clocks.now += by
        self.set_clock()
        before = self.names_with_rows()
        self.sweep()
        gone = before - self.names_with_rows()
        for name, state in self.states.items():
            if name in before:
                last_change, state.used_at = state.used_at, 0  # a step that changes nothing is not written
                lasts, state.used_at = state.idle_after(), last_change
                assert name not in gone or lasts < self.clocks.now - RETENTION
                assert name in gone or not state.idle_after() < self.clocks.now - RETENTION or self.stepped_back
        for name in gone & set(self.states):
            self.floor = max(self.floor, self.states.pop(name).counter)
        for name in set(self.states) - before:
            self.states.pop(name)
