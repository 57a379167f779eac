"""The Redis store on a simulated server, held against the grant table; also while the server forgets and restarts."""

# ruff: noqa: D102 - a rule's name says what happens

from copy import deepcopy
from dataclasses import dataclass, replace

from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from simulation.redis.decode import Marker, marker_at
from simulation.redis.direct import DirectDeployment
from simulation.redis.keyspace import Keyspace
from simulation.redis.server import Server
from tenure.contracts.deadlines import micros, seconds
from tenure.contracts.messages import NameView, RenewRequest
from tenure.contracts.store import Store
from tenure.runtimes.threads import ThreadsRuntime
from tenure.stores.redis.deployment import NO_GUARD, OBSERVED, STRICT, UPTIME, Rules
from tenure.stores.redis.names import NODE
from tenure.stores.redis.store import RedisStore
from tenure.table.state import NameState
from tenure.table.step import Step
from tenure.table.times import TOMBSTONE
from tests.properties.store_machine import NAMES, SECOND, StoreMachine, lengths, picks

MAX_TTL = 30.0
"""Shorter than some ttls that are asked for, and longer than others."""

SLACK = 16
"""A length counts for longer than it lasts by this part of it, so that the marker is not written with every request."""


@dataclass(slots=True)
class Saved:
    """What a replica had at some moment."""

    keys: Keyspace
    states: dict[str, NameState]
    buried: dict[str, dict[str, int]]
    server: Server
    """Whose data it is."""


