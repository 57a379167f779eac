"""The rules for etcd: what is set there, seen from the locks."""

from dataclasses import dataclass

from tenure.contracts.findings import Facts, Finding, Rule, Severity, fact
from tenure.doctor.common import Version, dotted, of_clock, of_members, of_session, version_of

MENDED: dict[Version, Version] = {(3, 4): (3, 4, 31), (3, 5): (3, 5, 13)}
"""The first version of each line in which a leader that stood still ends no sessions of others."""

LAST_LINE = (3, 5)

CLOCK_TOLERANCE = 2.0
"""etcd tells its clock in whole seconds."""


@dataclass(slots=True)
class EtcdMemberFacts(Facts):
    """What is known of a member of etcd."""

    silent: str | None = fact("whether it answers")
    """Why it does not answer; empty if it does."""
    version: str | None = fact("the version")
    leader: bool | None = fact("whether there is a leader")
    ahead: float | None = fact("its clock")


@dataclass(slots=True)
class EtcdFacts(Facts):
    """What is known of an ensemble of etcd."""

    session: float = 30.0
    """The session timeout of the URL, in seconds."""
    ttl: float = 0.0
    """The longest ttl that the program uses."""

    members: int | None = fact("the number of members")
    learners: int | None = fact("the number of learners")
    alarms: list[str] | None = fact("the alarms")
    lacks: list[str] | None = fact("the rights of this user")


def version(facts: EtcdMemberFacts) -> Finding | None:
    """Find a version whose leader may end sessions that others have renewed."""
    if facts.version is None or not (found := version_of(facts.version)):
        return None
    line = found[:2]
    mended = MENDED.get(line)
    if line > LAST_LINE or (mended is not None and found >= mended):
        return None
    least = mended or MENDED[min(MENDED)]
    return Finding(
        "etcd-version",
        Severity.ERROR,
        facts.place,
        f"Its version is {facts.version}.",
        "A leader that stood still for long may end sessions that another leader has renewed: two holders (etcd issue "
        "15247).",
        f"an upgrade to etcd {dotted(least)} or later",
    )


def members(facts: EtcdFacts) -> Finding | None:
    """Find an ensemble of one member, or of an even number."""
    return of_members("etcd", facts.place, facts.members, "etcdctl member add NAME --peer-urls=http://HOST:2380")


def leader(facts: EtcdMemberFacts) -> Finding | None:
    """Find an ensemble without a leader."""
    if facts.leader is not False:
        return None
    return Finding(
        "etcd-leader",
        Severity.ERROR,
        facts.place,
        "It knows no leader.",
        "Without a majority no lock can be taken or renewed.",
        "etcdctl endpoint status --cluster, and start the members that are missing",
    )


def alarms(facts: EtcdFacts) -> Finding | None:
    """Find an alarm: with NOSPACE it takes no writes."""
    if not facts.alarms:
        return None
    names = ", ".join(facts.alarms)
    return Finding(
        "etcd-alarm",
        Severity.ERROR,
        facts.place,
        f"It has raised an alarm: {names}.",
        "With the alarm NOSPACE it takes no writes, so no lock can be taken.",
        "etcdctl compact REVISION && etcdctl defrag && etcdctl alarm disarm; --auto-compaction-retention=1h for later",
    )


def session(facts: EtcdFacts) -> Finding | None:
    """Find a session that outlives the ttl."""
    return of_session("etcd", facts.place, facts.session if facts.ttl else None, facts.ttl)


def clock(facts: EtcdMemberFacts) -> Finding | None:
    """Find a clock that differs from ours."""
    return of_clock("etcd", facts.place, facts.ahead, "jobs and limits use the clock of the store.", CLOCK_TOLERANCE)


def rights(facts: EtcdFacts) -> Finding | None:
    """Find rights that this user lacks."""
    if not facts.lacks:
        return None
    return Finding(
        "etcd-rights",
        Severity.ERROR,
        facts.place,
        f"This user may not {' and '.join(facts.lacks)} the keys of the locks.",
        "No lock can be taken.",
        "etcdctl role grant-permission ROLE readwrite PREFIX/ --prefix=true",
    )


def silent(facts: EtcdMemberFacts) -> Finding | None:
    """Find a member that does not answer."""
    if not facts.silent:
        return None
    return Finding(
        "etcd-silent",
        Severity.WARNING,
        facts.place,
        f"It does not answer ({facts.silent}).",
        "The others serve without it, and one more failure may stop all locks.",
        "etcdctl endpoint health --cluster, and start the member",
    )


MEMBER_RULES: tuple[Rule[EtcdMemberFacts], ...] = (silent, version, leader, clock)
RULES: tuple[Rule[EtcdFacts], ...] = (alarms, rights, members, session)
