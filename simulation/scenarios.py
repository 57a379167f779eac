"""The scenarios: which faults may occur, and which invariants hold nevertheless.

The table in docs/guarantees.md is rendered from them. `make test-all` runs every scenario on thousands of seeds. For an
invariant that a scenario does not promise, the number of runs that broke it is reported.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from holdfast.stores.redis.servers.deployment import NO_GUARD, OBSERVED, STRICT
from simulation.at_store import RE_POLLED
from simulation.faults import Faults
from simulation.invariants import Invariant
from simulation.workload import MUTEXES, WEIGHTED, Kind

ALWAYS = frozenset(
    {
        Invariant.TOKENS,
        Invariant.FENCE,
        Invariant.FIFO,
        Invariant.ONCE,
        Invariant.DELAY,
        Invariant.GUARD,
        Invariant.PUSH,
        Invariant.WHOLE,
        Invariant.LOSS,
        Invariant.OVERHELD,
        Invariant.MIN_HOLD,
        Invariant.CLEAN,
        Invariant.DRAINED,
        Invariant.NO_ERRORS,
    }
)
SAFE = ALWAYS | {Invariant.EXCLUSION, Invariant.BACKED, Invariant.KEPT, Invariant.SHARED}
PROMPT = SAFE | {Invariant.PROMPT}
FORGETFUL = ALWAYS - {Invariant.CLEAN}
GUARDED = FORGETFUL | {Invariant.EXCLUSION, Invariant.BACKED, Invariant.SHARED}

ALLOWED_DRIFT = 0.0049
"""Each clock's own share of the 1 % that two clocks may drift apart."""


EVERY = "every store"
EMBEDDED = "memory, SQLite"
REDIS = "Redis"
UNGUARDED = 'Redis with `guard="off"`'
SECOND = "the old holder still trusts its lease while a new holder is granted"


TTLS = (0.3, 1.0, 3.0, 8.0)
SHORT = (0.3, 1.0, 3.0)
"""The ttls of scenarios in which many quarantines must end within the run."""


@dataclass(slots=True, frozen=True)
class Redis:
    """The Redis of a scenario: the shipped Lua on simulated servers."""

    guard: int
    copies: int = 0
    """The number of replicas. If there are any, a Sentinel names the master."""
    replicas: int = 0
    """How many replicas must have a grant before it counts."""
    known: bool = False
    """Whether every client has used this Redis before."""


@dataclass(slots=True, frozen=True)
class Scenario:
    """A kind of deployment with a kind of faults."""

    name: str
    happens: str
    """The faults, in the words of the guarantee table."""
    promises: frozenset[Invariant]
    faults: Faults
    unless: Mapping[Invariant, str] = field(default_factory=dict[Invariant, str], hash=False)
    """The reason or the limit of an invariant that does not hold, or not always, in the guarantee table."""
    concerns: str = REDIS
    """The stores that can meet these faults."""
    row: str = ""
    """The scenario with the same row of the guarantee table, for another kind of node; "" if this one has its own."""
    embedded: bool = False
    redis: Redis | None = None
    quorum: int = 0
    """The number of independent nodes, of which a majority decides; 0: the store is no quorum."""
    ordered: bool = False
    """Whether the store is an ensemble with sessions and ordered entries."""
    guarded: bool = False
    """Whether a node of a quorum that forgot its state gives no vote for the longest ttl."""
    ttls: tuple[float, ...] = TTLS
    """The ttls of the requests, in seconds."""
    kinds: tuple[Kind, ...] = MUTEXES
    several: bool = False
    """Whether clients acquire several names at once."""
    bounded: bool = False
    """Whether the longest of `ttls` is the longest that the store grants, so that it refuses a longer extension."""
    healthy: bool = False
    """Whether the only faults are cancelled waiters and clients that die: then no lease may be lost at all."""
    prompt_within: float = 0.0
    """How long a free name may have a live waiter, in seconds; 0: there is no such promise."""


GIVEN_UP = "a withdrawn request may reappear until it expires"
FORWARD = "after a step of more than 30 s a withdrawn request may reappear until it expires"
"""The store remembers a withdrawn request for 30 s by its own clock, the only clock that all clients share."""
FORGETS = {Invariant.BACKED: SECOND, Invariant.CLEAN: GIVEN_UP}

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

