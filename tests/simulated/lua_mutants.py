"""Bugs to plant in the Lua that ships, and in what talks to it, one at a time, to see that the simulation notices.

Each is a change of the text that a simulated server compiles. A change whose text is not there any more is an error,
so that no bug is believed to be planted that is not.
"""

# ruff: noqa: ANN401, D103 - each function is told by the bug that it plants, and replaces a method of any type
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from simulation import Faults, Plan
from simulation.redis import server
from simulation.redis.link import SimulatedRedisLink
from simulation.redis.lua import source_of
from simulation.workload import WEIGHTED
from tenure.core import session
from tenure.stores.redis import scripts
from tenure.stores.redis.links.link import RedisReply
from tenure.stores.redis.scripts import Script
from tenure.stores.redis.store import RedisStore
from tests.simulated.mutants import Mutant, Patch, kill_the_quick, replaced, wrapped

Change = tuple[str, str]
"""What the scripts say, and what they say then."""


def rewritten(*changes: Change) -> Callable[[], Patch]:
    """Return a way to plant changes of the scripts: each is made wherever the text is, in any script."""
    for before, _ in changes:
        assert any(before in script.text for script in scripts.ALL), f"no script says {before!r}"

    def source(text: str) -> str:
        found = source_of(text)
        for before, after in changes:
            found = found.replace(before, after)
        return found

    return replaced(server, "source_of", source)


def lua(
    bug: str,
    *changes: Change,
    scenario: str = "redis_wire",
    aim: Callable[[Plan], Plan] = lambda plan: plan,
    first: int = 0,
) -> Mutant:
    """Return a bug of the scripts."""
    return Mutant(bug, rewritten(*changes), (scenario,), aim, first)


def fail_over(plan: Plan) -> Plan:
    """Have one failover after another, and long queues."""
    faults = Faults(failovers=2, amnesia=plan.faults.amnesia, cuts=1, crashes=1)
    return replace(plan, clients=4, tasks=2, rounds=4, names=1, duration=5.0, faults=faults)


def stall_and_fail_over(plan: Plan) -> Plan:
    """Have replicas that lag far behind when one of them is promoted."""
    faults = Faults(failovers=2, stalls=3)
    return replace(plan, clients=4, tasks=2, rounds=4, names=1, duration=5.0, faults=faults)


def forget_while_held(plan: Plan) -> Plan:
    """Have few clients with long leases, and servers that come back with little."""
    faults = Faults(amnesia=plan.faults.amnesia and 2, failovers=2)
    return replace(plan, clients=3, tasks=1, rounds=4, names=1, duration=5.0, faults=faults)


def die_with_long_delays(plan: Plan) -> Plan:
    """Have holders die whose lock delays are as long as the longest ttl, or longer, around a failover."""
    faults = Faults(crashes=4, failovers=1, delays=0.7)
    return replace(plan, clients=4, tasks=1, rounds=4, names=1, duration=3.0, faults=faults)


def share(plan: Plan) -> Plan:
    """Have many holders of shared names, with long leases, and servers that come back with little."""
    scenario = replace(plan.scenario, kinds=WEIGHTED, ttls=(3.0,))
    faults = Faults(amnesia=plan.faults.amnesia and 2, failovers=2)
    return replace(plan, scenario=scenario, clients=4, tasks=2, rounds=4, names=2, duration=5.0, faults=faults)


def be_late(plan: Plan) -> Plan:
    """Have requests that arrive when nobody waits for them any more."""
    return replace(plan, clients=2, tasks=1, rounds=4, names=2, duration=5.0, faults=Faults(straggler=0.1, pauses=3))


def step_back_and_restart(plan: Plan) -> Plan:
    """Have the clock of a server step back while it is in quarantine."""
    return replace(plan, faults=Faults(restarts=2, clock_back=2))


def release_in_a_quarantine(plan: Plan) -> Plan:
    """Have renewals that are late, and leases that are released in a quarantine by a clock that stepped back."""
    faults = Faults(straggler=0.1, cancel=0.2, pauses=1, clock_back=1, restarts=1)
    return replace(plan, clients=2, tasks=1, rounds=3, names=1, duration=3.0, faults=faults)


# -- around the scripts ------------------------------------------------------------------------------------


async def refuse_to_send_text(original: Any, self: SimulatedRedisLink, script: Script, *args: Any) -> RedisReply:
    server_there = await self._connect(args[-1])
    server_there.forget_scripts()
    keys, given, until = args
    value = await self._exchange(server_there, lambda: server_there.evalsha(script.digest, keys, given), until)
    return RedisReply(value, server_there.identity())


