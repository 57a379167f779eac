"""Bugs to plant in the SQL store and in the simulated functions of its database, one at a time.

Those of the functions are changes of the text of `simulation/sql/server.py`, which does what schema.sql does. A change
whose text is not there any more is an error.
"""

# ruff: noqa: ANN401, D103 - each function is told by the bug that it plants, and replaces a method of any type
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from simulation import Faults, Plan
from simulation.sql import node, server
from tenure.contracts.messages import Queued
from tenure.core.lease import CoreLease
from tenure.stores.sql import store
from tenure.stores.sql.database import SqlWrite
from tenure.stores.sql.rows import SqlRow, row_of, state_of
from tenure.stores.sql.store import SqlStore
from tests.planting import module_with, planted
from tests.simulated.mutants import Mutant, Patch, both, replaced


def rewritten(*changes: tuple[str, str]) -> Callable[[], Patch]:
    """Return a way to plant changes of the simulated functions."""
    return replaced(node, "SqlServer", vars(module_with(server, *changes, everywhere=True))["SqlServer"])


def sql(
    bug: str,
    *changes: tuple[str, str],
    scenario: str = "wire",
    aim: Callable[[Plan], Plan] = lambda plan: plan,
    first: int = 0,
) -> Mutant:
    """Return a bug of the functions."""
    return Mutant(bug, rewritten(*changes), (f"sql_{scenario}",), aim, first)


def fail_over(plan: Plan) -> Plan:
    """Have failovers while there are long leases and much to write."""
    faults = Faults(failovers=2, straggler=0.1, pauses=2, cuts=1)
    return replace(plan, clients=4, tasks=2, rounds=4, names=1, duration=5.0, faults=faults)


def fail_over_with_late_messages(plan: Plan) -> Plan:
    """Have failovers after which many a notification still arrives that the old primary has sent."""
    faults = Faults(failovers=2, straggler=0.3)
    return replace(plan, clients=3, tasks=1, rounds=4, names=1, duration=4.0, faults=faults)


def die_and_fail_over_with_long_delays(plan: Plan) -> Plan:
    """Have holders die with long lock delays just before a failover."""
    faults = Faults(failovers=2, crashes=4, delays=0.9)
    return replace(plan, clients=3, tasks=1, rounds=4, names=1, duration=4.0, faults=faults)


def crowd(plan: Plan) -> Plan:
    """Have many clients at one name, whose requests are late."""
    faults = Faults(straggler=0.2, cancel=0.3, pauses=2, duplicate=0.1)
    return replace(plan, clients=4, tasks=2, rounds=4, names=1, duration=4.0, faults=faults)


def step_back(plan: Plan) -> Plan:
    """Have the clock step back while leases last."""
    faults = Faults(clock_back=2, crashes=3, disorder=5.0)
    return replace(plan, clients=4, tasks=2, rounds=3, names=1, duration=4.0, faults=faults)


def pause(plan: Plan) -> Plan:
    """Have holders stand still until their leases have nearly run out."""
    return replace(plan, clients=4, tasks=2, rounds=4, names=1, duration=4.0, faults=Faults(pauses=8))


def die_with_long_delays(plan: Plan) -> Plan:
    """Have holders die for whom nobody waits, and whose lock delays are long."""
    return replace(plan, clients=2, tasks=1, rounds=6, names=1, duration=5.0, faults=Faults(crashes=6, delays=0.9))


def die(plan: Plan) -> Plan:
    """Have holders die, whose leases run out."""
    return replace(plan, clients=4, tasks=2, rounds=4, names=1, duration=4.0, faults=Faults(crashes=6))


# -- in the store ------------------------------------------------------------------------------------------


async def believe(self: SqlStore, snapshot: Any, work: Any, until: float, *, atomic: bool = False) -> Any:
    result, write = store._run(snapshot, work, queues=False)
    if write.rows:
        write.atomic = atomic
        await self._database.write(write, until)
    return result


