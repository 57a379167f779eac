"""The rules for a PostgreSQL server: what is set there, seen from the locks."""

from dataclasses import dataclass

from tenure.contracts.findings import Facts, Finding, Rule, Severity, fact
from tenure.doctor.common import of_clock, of_connections, of_max_ttl, of_quarantine

OLDEST = 120000
"""The oldest version that will do, as the server counts."""

SHORTEST_TIMEOUT = 1000
"""The shortest timeout of a statement that does no harm, in milliseconds."""

CALM = "read committed"


@dataclass(slots=True)
class PostgresFacts(Facts):
    """What is known of a PostgreSQL server. Settings are those with which a session of this role begins."""

    guard: str = "observed"
    advisory: bool = False
    max_ttl: float = 30.0
    ttl: float = 0.0
    """The longest ttl that the program uses; 0: not said."""
    title: str = ""
    """What `tenure schema` is given to print the tables."""

    version: int | None = fact("the version")
    standby: bool | None = fact("whether it is a standby")
    pooled: bool | None = fact("whether a pooler is between")
    hears: bool | None = fact("whether notifications arrive")
    fsync: bool | None = fact("fsync")
    commit: str | None = fact("synchronous_commit")
    synchronous_standbys: str | None = fact("synchronous_standby_names")
    standbys: int | None = fact("the number of its standbys")
    read_only: bool | None = fact("default_transaction_read_only")
    isolation: str | None = fact("default_transaction_isolation")
    statement_timeout: int | None = fact("statement_timeout")
    """In milliseconds, as the others; 0: none."""
    lock_timeout: int | None = fact("lock_timeout")
    used: int | None = fact("how many connections are in use")
    most: int | None = fact("max_connections")
    ahead: float | None = fact("its clock")
    lacks: list[str] | None = fact("the rights of this role")
    tables: bool | None = fact("whether the tables are there")
    quarantine: float | None = fact("whether it is in quarantine")
    quarantined_because: str = ""
    longest_ttl: float | None = fact("the longest ttl of any client")


def version(facts: PostgresFacts) -> Finding | None:
    """Find a server that is too old."""
    if facts.version is None or facts.version >= OLDEST:
        return None
    return Finding(
        "postgresql-version",
        Severity.ERROR,
        facts.place,
        f"Its version is {facts.version // 10000}.{facts.version % 10000}.",
        "The functions of Tenure need PostgreSQL 12 or later.",
        "pg_upgrade to a version that is still maintained",
    )


def standby(facts: PostgresFacts) -> Finding | None:
    """Find a standby."""
    if not facts.standby:
        return None
    return Finding(
        "postgresql-standby",
        Severity.ERROR,
        facts.place,
        "It is a standby.",
        "A standby takes no writes, so no lock can be taken there.",
        "postgresql://PRIMARY,STANDBY/DATABASE as the URL: of several hosts Tenure uses the primary",
    )


def pooler(facts: PostgresFacts) -> Finding | None:
    """Find a pooler between the client and the server."""
    if not facts.pooled:
        return None
    if facts.advisory:
        return Finding(
            "postgresql-pooler",
            Severity.ERROR,
            facts.place,
            "A connection pooler is between this client and PostgreSQL, and the URL says mode=advisory.",
            "A pooler gives one session to many clients, so their locks do not exclude each other. Tenure refuses it.",
            "the server's own address in the URL, or leave mode=advisory out",
        )
    return Finding(
        "postgresql-pooler",
        Severity.WARNING,
        facts.place,
        "A connection pooler is between this client and PostgreSQL, and passes no notifications on.",
        "Waiters poll instead of being woken at once.",
        "the server's own address in the URL",
    )


def deaf(facts: PostgresFacts) -> Finding | None:
    """Find a server whose notifications do not arrive though no pooler was seen."""
    if facts.hears is not False or facts.pooled:
        return None
    return Finding(
        "postgresql-notifications",
        Severity.WARNING,
        facts.place,
        "A session there does not hear its own notification, so something between passes none on.",
        "Waiters poll instead of being woken at once.",
        "the server's own address in the URL",
    )


def read_only(facts: PostgresFacts) -> Finding | None:
    """Find sessions that are read-only: behind a pooler Tenure cannot set that."""
    if not facts.read_only or not facts.pooled:
        return None
    return Finding(
        "postgresql-read-only",
        Severity.ERROR,
        facts.place,
        "default_transaction_read_only is on, and a pooler is between.",
        "Tenure leaves the sessions of a pooler as they are, so no statement of it can write.",
        "ALTER ROLE CURRENT_USER SET default_transaction_read_only = off;",
    )


