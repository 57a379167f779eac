"""The table of workloads: what each measures, on which contenders, and its bounds."""

import statistics
from collections.abc import Callable, Iterable, Sequence

from bench import cost, floors, handoff, hot, killed, pair, queue, sale, start
from bench.contenders import (
    ADD,
    ADVISORY,
    ADVISORY_ASYNCIO,
    AETCD,
    AGAIN,
    AIOREDLOCK,
    ASYNCIO,
    ASYNCIO_LOCK,
    BARGING,
    DLOCK,
    FASTENERS,
    FILELOCK,
    FILELOCK_QUICK,
    GET_LOCK,
    GET_LOCK_ASYNCIO,
    HAND,
    HOT,
    KAZOO,
    KAZOO_AGAIN,
    KAZOO_QUEUE,
    LINGER,
    LINGER_WITH,
    MEMORY_ASYNCIO,
    MEMORY_THREADS,
    PALS,
    PIPE,
    PLAIN,
    POLLING,
    POTTERY,
    POTTERY_ASYNCIO,
    REDIS_ASYNC,
    REDIS_ASYNC_QUICK,
    REDIS_ASYNC_UVLOOP,
    REDIS_LOCK,
    REDIS_PY,
    REDIS_PY_QUICK,
    REDLOCK_NG,
    REDLOCK_NG_ASYNCIO,
    REDLOCK_PY,
    SHERLOCK,
    SQLITE_ASYNCIO,
    SQLITE_THREADS,
    TAKE,
    THREADING_LOCK,
    THREADS,
    TOOZ,
    UNAWAITED,
    UVLOOP,
)  # fmt: skip
from bench.harness import Case, Column, Limit, Size, middle
from bench.peers.programs import CURATOR, GO, REDISSON, RUEIDISLOCK
from bench.servers import ETCD, FILES, MEMCACHED, MYSQL, ONE, POSTGRESQL, QUORUM, REDIS, THREE, ZOOKEEPER
from bench.workload import Workload

CLIENTS = (THREADS, ASYNCIO)
A_PAIR = "an uncontended acquire + release"
A_HANDOFF = "from the start of a release in one process to the return of acquire in the next"
WAKING = "each hand-off is a script and wakes another process, and all processes and the server share the cores"
POLLS = "the head of the queue re-polls, and the holder renews, without a notification"

Cases = Callable[[Size, Sequence[str]], list[Case]]


def crowd(labels: Iterable[str], processes: int, hold: float, members: int = 0) -> list[Case]:
    """Return a case for each contender: some processes, with a number of members each, hold the lock for so long."""
    clients = f"{processes} x {members}," if members else f"{processes} x"
    prefix = f"{clients} {hold * 1000:g} ms, "
    return [Case(label, prefix, "", processes, max(1, members), hold) for label in labels]


def _of_size(make: Callable[[Size], list[Case]]) -> Cases:
    return lambda size, _places: make(size)


def _ensembles(size: Size) -> Sequence[str]:
    return (ONE, THREE) if size.ensembles else (ONE,)


# fmt: off
# -- files --------------------------------------------------------------------------------------------------------

OF_THREADS = (SQLITE_THREADS, MEMORY_THREADS, FILELOCK, FASTENERS, THREADING_LOCK)
OF_TASKS = (SQLITE_ASYNCIO, MEMORY_ASYNCIO, ASYNCIO_LOCK)
OF_PROCESSES = (SQLITE_THREADS, SQLITE_ASYNCIO, FILELOCK, FASTENERS, PIPE)