class RedisMachine(StoreMachine):
    """The Redis store; its server may forget what it knew, and its clock may step back."""

    def open_store(self) -> object:
        """Start a server; how it is guarded is drawn first."""
        self.guarded = Rules(NO_GUARD, 0, MAX_TTL)
        self.processes = 0
        self.saved: Saved | None = None
        self.seen: dict[int, str] = {}
        """By client: the process that it saw last."""
        self.tokens: dict[str, int] = {}
        """By request: the token by which it ever held."""
        self.connections: dict[int, tuple[Server, bytes]] = {}
        """By client: the process that it is connected to, and the identity that it learned then."""
        self.buried: dict[str, dict[str, int]] = {}
        """By name: who gave up, and until when that is remembered. A clock that steps back only prolongs it."""
        self.server = self.new_process(Keyspace())
        self.deployment = DirectDeployment(self.guarded, lambda: self.server)
        return self.deployment

    def make(self, runtime: ThreadsRuntime) -> Store:
        """Make a client's store."""
        return RedisStore(self.deployment, runtime)

    def new_process(self, keys: Keyspace) -> Server:
        """Start a process on some data."""
        self.processes += 1
        return Server(f"process-{self.processes}", self.clocks.clock, keys)

    @initialize(guard=st.sampled_from([NO_GUARD, OBSERVED, OBSERVED, STRICT]))
    def choose_the_guard(self, guard: int) -> None:
        self.guarded.guard = guard
        for client in range(len(self.clients)):  # those that are there took the rules as they were
            self.a_client_comes_anew(client)

    def replace(self, server: Server) -> None:
        """Have another process take the place of the server; everybody connects to it at once."""
        self.server = server
        for link in self.deployment.links:
            link.listen_again()

    # -- the oracle ----------------------------------------------------------------------------------------

    def table(self, name: str) -> Step:
        """Return a step of the oracle. Redis has one clock, which also makes the tokens."""
        step = super().table(name)
        step.stamp = step.now
        return step

    def shown(self, client: int, name: str) -> NameView:
        """Return what a client is shown: for how long it would be quarantined, too, if it asked now.

        It remembers the generation that it sees in the marker, unless it knows of a later one.
        """
        self.before = marker_at(self.server.keys, NODE)
        marker = self.marker_after(client, 0)
        now, ends, born = self.clocks.now, marker.ends if marker else 0, marker.born if marker else 0
        if marker is not None and self.before is not None:
            latest = self.seen.get(client, "0"), self.before.generation
            self.seen[client] = max(latest, key=lambda each: int(each.partition(" ")[0]))
        since = max(0, now - born) if ends > now else 0
        return replace(self.view(name), quarantined_for=seconds(max(0, ends - now)), quarantined_since=seconds(since))

    def in_use(self, name: str) -> bool:
        """Tell whether a name is held or waited for."""
        view = self.view(name)
        return bool(view.holders or view.waiters)

    def prepare(self, client: int, steps: dict[str, Step], ttl: int | None) -> None:
        """Tell the oracle of the quarantine, and of those who gave up."""
        self.before = marker_at(self.server.keys, NODE)
        self.marker = self.marker_after(client, ttl or 0)
        for name, step in steps.items():
            step.quarantined_until = self.marker.ends if self.marker else 0
            step.quarantined_since = self.marker.born if self.marker else 0
            step.state.tombstones = dict(self.buried.get(name, {}))

    def conclude(self, client: int, steps: dict[str, Step], ttl: int | None, buries: str) -> None:
        """Compare the markers, and note what the oracle did."""
        for name, step in steps.items():
            until, kept = self.clocks.now + TOMBSTONE, self.buried.setdefault(name, {})
            ends_then = [each for each, ends in step.state.tombstones.items() if ends == until]
            buried = [each for each in ends_then if kept.get(each, 0) < until]  # the rest a step back has shortened
            kept.update(dict.fromkeys([buries] if buries else buried, until))
            self.tokens |= {holder.request_id: holder.token for holder in step.state.holders}
        marker = marker_at(self.server.keys, NODE)
        if ttl is None:
            assert marker in (self.before, self.marker), "whoever looks at the marker leaves it right"
        else:
            assert marker == self.marker
            if marker is not None:
                self.seen[client] = marker.generation

    def marker_after(self, client: int, ttl: int) -> Marker | None:
        """Return the marker as it has to be when a client has looked at it."""
        if self.guarded.guard == NO_GUARD:
            return None
        now, here, before, seen = self.clocks.now, self.identity(client), self.before, self.seen.get(client)
        strict = self.guarded.guard in {STRICT, UPTIME}
        marker = replace(before) if before is not None else Marker("0 nobody@0", 0, 0, 0, 0, 0)
        known, length = marker.generation, max(micros(MAX_TTL), ttl)
        number, seen_number = (int(each.partition(" ")[0]) for each in (known, seen or "0"))
        later = seen_number > number or (seen_number == number and seen != known)
        process, _, promoted = here.partition("@")
        known_process, _, known_promoted = known.partition(" ")[2].partition("@")
        if process != known_process or int(known_promoted) < int(promoted) or later:
            latest = f"{process}@{self.server.promoted_at}"
            marker.generation, marker.born, marker.ends = f"{max(number, seen_number) + 1} {latest}", now, 0
            if self.guarded.guard == UPTIME and before is None and seen is None:
                marker.born -= max(0, (now - self.server.born) // SECOND - 1) * SECOND
            strict = strict or before is not None or seen is not None
            length = max(length, marker.longest)
            marker.in_use_until = max(marker.in_use_until, now + 1)
        self.note_length(marker, length)
        if strict and not marker.ends:
            marker.ends = marker.born + marker.longest
        marker.ends = min(marker.ends, now + marker.longest)
        return marker

    def identity(self, client: int) -> str:
        """Return the identity of the server as a client learned it when it connected."""
        if client not in self.connections or self.connections[client][0] is not self.server:
            self.connections[client] = self.server, self.server.identity()
        return self.connections[client][1].decode()

    def note_length(self, marker: Marker, length: int) -> None:
        """Note the length of a lease with its lock delay; the longest counts for as long as one may last."""
        now = self.clocks.now
        if marker.in_use_until <= now:
            marker.longest, marker.others = marker.others, 0
            marker.in_use_until = now + marker.longest + marker.longest // SLACK
        if length > marker.longest or (length == marker.longest and marker.in_use_until < now + length):
            marker.longest, marker.in_use_until = length, now + length + length // SLACK
        elif length < marker.longest:
            marker.others = max(marker.others, length)
        marker.in_use_until = min(marker.in_use_until, now + marker.longest + marker.longest // SLACK)

    # -- what happens --------------------------------------------------------------------------------------

    @rule(client=picks, pick=picks, ttl=lengths, others=st.booleans(), told=st.booleans())
    def renew_what_may_be_forgotten(self, client: int, pick: int, ttl: int, others: bool, told: bool) -> None:
        if self.requests:
            request = self.recent(pick)
            renewals = [
                RenewRequest(
                    request.name,
                    request.request_id,
                    self.tokens.get(request.request_id, self.token(request)),
                    ttl,
                    request,
                )
            ]
            if others:
                other = next(each for each in reversed(self.requests) if each is not request or len(self.requests) == 1)
                its_ask = other if told and other.channel == request.channel else None  # they are of one client
                renewals.append(
                    RenewRequest(other.name, other.request_id, self.tokens.get(other.request_id, 2**40), ttl, its_ask)
                )
            self.keep(client, sorted(renewals, key=lambda each: each.name))

    @rule(client=picks, name=st.sampled_from(NAMES), ttl=lengths)
    def whoever_ever_held_takes_it_up_again(self, client: int, name: str, ttl: int) -> None:
        requests = [each for each in self.requests[-8:] if each.name == name and each.request_id in self.tokens]
        last_comes_first = name != NAMES[0]
        for request in sorted(requests, key=lambda each: self.tokens[each.request_id], reverse=last_comes_first):
            self.keep(client, [RenewRequest(name, request.request_id, self.tokens[request.request_id], ttl, request)])

    @rule(client=picks, left=st.sampled_from(["all", "nothing", "a copy"]), ttl=lengths)
    def the_server_restarts_and_all_take_up_again(self, client: int, left: str, ttl: int) -> None:
        restart = {"all": self.the_server_restarts_with_all, "nothing": self.the_server_restarts_with_nothing}
        restart.get(left, self.a_copy_is_promoted)()
        for name in NAMES:
            self.whoever_ever_held_takes_it_up_again(client, name, ttl)

    @rule()
    def all_data_is_deleted(self) -> None:
        self.states, self.buried = {}, {}
        self.server.keys = Keyspace()

    @rule()
    def a_copy_is_taken(self) -> None:
        self.saved = Saved(self.server.keys.copy(), deepcopy(self.states), deepcopy(self.buried), self.server)

    @rule()
    def the_server_restarts_with_all(self) -> None:
        self.replace(self.new_process(self.server.keys))

    @rule()
    def the_server_restarts_with_nothing(self) -> None:
        self.states, self.buried = {}, {}
        self.replace(self.new_process(Keyspace()))

    @rule()
    def a_copy_is_promoted(self) -> None:
        if self.saved is not None:
            self.replace(self.new_process(self.recalled(self.saved)))

    @rule(tells=st.booleans())
    def a_former_master_is_promoted_again(self, tells: bool) -> None:
        """Have the same process come back; it tells of its promotion, unless connections are older than that."""
        if self.saved is not None:
            server = self.saved.server
            promoted = server.promoted_at + 1000 if tells else server.promoted_at
            keys = self.recalled(self.saved)
            self.saved.server = Server(server.run_id.decode(), self.clocks.clock, keys, promoted)
            self.replace(self.saved.server)

    def recalled(self, saved: Saved) -> Keyspace:
        """Have the oracle know what a replica had, and return it."""
        self.states, self.buried = deepcopy(saved.states), deepcopy(saved.buried)
        return saved.keys.copy()

    @rule()
    def the_server_forgets_its_scripts(self) -> None:
        self.server.forget_scripts()

    @rule(by=st.integers(0, 100 * SECOND))
    def wall_clock_steps(self, by: int) -> None:
        self.step_back(by)

    def step_back(self, by: int) -> None:
        """Let the one clock of the server step back."""
        self.clocks.now -= by

    @rule(client=picks)
    def a_client_comes_anew(self, client: int) -> None:
        super().a_client_comes_anew(client)
        self.seen.pop(client % 3, None)
        self.connections.pop(client % 3, None)


class PromotedMachine(RedisMachine):
    """The same, with what follows a promotion. Apart, so that neither takes from what the other one meets."""

    @rule()
    def a_replica_is_promoted_and_keeps_its_connections(self) -> None:
        """Have it tell of that to new connections alone."""
        self.server.promoted_at += 1000

    @rule(client=picks, name=st.sampled_from(NAMES), renewer=picks)
    def a_lease_outlasts_the_quarantine_and_another_client_waits(self, client: int, name: str, renewer: int) -> None:
        minute = 60 * SECOND
        self.time_goes_by(by=2 * 3_600 * SECOND)
        self.ask(client, name, minute, SECOND, 1, 1, 0, 0, True, 1, True)
        self.a_copy_is_taken()
        self.a_copy_is_promoted()
        for _ in range(3):
            self.whoever_ever_held_takes_it_up_again(renewer, name, minute)
            self.time_goes_by(by=minute // 2)
        self.ask(client + 1, name, minute, SECOND, 1, 1, 0, 0, True, 1, True)


class UptimeMachine(RedisMachine):
    """The same, guarded by the uptime of the server. Apart, so that neither takes from what the other one meets."""

    @initialize()
    def choose_the_guard(self) -> None:
        self.guarded.guard = UPTIME
        for client in range(len(self.clients)):
            self.a_client_comes_anew(client)
