"""The rules for a Redis server: what is set there, seen from the locks."""

from dataclasses import dataclass

from tenure.contracts.findings import Facts, Finding, Rule, Severity, fact
from tenure.doctor.common import (
    NEARLY_ALL,
    dotted,
    of_clock,
    of_connections,
    of_max_ttl,
    of_quarantine,
    version_of,
)

OLDEST = (7, 0, 0)

LONG_LAG = 10
"""From which `min-replicas-max-lag` on, in seconds, a cut-off master goes on granting for long."""

CLOCKS_APART = 0.5
"""By how many seconds the clocks of a master and its replicas may differ."""

FEWEST_SENTINELS = 3

PRIMARY = "master"


@dataclass(slots=True)
class RedisFacts(Facts):
    """What is known of a Redis server."""

    shape: str = "single"
    """`single`, `sentinel` or `cluster`."""
    guard: str = "observed"
    wait_replicas: int = 0
    """The option `replicas` of the URL."""
    max_ttl: float = 30.0
    ttl: float = 0.0
    """The longest ttl that the program uses; 0: not said."""
    in_quorum: bool = False

    version: str | None = fact("the version")
    run_id: str | None = fact("the id of the process")
    replication_id: str | None = fact("the id of the replicated data")
    role: str | None = fact("whether it is a replica")
    replicas: int | None = fact("the number of its replicas")
    maxmemory: int | None = fact("the bound of its memory")
    used_memory: int | None = fact("how much memory it uses")
    policy: str | None = fact("the eviction policy")
    evicted: int | None = fact("whether it has evicted keys")
    clients: int | None = fact("how many connections are in use")
    most_clients: int | None = fact("how many connections it allows")
    append_only: bool | None = fact("whether it appends to a file")
    fsync: str | None = fact("how often it syncs its file (CONFIG GET appendfsync)")
    least_replicas: int | None = fact("how many replicas a write needs (CONFIG GET min-replicas-to-write)")
    most_lag: int | None = fact("how far a replica may lag (CONFIG GET min-replicas-max-lag)")
    lacks: list[str] | None = fact("the rights of this user")
    ahead: float | None = fact("its clock")
    clocks_apart: float | None = fact("the clocks of its replicas")
    quarantine: float | None = fact("whether it is in quarantine")
    quarantined_because: str = ""
    longest_ttl: float | None = fact("the longest ttl in use")
    sentinels: int | None = fact("the number of Sentinels (SENTINEL MASTER)")


def eviction(facts: RedisFacts) -> Finding | None:
    """Find an eviction policy that may evict a lock."""
    if not facts.maxmemory or facts.policy in {None, "noeviction"}:
        return None
    done = f" It has evicted {facts.evicted} keys so far." if facts.evicted else ""
    return Finding(
        "redis-eviction",
        Severity.ERROR,
        facts.place,
        f"maxmemory is {facts.maxmemory} bytes and maxmemory-policy is {facts.policy}.{done}",
        "When its memory is full it may evict a lock that is held, and the next client is granted it.",
        "CONFIG SET maxmemory-policy noeviction",
    )


def memory(facts: RedisFacts) -> Finding | None:
    """Find a memory that is nearly full."""
    if not facts.maxmemory or facts.used_memory is None or facts.used_memory < NEARLY_ALL * facts.maxmemory:
        return None
    return Finding(
        "redis-memory",
        Severity.WARNING,
        facts.place,
        f"It uses {facts.used_memory} of maxmemory {facts.maxmemory} bytes.",
        "Once its memory is full it refuses acquisitions, or evicts locks.",
        f"CONFIG SET maxmemory {2 * facts.maxmemory}",
    )


def old_primary(facts: RedisFacts) -> Finding | None:
    """Find a master that goes on granting after its replica was promoted."""
    if facts.in_quorum or facts.shape == "cluster" or facts.wait_replicas or facts.least_replicas != 0:
        return None
    if facts.shape == "single" and not facts.replicas:
        return None
    return Finding(
        "redis-old-primary",
        Severity.ERROR if facts.shape == "sentinel" else Severity.WARNING,
        facts.place,
        f"It has {facts.replicas or 0} replicas, and min-replicas-to-write is 0.",
        "A master that is cut off goes on granting for some ten seconds beside the one that was promoted: two holders.",
        "CONFIG SET min-replicas-to-write 1 min-replicas-max-lag 5",
    )


def lag(facts: RedisFacts) -> Finding | None:
    """Find a bound of the lag that is too large to stop an old master soon."""
    if not facts.least_replicas or facts.most_lag is None or 0 < facts.most_lag <= LONG_LAG:
        return None
    return Finding(
        "redis-replica-lag",
        Severity.WARNING,
        facts.place,
        f"min-replicas-to-write is {facts.least_replicas}, but min-replicas-max-lag is {facts.most_lag} s.",
        "A master that is cut off goes on granting for as long beside the one that was promoted (0: for ever).",
        "CONFIG SET min-replicas-max-lag 5",
    )