IN_FILES = (
    Workload("pair", pair.run, A_PAIR, FILES,
        (
            SQLITE_THREADS,
            floors.SQLITE,
            SQLITE_ASYNCIO,
            MEMORY_THREADS,
            MEMORY_ASYNCIO,
            THREADING_LOCK,
            FILELOCK,
            FASTENERS,
        ), [Limit(SQLITE_THREADS, 3.0, floors.SQLITE, floor=MEMORY_THREADS)], pair.over(bare=floors.SQLITE)),
    Workload(
        "handoff",
        handoff.run,
        A_HANDOFF,
        FILES,
        (SQLITE_THREADS, SQLITE_ASYNCIO, FILELOCK, FILELOCK_QUICK, FASTENERS, PIPE),
        columns=handoff.columns(SQLITE_THREADS),
        options={"hold": (0.005, 0.055)},  # the 50 ms of filelock
    ),
    Workload("threads32", hot.run, "{threads} threads of one process on one name", FILES, OF_THREADS,
        columns=hot.share_of(THREADING_LOCK),
        options={"cases": lambda size, _: [Case(label, members=size.threads) for label in OF_THREADS]}),
    Workload("tasks256", hot.run,
        "{tasks} asyncio tasks of one process on one name; each holds it for one turn of the event loop", FILES,
        OF_TASKS, columns=hot.share_of(ASYNCIO_LOCK),
        options={"cases": lambda size, _: [Case(label, members=size.tasks, hold=hot.TURN) for label in OF_TASKS]}),
    Workload("fair", hot.run, "{processes} processes contend for {seconds:g} s, each holds for 1 ms", FILES,
        OF_PROCESSES, [Limit(label, 20.0, figure="farthest", unit=" %") for label in (SQLITE_THREADS, SQLITE_ASYNCIO)],
        hot.COLUMNS,
        {"cases": lambda size, _: [Case(label, "", "", size.processes, hold=0.001) for label in OF_PROCESSES]}),
    Workload("killed", killed.run, "a holder with ttl {ttl:g} s is killed: the time until the waiter is granted", FILES,
        (SQLITE_THREADS, SQLITE_ASYNCIO, FILELOCK),
        [killed.late(label, 50.0, max) for label in (SQLITE_THREADS, SQLITE_ASYNCIO)], killed.COLUMNS,
        {"holders": {SQLITE_ASYNCIO: SQLITE_THREADS}}),
    Workload("start", start.run, "the start of a process, to its end",
        limits=[
            Limit(start.IMPORT, 60.0, figure="beyond", unit=" ms", scale=1e3),
            Limit(start.COMMAND, 200.0, unit=" ms", scale=1e3),
        ], columns=start.COLUMNS),
)

# -- one Redis server ---------------------------------------------------------------------------------------------

ONE_REDIS = (REDIS_PY, REDIS_PY_QUICK, REDIS_LOCK, POTTERY)


def _hot_limits(size: Size) -> list[Limit]:
    prefix = f"{max(size.hot)} x 0 ms, "
    ours, bare = prefix + THREADS, prefix + floors.OWN
    return [
        Limit(ours, 3.0, prefix + REDIS_LOCK, "rate", at_least=True, floor=bare, why=WAKING),
        Limit(ours, 1.8, prefix + REDIS_PY, "rate", at_least=True, floor=bare, why=WAKING),
        Limit(ours, 2.0, figure="requests", pick=lambda values: round(statistics.median(values), 2), why=POLLS),
        Limit(ours, 0.9, figure="fairness", at_least=True),
        Limit(ours, 5.0, figure="worst"),
    ]


def _hot_cases(size: Size) -> list[Case]:
    cases: list[Case] = []
    for processes in size.hot:
        more = (ASYNCIO, floors.OWN) if processes == max(size.hot) else ()
        cases += crowd((THREADS, *more, *ONE_REDIS), processes, 0.0) + crowd((THREADS, *ONE_REDIS), processes, 0.002)
    return cases


def _barging_limits(size: Size) -> list[Limit]:
    prefix = f"{max(size.hot)} x 0 ms, "
    return [
        Limit(prefix + BARGING, 1.0, prefix + REDIS_PY, "rate", at_least=True),
        Limit(prefix + BARGING, 1.0, figure="longest", pick=max, unit=" s"),
    ]


BARGERS = (BARGING, THREADS, REDIS_PY)
IN_THREADS = (THREADS, REDIS_PY, REDIS_PY_QUICK, REDIS_LOCK, RUEIDISLOCK, REDISSON)
IN_TASKS = (ASYNCIO, REDIS_ASYNC, REDIS_ASYNC_QUICK)


def _queue_cases(size: Size) -> list[Case]:
    return [
        *(Case(label, members=size.threads) for label in IN_THREADS),
        *(Case(label, members=size.tasks) for label in IN_TASKS),
        Case(THREADS, f"{size.crowds} x 4 threads, ", processes=size.crowds, members=4),
    ]


