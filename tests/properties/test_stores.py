"""Every store answers as the grant table does: the same replies, the same notices, the same views, in any history."""

from collections.abc import Callable

import pytest
from hypothesis.stateful import run_state_machine_as_test

from simulation.redis import server as redis_server
from simulation.redis.lua import source_of
from tenure.contracts.messages import ReleaseRequest, RenewRequest, WithdrawRequest
from tenure.runtimes.threads import ThreadsRuntime
from tenure.stores import memory, tabled
from tenure.stores import table_codec as codec
from tenure.stores.redis import scripts
from tenure.stores.redis import store as redis_store
from tenure.stores.redis.deployment import OBSERVED
from tenure.stores.redis.links.link import RedisReply
from tenure.stores.redis.names import NODE
from tenure.stores.redis.servers import ScriptRunner
from tenure.stores.redis.store import RedisStore
from tenure.stores.sqlite import database as sqlite_database
from tenure.table.state import NameState
from tenure.table.step import Step
from tenure.table.times import TOMBSTONE
from tests.properties import hunt, mutants, thorough
from tests.properties.redis_machine import PromotedMachine, RedisMachine, UptimeMachine
from tests.properties.store_machine import NAMES, SECOND, MemoryMachine, SqliteMachine, StoreMachine

RETENTION = "TOMBSTONE, RETENTION = 30000000, 3600000000"
"""What the scripts say."""

MACHINES = [MemoryMachine, SqliteMachine, RedisMachine, UptimeMachine, PromotedMachine]
IDS = ["memory", "sqlite", "redis", "uptime", "promoted"]
TABLED = MACHINES[:2]
"""Those that run the grant table itself."""


@pytest.fixture(autouse=True)
def _nothing_is_swept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep what the oracle keeps: names that nobody uses, which a store may forget but for their counters."""
    for module in (memory, sqlite_database):
        monkeypatch.setattr(module, "RETENTION", 2**60)
    monkeypatch.setattr(codec, "PACKED_FROM", 2)  # so that the queues of short histories stand in a text, too
    monkeypatch.setattr(redis_server, "source_of", keeping_for_ever)
    monkeypatch.setattr(redis_store, "AT_ONCE", 2)  # so that many views and renewals take more than one script


def keeping_for_ever(text: str) -> str:
    """Return a script that lets its keys live for years."""
    found = source_of(text)
    assert RETENTION in found
    return found.replace(RETENTION, f"{RETENTION[: -len('3600000000')]}{10**14}")


@pytest.mark.parametrize("machine", MACHINES, ids=IDS)
def test_a_store_answers_as_the_grant_table_does(machine: type[StoreMachine]) -> None:
    """In any history a store gives the table's replies, sends its notifications and shows its views."""
    run_state_machine_as_test(machine, settings=thorough(100, 40))


def test_a_marker_is_mended_by_the_first_request_after_a_clock_stepped_back() -> None:
    """Also by one that finds its name free, and need not look further."""
    machine = UptimeMachine()
    machine.choose_the_guard()
    machine.time_goes_by(by=60 * SECOND)
    machine.ask_for_several(capacity=1, client=0, count=1, names=[*NAMES], span=1, ttl=1000, wait=True, weight=1)
    machine.wall_clock_steps(by=1)
    machine.ask_for_a_vote(base=0, client=0, proposal=0, span=1, ttl=1000, wait=True)
    machine.teardown()


@pytest.mark.parametrize("machine", MACHINES[2:], ids=IDS[2:])
@pytest.mark.parametrize("keep", [0, 50_000])
def test_a_waiter_that_was_offered_a_vote_and_did_not_ask_is_not_shown(machine: type[StoreMachine], keep: int) -> None:
    """From the end of the offer, though no step has removed it yet."""
    run = machine()
    for _ in range(2):
        run.ask_for_a_vote(base=0, client=0, proposal=0, span=1, ttl=1000, wait=True)
    run.time_goes_by(by=999)
    run.holders_are_too_quick(client=0, keep=keep)
    for _ in range(3):
        run.look(client=0)
        run.time_goes_by(by=100_000)
    run.teardown()


