"""The rules for a MySQL or MariaDB server: what is set there, seen from the locks."""

from dataclasses import dataclass

from tenure.contracts.findings import Facts, Finding, Rule, Severity, fact
from tenure.doctor.common import dotted, of_clock, of_connections, of_max_ttl, of_quarantine, version_of

OLDEST_MYSQL, OLDEST_MARIADB = (8, 0, 0), (10, 3, 0)

SHORTEST_WAIT = 30
"""The shortest `wait_timeout` that ends no session between two requests, in seconds."""


@dataclass(slots=True)
class MySqlFacts(Facts):
    """What is known of a MySQL or MariaDB server."""

    guard: str = "observed"
    get_lock: bool = False
    """Whether leases are named locks of sessions."""
    max_ttl: float = 30.0
    ttl: float = 0.0
    """The longest ttl that the program uses; 0: not said."""

    version: str | None = fact("the version")
    read_only: bool | None = fact("read_only")
    flush: int | None = fact("innodb_flush_log_at_trx_commit")
    sync_binlog: int | None = fact("sync_binlog")
    log_bin: bool | None = fact("log_bin")
    binlog_format: str | None = fact("the binlog_format of this session")
    replicas: int | None = fact("the number of its replicas (SHOW PROCESSLIST)")
    semi_sync: bool | None = fact("whether commits wait for a replica")
    galera: bool | None = fact("whether it is a node of Galera or of Group Replication")
    wait_timeout: int | None = fact("wait_timeout")
    why_silent: str | None = fact("whether a waiter can be woken")
    """Why no session can be woken by KILL QUERY; empty: it can be."""
    used: int | None = fact("how many connections are in use")
    most: int | None = fact("max_connections")
    ahead: float | None = fact("its clock")
    lacks: list[str] | None = fact("the rights of this user")
    quarantine: float | None = fact("whether it is in quarantine")
    quarantined_because: str = ""
    longest_ttl: float | None = fact("the longest ttl of any client")


def version(facts: MySqlFacts) -> Finding | None:
    """Find a server that is too old."""
    if facts.version is None:
        return None
    oldest = OLDEST_MARIADB if "mariadb" in facts.version.lower() else OLDEST_MYSQL
    found = version_of(facts.version.removeprefix("5.5.5-"))  # what MariaDB tells to old replicas
    if not found or found >= oldest:
        return None
    return Finding(
        "mysql-version",
        Severity.ERROR,
        facts.place,
        f"Its version is {facts.version}.",
        f"The statements of Tenure need MySQL {dotted(OLDEST_MYSQL)} or MariaDB {dotted(OLDEST_MARIADB)}, or later.",
        "an upgrade to a version that is still maintained",
    )


def read_only(facts: MySqlFacts) -> Finding | None:
    """Find a server that cannot be written."""
    if not facts.read_only:
        return None
    return Finding(
        "mysql-read-only",
        Severity.ERROR,
        facts.place,
        "read_only is on.",
        "It takes no writes, as a replica, so no lock can be taken there.",
        "mysql://PRIMARY,REPLICA/DATABASE as the URL, or SET GLOBAL read_only = 0; if it is the primary",
    )


def flush(facts: MySqlFacts) -> Finding | None:
    """Find a server that forgets its last commits in a crash."""
    if facts.flush in {None, 1} or facts.get_lock:
        return None
    off = facts.guard == "off"
    return Finding(
        "mysql-flush-log",
        Severity.ERROR if off else Severity.WARNING,
        facts.place,
        f"innodb_flush_log_at_trx_commit is {facts.flush}, so a crash forgets the last second of commits.",
        "With guard=off it then grants names again that are held."
        if off
        else f"After each restart it grants nothing for max_ttl ({facts.max_ttl:g} s).",
        "SET GLOBAL innodb_flush_log_at_trx_commit = 1;",
    )


def binlog(facts: MySqlFacts) -> Finding | None:
    """Find a log of statements, which READ COMMITTED refuses."""
    if not facts.log_bin or facts.binlog_format != "STATEMENT" or facts.get_lock:
        return None
    return Finding(
        "mysql-binlog-format",
        Severity.ERROR,
        facts.place,
        "binlog_format is STATEMENT, and this user may not change it for its session.",
        "Tenure uses READ COMMITTED, whose writes such a log refuses: no lock can be taken.",
        "SET GLOBAL binlog_format = 'ROW';",
    )