def _queue_limits(size: Size) -> list[Limit]:
    return [
        Limit(THREADS, 10.0, (REDIS_PY, REDIS_PY_QUICK, REDIS_LOCK), "rate", at_least=True),
        Limit(THREADS, 0.2, figure="requests"),
        Limit(ASYNCIO, 10.0, (REDIS_ASYNC, REDIS_ASYNC_QUICK), "rate", at_least=True),
        Limit(ASYNCIO, 0.2, figure="requests"),
        Limit(f"{size.crowds} x 4 threads, {THREADS}", 0.7, figure="even", at_least=True),
    ]


IN_REDIS = (
    Workload("redis_pair", pair.run, A_PAIR, REDIS,
        (THREADS, floors.OWN, floors.LEAST, REDIS_PY, REDIS_LOCK, POTTERY, ASYNCIO, UVLOOP, RUEIDISLOCK, REDISSON),
        [
            Limit(THREADS, 1.4, floors.OWN),
            Limit(THREADS, 1.25, floors.LEAST, floor=floors.OWN),
            Limit(THREADS, 1.0, RUEIDISLOCK, floor=floors.OWN),
            Limit(THREADS, 1.0, REDISSON, floor=floors.OWN),
            Limit(REDIS_PY, 1.5, THREADS, at_least=True, floor=floors.OWN),
            Limit(THREADS, 1.2, floors.LEAST, "servers", floor=floors.OWN),
            Limit(THREADS, 1.3, floors.LEAST, "client", floor=floors.OWN),
        ], pair.over(own=floors.OWN, least=floors.LEAST)),
    Workload("redis_busy_pair", pair.run, f"{A_PAIR}, on a machine of which another process keeps each core busy",
        REDIS, (THREADS, floors.OWN, floors.LEAST, REDIS_PY),
        [Limit(REDIS_PY, 2.2, THREADS, at_least=True, floor=floors.OWN)], pair.over(own=floors.OWN, least=floors.LEAST),
        {"busy": True}),
    Workload("redis_far_pair", pair.run,
        f"{A_PAIR}, at a round trip of 0.5 ms and what the relay takes, which delays each message", REDIS,
        (THREADS, UNAWAITED, floors.PING, floors.OWN, REDIS_PY),
        [
            Limit(REDIS_PY, 1.1, THREADS, at_least=True, floor=floors.OWN),
            Limit(REDIS_PY, 1.8, UNAWAITED, at_least=True, floor=floors.OWN),
        ], pair.over(PING=floors.PING), {"delay": 0.00025}),
    Workload("redis_tasks64", pair.many, "64 asyncio tasks, each on a name of its own", REDIS,
        (ASYNCIO, UVLOOP, REDIS_ASYNC, REDIS_ASYNC_UVLOOP, floors.ALL_AT_ONCE),
        [
            Limit(ours, 8.0, theirs, "rate", at_least=True, floor=floors.ALL_AT_ONCE)
            for ours, theirs in ((ASYNCIO, REDIS_ASYNC), (UVLOOP, REDIS_ASYNC_UVLOOP))
        ], (Column("pairs/s", "rate", middle(",.0f")), Column(f"over {REDIS_ASYNC}", "rate", str, REDIS_ASYNC))),
    Workload("redis_take", pair.run, "one uncontended take of a unit", REDIS, (TAKE, ADD, HAND, PLAIN),
        [Limit(label, 1.5, HAND) for label in (TAKE, ADD)], pair.over(hand=HAND), {"cores": 2}),
    Workload("redis_sale", sale.run, "{buyers} processes buy one unit at a time, until {units:,} are sold", REDIS,
        limits=[
            Limit(sale.STOCK, 0, figure="wrong", pick=max),
            Limit(sale.STOCK, 5.0, sale.LOCK, "rate", at_least=True),
        ], columns=sale.COLUMNS),
    Workload("redis_hot", hot.run, "processes on one hot lock, each holds it for so long, {window:g} s", REDIS,
        (THREADS, ASYNCIO, floors.OWN, *ONE_REDIS), _hot_limits, hot.COLUMNS,
        {"cases": _of_size(_hot_cases), "window": "window", "rounds": "hot_rounds"}),
    Workload("redis_barging", hot.run, "processes on one hot lock, each holds it for so long, {window:g} s", REDIS,
        BARGERS, _barging_limits, hot.COLUMNS,
        {
            "cases": lambda size, _: [case for hold in (0.0, 0.002) for case in crowd(BARGERS, max(size.hot), hold)],
            "window": "window",
            "rounds": "hot_rounds",
        }),
    Workload("redis_handoff", handoff.run, f"{A_HANDOFF}, by delay each way", REDIS,
        (floors.PING, THREADS, ASYNCIO, REDIS_PY, REDIS_LOCK),
        [Limit(f"0 ms, {THREADS}", 0.4, f"0 ms, {REDIS_LOCK}", "wait", floor=f"0 ms, {floors.PING}")],
        handoff.columns(floors.PING), {"delays": (0.0, 0.001, 0.004)}),
    Workload("redis_killed", killed.run, "a holder with ttl {ttl:g} s is killed: the time until the waiter is granted",
        REDIS, (THREADS, ASYNCIO, REDIS_PY, REDIS_LOCK),
        [killed.late(label, 25.0, statistics.median) for label in CLIENTS], killed.COLUMNS,
        {"holders": {ASYNCIO: THREADS}}),
    Workload("redis_keep", cost.keep, "{leases:,} leases of one client, ttl {leases_ttl:g} s", REDIS,
        limits=cost.keep_limits, columns=cost.RENEWALS),
    Workload("redis_memory", cost.memory, "memory of each waiter", REDIS, columns=cost.MEMORY),
    Workload(
        "linger",
        pair.run,
        "a lock that one thread takes again and again",
        REDIS,
        (LINGER, LINGER_WITH, THREADS, REDIS_PY),
        [
            Limit(LINGER, 300_000, figure="pairs/s", at_least=True, why="all of a pair is Python: it makes two leases"),
            Limit(LINGER, 0.01, figure="requests", pick=statistics.mean),
        ],
        (*pair.over(), pair.RATE),
        {"times": 50},  # over several spans of tokens
    ),
    Workload("redis_local_queues", hot.run,
        "{threads} threads, {tasks} tasks of one process, then processes, on one hot lock", REDIS,
        (*IN_THREADS, *IN_TASKS), _queue_limits, hot.COLUMNS, {"cases": _of_size(_queue_cases), "share": 0.08}),
    Workload("redis_writers", queue.steps, "writers wait behind a reader",
        limits=lambda size: [
            Limit(f"redis, {size.tasks_waiting} waiting", 0, figure="lost", pick=sum),
            Limit(f"redis, {size.tasks_waiting} waiting", 3.0, f"redis, {size.waiters[0]} waiting", "each"),
        ], columns=queue.STEPS,
        options={"stores": (REDIS,), "counts": lambda size: (size.waiters[0], size.tasks_waiting)}),
    Workload("steps", queue.steps, "the head of a long queue and of a short one, on each store with a queue",
        limits=lambda size: [
            Limit(f"{store}, {size.waiters[1]} waiting", 2.0, f"{store}, {size.waiters[0]} waiting", "step")
            for store in queue.QUEUES
        ], columns=queue.STEPS),
)

