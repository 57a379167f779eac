"""Bugs to plant in the quorum store, one at a time, to see that the simulation notices."""

# ruff: noqa: ANN401, D103 - each function is told by the bug that it plants, and replaces a method of any type
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from simulation.node import TableNode
from simulation.quorum import VotingNode
from tenure.contracts.messages import Granted
from tenure.stores.quorum.store import QuorumStore
from tenure.stores.quorum.votes import Votes
from tests.simulated.mutants import Mutant, replaced, wrapped


async def take_the_largest(self: QuorumStore, votes: Votes, granted: Sequence[Granted], until: float) -> int:
    return max(reply.token for reply in granted)


async def take_the_most_common(self: QuorumStore, votes: Votes, granted: Sequence[Granted], until: float) -> int:
    tokens = [reply.token for reply in granted]
    return max(tokens, key=tokens.count)


def be_content_with_half(original: Callable[..., None], self: QuorumStore, *args: Any) -> None:
    runtime, sources, quorum, waiter_ttl = args
    original(self, runtime, sources, quorum - 1, waiter_ttl)


def count_one_more(original: Callable[..., int], self: QuorumStore, *args: Any) -> int:
    return original(self, *args) + 1


async def keep_the_votes(self: QuorumStore, votes: Votes, until: float) -> None:
    """Give nothing back."""


def ask_under_one_name(original: Callable[..., Any], self: QuorumStore, *args: Any) -> Any:
    self._rounds = 0
    return original(self, *args)


def grant_for_ever(original: Callable[..., None], self: QuorumStore, *args: Any) -> None:
    original(self, *args)
    self.capabilities = replace(self.capabilities, max_ttl=float("inf"))


QUORUM_MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "of different tokens the largest counts",
        replaced(QuorumStore, "_agree", take_the_largest),
        ("quorum",),
        first=189,
    ),
    Mutant(
        "of different tokens one counts", replaced(QuorumStore, "_agree", take_the_most_common), ("quorum",), first=46
    ),
    Mutant(
        "one node less than a majority decides", wrapped(QuorumStore, "__init__", be_content_with_half), ("quorum",)
    ),
    Mutant("a renewal needs one node less", wrapped(QuorumStore, "_count", count_one_more), ("quorum",)),
    Mutant("a node that forgot votes at once", replaced(VotingNode, "forget", TableNode.forget), ("quorum_amnesia",)),
    Mutant("all rounds ask under one name", wrapped(QuorumStore, "acquire", ask_under_one_name), ("quorum",)),
    Mutant(
        "a quorum knows no longest ttl", wrapped(QuorumStore, "__init__", grant_for_ever), ("quorum_amnesia",), first=63
    ),
    Mutant("votes that came to nothing are kept", replaced(QuorumStore, "_give_back", keep_the_votes), ("quorum",)),
)
