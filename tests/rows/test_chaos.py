"""Processes that are killed and stopped, and a server that is, on stores whose rows have no clock.

No two leases of a name are valid at once by their holders' own reckoning and the one clock of the machine, tokens grow,
no update is lost at a resource with a fence, and it goes on. `TENURE_CHAOS_SECONDS` says for how long; by default each
fault happens once.
"""

import os
import random
import time
from itertools import count
from pathlib import Path

import pytest

from tests.faults.judgement import disorder, overlaps
from tests.faults.resource import total
from tests.faults.workers import Staff, Task
from tests.hazards.helpers import eventually
from tests.servers import RedisServer, SeaweedServer

SECONDS = float(os.environ.get("TENURE_CHAOS_SECONDS", "0"))
TTL = 2.0
UPDATES = 5
"""How many updates there are after each fault before the next."""

WAIT = 120.0
"""How long to wait for what must happen, in seconds: only ever used up by a failure."""


@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["folder", "bucket"])
def test_whatever_happens(kind: str, redis_server: RedisServer, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Nobody holds beside another, though holders die, stand still for longer than their ttl, and go on."""
    server: SeaweedServer | None = request.getfixturevalue("seaweed_server") if kind == "bucket" else None
    url = f"file://{tmp_path}" if server is None else server.url.replace("/tests?", f"/{tmp_path.name}?")
    names, ends = [f"{kind} long", f"{kind} short", f"{kind} brief"], time.monotonic() + SECONDS
    task = Task(url, names, TTL, redis_server.port, f"rows-{tmp_path}", random.getrandbits(32))

    def updates() -> int:
        return total(redis_server, task.space, names)

    def goes_on() -> None:
        enough = updates() + UPDATES
        eventually(lambda: updates() >= enough, "updates", WAIT)

    with Staff(task, 6) as staff:
        staff.await_start()
        for number in count():
            with Staff(task, 2) as killed:
                killed.await_start()
                goes_on()
            frozen = random.randrange(len(staff))
            staff.freeze(frozen)
            time.sleep(TTL * 1.5)  # the pause is the hazard
            goes_on()
            staff.thaw(frozen)
            if server is not None:
                server.pause() if number % 2 else server.kill()
                time.sleep(0.5)
                server.mend()
            goes_on()
            if time.monotonic() > ends:
                break
        account = staff.end()
    assert {each.partition(":")[0] for each in account.errors} <= {"StoreUnavailable", "OutcomeUnknown", "LeaseLost"}
    assert overlaps(account.tenures, []) == []
    assert disorder(account.tenures) == []
    assert account.counts["written"] <= updates()
    print(kind, len(account.tenures), "leases", dict(account.counts), dict(account.errors))  # noqa: T201 - for `-s`