# -- groups of servers --------------------------------------------------------------------------------------------

REDLOCKS = {
    THREADS: (REDLOCK_NG, REDLOCK_PY, POTTERY),
    ASYNCIO: (REDLOCK_NG_ASYNCIO, POTTERY_ASYNCIO, AIOREDLOCK),
}
"""The peers of each form of Tenure's API."""


def _quorum_limits(_size: Size) -> list[Limit]:
    rows = {ours: [f"5 nodes, {peer}" for peer in peers] for ours, peers in REDLOCKS.items()}
    bare = f"5 nodes, {floors.NODES_OWN}"
    return [
        *(Limit(f"5 nodes, {ours}", 3.0, f"1 node, {ours}", floor=bare) for ours in rows),
        *(Limit(peers, 2.5, f"5 nodes, {ours}", at_least=True, floor=bare) for ours, peers in rows.items()),
        Limit(f"5 nodes, {REDLOCK_PY}", 2.0, f"5 nodes, {THREADS}", at_least=True, floor=bare),
    ]


def _near(floor: str, limit: float, peers: Sequence[str], why: str, program: str = "") -> Callable[[Size], list[Limit]]:
    """Compare pairs with their floor, and with the best peer in Python or the program, on each group of servers."""

    def limits(size: Size) -> list[Limit]:
        found: list[Limit] = []
        for place in _ensembles(size):
            bare, best = f"{place}, {floor}", [f"{place}, {peer}" for peer in peers]
            for ours in (f"{place}, {label}" for label in CLIENTS):
                found += [Limit(ours, limit, bare, why=why), Limit(ours, 1.0, best, floor=bare)]
            if program:
                found.append(Limit(f"{place}, {THREADS}", 1.3, f"{place}, {program}", floor=bare))
        return found

    return limits