TABLED = (
    Scenario(
        "calm",
        "Waiters are cancelled and clients die; nothing else goes wrong",
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
        prompt_within=RE_POLLED,
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
        {Invariant.BACKED: SECOND, Invariant.CLEAN: FORWARD},
    ),
    Scenario(
        "amnesia",
        "The store forgets grants (it restarts without its state, or a replica that lags is promoted), while wall "
        "clocks agree",
        FORGETFUL,
        Faults(loss=0.05, cancel=0.2, pauses=1, crashes=1, amnesia=3, failovers=2),
        FORGETS,
        concerns=UNGUARDED,
    ),
    Scenario(
        "amnesia_disorder",
        "The store forgets grants, and the wall clocks of clients disagree by seconds",
        FORGETFUL - {Invariant.TOKENS, Invariant.FENCE},
        Faults(disorder=5.0, loss=0.05, cancel=0.2, pauses=1, crashes=1, amnesia=3, failovers=2),
        {
            **FORGETS,
            Invariant.TOKENS: "a client whose clock is behind may be granted a smaller one",
            Invariant.FENCE: "a fence compares tokens, which may decrease",
        },
        concerns=UNGUARDED,
    ),
    Scenario(
        "force",
        "A name is revoked by force",
        ALWAYS,
        Faults(loss=0.1, cancel=0.2, pauses=1, crashes=1, revokes=4),
        {Invariant.BACKED: "the old holder still trusts its lease until the notification reaches it"},
        concerns=EVERY,
    ),
)
"""The scenarios whose node runs the grant table itself."""


def _on_redis(name: str, redis: Redis, *, ttls: tuple[float, ...] = TTLS, **faults: int) -> Scenario:
    """Return a scenario of the grant table as a scenario of Redis."""
    scenario = next(each for each in TABLED if each.name == name)
    faulty = replace(scenario.faults, **faults)
    return replace(scenario, name=f"redis_{name}", row=name, redis=redis, ttls=ttls, faults=faulty)


SEVERAL = replace(
    next(each for each in TABLED if each.name == "wire"),
    name="several",
    row="wire",
    kinds=(*MUTEXES, Kind("mutex-c", 1, (1,))),
    several=True,
)
"""The scenario `wire`, with clients that acquire several names at once."""

LOSES = Faults(
    loss=0.05,
    cancel=0.2,
    cuts=1,
    pauses=1,
    crashes=2,
    amnesia=2,
    failovers=2,
    restarts=1,
    newcomers=1,
    delays=0.5,
)
"""All ways in which a Redis loses state by a restart or a failover."""

FAILS_OVER = replace(LOSES, amnesia=0)

MIXED = (MUTEXES[0], *WEIGHTED)

ON_REDIS = (
    replace(SEVERAL, name="redis_several", redis=Redis(OBSERVED)),
    _on_redis("calm", Redis(OBSERVED)),
    _on_redis("wire", Redis(OBSERVED), flushes=2),
    _on_redis("weights", Redis(OBSERVED), flushes=2),
    _on_redis("amnesia", Redis(NO_GUARD, copies=2), ttls=SHORT),
    Scenario(
        "redis_strict",
        "Redis restarts with old data or with none, or a replica that lags is promoted",
        GUARDED,
        LOSES,
        {Invariant.CLEAN: GIVEN_UP},
        'Redis with `guard="strict"`',
        redis=Redis(STRICT, copies=2),
        bounded=True,
        kinds=MIXED,
        ttls=SHORT,
    ),
    Scenario(
        "redis_observed",
        "Redis restarts with old data, or a replica that lags is promoted",
        GUARDED,
        FAILS_OVER,
        {Invariant.CLEAN: GIVEN_UP},
        'Redis with `guard="observed"` (the default)',
        redis=Redis(OBSERVED, copies=2),
        bounded=True,
        kinds=MIXED,
        ttls=SHORT,
    ),
    Scenario(
        "redis_failback",
        "A former master, which did not restart, is promoted again without the grants of the master between",
        GUARDED,
        Faults(loss=0.05, cancel=0.2, cuts=1, pauses=2, crashes=2, failbacks=2, newcomers=1, delays=0.5),
        {Invariant.CLEAN: GIVEN_UP},
        'Redis with `guard="observed"` (the default) or `guard="strict"`',
        redis=Redis(OBSERVED, copies=2),
        kinds=MIXED,
        ttls=SHORT,
    ),
    Scenario(
        "redis_known",
        "Redis restarts with no data at all, and all its clients have used it before",
        GUARDED,
        Faults(loss=0.05, cancel=0.2, cuts=1, pauses=2, crashes=2, amnesia=2, restarts=1, delays=0.5),
        {Invariant.CLEAN: GIVEN_UP},
        'Redis with `guard="observed"` (the default)',
        redis=Redis(OBSERVED, known=True),
        kinds=MIXED,
        ttls=SHORT,
    ),
    Scenario(
        "redis_emptied",
        "Redis restarts with no data at all",
        FORGETFUL,
        replace(LOSES, failovers=0, newcomers=2),
        {Invariant.BACKED: "a client that never used it may send the first request", Invariant.CLEAN: GIVEN_UP},
        'Redis with `guard="observed"` (the default)',
        redis=Redis(OBSERVED),
        ttls=SHORT,
    ),
    Scenario(
        "redis_replicas",
        "A replica that lags is promoted",
        GUARDED,
        replace(FAILS_OVER, stalls=3),
        {Invariant.CLEAN: GIVEN_UP},
        'Redis with `guard="off"` and `replicas` equal to their number',
        redis=Redis(NO_GUARD, copies=2, replicas=2),
        ttls=SHORT,
    ),
)
"""The scenarios that run the shipped Lua."""

