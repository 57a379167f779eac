"""The scenarios: the faults that may occur, and the invariants that hold under them.

The table in docs/guarantees.md is rendered from them. `make test-all` runs every scenario on thousands of seeds. For an
invariant that a scenario does not promise, the report has the number of runs that violated it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from simulation.at_store import RE_POLLED
from simulation.faults import Faults
from simulation.invariants import Invariant
from simulation.workload import MUTEXES, WEIGHTED, Kind
from tenure.stores.redis.deployment import NO_GUARD, OBSERVED, STRICT

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
        Invariant.JOB,
        Invariant.HANDOVER,
        Invariant.QUANTITY,
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


EVERY_STORE = "every store but a quorum"
EMBEDDED_STORES = "memory, SQLite"
REDIS = "Redis"
SERVERS = "Redis, PostgreSQL, MySQL"
TABLES = f"{EMBEDDED_STORES}, {SERVERS}"
PASSED_FOR_A_WHILE = "a waiter with `fair=False` may be passed until it has waited for `fair_after`"
REDIS_WITHOUT_GUARD = 'Redis with `guard="off"`'
OLD_HOLDER_TRUSTS = "the old holder still trusts its lease while a new holder is granted"


TTLS = (0.3, 1.0, 3.0, 8.0)
SHORT_TTLS = (0.3, 1.0, 3.0)
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
class Sql:
    """The SQL database of a scenario, on a simulated server."""

    guarded: bool = True
    """Whether its clients heed a quarantine."""
    strict: bool = False
    """Whether any restart of the server begins a quarantine."""


@dataclass(slots=True, frozen=True)
class Scenario:
    """A kind of deployment with a kind of faults."""

    name: str
    description: str
    """The faults, as the guarantee table describes them."""
    promises: frozenset[Invariant]
    faults: Faults
    exceptions: Mapping[Invariant, str] = field(default_factory=dict[Invariant, str], hash=False)
    """What the guarantee table says of an invariant that does not always hold: the reason, or the limit."""
    stores: str = REDIS
    """The stores in which these faults can occur, as the guarantee table names them."""
    row: str = ""
    """The scenario whose row of the guarantee table includes this scenario; "" if it has a row of its own."""
    embedded: bool = False
    """Whether the store is in the processes of the clients (memory, SQLite), which share one machine."""
    redis: Redis | None = None
    """The Redis servers; None: the store is no Redis server."""
    sql: Sql | None = None
    """The SQL database; None: the store is no SQL database."""
    rows: bool = False
    """Whether the store is a table of rows without a clock."""
    watched: bool = True
    """Whether clients hear of changes: of notifications, and of rows. If not, waiters poll, and no lease lingers."""
    quorum: int = 0
    """The number of independent nodes, of which a majority decides; 0: the store is no quorum."""
    ordered: bool = False
    """Whether the store is an ensemble with sessions and ordered entries."""
    guarded: bool = False
    """Whether a node of a quorum that restarted without its state gives no vote for the longest ttl."""
    ttls: tuple[float, ...] = TTLS
    """The ttls of the requests, in seconds."""
    kinds: tuple[Kind, ...] = MUTEXES
    jobs: bool = False
    """Whether clients call a job that runs once in a window."""
    quantities: bool = False
    """Whether clients use a counter, a limit and a stock."""
    barging: bool = False
    """Whether most clients allow that others pass them for a while (`fair=False`)."""
    multi_acquire: bool = False
    """Whether clients acquire several names in one multi-acquire."""
    handover: bool = False
    """Whether clients detach and adopt leases."""
    bounded: bool = False
    """Whether the store refuses an extension beyond the longest of `ttls`."""
    healthy: bool = False
    """Whether no lease may be lost, because the only faults are cancelled waiters and clients that die."""
    prompt_within: float = 0.0
    """Within how many seconds a live waiter is granted a free name; 0: there is no such promise."""


WITHDRAWN_REAPPEARS = "a withdrawn request may reappear until it expires"
REAPPEARS_AFTER_STEP = "after a step of more than 30 s a withdrawn request may reappear until it expires"
"""The store remembers a withdrawn request for 30 s by its own clock, the only clock that all clients share."""
FORGOTTEN_GRANTS = {Invariant.BACKED: OLD_HOLDER_TRUSTS, Invariant.CLEAN: WITHDRAWN_REAPPEARS}

NETWORK_FAULTS = Faults(
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
        stores=EVERY_STORE,
        kinds=(MUTEXES[0], WEIGHTED[0]),
        healthy=True,
        prompt_within=0.05,
    ),
    Scenario(
        "embedded",
        "Processes of one machine die, are paused or suspended, wake-ups are lost, the file is locked for long",
        PROMPT,
        Faults(loss=0.5, straggler=0.1, errors=0.1, cancel=0.4, pauses=3, crashes=2),
        stores=EMBEDDED_STORES,
        embedded=True,
        prompt_within=RE_POLLED,
    ),
    Scenario(
        "wire",
        "Messages are late, lost, repeated or reordered, connections break, networks split, servers stall, answer "
        "errors or restart with their state, clocks drift by up to 1 % or step back, clients die or are paused",
        SAFE,
        NETWORK_FAULTS,
        stores=SERVERS,
    ),
    Scenario(
        "weights",
        "The same, for semaphores and reader/writer names",
        SAFE,
        NETWORK_FAULTS,
        stores=SERVERS,
        kinds=WEIGHTED,
    ),
    Scenario(
        "jobs",
        "The same, for jobs that run once: each window is done at most once, in no more runs than attempts",
        SAFE,
        NETWORK_FAULTS,
        stores=REDIS,
        jobs=True,
    ),
    Scenario(
        "quantities",
        "The same, for counters, limits and stocks: each addition counts once, no window of a limit has too many "
        "units, no unit is sold twice, lost, or refused while enough are left",
        SAFE,
        NETWORK_FAULTS,
        stores=REDIS,
        quantities=True,
    ),
    Scenario(
        "clock_forward",
        "The store's clock steps forward, or clocks drift beyond the allowance",
        ALWAYS,
        Faults(loss=0.05, cancel=0.2, pauses=1, crashes=1, drift=0.2, clock_forward=4),
        {Invariant.BACKED: OLD_HOLDER_TRUSTS, Invariant.CLEAN: REAPPEARS_AFTER_STEP},
        stores=SERVERS,
    ),
    Scenario(
        "amnesia",
        "The store forgets grants (it restarts without its state, or a replica that lags is promoted), while wall "
        "clocks agree",
        FORGETFUL,
        Faults(loss=0.05, cancel=0.2, pauses=1, crashes=1, amnesia=3, failovers=2),
        FORGOTTEN_GRANTS,
        stores=REDIS_WITHOUT_GUARD,
    ),
    Scenario(
        "amnesia_disorder",
        "The store forgets grants, and the wall clocks of clients disagree by seconds",
        FORGETFUL - {Invariant.TOKENS, Invariant.FENCE},
        Faults(disorder=5.0, loss=0.05, cancel=0.2, pauses=1, crashes=1, amnesia=3, failovers=2),
        {
            **FORGOTTEN_GRANTS,
            Invariant.TOKENS: "a client whose clock is behind may be granted a smaller token",
            Invariant.FENCE: "a fence compares tokens, which may decrease",
        },
        stores=REDIS_WITHOUT_GUARD,
    ),
    Scenario(
        "force",
        "A name is revoked by force",
        ALWAYS,
        Faults(loss=0.1, cancel=0.2, pauses=1, crashes=1, revokes=4),
        {Invariant.BACKED: "the old holder still trusts its lease until the notification reaches it"},
        stores=EVERY_STORE,
    ),
    Scenario(
        "barging",
        "Waiters are cancelled and clients die, with `fair=False`",
        PROMPT,
        Faults(cancel=0.2, crashes=4, drift=ALLOWED_DRIFT),
        {Invariant.FIFO: PASSED_FOR_A_WHILE},
        stores=TABLES,
        healthy=True,
        prompt_within=0.05,
        barging=True,
    ),
    Scenario(
        "barging_wire",
        "Messages are late, lost, repeated or reordered, and whatever else goes wrong on the wire, with `fair=False`",
        SAFE,
        NETWORK_FAULTS,
        {Invariant.FIFO: PASSED_FOR_A_WHILE},
        stores=SERVERS,
        barging=True,
    ),
)
"""The scenarios whose node runs the grant table itself."""


def _on_redis(name: str, redis: Redis, *, ttls: tuple[float, ...] = TTLS, **faults: int) -> Scenario:
    """Return a scenario of the grant table as a scenario of Redis."""
    scenario = next(each for each in TABLED if each.name == name)
    faulty = replace(scenario.faults, **faults)
    return replace(scenario, name=f"redis_{name}", row=name, redis=redis, ttls=ttls, faults=faulty)


MULTI_ACQUIRE = replace(
    next(each for each in TABLED if each.name == "wire"),
    name="several",
    row="wire",
    kinds=(*MUTEXES, Kind("mutex-c", 1, (1,))),
    multi_acquire=True,
)
"""The scenario `wire`, with clients that use multi-acquire."""

HANDOVER = replace(
    next(each for each in TABLED if each.name == "wire"),
    name="handover",
    row="wire",
    kinds=(MUTEXES[0], *WEIGHTED),
    handover=True,
)
"""The scenario `wire`, with leases that clients detach and adopt."""

REDIS_FORGETS = Faults(
    loss=0.05,
    straggler=0.05,
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
"""All faults by which a Redis loses state: restarts and failovers."""

REDIS_FAILS_OVER = replace(REDIS_FORGETS, amnesia=0)

ALL_KINDS = (MUTEXES[0], *WEIGHTED)

ON_REDIS = (
    replace(MULTI_ACQUIRE, name="redis_several", redis=Redis(OBSERVED)),
    replace(HANDOVER, name="redis_handover", redis=Redis(OBSERVED)),
    _on_redis("calm", Redis(OBSERVED)),
    _on_redis("wire", Redis(OBSERVED), flushes=2),
    _on_redis("weights", Redis(OBSERVED), flushes=2),
    _on_redis("barging", Redis(OBSERVED)),
    _on_redis("barging_wire", Redis(OBSERVED), flushes=2),
    _on_redis("amnesia", Redis(NO_GUARD, copies=2), ttls=SHORT_TTLS),
    Scenario(
        "redis_strict",
        "Redis restarts with old data or with none, or a replica that lags is promoted",
        GUARDED,
        REDIS_FORGETS,
        {Invariant.CLEAN: WITHDRAWN_REAPPEARS},
        'Redis with `guard="strict"`',
        redis=Redis(STRICT, copies=2),
        bounded=True,
        kinds=ALL_KINDS,
        ttls=SHORT_TTLS,
    ),
    Scenario(
        "redis_observed",
        "Redis restarts with old data, or a replica that lags is promoted",
        GUARDED,
        REDIS_FAILS_OVER,
        {Invariant.CLEAN: WITHDRAWN_REAPPEARS},
        'Redis with `guard="observed"` (the default)',
        redis=Redis(OBSERVED, copies=2),
        bounded=True,
        kinds=ALL_KINDS,
        ttls=SHORT_TTLS,
    ),
    Scenario(
        "redis_failback",
        "A former master, which did not restart, is promoted again without the grants since then",
        GUARDED,
        Faults(
            loss=0.05, straggler=0.05, cancel=0.2, cuts=1, pauses=2, crashes=2, failbacks=2, newcomers=1, delays=0.5
        ),
        {Invariant.CLEAN: WITHDRAWN_REAPPEARS},
        'Redis with `guard="observed"` (the default) or `guard="strict"`',
        redis=Redis(OBSERVED, copies=2),
        kinds=ALL_KINDS,
        ttls=SHORT_TTLS,
    ),
    Scenario(
        "redis_known",
        "Redis restarts with no data at all, and all its clients have used it before",
        GUARDED,
        Faults(loss=0.05, straggler=0.05, cancel=0.2, cuts=1, pauses=2, crashes=2, amnesia=2, restarts=1, delays=0.5),
        {Invariant.CLEAN: WITHDRAWN_REAPPEARS},
        'Redis with `guard="observed"` (the default)',
        redis=Redis(OBSERVED, known=True),
        kinds=ALL_KINDS,
        ttls=SHORT_TTLS,
    ),
    Scenario(
        "redis_emptied",
        "Redis restarts with no data at all",
        FORGETFUL,
        replace(REDIS_FORGETS, failovers=0, newcomers=2),
        {
            Invariant.BACKED: "a client that never used it may send the first request",
            Invariant.CLEAN: WITHDRAWN_REAPPEARS,
        },
        'Redis with `guard="observed"` (the default)',
        redis=Redis(OBSERVED),
        ttls=SHORT_TTLS,
    ),
    Scenario(
        "redis_replicas",
        "A replica that lags is promoted",
        GUARDED,
        replace(REDIS_FAILS_OVER, stalls=3),
        {Invariant.CLEAN: WITHDRAWN_REAPPEARS},
        'Redis with `guard="off"` and `replicas` equal to their number',
        redis=Redis(NO_GUARD, copies=2, replicas=2),
        ttls=SHORT_TTLS,
    ),
)
"""The scenarios that run the shipped Lua."""

QUORUM = "a quorum"
BARGING = "barging, a newcomer may be granted a free name before the waiters"
NODES_FORGET = Faults(loss=0.05, cancel=0.2, pauses=1, crashes=1, amnesia=3, restarts=1)

ON_QUORUM = (
    Scenario(
        "quorum",
        "Messages are late, lost, repeated or reordered, connections break, networks split, nodes stall, answer errors "
        "or restart with their state, clocks drift by up to 1 % or step back, clients die or are paused",
        SAFE - {Invariant.FIFO},
        NETWORK_FAULTS,
        {Invariant.FIFO: BARGING},
        QUORUM,
        quorum=5,
    ),
    Scenario(
        "quorum_amnesia",
        "Nodes restart with old data or with none",
        GUARDED - {Invariant.FIFO},
        NODES_FORGET,
        {Invariant.FIFO: BARGING, Invariant.CLEAN: WITHDRAWN_REAPPEARS},
        QUORUM,
        quorum=3,
        guarded=True,
        bounded=True,
        ttls=SHORT_TTLS,
    ),
    Scenario(
        "quorum_disorder",
        "Nodes restart with old data or with none, and the wall clocks of clients disagree by seconds",
        GUARDED - {Invariant.FIFO, Invariant.TOKENS, Invariant.FENCE},
        replace(NODES_FORGET, amnesia=5, disorder=30.0),
        {
            Invariant.FIFO: BARGING,
            Invariant.CLEAN: WITHDRAWN_REAPPEARS,
            Invariant.TOKENS: "a node that two quorums share may have forgotten a larger token",
            Invariant.FENCE: "a fence compares tokens, which may decrease",
        },
        QUORUM,
        quorum=3,
        guarded=True,
        bounded=True,
        ttls=SHORT_TTLS,
    ),
    Scenario(
        "quorum_drift",
        "The clocks of nodes step forward, or drift beyond the allowance",
        ALWAYS - {Invariant.FIFO},
        Faults(loss=0.05, cancel=0.2, pauses=1, crashes=1, drift=0.2, clock_forward=4),
        {Invariant.FIFO: BARGING, Invariant.BACKED: OLD_HOLDER_TRUSTS, Invariant.CLEAN: REAPPEARS_AFTER_STEP},
        QUORUM,
        quorum=3,
    ),
)
"""The scenarios of a quorum of independent nodes."""

ENSEMBLE = "ZooKeeper, etcd"
ENSEMBLE_FAULTS = (
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
    replace(_on_ensemble("wire"), description=ENSEMBLE_FAULTS, stores=ENSEMBLE, row=""),
    replace(_on_ensemble("weights"), description=ENSEMBLE_FAULTS, row="ordered_wire"),
    _on_ensemble("force"),
)
"""The scenarios of an ensemble."""

SQL_DATABASES = "PostgreSQL, MySQL"


def _on_sql(name: str) -> Scenario:
    """Return a scenario of the grant table as a scenario of a SQL database."""
    scenario = next(each for each in (*TABLED, MULTI_ACQUIRE, HANDOVER) if each.name == name)
    return replace(scenario, name=f"sql_{name}", row=scenario.row or name, sql=Sql())


STANDBY_PROMOTED = Faults(
    loss=0.05,
    straggler=0.05,
    cancel=0.2,
    cuts=1,
    pauses=2,
    crashes=2,
    failovers=2,
    restarts=1,
    newcomers=1,
    delays=0.5,
)
"""The faults around a failover. Late requests arrive at another primary than the one that they were sent to."""

ON_SQL = (
    _on_sql("calm"),
    _on_sql("wire"),
    _on_sql("weights"),
    _on_sql("barging"),
    _on_sql("barging_wire"),
    _on_sql("several"),
    _on_sql("handover"),
    _on_sql("clock_forward"),
    _on_sql("force"),
    Scenario(
        "sql_failover",
        "A standby that lags is promoted while wall clocks agree, and nobody reaches the old primary any more",
        GUARDED,
        STANDBY_PROMOTED,
        {Invariant.CLEAN: WITHDRAWN_REAPPEARS},
        f'{SQL_DATABASES} with `guard="observed"` (the default) or `guard="strict"`',
        sql=Sql(),
        bounded=True,
        kinds=ALL_KINDS,
        ttls=SHORT_TTLS,
    ),
    Scenario(
        "sql_unguarded",
        "A standby that lags is promoted while wall clocks agree, and nobody reaches the old primary any more",
        FORGETFUL,
        STANDBY_PROMOTED,
        FORGOTTEN_GRANTS,
        f'{SQL_DATABASES} with `guard="off"`',
        sql=Sql(guarded=False),
        ttls=SHORT_TTLS,
    ),
)
"""The scenarios of a SQL database."""

ROWS = "NATS, DynamoDB, an object store, a folder, [a store of your own](own-store.md)"


def _on_rows(name: str) -> Scenario:
    """Return a scenario of the grant table as a scenario of a table of rows, which has no clock that could step."""
    scenario = next(each for each in (*TABLED, HANDOVER) if each.name == name)
    faults = replace(scenario.faults, clock_back=0, disorder=0.0 if scenario.quantities else scenario.faults.disorder)
    return replace(scenario, name=f"rows_{name}", stores=ROWS, faults=faults, rows=True)


ON_ROWS = (
    *map(_on_rows, ("wire", "weights", "jobs", "quantities", "force", "barging_wire", "handover")),
    replace(_on_rows("wire"), name="rows_polled", row="rows_wire", watched=False),
    replace(_on_rows("weights"), name="rows_polled_weights", row="rows_weights", watched=False),
)
"""The scenarios of a table of rows."""

SCENARIOS = (*TABLED, MULTI_ACQUIRE, HANDOVER, *ON_REDIS, *ON_QUORUM, *ON_ENSEMBLE, *ON_SQL, *ON_ROWS)

BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}
