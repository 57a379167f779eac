"""The rules for a quorum of Redis servers: that its nodes are independent, and enough."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from tenure.contracts.findings import Facts, Finding, Rule, Severity
from tenure.doctor.redis import CLOCKS_APART, RedisFacts


@dataclass(slots=True)
class QuorumFacts(Facts):
    """What is known of the nodes of a quorum."""

    nodes: Sequence[Facts] = field(default_factory=tuple[Facts, ...])
    """The nodes that answered."""
    size: int = 0
    """How many nodes there are."""
    quorum: int = 0
    """How many must agree."""
    silent: list[str] = field(default_factory=list[str])
    """The nodes that did not answer."""

    def redis(self) -> list[RedisFacts]:
        """Return the nodes that are Redis servers."""
        return [each for each in self.nodes if isinstance(each, RedisFacts)]


def _twins(facts: QuorumFacts, of: str) -> str:
    """Return two nodes whose facts of this name are the same; empty if there are none."""
    known: dict[str, str] = {}
    for node in facts.redis():
        value = getattr(node, of)
        if value and (other := known.setdefault(value, node.place)) != node.place:
            return f"{other} and {node.place}"
    return ""


def same_server(facts: QuorumFacts) -> Finding | None:
    """Find two nodes that are one server."""
    if not (twins := _twins(facts, "run_id")):
        return None
    return Finding(
        "quorum-same-server",
        Severity.ERROR,
        facts.place,
        f"The nodes {twins} are the same server.",
        "It has one memory, and would vote twice. Tenure does not let it: the quorum has a node less.",
        "redlock://HOST1,HOST2,HOST3 with three machines, each once",
    )


def replicas(facts: QuorumFacts) -> Finding | None:
    """Find nodes that are replicas, also of each other."""
    followers = [node.place for node in facts.redis() if node.role not in {None, "master"}]
    twins = "" if _twins(facts, "run_id") else _twins(facts, "replication_id")
    if not followers and not twins:
        return None
    what = f"The node {followers[0]} is a replica." if followers else f"The nodes {twins} have replicated each other."
    return Finding(
        "quorum-replica",
        Severity.ERROR,
        facts.place,
        what,
        "A replica takes no votes, and one that is promoted forgets some. The nodes of a quorum are independent.",
        "REPLICAOF NO ONE, then FLUSHALL if it holds nothing else, and a restart",
    )


def even(facts: QuorumFacts) -> Finding | None:
    """Find an even number of nodes."""
    if facts.size % 2:
        return None
    return Finding(
        "quorum-even",
        Severity.WARNING,
        facts.place,
        f"There are {facts.size} nodes.",
        f"A quorum of {facts.size} may lose as many nodes as one of {facts.size - 1}, and has one more that can fail.",
        f"redlock:// with {facts.size + 1} hosts, or with {facts.size - 1}",
    )


def silent(facts: QuorumFacts) -> Finding | None:
    """Find nodes that do not answer."""
    if not facts.silent:
        return None
    enough = facts.size - len(facts.silent) >= facts.quorum
    return Finding(
        "quorum-silent",
        Severity.WARNING if enough else Severity.ERROR,
        facts.place,
        f"{len(facts.silent)} of {facts.size} nodes do not answer: {', '.join(facts.silent)}.",
        f"{facts.quorum} nodes must agree. "
        + ("One more failure may stop all locks." if enough else "No lock is granted."),
        "start the node, or check the address in the URL",
    )


def clocks(facts: QuorumFacts) -> Finding | None:
    """Find nodes whose clocks differ."""
    known = [(node.ahead, node.place) for node in facts.redis() if node.ahead is not None]
    if not known or (apart := max(known)[0] - min(known)[0]) <= CLOCKS_APART:
        return None
    return Finding(
        "quorum-clocks",
        Severity.WARNING,
        facts.place,
        f"The clocks of {min(known)[1]} and {max(known)[1]} differ by {apart:.1f} s.",
        "If a node forgets its tokens, the clocks keep them in order.",
        "timedatectl set-ntp true, on both",
    )


RULES: tuple[Rule[QuorumFacts], ...] = (same_server, replicas, even, silent, clocks)