def replication(facts: MySqlFacts) -> Finding | None:
    """Find replicas that may be promoted without the last commits, or after a crash know more than the primary."""
    if not facts.replicas or facts.semi_sync is not False or facts.get_lock:
        return None
    off = facts.guard == "off"
    return Finding(
        "mysql-replication",
        Severity.ERROR if off else Severity.NOTE,
        facts.place,
        f"It has {facts.replicas} replicas, and commits do not wait for them.",
        "A replica that is promoted may not know the last grants."
        + (
            " With guard=off it grants these names again while they are held."
            if off
            else f" So it then grants nothing for max_ttl ({facts.max_ttl:g} s)."
        ),
        "?guard=observed in the URL" if off else "SET GLOBAL rpl_semi_sync_master_enabled = 1;",
    )


def sync_binlog(facts: MySqlFacts) -> Finding | None:
    """Find a log from which a crash removes what replicas may have or not."""
    if not facts.replicas or facts.sync_binlog in {None, 1} or facts.get_lock:
        return None
    return Finding(
        "mysql-sync-binlog",
        Severity.WARNING,
        facts.place,
        f"sync_binlog is {facts.sync_binlog}, and it has replicas.",
        "After a crash the replicas may lack grants that the primary keeps, and a promoted one forgets them.",
        "SET GLOBAL sync_binlog = 1;",
    )


def galera(facts: MySqlFacts) -> Finding | None:
    """Find a cluster of which several nodes may be written."""
    if not facts.galera:
        return None
    return Finding(
        "mysql-galera",
        Severity.ERROR if facts.get_lock else Severity.WARNING,
        facts.place,
        "It is a node of Galera or of Group Replication.",
        "Named locks exist on one node only, so clients of two nodes do not exclude each other."
        if facts.get_lock
        else "A write is checked against other nodes when it commits, so clients of several nodes fail and repeat.",
        "the address of one node in the URL of every client",
    )


def wait_timeout(facts: MySqlFacts) -> Finding | None:
    """Find a server that ends sessions which are idle for a moment."""
    if facts.wait_timeout is None or facts.wait_timeout >= SHORTEST_WAIT:
        return None
    return Finding(
        "mysql-wait-timeout",
        Severity.WARNING,
        facts.place,
        f"wait_timeout is {facts.wait_timeout} s.",
        "The server ends connections that are idle for as long, so an acquisition often has to connect first.",
        "SET GLOBAL wait_timeout = 28800;",
    )


def deaf(facts: MySqlFacts) -> Finding | None:
    """Find that no session can be woken."""
    if not facts.why_silent or facts.get_lock:
        return None
    return Finding(
        "mysql-wake-up",
        Severity.WARNING,
        facts.place,
        f"No session there can be woken by KILL QUERY ({facts.why_silent}).",
        "Waiters poll until a later test succeeds.",
        "the server's own address in the URL, if a proxy is between; ?notify=off says that polling is meant",
    )


def rights(facts: MySqlFacts) -> Finding | None:
    """Find rights that this user lacks."""
    if not facts.lacks:
        return None
    return Finding(
        "mysql-rights",
        Severity.ERROR,
        facts.place,
        f"This user lacks rights: {', '.join(facts.lacks)}.",
        "The first operation that needs one fails.",
        "tenure schema mysql --role USER | mysql DATABASE, as an administrator",
    )


def clock(facts: MySqlFacts) -> Finding | None:
    """Find a clock that differs from ours."""
    return of_clock(
        "mysql", facts.place, facts.ahead, "leases end by the clock of the database, early if it is set forward."
    )


def connections(facts: MySqlFacts) -> Finding | None:
    """Find a server that has hardly any connection left."""
    change = f"SET GLOBAL max_connections = {2 * (facts.most or 0)};"
    return of_connections("mysql", facts.place, facts.used, facts.most, change)


def quarantine(facts: MySqlFacts) -> Finding | None:
    """Find a quarantine."""
    return of_quarantine("mysql", facts.place, facts.quarantine, facts.quarantined_because)


def max_ttl(facts: MySqlFacts) -> Finding | None:
    """Find ttls that are longer than max_ttl. The table keeps the longest of all clients for a quarantine."""
    return (
        None
        if facts.guard == "off" or facts.get_lock
        else of_max_ttl("mysql", facts.place, facts.max_ttl, facts.ttl, None)
    )


RULES: tuple[Rule[MySqlFacts], ...] = (
    version,
    read_only,
    rights,
    binlog,
    flush,
    galera,
    replication,
    sync_binlog,
    wait_timeout,
    deaf,
    connections,
    clock,
    quarantine,
    max_ttl,
)
