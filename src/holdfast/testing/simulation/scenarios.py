"""The scenarios: what may go wrong, and what holds all the same.

This is the guarantee table. The README's table is checked against it, and `make test` runs every scenario on
thousands of seeds. An invariant that a scenario does not promise is not ignored: how many runs broke it is reported.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from holdfast.testing.simulation.at_store import ASKING
from holdfast.testing.simulation.faults import Faults
from holdfast.testing.simulation.invariants import Invariant
from holdfast.testing.simulation.workload import MUTEXES, WEIGHTED, Kind

ALWAYS = frozenset(
    {
        Invariant.TOKENS,
        Invariant.FENCE,
        Invariant.FIFO,
        Invariant.ONCE,
        Invariant.DELAY,
        Invariant.LOSS,
        Invariant.OVERHELD,
        Invariant.CLEAN,
        Invariant.DRAINED,
        Invariant.NO_ERRORS,
    }
)
SAFE = ALWAYS | {Invariant.EXCLUSION, Invariant.BACKED, Invariant.KEPT}
PROMPT = SAFE | {Invariant.PROMPT}

ALLOWED_DRIFT = 0.0049
"""Each clock's own share of the 1 % that two clocks may drift apart."""


EVERY = "every store"
EMBEDDED = "memory, SQLite"
SERVERS = "server stores (to come)"
SECOND = "the old holder is sure of its lease while a new one is granted"


@dataclass(slots=True, frozen=True)
class Scenario:
    """One kind of bad day."""

    name: str
    happens: str
    """What happens, in the words of the guarantee table."""
    promises: frozenset[Invariant]
    faults: Faults
    unless: Mapping[Invariant, str] = field(default_factory=dict[Invariant, str], hash=False)
    """Why something is not promised, in a few words of the guarantee table."""
    concerns: str = SERVERS
    """The stores that it can happen to."""
    embedded: bool = False
    kinds: tuple[Kind, ...] = MUTEXES
    healthy: bool = False
    """Whether nothing goes wrong but that waiters are cancelled and clients die: then no lease may be lost at all."""
    prompt_within: float = 0.0
    """How long a free name may have a live waiter, in seconds; 0 if that is not promised."""


FORGETS = {
    Invariant.BACKED: SECOND,
    Invariant.CLEAN: "what was given up may come back, until it lapses",
}

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
        PROMPT,
        Faults(cancel=0.4, crashes=4, drift=ALLOWED_DRIFT),
        concerns=EVERY,
        kinds=(MUTEXES[0], WEIGHTED[0]),
        healthy=True,
        prompt_within=0.05,
    ),
    Scenario(
        "embedded",
        "Processes of one machine die, are paused or suspended, wake-ups are lost, the file is locked for long",
        PROMPT,
        Faults(loss=0.5, straggler=0.1, errors=0.1, cancel=0.4, pauses=3, crashes=2),
        concerns=EMBEDDED,
        embedded=True,
        prompt_within=ASKING,
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
        {Invariant.BACKED: SECOND},
    ),
    Scenario(
        "amnesia",
        "The store forgets grants (it restarts without its state, or a replica that lags is promoted), while wall "
        "clocks agree",
        ALWAYS - {Invariant.CLEAN},
        Faults(loss=0.05, cancel=0.2, pauses=1, crashes=1, amnesia=3, failovers=2),
        FORGETS,
    ),
    Scenario(
        "amnesia_disorder",
        "The store forgets grants, and the wall clocks of clients disagree by seconds",
        ALWAYS - {Invariant.CLEAN, Invariant.TOKENS, Invariant.FENCE},
        Faults(disorder=5.0, loss=0.05, cancel=0.2, pauses=1, crashes=1, amnesia=3, failovers=2),
        {
            **FORGETS,
            Invariant.TOKENS: "a client whose clock is behind may be granted a smaller one",
            Invariant.FENCE: "they are told by their tokens",
        },
    ),
    Scenario(
        "force",
        "Somebody takes a name by force",
        ALWAYS,
        Faults(loss=0.1, cancel=0.2, pauses=1, crashes=1, revokes=4),
        {Invariant.BACKED: "the old holder is told as soon as it can be reached, not before"},
        concerns=EVERY,
    ),
)

BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}