async def count_nobody(original: Any, self: SimulatedRedisLink, *args: Any) -> RedisReply:
    answer = await original(self, *args)
    answer.acknowledged = 99
    return RedisReply(answer.value, answer.run_id, 99)


async def wait_for_grants_only(original: Any, self: SimulatedRedisLink, script: Script, *args: Any) -> RedisReply:
    if script is not scripts.RENEW:
        return await original(self, script, *args)  # type: ignore[no-any-return]  # it is a method of any type
    *rest, replicas = args
    answer = await self.run(script, *rest)
    return RedisReply(answer.value, answer.run_id, replicas)


def forget_the_generation(original: Any, self: RedisStore) -> None:
    self._runner.seen.clear()
    original(self)


def let_pushes_count(original: Any, self: RedisStore, *args: Any) -> None:
    original(self, *args)
    self.capabilities = replace(self.capabilities, pushes_count=True)


ANOTHER = """if process ~= process_here or promoted < promoted_here or seen_number > number
        or (seen_number == number and seen ~= known) then"""


def grant_for_ever(original: Any, self: RedisStore, *args: Any) -> None:
    original(self, *args)
    self.capabilities = replace(self.capabilities, max_ttl=float("inf"))


def allow_any(value: object, able: object) -> object:
    return value


SEES_NO_MARKER: tuple[Change, ...] = (
    ("may_grant = known == seen and ends <= now", "may_grant = ends <= now"),
    ("and (not run_id or string.sub(known, -#run_id) == run_id)", ""),
    (ANOTHER, "if known == '' then"),
)