def _of_ensembles(  # noqa: PLR0917
    store: str, peers: Sequence[str], floor: str, program: str, waiter: str, near: Callable[[Size], list[Limit]]
) -> list[Workload]:
    in_threads = {HOT: 16, AGAIN: 1, program: 16, floor: 1}
    return [
        Workload(f"{store}_pair", pair.run, A_PAIR, store, (*CLIENTS, *peers, floor, program), near,
            pair.over(floor=floor)),
        Workload(f"{store}_hot", hot.run, "threads of one process on one name, which they hold for no time: 16 or 1",
            store, tuple(in_threads),
            lambda size: [
                Limit(f"{place}, {HOT}", 10.0, f"{place}, {program}", "rate", at_least=True)
                for place in _ensembles(size)
            ], hot.share_of(floor),
            {
                "cases": lambda _, places: [
                    Case(label, f"{place}, ", place, members=members)
                    for place in places
                    for label, members in in_threads.items()
                ],
                "warm": True,
            }),
        Workload(f"{store}_queue", queue.run, "{queue} clients wait for one lock, evenly on all servers", store,
            (*CLIENTS, waiter),
            lambda size: [
                Limit(f"{place}, {label}", 1.0, figure="events") for place in _ensembles(size) for label in CLIENTS
            ], queue.COLUMNS),
    ]


IN_GROUPS = (
    Workload("quorum_pair", pair.run, f"{A_PAIR} on a quorum", QUORUM,
        (
            *(label for ours, peers in REDLOCKS.items() for label in (ours, *peers)),
            floors.NODES_OWN,
            floors.NODES_LEAST,
        ), _quorum_limits, pair.over(one_node=f"1 node, {THREADS}", least=floors.NODES_LEAST),
        {"ours_only": ("1 node",), "part": 2}),
    Workload("quorum_hot", hot.run, "processes on one hot lock on 5 nodes, each holds it for so long, {window:g} s",
        QUORUM, (THREADS, REDLOCK_NG, REDLOCK_PY, POTTERY),
        lambda size: [
            Limit(f"{size.processes} x {hold} ms, {THREADS}", 0, figure="overlaps", pick=sum) for hold in (0, 2)
        ], hot.COLUMNS,
        {
            "cases": lambda size, _: [
                Case(case.label, case.prefix, "5 nodes", case.processes, hold=hold)
                for hold in (0.0, 0.002)
                for case in crowd((THREADS, REDLOCK_NG, REDLOCK_PY, POTTERY), size.processes, hold)
            ],
            "window": "window",
            "rounds": "hot_rounds",
            "timeout": 1.0,
        }),
    *_of_ensembles(
        ZOOKEEPER,
        (KAZOO, KAZOO_AGAIN),
        floors.CREATE_DELETE,
        CURATOR,
        KAZOO_QUEUE,
        _near(
            floors.CREATE_DELETE,
            1.2,
            (KAZOO, KAZOO_AGAIN),
            "a pair has a third request, because a new node does not tell which nodes were there before",
        ),
    ),
    *_of_ensembles(
        ETCD,
        (AETCD,),
        floors.PUT_DELETE,
        GO,
        AETCD,
        _near(floors.PUT_DELETE, 1.5, (AETCD,), "the requests of a pair also compare keys and list the name", GO),
    ),
)

# -- databases and memcached --------------------------------------------------------------------------------------

PEERS = {POSTGRESQL: (PALS, DLOCK, TOOZ), MYSQL: (DLOCK, TOOZ), MEMCACHED: (TOOZ, SHERLOCK)}
SESSIONS = {POSTGRESQL: (ADVISORY, ADVISORY_ASYNCIO), MYSQL: (GET_LOCK, GET_LOCK_ASYNCIO), MEMCACHED: ()}
"""The contenders whose locks end with their sessions."""
BARE = {POSTGRESQL: (floors.ADVISORY,), MYSQL: (floors.GET_LOCK,), MEMCACHED: ()}
"""The floors that are locks themselves."""
FAIR_HOLD = 0.001


