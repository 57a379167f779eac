"""The rules for ZooKeeper: what is set there, seen from the locks."""

from dataclasses import dataclass

from tenure.contracts.findings import Facts, Finding, Rule, Severity, fact
from tenure.doctor.common import dotted, of_members, of_session, version_of

OLDEST = (3, 5, 0)

UNLIKE = 0.01
"""By which part the session timeout that the server grants may differ from the one that was asked for."""


@dataclass(slots=True)
class ZooKeeperFacts(Facts):
    """What is known of an ensemble of ZooKeeper, and of the server of this client."""

    asked: float = 30.0
    """The session timeout of the URL, in seconds."""
    ttl: float = 0.0
    """The longest ttl that the program uses."""

    granted: float | None = fact("the session timeout")
    version: str | None = fact("the version (the four-letter word srvr)")
    members: int | None = fact("the number of members")
    lacks: list[str] | None = fact("the rights of this login")


def clamped(facts: ZooKeeperFacts) -> Finding | None:
    """Find a session timeout that the servers do not allow."""
    if facts.granted is None or abs(facts.granted - facts.asked) <= UNLIKE * facts.asked:
        return None
    low = facts.granted > facts.asked
    return Finding(
        "zookeeper-session-timeout",
        Severity.WARNING,
        facts.place,
        f"The URL asks for a session timeout of {facts.asked:g} s, and the server grants {facts.granted:g} s.",
        "The locks of a dead process are free when its session ends, so later than meant."
        if low
        else "A lease is never valid for longer than half of the session, so it ends earlier than meant.",
        f"{'minSessionTimeout' if low else 'maxSessionTimeout'}={round(facts.asked * 1000)} in zoo.cfg, "
        f"or ?session_timeout={facts.granted:g} in the URL",
    )


def session(facts: ZooKeeperFacts) -> Finding | None:
    """Find a session that outlives the ttl."""
    return of_session("zookeeper", facts.place, facts.granted if facts.ttl else None, facts.ttl)


def members(facts: ZooKeeperFacts) -> Finding | None:
    """Find an ensemble of one member, or of an even number."""
    return of_members("zookeeper", facts.place, facts.members, "server.N=HOST:2888:3888 in the zoo.cfg of all members")


def version(facts: ZooKeeperFacts) -> Finding | None:
    """Find a server that is too old."""
    if facts.version is None or not (found := version_of(facts.version)) or found >= OLDEST:
        return None
    return Finding(
        "zookeeper-version",
        Severity.ERROR,
        facts.place,
        f"Its version is {dotted(found)}.",
        "Tenure needs ZooKeeper 3.5 or later.",
        "an upgrade to a version that is still maintained",
    )


def rights(facts: ZooKeeperFacts) -> Finding | None:
    """Find rights that this login lacks."""
    if not facts.lacks:
        return None
    return Finding(
        "zookeeper-rights",
        Severity.ERROR,
        facts.place,
        f"This login may not {' and '.join(facts.lacks)} the nodes of the locks.",
        "No lock can be taken.",
        "setAcl -R PATH/tenure auth:USER:PASSWORD:cdrwa in zkCli.sh",
    )


RULES: tuple[Rule[ZooKeeperFacts], ...] = (version, rights, clamped, members, session)
