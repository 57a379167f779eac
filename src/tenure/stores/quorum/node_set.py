"""The node set of a quorum: opens the nodes, fans requests out to them, and finds out whether enough of them vote."""

from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, TypeVar

from tenure.contracts.messages import Notification, WithdrawRequest
from tenure.contracts.runtime import Runtime
from tenure.contracts.store import Store, StoreSource
from tenure.errors import OutcomeUnknown, StoreError, StoreUnavailable, Vote
from tenure.stores.quorum.node import NOT_YET, Node
from tenure.stores.quorum.reasons import in_short
from tenure.stores.quorum.votes import NodeNotAsked

A = TypeVar("A")
T = TypeVar("T")

Replies = list[T | Exception | None]
"""The replies by node; None for a node that has not replied yet, and may still do so."""

GRACE = 0.5
"""How long the last nodes may take to open once a majority is open, in seconds, unless opening fails."""

LAST_WORDS = 0.05
"""How long the other nodes may take to open once too many have failed, in seconds: the error is to name all."""


class NodeSet:
    """The nodes of a quorum, `quorum` of which must agree."""

    def __init__(self, runtime: Runtime, sources: Sequence[StoreSource], quorum: int, operation_timeout: float) -> None:
        self.quorum = quorum
        self.nodes = [Node(runtime, source, operation_timeout) for source in sources]
        self.titles = [node.title for node in self.nodes]
        self.may_fail = len(sources) - quorum
        """How many nodes may refuse or fail while the others are enough."""
        self._runtime = runtime
        self._changed = runtime.event()

    # -- life ----------------------------------------------------------------------------------------------

    async def open(self, hear: Callable[[int, Notification], None], until: float) -> None:
        """Connect to all nodes, and return once enough vote. Raises StoreUnavailable if too few do by `until`.

        It raises at once if opening too many nodes failed at once. It waits for silent nodes.
        """
        for number, node in enumerate(self.nodes):
            node.begin(partial(hear, number), self._node_changed)
        while self._voting() < self.quorum:
            self._changed.clear()
            if self._voting() >= self.quorum:
                break
            if sum(node.refuses for node in self.nodes) > self.may_fail:
                raise StoreError(self.short_of_votes(self._voting(), self._ailments()))
            if sum(node.refuses or node.nobody_there for node in self.nodes) > self.may_fail:
                await self._await_connecting(min(until, self._runtime.now() + LAST_WORDS))
                raise self.too_few()
            if not await self._changed.wait(until) or self._runtime.now() >= until:
                raise self.too_few()
        await self._await_connecting(min(until, self._runtime.now() + GRACE))

    async def _await_connecting(self, until: float) -> None:
        """Wait for the nodes that are still connecting."""
        while self._is_connecting() and self._runtime.now() < until:
            self._changed.clear()
            if self._is_connecting():
                await self._changed.wait(until)

    def _is_connecting(self) -> bool:
        return any(node.ailment == NOT_YET for node in self.nodes)

    def _node_changed(self, node: Node) -> None:
        """Take note that a node votes or does not; exclude a node that is listed twice under two names."""
        if not node.ailment and (identity := node.store.identity()):
            for other in self.nodes:
                if other is not node and not other.ailment and other.store.identity() == identity:
                    node.refuse(f"it is the same as {other.title}, and would vote twice: name each node once")
        self._changed.set()

    async def close(self) -> None:
        """Disconnect from all nodes."""
        until = self._runtime.now() + 1.0
        for node in self.nodes:
            await node.close(until)

    def abandon(self) -> None:
        """In a forked child: drop what was inherited."""
        for node in self.nodes:
            node.store.abandon()

    # -- requests ------------------------------------------------------------------------------------------

    def send_to_all(
        self, works: Sequence[Coroutine[Any, Any, T] | None], replies: Replies[T], enough: Callable[[], bool]
    ) -> Coroutine[Any, Any, None]:
        """Fan requests out to the nodes, and return when `enough` says so or all have replied."""
        return self._runtime.race(works, replies, 1, enough)

    def of(
        self, node: Node, operation: Callable[[A, float], Coroutine[Any, Any, T]], argument: A, until: float
    ) -> Coroutine[Any, Any, T] | None:
        """Return the request to a node, or None if the node does not vote."""
        return None if node.ailment else node.attempt(operation, argument, until)

    def tell(
        self,
        node: Node,
        operation: Callable[[A, float], Coroutine[Any, Any, T]],
        argument: A,
        until: float,
        *leaves: WithdrawRequest,
    ) -> Coroutine[Any, Any, T] | None:
        """Return a request that a node must receive; a node that does not vote receives `leaves` later."""
        if not node.ailment:
            return node.attempt(operation, argument, until, *leaves)
        node.owe(*leaves)
        return None

    async def views(
        self, operation: Callable[[Store], Callable[[A, float], Coroutine[Any, Any, T]]], argument: A, until: float
    ) -> list[T]:
        """Return the results of all nodes that reply. Raises StoreUnavailable if too few do.

        Raises the error of a node if too many nodes refuse, so that a retry is useless.
        """
        works = [self.of(node, operation(node.store), argument, until) for node in self.nodes]
        replies: Replies[T] = [None] * len(self.nodes)
        await self.send_to_all(works, replies, lambda: False)
        views = [reply for reply in replies if reply is not None and not isinstance(reply, Exception)]
        if len(views) < self.quorum:
            raise self.refusal(replies) or self.too_few()
        return views

    def needed(self, answers: Sequence[object]) -> int:
        """Return how many of the nodes that replied must agree, given that the others may agree, too."""
        return max(1, self.quorum - (len(self.nodes) - len(answers)))

    # -- errors --------------------------------------------------------------------------------------------

    def refusal(self, replies: Sequence[object]) -> StoreError | None:
        """Return what a node said, if so many refuse a request that it would fail the next time as well."""
        refusals = [each for each in replies if isinstance(each, StoreError)]
        lasting = [each for each in refusals if not isinstance(each, StoreUnavailable | NodeNotAsked)]
        return lasting[0] if len(lasting) > self.may_fail else None

    def too_few(self) -> StoreUnavailable:
        """Return the error that too few nodes vote, with their reasons."""
        ailments = self._ailments()
        return StoreUnavailable(self.short_of_votes(self._voting(), ailments), ailments)

    def unknown(self) -> OutcomeUnknown:
        """Return the error that the outcome of a request is unknown, with the reasons of the nodes."""
        ailments = self._ailments()
        return OutcomeUnknown(f"too few nodes replied to tell the outcome of the request{in_short(ailments)}", ailments)

    def short_of_votes(self, voting: int, votes: Sequence[Vote]) -> str:
        """Return the message that too few nodes vote, and what each node said."""
        return f"of {len(self.nodes)} nodes {voting} vote, and {self.quorum} must{in_short(votes)}"

    def _voting(self) -> int:
        return sum(not node.ailment for node in self.nodes)

    def _ailments(self) -> tuple[Vote, ...]:
        return tuple(Vote(node.title, node.ailment) for node in self.nodes if node.ailment)
