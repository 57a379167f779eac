"""The scenarios: what may go wrong, and what holds all the same.

This is the guarantee table. The README's table is checked against it, and `make test` runs every scenario on
thousands of seeds. An invariant that a scenario does not promise is not ignored: how many runs broke it is reported.
"""

from dataclasses import dataclass

from holdfast.testing.simulation.faults import Faults
from holdfast.testing.simulation.invariants import Invariant
from holdfast.testing.simulation.workload import MUTEXES, WEIGHTED, Kind

ALWAYS = frozenset(
    {
        Invariant.TOKENS,
        Invariant.FENCE,
        Invariant.FIFO,
        Invariant.LOSS,
        Invariant.CLEAN,
        Invariant.DRAINED,
        Invariant.NO_ERRORS,
    }
)
SAFE = ALWAYS | {Invariant.EXCLUSION}
HEALTHY = SAFE | {Invariant.KEPT, Invariant.PROMPT}

ALLOWED_DRIFT = 0.0049
"""Each clock's own share of the 1 % that two clocks may drift apart."""


@dataclass(slots=True, frozen=True)
class Scenario:
    """One kind of bad day."""

    name: str
    happens: str
    """What happens, in the words of the guarantee table."""
    promises: frozenset[Invariant]
    faults: Faults
    embedded: bool = False
    kinds: tuple[Kind, ...] = MUTEXES
    healthy: bool = False


WIRE = Faults(
    loss=0.2,
    duplicate=0.1,
    straggler=0.1,
    errors=0.1,
    cancel=0.4,
    cuts=3,
    partitions=2,
    slow=2,
    pauses=3,
    crashes=2,
    drift=ALLOWED_DRIFT,
    disorder=5.0,
    clock_back=2,
    restarts=2,
)

SCENARIOS = (
    Scenario(
        "calm",
        "Nothing goes wrong, but waiters are cancelled and clients die",
        HEALTHY,
        Faults(cancel=0.4, crashes=2, drift=ALLOWED_DRIFT),
        healthy=True,
    ),
    Scenario(
        "embedded",
        "Processes of one machine die, are paused or suspended, wake-ups are lost, the file is locked for long",
        SAFE,
        Faults(loss=0.5, straggler=0.1, errors=0.1, cancel=0.4, pauses=3, crashes=2),
        embedded=True,
    ),
    Scenario(
        "wire",
        "Messages are late, lost, repeated or reordered, connections break, networks split, servers stall, answer "
        "errors or restart with their state, clocks drift by up to 1 % or step back, clients die or are paused",
        SAFE,
        WIRE,
    ),
    Scenario(
        "weights",
        "The same, for semaphores and reader/writer names",
        SAFE,
        WIRE,
        kinds=WEIGHTED,
    ),
    Scenario(
        "clock_forward",
        "The store's clock steps forward, or clocks drift beyond the allowance",
        ALWAYS,
        Faults(loss=0.05, cancel=0.2, pauses=1, crashes=1, drift=0.2, clock_forward=4),
    ),
    Scenario(
        "amnesia",
        "The store forgets grants (it restarts without its state, or a replica that lags is promoted), while wall "
        "clocks agree",
        ALWAYS - {Invariant.CLEAN},
        Faults(loss=0.05, cancel=0.2, pauses=1, crashes=1, amnesia=3, failovers=2),
    ),
    Scenario(
        "amnesia_disorder",
        "The store forgets grants, and the wall clocks of clients disagree by seconds",
        ALWAYS - {Invariant.CLEAN, Invariant.TOKENS, Invariant.FENCE},
        Faults(disorder=5.0, loss=0.05, cancel=0.2, pauses=1, crashes=1, amnesia=3, failovers=2),
    ),
    Scenario(
        "force",
        "Somebody takes a name by force",
        ALWAYS,
        Faults(loss=0.1, cancel=0.2, pauses=1, crashes=1, revokes=4),
    ),
)

BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}