def later(original: Any, snapshot: Any, work: Any, **rest: Any) -> Any:
    result, write = original(replace(snapshot, now=snapshot.now + 300_000), work, **rest)
    return result, write


def earlier(original: Any, snapshot: Any, work: Any, **rest: Any) -> Any:
    result, write = original(replace(snapshot, now=snapshot.now - 300_000), work, **rest)
    return result, write


def without_quarantine(original: Any, snapshot: Any, work: Any, **rest: Any) -> Any:
    return original(replace(snapshot, quarantined_until=0), work, **rest)


def forgotten_pushes_count(original: Any, snapshot: Any, work: Any, **rest: Any) -> Any:
    result, write = original(snapshot, work, **rest)
    if isinstance(result, Queued):
        result.counter = snapshot.rows[0].counter
    return result, write


def delays_as_they_were(_original: Any, snapshot: Any, row: SqlRow) -> Any:
    return state_of(row, snapshot.floor)


def nobody_silent(original: Any, snapshot: Any, work: Any, **rest: Any) -> Any:
    return original(replace(snapshot, silent=frozenset()), work, **rest)


def no_notifications(original: Any, snapshot: Any, work: Any, **rest: Any) -> Any:
    result, write = original(snapshot, work, **rest)
    return result, SqlWrite(write.as_of, write.quarantined_since, write.rows)


def nothing_changed(before: SqlRow, step: Any, **_rest: Any) -> SqlRow | None:
    """Take a row for unchanged if its holder is the same."""
    after = row_of(before.name, before.version, step.state)
    return None if (after.request_id, after.counter) == (before.request_id, before.counter) else after


def without_tombstones(original: Any, row: SqlRow, floor: int) -> Any:
    state = original(row, floor)
    state.tombstones = {}
    return state


def module(name: str, wrapper: Callable[..., Any]) -> Callable[[], Patch]:
    """Return a way to replace a function that the store uses by `wrapper(original, ...)`."""
    original = getattr(store, name)

    def function(*args: Any, **rest: Any) -> Any:
        return wrapper(original, *args, **rest)

    return replaced(store, name, function)


def sent(right: str, wrong: str) -> Callable[[], Patch]:
    """Return a way to send all releases without a wait, by a method with a change."""
    return both(
        replaced(CoreLease, "awaited", False),
        replaced(SqlStore, "send_release", planted(SqlStore, "send_release", right, wrong)),
    )