def _clients(size: Size) -> list[tuple[int, int, float]]:
    """Return who contends: as many clients in three ways (processes, threads of each), and who is to be fair."""
    most, few = size.threads, max(1, size.threads // 8)
    return [(1, most, 0.0), (few, most // few, 0.0), (most, 1, 0.0), (min(size.processes, most), 1, FAIR_HOLD)]


def _dlock_cases(size: Size) -> list[tuple[int, float]]:
    return [(processes, hold) for processes in size.hot for hold in (0.0, 0.002)]


def _database_hot(store: str) -> Workload:
    labels = (*CLIENTS, *SESSIONS[store], *PEERS[store], *BARE[store])

    def cases(size: Size) -> list[Case]:
        found = [
            case for processes, members, hold in _clients(size) for case in crowd(labels, processes, hold, members)
        ]
        if store == POSTGRESQL:
            found += [case for many, hold in _dlock_cases(size) for case in crowd((THREADS, DLOCK), many, hold, 1)]
        return list(dict.fromkeys(found))

    def limits(size: Size) -> list[Limit]:
        *greedy, (processes, members, hold) = _clients(size)
        found: list[Limit] = []
        own = _dlock_cases(size) if store == POSTGRESQL else []
        for many, each, _ in greedy:
            if each == 1 and (many, 0.0) in own:
                continue  # the fastest peer has a bound of its own below
            prefix = f"{many} x {each}, 0 ms, "
            rows, bare = [prefix + peer for peer in PEERS[store]], "".join(prefix + label for label in BARE[store])
            found.append(Limit(prefix + THREADS, 3.0, rows, "rate", at_least=True, floor=bare))
        why = "memcached keeps no queue: who has released may be the next to poll" if store == MEMCACHED else ""
        for label in CLIENTS:
            row = f"{processes} x {members}, {hold * 1000:g} ms, {label}"
            found.append(Limit(row, 20.0, figure="farthest", unit=" %", why=why))
        for many, hold in own:
            prefix = f"{many} x 1, {hold * 1000:g} ms, "
            found.append(Limit(prefix + THREADS, 1.5, prefix + DLOCK, "rate", at_least=True))
        return found

    return Workload(f"{store}_hot", hot.run,
        "processes x clients of each (threads or tasks) on one hot lock, each holds it for so long, {window:g} s",
        store, labels, limits, hot.COLUMNS, {"cases": _of_size(cases), "window": "window", "rounds": "hot_rounds"})


def _databases(
    store: str, bare: str, more: Sequence[str], limits: Sequence[Limit], polls: Sequence[str]
) -> list[Workload]:
    leased = (*CLIENTS, *SESSIONS[store])
    return [
        Workload(f"{store}_pair", pair.run, A_PAIR, store, (*leased, *PEERS[store], bare, *more), limits,
            pair.over(bare=bare), {"cores": 2}),
        _database_hot(store),
        Workload(f"{store}_handoff", handoff.run, A_HANDOFF, store,
            (*CLIENTS, *polls, *SESSIONS[store], *PEERS[store], *BARE[store]),
            [Limit(label, 3.0, figure="wait", unit=" ms", scale=1e3) for label in CLIENTS if store == POSTGRESQL],
            handoff.columns(THREADS)),
    ]


IN_DATABASES = (
    *_databases(
        POSTGRESQL,
        floors.ADVISORY,
        (floors.CALLS, floors.TRIPS),
        [
            *(Limit(label, 3.0, floors.ADVISORY, floor=floors.CALLS) for label in CLIENTS),
            *(Limit(label, 1.5, floors.ADVISORY) for label in SESSIONS[POSTGRESQL]),
        ],
        (),
    ),
    *_databases(MYSQL, floors.GET_LOCK, (), (), (POLLING,)),  # GET_LOCK takes a mutex, and writes no row: no bound
    *_databases(
        MEMCACHED,
        floors.ADD_DELETE,
        (floors.OWN_SWAPS,),
        [Limit(THREADS, 1.5, floors.ADD_DELETE, floor=floors.OWN_SWAPS)],
        (),
    ),
)

WORKLOADS = {each.name: each for each in (*IN_FILES, *IN_REDIS, *IN_GROUPS, *IN_DATABASES)}
"""All workloads, by their names, in the order in which they run."""