def persistence(facts: RedisFacts) -> Finding | None:
    """Find what a restart costs."""
    if facts.append_only is None:
        return None
    if facts.append_only and (facts.fsync in {None, "always"} or not (facts.guard == "off" or facts.in_quorum)):
        return None
    kept = f"appendfsync is {facts.fsync}" if facts.append_only else "appendonly is no"
    loss = "the last second" if facts.append_only else "all locks"
    if facts.guard == "off":
        severity = Severity.WARNING if facts.append_only else Severity.ERROR
        why = f"With guard=off a restart forgets {loss}, and what was forgotten is granted again while it is held."
        change = "?guard=observed in the URL, or CONFIG SET appendonly yes appendfsync always"
    else:
        severity = Severity.NOTE
        why = f"A restart forgets {loss}, so the server then grants nothing for max_ttl ({facts.max_ttl:g} s)."
        change = "CONFIG SET appendonly yes" + (" appendfsync always" if facts.in_quorum else "")
        if facts.guard == "observed":
            why += " A client that comes first, and never saw the server before, does not notice the restart."
            change += ", or ?guard=strict in the URL"
    return Finding("redis-persistence", severity, facts.place, f"{kept}.", why, change)


def guard(facts: RedisFacts) -> Finding | None:
    """Find a guard that is off although a replica may be promoted."""
    if facts.guard != "off" or facts.wait_replicas or not (facts.shape != "single" or facts.replicas):
        return None
    return Finding(
        "redis-guard",
        Severity.ERROR,
        facts.place,
        "The URL says guard=off, and the server has replicas.",
        "A replica that is promoted may not know a lease, and grants the name again while it is held.",
        "?guard=observed in the URL",
    )


def replica(facts: RedisFacts) -> Finding | None:
    """Find a server that is a replica."""
    if facts.role in {None, PRIMARY} or facts.in_quorum:
        return None
    return Finding(
        "redis-role",
        Severity.ERROR,
        facts.place,
        "It is a replica.",
        "A replica takes no writes, so no lock can be taken there.",
        "redis+sentinel://HOST1,HOST2,HOST3/SERVICE as the URL, or the address of the master",
    )


def version(facts: RedisFacts) -> Finding | None:
    """Find a server that is too old for the scripts."""
    if facts.version is None or not (found := version_of(facts.version)) or found >= OLDEST:
        return None
    return Finding(
        "redis-version",
        Severity.ERROR,
        facts.place,
        f"Its version is {facts.version}.",
        f"The scripts of Tenure need Redis {dotted(OLDEST)} or later, or Valkey.",
        "apt-get install redis-server, from packages.redis.io if your system has an older one",
    )


def rights(facts: RedisFacts) -> Finding | None:
    """Find rights that this user lacks."""
    if not facts.lacks:
        return None
    rules = " ".join(f"+{each}" if not each.startswith(("~", "&")) else each for each in facts.lacks)
    return Finding(
        "redis-rights",
        Severity.ERROR,
        facts.place,
        f"This user may not use what locks need: {rules}.",
        "An operation that needs it fails with NOPERM.",
        f"ACL SETUSER USER {rules}",
    )


def clock(facts: RedisFacts) -> Finding | None:
    """Find a clock that differs from ours."""
    return of_clock(
        "redis",
        facts.place,
        facts.ahead,
        "Redis ends leases by its own clock, early if it is set forward, and its tokens follow it.",
    )


def clocks(facts: RedisFacts) -> Finding | None:
    """Find replicas whose clocks differ from that of the master."""
    if facts.clocks_apart is None or facts.clocks_apart <= CLOCKS_APART:
        return None
    return Finding(
        "redis-replica-clock",
        Severity.WARNING,
        facts.place,
        f"The clock of a replica differs from that of the master by {facts.clocks_apart:.1f} s.",
        "The end of a lease is replicated as an instant: once that replica is promoted, leases end too early or late.",
        "timedatectl set-ntp true, on both",
    )


def quarantine(facts: RedisFacts) -> Finding | None:
    """Find a quarantine."""
    return of_quarantine("redis", facts.place, facts.quarantine, facts.quarantined_because)


def max_ttl(facts: RedisFacts) -> Finding | None:
    """Find ttls that are longer than max_ttl."""
    return (
        None if facts.guard == "off" else of_max_ttl("redis", facts.place, facts.max_ttl, facts.ttl, facts.longest_ttl)
    )


def connections(facts: RedisFacts) -> Finding | None:
    """Find a server that has hardly any connection left."""
    change = f"CONFIG SET maxclients {2 * (facts.most_clients or 0)}"
    return of_connections("redis", facts.place, facts.clients, facts.most_clients, change)


def sentinels(facts: RedisFacts) -> Finding | None:
    """Find a group of Sentinels that is too small, or even."""
    count = facts.sentinels
    if facts.shape != "sentinel" or count is None or (count >= FEWEST_SENTINELS and count % 2):
        return None
    return Finding(
        "redis-sentinels",
        Severity.WARNING,
        facts.place,
        f"{count} Sentinels watch it.",
        "A majority of the Sentinels must agree on a failover: three survive the loss of one, two or four no more.",
        "sentinel monitor SERVICE HOST PORT 2, in the sentinel.conf of a third machine",
    )


RULES: tuple[Rule[RedisFacts], ...] = (
    version,
    replica,
    rights,
    eviction,
    old_primary,
    guard,
    lag,
    persistence,
    memory,
    connections,
    clock,
    clocks,
    quarantine,
    max_ttl,
    sentinels,
)