QUORUM = "a quorum"
BY_CHANCE = "only nearly, for a newcomer may be granted a free name before the waiters (barging)"
FORGETTING = Faults(loss=0.05, cancel=0.2, pauses=1, crashes=1, amnesia=3, restarts=1)

ON_QUORUM = (
    Scenario(
        "quorum",
        "Messages are late, lost, repeated or reordered, connections break, networks split, nodes stall, answer errors "
        "or restart with their state, clocks drift by up to 1 % or step back, clients die or are paused",
        SAFE - {Invariant.FIFO},
        WIRE,
        {Invariant.FIFO: BY_CHANCE},
        QUORUM,
        quorum=5,
    ),
    Scenario(
        "quorum_amnesia",
        "Nodes restart with old data or with none",
        GUARDED - {Invariant.FIFO},
        FORGETTING,
        {Invariant.FIFO: BY_CHANCE, Invariant.CLEAN: GIVEN_UP},
        QUORUM,
        quorum=3,
        guarded=True,
        bounded=True,
        ttls=SHORT,
    ),
    Scenario(
        "quorum_disorder",
        "Nodes restart with old data or with none, and the wall clocks of clients disagree by seconds",
        GUARDED - {Invariant.FIFO, Invariant.TOKENS, Invariant.FENCE},
        replace(FORGETTING, amnesia=5, disorder=30.0),
        {
            Invariant.FIFO: BY_CHANCE,
            Invariant.CLEAN: GIVEN_UP,
            Invariant.TOKENS: "a node that two quorums share may have forgotten a larger one",
            Invariant.FENCE: "a fence compares tokens, which may decrease",
        },
        QUORUM,
        quorum=3,
        guarded=True,
        bounded=True,
        ttls=SHORT,
    ),
    Scenario(
        "quorum_drift",
        "The clocks of nodes step forward, or drift beyond the allowance",
        ALWAYS - {Invariant.FIFO},
        Faults(loss=0.05, cancel=0.2, pauses=1, crashes=1, drift=0.2, clock_forward=4),
        {Invariant.FIFO: BY_CHANCE, Invariant.BACKED: SECOND, Invariant.CLEAN: FORWARD},
        QUORUM,
        quorum=3,
    ),
)
"""The scenarios of a quorum of independent nodes."""

ENSEMBLE = "ZooKeeper, etcd"
ELECTS = (
    "Messages are late or lost, connections break, networks split, the ensemble stalls, answers errors or elects "
    "another leader, clocks drift by up to 1 %, clients die or are paused; also for semaphores and reader/writer names"
)


def _on_ensemble(name: str) -> Scenario:
    """Return a scenario of the grant table for an ensemble: TCP repeats no request, and the clock is monotonic."""
    scenario = next(each for each in TABLED if each.name == name)
    faults = replace(scenario.faults, duplicate=0.0, clock_back=0)
    return replace(scenario, name=f"ordered_{name}", row=name, ordered=True, faults=faults)


ON_ENSEMBLE = (
    _on_ensemble("calm"),
    replace(_on_ensemble("wire"), happens=ELECTS, concerns=ENSEMBLE, row=""),
    replace(_on_ensemble("weights"), happens=ELECTS, row="ordered_wire"),
    _on_ensemble("force"),
)
"""The scenarios of an ensemble."""

SCENARIOS = (*TABLED, SEVERAL, *ON_REDIS, *ON_QUORUM, *ON_ENSEMBLE)

BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}