def _has_to_fail(machine: type[StoreMachine], bug: str) -> None:
    with pytest.raises(AssertionError):
        hunt(machine, 10_000, 40, bug)


@pytest.mark.parametrize(
    "mutant",
    [mutants.LastComesFirst, mutants.TombstonesAreIgnored, mutants.PushesAreForgotten, mutants.RevocationsAreForgotten],
)
@pytest.mark.parametrize(("machine", "kind"), list(zip(TABLED, IDS, strict=False)), ids=IDS[:2])
def test_a_store_with_a_wrong_table_is_noticed(
    machine: type[StoreMachine], kind: str, mutant: type[Step], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that takes wrong steps does not answer as the table does."""
    for module in (tabled, memory, sqlite_database):
        monkeypatch.setattr(module, "Step", mutant)
    _has_to_fail(machine, f"{kind}-{mutant.__name__}")


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

    def load(name: str, counter: int, text: str, *idle_after: int) -> NameState:
        state = true_load(name, counter, text, *idle_after)
        forget(state)
        return state

    monkeypatch.setattr(codec, "load", load)
    _has_to_fail(SqliteMachine, forget.__name__)


def _without(*rules: str) -> type[RedisMachine]:
    """Return the machine without some of its rules, for bugs that take many steps of the others."""
    return type("SmallMachine", (RedisMachine,), dict.fromkeys(rules))


SEVERAL = ("ask_for_several", "ask_for_several_again")

VOTES = ("ask_for_a_vote", "raise_a_token", "wait_for_no_vote_any_more", "hand_over")

OFTEN = (
    *SEVERAL,
    *VOTES,
    "look",
    "much_time_goes_by",
    "wall_clock_steps",
    "the_server_forgets_its_scripts",
    "renew",
    "withdraw",
    "revoke",
)
"""What takes steps away from restarts."""

RESTARTS = _without(*OFTEN)
PROMOTED = type("SmallPromotedMachine", (PromotedMachine,), dict.fromkeys(OFTEN))
RETURNS = _without(
    *OFTEN,
    "a_crowd_comes",
    "request_revocation",
    "resize",
    "adjust",
    "a_holder_makes_room",
    "holders_are_too_quick",
    "all_data_is_deleted",
    "a_copy_is_taken",
    "a_former_master_is_promoted_again",
    "a_queue_falls_silent_and_the_holders_let_go",
)
WAITING = _without(
    *SEVERAL,
    *VOTES,
    "look",
    "much_time_goes_by",
    "the_server_restarts_with_all",
    "the_server_restarts_with_nothing",
    "a_copy_is_taken",
    "a_former_master_is_promoted_again",
    "all_data_is_deleted",
    "whoever_ever_held_takes_it_up_again",
    "renew_what_may_be_forgotten",
    "the_server_restarts_and_all_take_up_again",
)

TOGETHER = _without(
    *VOTES,
    "look",
    "much_time_goes_by",
    "wall_clock_steps",
    "the_server_forgets_its_scripts",
    "the_server_restarts_with_all",
    "the_server_restarts_with_nothing",
    "a_copy_is_taken",
    "a_former_master_is_promoted_again",
    "all_data_is_deleted",
    "resize",
    "adjust",
    "a_holder_makes_room",
    "whoever_ever_held_takes_it_up_again",
    "renew_what_may_be_forgotten",
    "the_server_restarts_and_all_take_up_again",
)

VOTING = _without(
    *SEVERAL,
    "look",
    "ask",
    "a_crowd_comes",
    "much_time_goes_by",
    "wall_clock_steps",
    "the_server_forgets_its_scripts",
    "the_server_restarts_with_all",
    "the_server_restarts_with_nothing",
    "a_copy_is_taken",
    "a_former_master_is_promoted_again",
    "all_data_is_deleted",
    "resize",
    "a_holder_makes_room",
    "whoever_ever_held_takes_it_up_again",
    "renew_what_may_be_forgotten",
    "the_server_restarts_and_all_take_up_again",
)

WRONG_SCRIPTS: dict[str, tuple[type[StoreMachine], str, str]] = {
    "renewed in silence": (WAITING, "return head and 4 or 0", "return 0"),
    "renewed for nobody": (WAITING, "return head and 4 or 0", "return 4"),
    "shown on one page": (RedisMachine, "    last or '' })", "    '' })"),
    "shown on two pages": (RedisMachine, "last or '+inf', 'BYSCORE'", "'+inf', 'BYSCORE'"),
    "renewed at once by any token": (WAITING, "h_request == lease[1] and h_token == lease[2]", "h_request == lease[1]"),
    "renewed at once after its end": (WAITING, "lease[2] and h_expires > now and queued", "lease[2] and queued"),
    "renewed at once before a waiter": (
        WAITING,
        "queued == 0 and used <= now then\n        local length",
        "used <= now then\n        local length",
    ),
    "renewed at once by a clock set back": (
        WAITING,
        "queued == 0 and used <= now then\n        local length",
        "queued == 0 then\n        local length",
    ),
    "renewed at once for less": (WAITING, "math.max(h_expires, now + length), now", "now + length, now"),
    "renewed at once with its old ttl": (
        WAITING,
        "math.max(h_ttl, length), math.max(h_expires",
        "h_ttl, math.max(h_expires",
    ),
    "followed": (RETURNS, "if token < counter then return end", ""),
    "released": (RESTARTS, "if request == released or holder_of", "if holder_of"),
    "crowded": (RESTARTS, "if weighs + weight_of(there) > fills then return false end", ""),
    "late": (RESTARTS, "weighs == 0 or now >= quarantine(0) then", "weighs == 0 then"),
    "told nothing": (RESTARTS, "weighs == 0 or now", "now"),
    "queued": (RESTARTS, "capacity = fills\n    dequeue(request)", "capacity = fills"),
    "in one order": (RESTARTS, "counter = math.max(before, token)", ""),
    "released in quarantine": (RESTARTS, "bury(request) -- a late renewal", "-- a late renewal"),
    "unbound": (RESTARTS, "local length = math.max(bound, needed)", "local length = bound"),
    "trusting": (RESTARTS, "seen ~= '' and seen ~= marker[1]) then", "false) then"),
    "promoted again": (RedisMachine, " or promoted < promoted_here", ""),
    "promoted since the connection": (PROMOTED, "promoted < promoted_here", "promoted ~= promoted_here"),
    "remembered in vain": (RedisMachine, " or seen_number > number", ""),
    "remembered by its number alone": (RESTARTS, "(seen_number == number and seen ~= known)", "false"),
    "counted from the marker alone": (RedisMachine, "math.max(number, seen_number) + 1", "number + 1"),
    "without the delay": (RESTARTS, "quarantine(ttl + delay)", "quarantine(ttl)"),
    "renewed without the delay": (RESTARTS, "math.max(longest, lease[3] + lease[6])", "math.max(longest, lease[3])"),
    "in use for ever": (RedisMachine, "if marker[5] <= now then", "if false then"),
    "in use too shortly": (RedisMachine, "or marker[5] < now + length then in_use", "then in_use"),
    "in use when it began": (RESTARTS, "length = math.max(length, marker[4])", ""),
    "others forgotten": (RedisMachine, "marker[6], changed = length, true", ""),
    "looked at in vain": (RedisMachine, "known ~= '' and known or seen end", "seen end"),
    "looked at a generation to come": (
        RedisMachine,
        "if looking then marker[1] = known",
        "if false then marker[1] = known",
    ),
    "up for too long": (UptimeMachine, "uptime_in_seconds:(-?%d+)') - 1)", "uptime_in_seconds:(-?%d+)'))"),
    "up whoever it was": (UptimeMachine, "if guard == 3 and known == '' and seen == '' then", "if guard == 3 then"),
    "stretched": (RedisMachine, "if marker[3] > now + marker[4] then", "if false then"),
    "forgotten pushes": (RedisMachine, "math.max(counter, quarantine(0) - 1)", "counter"),
    "forgotten pushes at once": (PROMOTED, "math.max(counter, quarantine_ends - 1)", "counter"),
    "asked again": (WAITING, "local refused = request == released or", "local refused ="),
    "silent": (WAITING, "waiter and fresh >= now", "waiter"),
    "stale": (WAITING, "math.min(it[W_FRESH], now + it[W_WAITER_TTL])", "it[W_FRESH]"),
    "staggered": (WAITING, "(h_expires - now) + place * STAGGER", "(h_expires - now)"),
    "wanted": (WAITING, "if place == 0 and h_told then", "if false then"),
    "joined twice": (WAITING, "'NX', last_place + 1, request) == 1", "last_place + 1, request) >= 0"),
    "heavier": (WAITING, "math.min(holder[WEIGHT], weighs)", "weighs"),
    "adjusted by anyone": (WAITING, "held = holder and (holder[TOKEN] == token or", "held = holder and (true or"),
    "not passed on": (WAITING, "serve_queue()\nsave()\nreturn held", "save()\nreturn held"),
    "kept": (WAITING, "now + keep_for, 0", "holder[EXPIRES], 0"),
    "kept at once": (WAITING, "used <= now and keep_for == 0", "used <= now"),
    "kept silently": (WAITING, "        head_before = nil\n", ""),
    "kept and renewed": (
        WAITING,
        "holder[REQUEST], holder[CHANNEL] = PLACEHOLDER .. request, ''",
        "holder[CHANNEL] = ''",
    ),
    "kept once": (WAITING, "if placeholder or released == request", "if released == request"),
    "revoked and forgotten": (WAITING, "call('HSET', K, 'r', cmsgpack.pack(revoked))", ""),
    "revoked and remembered alone": (WAITING, "local revoked = revocations()", "local revoked = {}"),
    "revoked just now": (WAITING, "holder[REQUEST], now + TOMBSTONE", "holder[REQUEST], now + 1"),
    "revoked in vain": (WAITING, "and not was_revoked(request)", ""),
    "resized by anyone": (WAITING, "if capacity == before or", "if true or"),
    "resized and refused": (WAITING, "if not agree() and not call('ZRANK', Q, seat) then", "if not agree() then"),
    "resized and stuck": (WAITING, "if it and it[W_WEIGHT] > after then", "if false then"),
    "resized silently": (
        WAITING,
        "push(it[W_CHANNEL], string.format('H %.0f %s', RETRY",
        "push('', string.format('H %.0f %s', RETRY",
    ),
    "asked by no token": (WAITING, "string.format('A %.0f %s', holder[TOKEN]", "string.format('A %.0f %s', 0"),
    "past the first": (TOGETHER, "if replies[i][1] ~= 1 then break end", ""),
    "one tombstone": (TOGETHER, "call('GET', KEYS[3 * i + 1])", "call('GET', KEYS[4])"),
    "one released": (TOGETHER, "refused = request == released or", "refused ="),
    "vote stamped": (VOTING, "voted and 0 or stamp", "stamp"),
    "vote stamped at once": (VOTING, "vote and 0 or stamp", "stamp"),
    "vote raised before": (VOTING, "(holder[TOKEN] == token or holder[TOKEN] == larger)", "holder[TOKEN] == token"),
    "vote by arrival": (VOTING, "since or last_place", "last_place"),
    "vote far ahead": (VOTING, "math.min(math.max(proposal, now - EARLIER), now)", "math.min(proposal, now)"),
    "vote not kept": (VOTING, "hold(PLACEHOLDER .. head, '', it[W_OWNER]", "hold('nobody', '', it[W_OWNER]"),
    "vote not kept at once": (VOTING, "('~' .. first), '', owner", "'', '', owner"),
    "vote kept from its own": (VOTING, "    remove_holder(PLACEHOLDER .. seat)\n", ""),
    "vote kept for who left": (VOTING, "remove_holder(PLACEHOLDER .. request)\n", ""),
    "vote kept for ever": (VOTING, "(lapsed) do dequeue(request)", "(lapsed) do dequeue(PLACEHOLDER .. request)"),
    "vote for nobody": (VOTING, "it[W_VOTES] == 1 and listening(it[W_CHANNEL])", "it[W_VOTES] == 1"),
    "vote waited for twice": (VOTING, "        dequeue(seat)\n        return take", "        return take"),
    "vote waited for silently": (VOTING, "if wait then join() else dequeue(seat) end", "if wait then join() end"),
    "spanned": (WAITING, "farthest)) + span - 1", "farthest))"),
    "unburied": (WAITING, "tomb > now and call", "false and call"),
    "buried for no time": (WAITING, "    tomb = math.max(tomb, now + TOMBSTONE)\n    call", "    call"),
    "usual with a lock delay": (WAITING, "and h_weight == 1 and h_delay == 0)", "and h_weight == 1)"),
    "usual while blocked": (WAITING, "if capacity == 1 and blocked == 0 and", "if capacity == 1 and"),
    "usual whatever the capacity": (WAITING, "if capacity == 1 and blocked == 0 and", "if blocked == 0 and"),
    "usual whatever the token": (WAITING, "or h_token == counter and h_weight", "or h_weight"),
    "usual and told": (WAITING, "USUAL, h_told and 1 or 0, queued", "USUAL, 0, queued"),
    "usual with the last release forgotten": (WAITING, "#released, released, #h_request", "0, '', #h_request"),
}
"""Wrong ways of the scripts, many of which no run of the simulation could tell from bad luck; and where to look."""


@pytest.mark.parametrize("wrong", WRONG_SCRIPTS)
def test_a_wrong_script_is_noticed(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store whose Lua is wrong in one place does not answer as the table does."""
    machine, before, after = WRONG_SCRIPTS[wrong]
    assert any(before in script.text for script in scripts.ALL)

    def source(text: str) -> str:
        return keeping_for_ever(text).replace(before, after)

    monkeypatch.setattr(redis_server, "source_of", source)
    _has_to_fail(machine, wrong)


WRONG_CLIENTS: dict[str, Callable[[ScriptRunner, bytes, bytes], None]] = {
    "remembers nothing": lambda runner, marker, generation: None,
    "remembers the first for ever": lambda runner, marker, generation: runner.seen.update(
        {marker: runner.seen.get(marker, generation)}
    ),
    "remembers the number alone": lambda runner, marker, generation: runner.seen.update(
        {marker: generation.partition(b" ")[0] + b" nobody@0"}
    ),
    "remembers another number": lambda runner, marker, generation: runner.seen.update({marker: b"1" + generation}),
}
"""Wrong ways to remember the process that a client saw: each takes a generation in place of `take_generation`."""


@pytest.mark.parametrize("wrong", WRONG_CLIENTS)
def test_a_client_that_remembers_wrongly_is_noticed(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a client remembers of the processes that it saw decides whether a server is quarantined."""

    def take(self: ScriptRunner, marker: bytes, answer: RedisReply) -> None:
        match answer.value:
            case [bytes() as generation, value]:
                answer.value = value
                WRONG_CLIENTS[wrong](self, marker, generation)
            case _:
                pass

    monkeypatch.setattr(ScriptRunner, "take_generation", take)
    _has_to_fail(RESTARTS, wrong)


def test_an_older_reply_makes_a_client_forget_nothing() -> None:
    """A reply that was under way during a failover may come after those of the new master."""
    machine = RedisMachine()
    machine.choose_the_guard(OBSERVED)
    store = machine.make(ThreadsRuntime())
    assert isinstance(store, RedisStore)
    runner = store._runner
    for generation in (b"2 b@0", b"1 a@0", b"2 c@0"):
        answer = RedisReply([generation, 7], b"")
        runner.take_generation(NODE, answer)
        assert (answer.value, runner.seen[NODE]) == (7, b"2 b@0")
    runner.take_generation(NODE, RedisReply([b"10 a@0", 7], b""))
    assert runner.seen[NODE] == b"10 a@0"
    machine.teardown()


NOT_BURIED = "        tomb = math.max(tomb, now + TOMBSTONE)\n", ""


@pytest.mark.parametrize("wrong", [False, True])
def test_a_request_whose_release_was_unsure_stays_refused_after_another_lease(
    wrong: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state says until when a name may have tombstones, also after a release that looked no further."""

    def play() -> None:
        machine = RedisMachine()
        machine.choose_the_guard(OBSERVED)

        def lease(unsure: bool) -> None:
            machine.ask(0, "name", 60 * SECOND, 60 * SECOND, 1, 1, 0, 0, True, 1, True)
            machine.release(0, 0, unsure, 0)

        lease(unsure=False)
        machine.much_time_goes_by(by=2 * TOMBSTONE)
        lease(unsure=True)
        lease(unsure=False)
        machine.ask_again(0, 1)
        machine.teardown()

    if not wrong:
        play()
        return
    before, after = NOT_BURIED
    assert before in scripts.RELEASE.text

    def source(text: str) -> str:
        return keeping_for_ever(text).replace(before, after)

    monkeypatch.setattr(redis_server, "source_of", source)
    with pytest.raises(AssertionError):
        play()


WRONG_WEIGHTS = {
    "heavy for ever": ("weigh(it[W_WEIGHT], -1)\n", "\n"),
    "nobody is light": ("return light > 0 and 1 or least", "return least or 1"),
    "somebody is light": ("return light > 0 and 1 or least", "return 1"),
    "weighed twice": ("        weigh(before[W_WEIGHT], -1)\n", ""),
    "weighed only once": ("    weigh(weight, 1)\n", ""),
}


@pytest.mark.parametrize("wrong", ["", *WRONG_WEIGHTS])
def test_a_head_that_cannot_be_told_is_passed_over_for_a_lighter_one_only(
    wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is counted who waits for which weight: also of those who asked again, and who left."""

    def play() -> None:
        machine = RedisMachine()
        machine.choose_the_guard(OBSERVED)

        def ask(client: int, weight: int) -> None:
            machine.ask(client, "name", 60 * SECOND, 60 * SECOND, weight, 3, 0, 0, True, 1, True)

        ask(0, 1)
        ask(1, 3)
        ask(2, 3)
        machine.give_up(2, WithdrawRequest("name", "r2", unsure=False))
        machine.ask_again(1, 1)  # r1, the head
        ask(2, 3)
        machine.a_client_comes_anew(1)
        machine.ask_again(2, 0)  # r3, as heavy as the head
        ask(0, 1)
        machine.a_client_comes_anew(2)
        machine.ask_again(0, 0)  # r4, the light one
        assert machine.token(machine.requests[4]) > machine.token(machine.requests[0])
        machine.teardown()

    if not wrong:
        play()
        return
    before, after = WRONG_WEIGHTS[wrong]
    assert any(before in script.text for script in scripts.ALL)

    def source(text: str) -> str:
        return keeping_for_ever(text).replace(before, after)

    monkeypatch.setattr(redis_server, "source_of", source)
    with pytest.raises(AssertionError):
        play()


def test_who_held_before_a_later_lease_keeps_nobody_from_taking_it_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A promoted copy may show a holder of an earlier time: it had let go when the later lease was granted."""

    def play() -> None:
        machine = RedisMachine()
        machine.choose_the_guard(OBSERVED)
        for client in (0, 1):
            machine.ask(client, "name", 60_000_000, SECOND, 1, 1, 0, 0, True, 1, True)
            if client == 0:
                machine.a_copy_is_taken()
                machine.let_go(0, ReleaseRequest("name", "r0", machine.token(machine.requests[0])))
        later = machine.requests[1]
        token = machine.token(later)
        machine.a_copy_is_promoted()
        machine.keep(1, [RenewRequest("name", later.request_id, token, 60_000_000, later)])
        assert machine.token(later) == token
        machine.look(1)
        machine.teardown()

    play()
    wrong = "holders = {} -- they are older: they had ended when this lease was granted"
    assert any(wrong in script.text for script in scripts.ALL)

    def source(text: str) -> str:
        return keeping_for_ever(text).replace(wrong, "")

    monkeypatch.setattr(redis_server, "source_of", source)
    with pytest.raises(AssertionError):
        play()
