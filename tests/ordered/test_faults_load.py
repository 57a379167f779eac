"""Ensembles whose servers are killed, stopped and restarted, under load from processes of both colours.

What can be demanded, and why:

*   **No two leases of a name are valid at once**, by their holders' own reckoning and the one clock of the machine: a
    session lives at the servers for longer than its client trusts it, whoever leads. But an etcd that has the defect
    named in ensembles.py ends sessions when a stopped leader goes on: then the loser is told at once, and no later.
*   **Tokens** increase in the order of the grants: they are what the servers count, of which a majority remembers.
*   **No update is lost** at a resource with a fence.
*   **Progress**: somebody acquires within a few seconds of each fault, for only one server of three is hurt at a time.
*   **In the end** all processes end in order, have met only errors that say that the store did not answer, and leave
    nothing in the store.
"""

import os
import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import cycle, pairwise

from holdfast import Client
from holdfast.runtimes.clocks import steady
from tests.faults.judgement import Overlap, disorder, overlaps, stalls
from tests.faults.metronome import Metronome
from tests.faults.resource import total
from tests.faults.workers import Staff, Task, Tenure
from tests.ordered.ensembles import Ensemble, Etcds
from tests.servers import RedisServer

SECONDS = float(os.environ.get("HOLDFAST_CHAOS_SECONDS", "44"))
"""For how long servers are hurt, in seconds, both kinds together."""

SESSION = 3.0
TTL = 2.0

PROGRESS = 8.0
"""Within how many seconds of any moment somebody acquires: an election, and the session of a process that waits."""

OUT = 2.5
"""For how long a server is away: long enough that another one leads, shorter than a session."""

ERRORS = ("StoreUnavailable: ", "OutcomeUnknown: ", "LeaseLost: ")

GOES_ON = 1.0
"""For how many seconds after a stopped leader went on it may end sessions that another one has renewed."""

TOLD = 0.25
"""Within how many seconds whoever loses a lease so is told."""

Fault = Callable[[Ensemble], str]


def kill_the_leader(ensemble: Ensemble) -> str:
    """Have another one elected."""
    ensemble.leader().kill()
    return "leader killed"


def stop_a_follower(ensemble: Ensemble) -> str:
    """Have its clients go elsewhere."""
    random.choice(ensemble.followers()).pause()
    return "follower stopped"


def stop_the_leader(ensemble: Ensemble) -> str:
    """Have another one elected; the old one will not know it at first."""
    ensemble.leader().pause()
    return "leader stopped"


def restarting(number: int) -> Fault:
    """Return a fault that takes one server down, of which all others come in turn."""

    def restart(ensemble: Ensemble) -> str:
        ensemble.servers[number].kill()
        return f"server {number} restarted"

    return restart


FAULTS: Sequence[Fault] = (kill_the_leader, stop_a_follower, stop_the_leader, *map(restarting, range(3)))


def rage(ensemble: Ensemble, seconds: float) -> list[tuple[str, float, float]]:
    """Hurt for so long, each fault at least once in its turn if there is time; return what, when, until when."""
    done: list[tuple[str, float, float]] = []
    ends = steady() + seconds
    for fault in cycle(FAULTS):
        began = steady()
        what = fault(ensemble)
        if "restarted" not in what:
            time.sleep(OUT)
        ensemble.mend()
        done.append((what, began, steady()))
        if steady() > ends:
            return done
        time.sleep(0.5)
    return done


def misordered(tenures: Iterable[Tenure]) -> Iterator[tuple[Tenure, Tenure]]:
    """Find leases that were there later than another of their name, and have no greater token."""
    by_name: dict[str, list[Tenure]] = {}
    for tenure in sorted(tenures, key=lambda each: each.since):
        by_name.setdefault(tenure.name, []).append(tenure)
    for line in by_name.values():
        yield from ((one, other) for one, other in pairwise(line) if one.token >= other.token)


def is_by_defect(found: Overlap, history: Iterable[tuple[str, float, float]], metronome: Metronome) -> bool:
    """Tell whether two leases overlapped because a leader that was stopped ended a session, and for a moment only."""
    first, second = found.first, found.second
    return (
        first.outcome in {"TAKEN_OVER", "EXPIRED"}
        and any(
            what == "leader stopped" and began + OUT <= second.since <= until + GOES_ON
            for what, began, until in history
        )
        and found.seconds - metronome.missed(second.since, first.until) < TOLD
    )


def test_whatever_happens_to_one_of_three_servers(
    ensemble: Ensemble, space: str, redis_server: RedisServer, metronome: Metronome
) -> None:
    """Nobody holds beside another, tokens grow, no update is lost, it goes on, and nothing is left: as said above."""
    names, seed = ["long", "short", "brief"], random.getrandbits(32)
    url = ensemble.url(space, SESSION)
    with Staff(Task(url, names, TTL, redis_server.port, space, seed)) as staff:
        staff.await_start()
        began = steady()
        history = rage(ensemble, SECONDS / 2)
        time.sleep(1.0)
        ended = steady()
        account = staff.end()
    with Client(url) as client:
        for name in names:
            client.lock(name, ttl=TTL).acquire(timeout=SESSION + 2.0).release()
    tenures = account.tenures
    quick = [each.since for each in tenures if each.name != names[0]]
    standing = stalls(quick, [(began, ended)])
    lines = [
        f"{since - began:6.2f}: {what}, mended after {until - since:.2f} s; next lease after "
        f"{min((each - since for each in quick if each > since), default=float('inf')):.3f} s"
        for what, since, until in history
    ]
    sys.stdout.write(
        "\n".join([f"{ensemble.kind}, seed {seed}", *lines, ""])
        + f"{len(tenures)} leases; {dict(account.counts)}\nerrors {dict(account.errors)}\n"
        f"longest stalls {[(round(span, 2), round(at - began, 2)) for span, at in standing[:5]]}\n"
    )
    found = overlaps(tenures, [])
    if isinstance(ensemble, Etcds) and ensemble.ends_living_sessions():
        found = [each for each in found if not is_by_defect(each, history, metronome)]
    assert not found
    assert not list(misordered(tenures))
    assert not disorder(tenures)
    assert total(redis_server, space, names) == account.counts["written"]
    assert [stall for stall in standing if stall[0] > PROGRESS] == []
    assert [error for error in account.errors if not error.startswith(ERRORS)] == []
    assert ensemble.left(space) == []
    if isinstance(ensemble, Etcds):
        assert ensemble.longest_lease() <= 30.0
    assert len(tenures) > SECONDS
