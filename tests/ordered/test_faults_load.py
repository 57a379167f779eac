"""Ensembles whose servers are killed, stopped and restarted, under load from processes of both forms of the API.

What can be demanded, and why:

*   **No two leases of a name are valid at once**, by their holders' own reckoning and the one clock of the machine: a
    session lives at the servers for longer than its client trusts it, whoever leads. But an etcd that has the defect
    named in ensembles.py ends sessions when a stopped leader goes on: then the loser is told at once, and no later.
*   **Tokens** increase in the order of the grants: they are what the servers count, of which a majority remembers.
*   **No update is lost** at a resource with a fence.
*   **Progress**: somebody acquires what nobody had before, and all go on with their work, while a server is away, and
    again when it is back; for only one of three is hurt at a time. So each fault lasts until that was seen, and nothing
    depends on how fast the machine is.
*   **In the end** all processes end in order, have met only errors that say that the store did not answer, and leave
    nothing in the store.
"""

import os
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle, pairwise

from tenure import Client
from tenure.runtimes.clocks import steady
from tests.faults.judgement import Overlap, disorder, overlaps
from tests.faults.metronome import Metronome
from tests.faults.resource import total
from tests.faults.workers import Staff, Task, Tenure
from tests.hazards.helpers import eventually
from tests.ordered.ensembles import Ensemble, Etcds
from tests.servers import RedisServer

SECONDS = float(os.environ.get("TENURE_CHAOS_SECONDS", "0"))
"""For how long servers are hurt at least, in seconds; by each fault once, however long that takes."""

SESSION = 3.0
TTL = 2.0

TEST_TIMEOUT = 60.0
"""How long to wait, in seconds, for what must happen: only ever used up by a failure."""

UPDATES = 10
"""How many updates of what is never held for long there are while a server is away, and as many when it is back."""

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


def kill_a_follower(ensemble: Ensemble) -> str:
    """Have it come back with what it knows, and learn the rest."""
    random.choice(ensemble.followers()).kill()
    return "follower killed"


FAULTS: Sequence[Fault] = (kill_the_leader, stop_a_follower, stop_the_leader, kill_a_follower)


@dataclass(slots=True)
class Harm:
    """What was done, and when: from when on, when it was to be mended, and when it was."""

    what: str
    began: float
    healing: float = 0.0
    ended: float = 0.0


@dataclass(slots=True)
class Inspector:
    """Sees that it goes on."""

    client: Client
    updates: Callable[[], int]
    names: list[str] = field(default_factory=list[str])

    def see_progress(self) -> None:
        """Acquire what nobody had, which needs the servers, and wait for some updates, which need the workers."""
        self.names.append(f"new {len(self.names)}")
        self.client.lock(self.names[-1], ttl=TEST_TIMEOUT).acquire(timeout=TEST_TIMEOUT).release()
        enough = self.updates() + UPDATES
        eventually(lambda: self.updates() >= enough, "updates", TEST_TIMEOUT)


def rage(ensemble: Ensemble, inspector: Inspector) -> list[Harm]:
    """Do each fault at least once in its turn, and see that it goes on meanwhile and afterwards."""
    done: list[Harm] = []
    ends = steady() + SECONDS
    for fault in cycle(FAULTS):
        began = steady()
        harm = Harm(fault(ensemble), began)
        inspector.see_progress()
        harm.healing = steady()
        ensemble.mend()
        harm.ended = steady()
        inspector.see_progress()
        done.append(harm)
        if len(done) >= len(FAULTS) and steady() > ends:
            break
    return done


def misordered(tenures: Iterable[Tenure]) -> Iterator[tuple[Tenure, Tenure]]:
    """Find leases that were there later than another of their name, and have no greater token."""
    by_name: dict[str, list[Tenure]] = {}
    for tenure in sorted(tenures, key=lambda each: each.since):
        by_name.setdefault(tenure.name, []).append(tenure)
    for line in by_name.values():
        yield from ((one, other) for one, other in pairwise(line) if one.token >= other.token)


def is_by_defect(found: Overlap, history: Iterable[Harm], metronome: Metronome) -> bool:
    """Tell whether two leases overlapped because a leader that was stopped ended a session, and for a moment only."""
    first, second = found.first, found.second
    return (
        first.outcome in {"TAKEN_OVER", "EXPIRED"}
        and any(
            harm.what == "leader stopped"
            and harm.healing <= second.since
            and second.since - metronome.missed(harm.ended, second.since) <= harm.ended + GOES_ON
            for harm in history
        )
        and found.seconds - metronome.missed(second.since, first.until) < TOLD
    )


def test_whatever_happens_to_one_of_three_servers(
    ensemble: Ensemble, space: str, redis_server: RedisServer, metronome: Metronome
) -> None:
    """Nobody holds beside another, tokens grow, no update is lost, it goes on, and nothing is left: as said above."""
    names, seed = ["long", "short", "brief"], random.getrandbits(32)
    url = ensemble.url(space, SESSION)
    others = ensemble.leases() if isinstance(ensemble, Etcds) else []  # of clients that earlier tests have killed
    with Staff(Task(url, names, TTL, redis_server.port, space, seed)) as staff:
        staff.await_start()
        with Client(url, retry_for=TEST_TIMEOUT) as client:
            history = rage(ensemble, Inspector(client, lambda: total(redis_server, space, names[1:])))
            account = staff.end()
            for name in names:
                client.lock(name, ttl=TTL).acquire(timeout=TEST_TIMEOUT).release()
    tenures = account.tenures
    quick = [each.since for each in tenures if each.name != names[0]]
    lines = [
        f"{harm.began - history[0].began:6.2f}: {harm.what}, mended after {harm.ended - harm.began:.2f} s; next lease "
        f"after {min((each - harm.began for each in quick if each > harm.began), default=float('inf')):.3f} s"
        for harm in history
    ]
    sys.stdout.write(
        "\n".join([f"{ensemble.kind}, seed {seed}", *lines, ""])
        + f"{len(tenures)} leases; {dict(account.counts)}\nerrors {dict(account.errors)}\n"
    )
    found = overlaps(tenures, [])
    if isinstance(ensemble, Etcds) and ensemble.ends_living_sessions():
        found = [each for each in found if not is_by_defect(each, history, metronome)]
    assert not found
    assert not list(misordered(tenures))
    assert not disorder(tenures)
    assert total(redis_server, space, names) == account.counts["written"]
    assert [error for error in account.errors if not error.startswith(ERRORS)] == []
    assert ensemble.left(space) == []
    if isinstance(ensemble, Etcds):
        assert ensemble.longest_lease(others) <= 30.0