def isolation(facts: PostgresFacts) -> Finding | None:
    """Find transactions that are serialized: behind a pooler Tenure cannot set that."""
    if facts.isolation in {None, CALM} or not facts.pooled:
        return None
    return Finding(
        "postgresql-isolation",
        Severity.WARNING,
        facts.place,
        f"default_transaction_isolation is {facts.isolation}, and a pooler is between.",
        "Statements on one name at the same time fail and are repeated, so locks that are contended get slow.",
        "ALTER ROLE CURRENT_USER SET default_transaction_isolation = 'read committed';",
    )


def timeouts(facts: PostgresFacts) -> Finding | None:
    """Find timeouts that end Tenure's statements: behind a pooler Tenure cannot set them."""
    if not facts.pooled:
        return None
    given = {"statement_timeout": facts.statement_timeout, "lock_timeout": facts.lock_timeout}
    short = {name: value for name, value in given.items() if value is not None and 0 < value < SHORTEST_TIMEOUT}
    if not short:
        return None
    name, value = next(iter(short.items()))
    return Finding(
        "postgresql-timeout",
        Severity.WARNING,
        facts.place,
        f"{name} is {value} ms, and a pooler is between.",
        "A statement that waits for a row of a contended name is ended, and a renewal may be.",
        f"ALTER ROLE CURRENT_USER SET {name} = '30s';",
    )


def fsync(facts: PostgresFacts) -> Finding | None:
    """Find a server that forgets commits in a crash, unnoticed by the guard."""
    if facts.fsync is not False or facts.guard == "strict" or facts.advisory:
        return None
    return Finding(
        "postgresql-fsync",
        Severity.ERROR,
        facts.place,
        "fsync is off.",
        "If the machine crashes, grants are forgotten, and the restarted server grants the names again at once.",
        "ALTER SYSTEM SET fsync = on; SELECT pg_reload_conf();",
    )


def replication(facts: PostgresFacts) -> Finding | None:
    """Find standbys that may be promoted without the last commits."""
    if not facts.standbys or facts.advisory or facts.synchronous_standbys is None:
        return None
    waits = facts.synchronous_standbys and facts.commit not in {"off", "local"}
    if waits:
        return None
    why = "A standby that is promoted may not know the last grants."
    off = facts.guard == "off"
    why += (
        " With guard=off it grants these names again while they are held."
        if off
        else f" So it then grants nothing for max_ttl ({facts.max_ttl:g} s)."
    )
    change = "ALTER SYSTEM SET synchronous_standby_names = 'ANY 1 (*)';"
    if facts.synchronous_standbys:
        change = "ALTER SYSTEM SET synchronous_commit = on;"
    change += " SELECT pg_reload_conf();"
    return Finding(
        "postgresql-replication",
        Severity.ERROR if off else Severity.NOTE,
        facts.place,
        f"It has {facts.standbys} standbys, and commits do not wait for them.",
        why,
        f"{change} or ?guard=observed in the URL" if off else change,
    )


def rights(facts: PostgresFacts) -> Finding | None:
    """Find rights that this role lacks."""
    if not facts.lacks:
        return None
    return Finding(
        "postgresql-rights",
        Severity.ERROR,
        facts.place,
        f"This role lacks rights: {', '.join(facts.lacks)}.",
        "The first operation that needs one fails.",
        f"tenure schema postgresql{facts.title} --role ROLE | psql DATABASE, as an administrator",
    )


def clock(facts: PostgresFacts) -> Finding | None:
    """Find a clock that differs from ours."""
    return of_clock(
        "postgresql", facts.place, facts.ahead, "leases end by the clock of the database, early if it is set forward."
    )


def connections(facts: PostgresFacts) -> Finding | None:
    """Find a server that has hardly any connection left."""
    change = f"ALTER SYSTEM SET max_connections = {2 * (facts.most or 0)}; and a restart"
    return of_connections("postgresql", facts.place, facts.used, facts.most, change)


def quarantine(facts: PostgresFacts) -> Finding | None:
    """Find a quarantine."""
    return of_quarantine("postgresql", facts.place, facts.quarantine, facts.quarantined_because)


def max_ttl(facts: PostgresFacts) -> Finding | None:
    """Find ttls that are longer than max_ttl. The table keeps the longest of all clients for a quarantine."""
    if facts.guard == "off" or facts.advisory:
        return None
    return of_max_ttl("postgresql", facts.place, facts.max_ttl, facts.ttl, None)


RULES: tuple[Rule[PostgresFacts], ...] = (
    version,
    standby,
    read_only,
    rights,
    fsync,
    pooler,
    deaf,
    isolation,
    timeouts,
    replication,
    connections,
    clock,
    quarantine,
    max_ttl,
)