SQL_MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "a release that was sent counts, though nothing was done",
        sent("found = None if outcome is Outcome.RELEASED else outcome", "found = Outcome.RELEASED"),
        ("sql_calm",),
    ),
    Mutant(
        "what a step would say of a release that was sent counts, though it is not written",
        sent("None if outcome is Outcome.RELEASED else outcome", "outcome"),
        ("sql_calm",),
    ),
    Mutant("a step counts whether it was written or not", replaced(SqlStore, "_take", believe), ("sql_wire",), crowd),
    Mutant("a step is taken later than its rows were read", module("_run", later), ("sql_wire",), pause),
    Mutant("a step is taken before its rows were read", module("_run", earlier), ("sql_wire",)),
    Mutant("a step heeds no quarantine", module("_run", without_quarantine), ("sql_failover",), fail_over),
    Mutant(
        "a late push of a grant that was forgotten counts",
        module("_run", forgotten_pushes_count),
        ("sql_failover",),
        fail_over_with_late_messages,
        1330,
    ),
    Mutant(
        "a lock delay begins when the lease ended without the renewals that were forgotten",
        module("_state_in", delays_as_they_were),
        ("sql_failover",),
        die_and_fail_over_with_long_delays,
    ),
    Mutant("a step takes everybody for listening", module("_run", nobody_silent), ("sql_calm",), die),
    Mutant("a step sends no notifications", module("_run", no_notifications), ("sql_calm",)),
    Mutant("a waiter that asks again is not written", replaced(store, "_changed_row", nothing_changed), ("sql_wire",)),
    Mutant("a plain row has no tombstones", module("state_of", without_tombstones), ("sql_wire",), crowd),
    sql(
        "a row is written whatever its version is",
        ("return present.version == row.version", "return True"),
        aim=crowd,
    ),
    sql(
        "a write ignores a failover",
        ("if self.is_new(rules) or write.quarantined_since != self.data.meta.quarantined_since:", "if False:"),
        scenario="failover",
        aim=fail_over,
        first=315,
    ),
    sql(
        "notifications are sent for what was not written",
        (
            "told = [each for row in written for each",
            "told = [each for row in write.rows for each",
        ),
        aim=crowd,
    ),
    sql("no notification is sent", ("if notification.channel in self.channels:", "if False:"), scenario="calm"),
    sql("an acquire overtakes the queue", ("            row.plain\n            and (row", "            (row")),
    sql("an acquire takes what is held", ("(row.expires_at <= now and row.lock_delay == 0)", "True")),
    sql(
        "an acquire ends a lease early", ("(row.expires_at <= now and", "(row.expires_at <= now + 300_000 and"), aim=die
    ),
    sql(
        "an acquire heeds no lock delay",
        ("row.expires_at <= now and row.lock_delay == 0", "row.expires_at <= now"),
        scenario="failover",
        aim=die_with_long_delays,
    ),
    sql("an acquire grants what was withdrawn", ("and request.request_id not in row.tombstones", "")),
    sql(
        "an acquire begins no quarantine",
        ("            and not self.is_new(rules)\n", ""),
        scenario="failover",
        aim=fail_over,
    ),
    sql(
        "an acquire heeds no quarantine",
        ("            and meta.quarantined_until <= now\n", ""),
        scenario="failover",
        aim=fail_over,
    ),
    sql(
        "an acquire repeats a token",
        (
            "(max(row.counter, meta.floor), request.proposal, now)",
            "(max(row.counter, meta.floor) - 1, request.proposal, 0)",
        ),
        ("next_token(row.counter, request.proposal, now)", "next_token(row.counter - 1, request.proposal, 0)"),
    ),
    sql(
        "an acquire makes tokens of the clock alone",
        ("max(row.counter, meta.floor)", "meta.floor"),
        ("next_token(row.counter,", "next_token(-1,"),
        aim=step_back,
    ),
    sql("a release ends any lease", ("row.request_id == request_id and row.expires_at > now", 'row.request_id != ""')),
    sql(
        "a waiter that gave up joins again",
        (
            "request.request_id not in row.tombstones\n            and self",
            "self",
        ),
        aim=crowd,
    ),
    sql(
        "a waiter waits behind a lease that ran out",
        (
            "now < row.expires_at <= now + row.ttl\n            and row.used_at",
            "row.used_at",
        ),
        aim=die,
    ),
    sql("a release hands over to the last waiter", ("request = queue[0].request", "request = [*queue][-1].request")),
    sql(
        "a release hands over to whom nobody hears",
        ("and first.request.channel in self.channels", ""),
        scenario="calm",
        aim=die,
    ),
    sql(
        "a release hands over and tells nobody",
        ("self._tell(Notification(request.channel, kind, request.request_id, token, contended=contended))", "pass"),
        scenario="calm",
    ),
    sql(
        "a release hands over by an old token",
        (
            "next_token(row.counter, request.proposal, now)",
            "next_token(row.counter - 1, request.proposal, now - 300_000)",
        ),
        aim=step_back,
    ),
    sql(
        "a release hands over in a quarantine",
        (
            "            and self.data.meta.quarantined_until <= now\n        )\n\n    def _join",
            "        )\n\n    def _join",
        ),
        scenario="failover",
        aim=fail_over,
    ),
    sql("a renewal may shorten", ("max(min(row.expires_at, now + row.ttl), now + each.ttl)", "now + each.ttl // 2")),
    sql(
        "a quarantine is too short",
        ("longest = now + max(meta.longest_ttl, rules.longest_ttl)", "longest = now + rules.longest_ttl // 2"),
        scenario="failover",
        aim=fail_over,
    ),
)