LUA_MUTANTS: Sequence[Mutant] = (
    # who is granted
    lua("a release asks not whose it is", ("usual = h_request == request and (queued", "usual = (queued")),
    lua(
        "newcomers overtake the queue",
        ("if not head and fits(weight) then", "if fits(weight) then"),
        ("and h_request == '' and queued == 0 then", "and h_request == '' then"),
    ),
    lua(
        "who asks again goes to the tail",
        ("if before and call('ZRANK', Q, seat) then", "call('ZREM', Q, request) if false then"),
    ),
    lua(
        "who is granted stays in the queue", ("dequeue(request)\n        if request == caller", "if request == caller")
    ),
    lua(
        "the last to come is served first",
        ("'NX', last_place + 1, request", "'NX', -last_place - 1, request"),
        ("call('ZADD', Q, last_place, request)", "call('ZADD', Q, -last_place, request)"),
    ),
    lua("weights are ignored", ("return more <= capacity", "return #holders < capacity"), scenario="redis_weights"),
    lua("the lock delay is ignored", ("if length > 0 and", "if false and")),
    lua(
        "silent waiters are granted",
        ("if it[W_FRESH] < now then return true end", ""),
        ("waiter and fresh >= now", "waiter"),
        first=178,
    ),
    lua(
        "grants are pushed to the dead",
        (":channel:' .. to, message) > 0", ":channel:' .. to, message) >= 0"),
        scenario="redis_calm",
    ),
    # for how long
    lua("leases never end", ("if holder[EXPIRES] <= now then", "if false then"), scenario="redis_calm"),
    lua("leases end early", ("if holder[EXPIRES] <= now then", "if holder[EXPIRES] <= now + holder[TTL] / 10 then")),
    lua(
        "a hand-off grants less than the ttl",
        ("counter, lasts = last, ttl", "counter, lasts = last, math.min(ttl, 200000)"),
    ),
    lua("a grant lasts less than the ttl", ("now, now + lasts, told }", "now, now + math.floor(lasts / 2), told }")),
    lua(
        "the usual grant lasts less than the ttl", ("= now, now + ttl, (span > 1)", "= now, now + ttl / 2, (span > 1)")
    ),
    lua(
        "a renewal shortens the lease",
        ("holder[EXPIRES] = math.max(holder[EXPIRES], now + length)", "holder[EXPIRES] = now + math.floor(length / 2)"),
    ),
    lua("asking again does not prolong the lease", ("holder[EXPIRES] = math.max(holder[EXPIRES], now + ttl)", "")),
    lua(
        "a clock that stepped back locks for hours",
        ("holder[EXPIRES] = math.min(holder[EXPIRES], now + holder[TTL])", ""),
        ("and h_expires <= now + h_ttl", ""),
    ),
    lua(
        "a clock that stepped back stretches a quarantine",
        ("if marker[3] > now + marker[4] then", "if false then"),
        aim=step_back_and_restart,
    ),
    # tokens
    lua("tokens are a clock alone", ("math.max(counter + 1, stamp,", "math.max(stamp,")),
    lua(
        "tokens are a plain counter",
        ("math.max(counter + 1, stamp, math.min(", "math.max(counter + 1, 0 * math.min("),
        scenario="redis_amnesia",
        first=1038,
    ),
    # leaving
    lua(
        "a release does not hand off",
        ("serve_queue()\nsave()\nif placeholder", "save()\nif placeholder"),
        ("usual = expires >= now + RETENTION * 3 / 4", "usual = false"),
        scenario="redis_calm",
    ),
    lua(
        "leaving does not pass on a grant",
        ("remove_holder(request)\nremove_holder(PLACEHOLDER", "remove_holder(PLACEHOLDER"),
    ),
    lua(
        "leaving keeps the place in the queue", ("PLACEHOLDER .. request)\ndequeue(request)", "PLACEHOLDER .. request)")
    ),
    lua(
        "what was given up may arrive",
        ("local usual = not buried and", "local usual ="),
        ("or (buried and tonumber(buried) > now)", ""),
    ),
    lua(
        "no tombstone is left",
        ("if unsure then\n    bury(request)", "if unsure then"),
        ("if ARGV[4] == '1' then bury(request) end", ""),
    ),
    lua(
        "a new head is never told",
        ("push(it[W_CHANNEL], string.format('H", "push('', string.format('H"),
        scenario="redis_calm",
        aim=kill_the_quick,
        first=199,
    ),
    # the guard
    lua(
        "the marker is not written",
        ("and not looking then write_marker()", "and false then write_marker()"),
        scenario="redis_strict",
    ),
    lua("nobody looks who wrote the marker", *SEES_NO_MARKER, scenario="redis_strict", aim=fail_over),
    lua(
        "the marker is compared the wrong way",
        ("if process ~= process_here or", "if process == process_here or"),
        scenario="redis_strict",
    ),
    lua(
        "the usual acquire looks at no marker",
        (
            "local length = math.max(bound, ttl + delay)\n    usual = may_grant",
            "local length = 0\n    usual = true or may_grant",
        ),
        scenario="redis_strict",
        aim=fail_over,
    ),
    lua(
        "a hand-off looks at no marker",
        ("        usual = may_grant\n", ""),
        scenario="redis_strict",
        aim=fail_over,
    ),
    lua(
        "nobody in the queue is kept from a grant",
        ("return math.max(blocked, quarantine(0))", "return blocked"),
        scenario="redis_strict",
        aim=fail_over,
    ),
    lua(
        "the quarantine is too short",
        (
            "marker[3], changed = marker[2] + marker[4], true",
            "marker[3], changed = marker[2] + math.floor(marker[4] / 8), true",
        ),
        scenario="redis_strict",
        aim=fail_over,
    ),
    lua(
        "the quarantine is for the ttl of who asks",
        ("marker[3], changed = marker[2] + marker[4], true", "marker[3], changed = marker[2] + needed, true"),
        scenario="redis_strict",
        aim=fail_over,
    ),
    lua(
        "a strict guard trusts a node without a marker",
        ("(guard >= 2 or known", "(false or known"),
        scenario="redis_strict",
        aim=fail_over,
        first=231,
    ),
    lua(
        "an observant guard trusts the marker of another",
        ("or known ~= '' and known ~= marker[1] or", "or"),
        scenario="redis_observed",
        aim=fail_over,
        first=141,
    ),
    lua(
        "a promotion of the same process is not noticed",
        (" or promoted < promoted_here", ""),
        scenario="redis_failback",
    ),
    lua(
        "a promotion of the same process is noticed by none but the usual acquire",
        (" or promoted < promoted_here", ""),
        ("and (not run_id or string.sub(known, -#run_id) == run_id)", "and true"),
        scenario="redis_failback",
    ),
    lua(
        "what clients remember makes no marker doubtful",
        ("seen ~= '' and seen ~= marker[1]) then", "false) then"),
        scenario="redis_known",
    ),
    lua(
        "a new generation is counted from when the last one began",
        ("marker[2], marker[3], changed = now, 0, true", "marker[3], changed = 0, true"),
        scenario="redis_failback",
    ),
    Mutant(
        "a client forgets the generation with its connection",
        wrapped(RedisStore, "_missed", forget_the_generation),
        ("redis_known",),
    ),
    lua(
        "what ran out is taken up again",
        ("weighs == 0 or now >= quarantine(0) then", "weighs == 0 then"),
        aim=be_late,
    ),
    lua(
        "what was released in a quarantine is taken up again",
        ("if buried and tonumber(buried) > now then return end", ""),
        scenario="redis_several",
        aim=release_in_a_quarantine,
        first=232,
    ),
    lua(
        "who takes it up again still waits",
        ("capacity = fills\n    dequeue(request)", "capacity = fills"),
        scenario="redis_strict",
        aim=fail_over,
    ),
    # lock delays, which a quarantine has to sit out
    lua(
        "a quarantine is as long as a ttl",
        ("quarantine(ttl + delay)", "quarantine(ttl)"),
        ("local length = math.max(bound, ttl + delay)", "local length = math.max(bound, ttl)"),
        ("longest = math.max(longest, lease[3] + lease[6])", "longest = math.max(longest, lease[3])"),
        scenario="redis_observed",
        aim=die_with_long_delays,
    ),
    lua(
        "a new generation forgets which length was in use",
        ("length = math.max(length, marker[4])", "marker[4], marker[5] = 0, 0"),
        scenario="redis_observed",
        aim=die_with_long_delays,
    ),
    lua(
        "a quarantine is as long as max_ttl, whatever was in use",
        ("marker[3], changed = marker[2] + marker[4], true", "marker[3], changed = marker[2] + bound, true"),
        scenario="redis_strict",
        aim=die_with_long_delays,
    ),
    lua(
        "a quarantine is as long as the longest lease that the marker knows of",
        ("local length = math.max(bound, needed)", "local length = kept and needed or math.max(bound, needed)"),
        ("local length = math.max(bound, ttl + delay)", "local length = ttl + delay"),
        scenario="redis_strict",
        aim=stall_and_fail_over,
        first=91,  # a holder trusts a lease that is longer than the quarantine of the new master
    ),
    # many holders of a shared name, who all take it up again
    lua(
        "of a shared name only larger tokens are taken up again",
        ("if weighs == fills then", "if token < counter then return end\n    if weighs == fills then"),
        scenario="redis_strict",
        aim=share,
    ),
    lua(
        "who is not heard since the quarantine began keeps its permits",
        ("local heard = holder[EXPIRES] - holder[TTL] >= marker[2]", "local heard = true"),
        scenario="redis_strict",
        aim=share,
    ),
    lua(
        "the first to take a shared name up again has it alone",
        ("    holders = there\n    return true", "    holders = {}\n    return true"),
        scenario="redis_observed",
        aim=share,
    ),
    lua(
        "a name that is shared again is taken for one with another number",
        ("if (there[1] or head) and capacity ~= fills", "if there[1]"),
        scenario="redis_observed",
        aim=share,
    ),
    # extending beyond the longest ttl
    Mutant(
        "extend is not bound by max_ttl",
        replaced(session, "check_ttl", allow_any),
        ("redis_strict",),
        forget_while_held,
    ),
    Mutant(
        "a guarded Redis knows no longest ttl",
        wrapped(RedisStore, "__init__", grant_for_ever),
        ("redis_strict",),
        forget_while_held,
    ),
    # what is changed while a name is held
    lua("min_hold is ignored", ("if keep_for > 0 then", "if false then"), scenario="redis_weights"),
    lua(
        "half of min_hold is kept",
        (
            "holder[TTL], holder[EXPIRES], holder[DELAY] = keep_for, now + keep_for, 0",
            "holder[EXPIRES] = now + math.floor(keep_for / 2)",
        ),
        scenario="redis_weights",
    ),
    lua(
        "a downgrade makes too much room", ("math.min(holder[WEIGHT], weighs)", "0"), scenario="redis_weights", first=70
    ),
    # around the scripts
    Mutant(
        "a script that is not known is not told",
        wrapped(SimulatedRedisLink, "run", refuse_to_send_text),
        ("redis_calm",),
    ),
    Mutant(
        "nobody looks how many replicas have it",
        wrapped(SimulatedRedisLink, "run_replicated", count_nobody),
        ("redis_replicas",),
        stall_and_fail_over,
    ),
    Mutant(
        "replicas need not have a renewal",
        wrapped(SimulatedRedisLink, "run_replicated", wait_for_grants_only),
        ("redis_replicas",),
        stall_and_fail_over,
    ),
    Mutant(
        "replicas need not have a pushed grant",
        wrapped(RedisStore, "__init__", let_pushes_count),
        ("redis_replicas",),
        stall_and_fail_over,
    ),
)
