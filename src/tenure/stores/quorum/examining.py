"""What the nodes of a quorum tell of their settings, and what they tell together."""

from tenure.contracts.findings import Report, Unseen
from tenure.contracts.store import Examinable
from tenure.doctor.quorum import RULES, QuorumFacts
from tenure.errors import StoreError
from tenure.stores.quorum.node_set import NodeSet, Replies


async def examine_nodes(node_set: NodeSet, ttl: float, timeout: float) -> Report:
    """Look at all nodes, also at those that do not vote. Raises StoreError if none answers."""
    report, failed = Report(""), dict[str, StoreError]()
    nodes = node_set.nodes
    replies: Replies[Report] = [None] * len(nodes)
    works = [node.store.examine(ttl, timeout) if isinstance(node.store, Examinable) else None for node in nodes]
    await node_set.send_to_all(works, replies, lambda: False)
    for node, reply in zip(nodes, replies, strict=True):
        if reply is None:
            report.unseen.append(Unseen(node.title, "its settings", "a store of this kind does not tell them"))
        elif isinstance(reply, StoreError):
            failed[node.title] = reply
        elif isinstance(reply, Exception):
            raise reply
        else:
            report.merge(reply)
    if len(failed) == len(nodes):
        raise next(iter(failed.values()))
    facts = QuorumFacts(
        f"the quorum of {len(nodes)} nodes",
        nodes=report.facts[:],
        size=len(nodes),
        quorum=node_set.quorum,
        silent=list(failed),
    )
    report.add(facts, RULES)
    return report
