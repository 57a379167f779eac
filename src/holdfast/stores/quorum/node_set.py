"""The nodes of a quorum, all together: how they are opened, asked side by side, and found to be too few."""

from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, TypeVar

from holdfast.contracts.messages import Notification, WithdrawRequest
from holdfast.contracts.runtime import Runtime
from holdfast.contracts.store import Store, StoreSource
from holdfast.errors import OutcomeUnknown, StoreError, StoreUnavailable, Vote
from holdfast.stores.quorum.node import NOT_YET, Node
from holdfast.stores.quorum.reasons import in_short

A = TypeVar("A")
T = TypeVar("T")

Replies = list[T | Exception | None]
"""What the nodes said; None is what has not been answered yet, and may still come."""

GRACE = 0.5
"""How long the last nodes are waited for once a majority is there, in seconds, unless they say that they are not."""

LAST_WORDS = 0.05
"""How long the others are waited for once too many nodes are not there, in seconds: the error is to name all."""


class NodeSet:
    """The nodes of a quorum, of which `quorum` must agree."""

    def __init__(self, runtime: Runtime, sources: Sequence[StoreSource], quorum: int, operation_timeout: float) -> None:
        """Prepare; nothing is connected yet."""
        self.quorum = quorum
        self.nodes = [Node(runtime, source, operation_timeout) for source in sources]
        self.titles = [node.title for node in self.nodes]
        self.may_fail = len(sources) - quorum
        """How many nodes may refuse, or not answer, while the others are enough."""
        self._runtime = runtime
        self._changed = runtime.event()

    # -- life ----------------------------------------------------------------------------------------------

    async def open(self, hear: Callable[[int, Notification], None], until: float) -> None:
        """Connect to all nodes; enough to decide will do to begin. Raises StoreUnavailable if they are too few.

        That is known at once if nobody listens at so many; a node that is silent is waited for.
        """
        for number, node in enumerate(self.nodes):
            node.begin(partial(hear, number), self._node_changed)
        while self._voting() < self.quorum:
            self._changed.clear()
            if self._voting() >= self.quorum:
                break
            if sum(node.refuses for node in self.nodes) > self.may_fail:
                raise StoreError(self.short_of_votes(self._voting(), self._troubles()))
            if sum(node.refuses or node.nobody_there for node in self.nodes) > self.may_fail:
                await self._settle(min(until, self._runtime.now() + LAST_WORDS))
                raise self.too_few()
            if not await self._changed.wait(until) or self._runtime.now() >= until:
                raise self.too_few()
        await self._settle(min(until, self._runtime.now() + GRACE))

    async def _settle(self, settled_by: float) -> None:
        """Wait for what is still connecting."""
        while self._is_connecting() and self._runtime.now() < settled_by:
            self._changed.clear()
            if self._is_connecting():
                await self._changed.wait(settled_by)

    def _is_connecting(self) -> bool:
        return any(node.ailment == NOT_YET for node in self.nodes)

    def _node_changed(self, node: Node) -> None:
        """Note that a node votes, or does not. None votes twice under two names."""
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

    # -- asking --------------------------------------------------------------------------------------------

    def send_to_all(
        self, works: Sequence[Coroutine[Any, Any, T] | None], replies: Replies[T], enough: Callable[[], bool]
    ) -> Coroutine[Any, Any, None]:
        """Ask nodes side by side, until it is enough."""
        return self._runtime.race(works, replies, 1, enough)

    def of(
        self, node: Node, operation: Callable[[A, float], Coroutine[Any, Any, T]], argument: A, until: float
    ) -> Coroutine[Any, Any, T] | None:
        """Ask a node, if it votes."""
        return None if node.ailment else node.attempt(operation, argument, until)

    def tell(
        self,
        node: Node,
        operation: Callable[[A, float], Coroutine[Any, Any, T]],
        argument: A,
        until: float,
        *leaves: WithdrawRequest,
    ) -> Coroutine[Any, Any, T] | None:
        """Ask a node what it must hear; if it cannot be reached, it hears `leaves` later."""
        if not node.ailment:
            return node.attempt(operation, argument, until, *leaves)
        node.owe(*leaves)
        return None

    async def views(
        self, operation: Callable[[Store], Callable[[A, float], Coroutine[Any, Any, T]]], argument: A, until: float
    ) -> list[T]:
        """Return what the nodes show, once all have answered. Raises StoreUnavailable if too few did."""
        works = [self.of(node, operation(node.store), argument, until) for node in self.nodes]
        replies: Replies[T] = [None] * len(self.nodes)
        await self.send_to_all(works, replies, lambda: False)
        views = [reply for reply in replies if reply is not None and not isinstance(reply, Exception)]
        if len(views) < self.quorum:
            raise self.too_few()
        return views

    def needed(self, answers: Sequence[object]) -> int:
        """Return how many of those that answered must know of something that a majority may know."""
        return max(1, self.quorum - (len(self.nodes) - len(answers)))

    # -- trouble -------------------------------------------------------------------------------------------

    def too_few(self) -> StoreUnavailable:
        """Say that too few nodes vote, and why."""
        troubles = self._troubles()
        return StoreUnavailable(self.short_of_votes(self._voting(), troubles), troubles)

    def unknown(self) -> OutcomeUnknown:
        """Say that nobody knows what was done, and why."""
        troubles = self._troubles()
        return OutcomeUnknown(f"too few nodes answered what they did{in_short(troubles)}", troubles)

    def short_of_votes(self, voting: int, votes: Sequence[Vote]) -> str:
        """Say how many vote, and what each node said."""
        return f"of {len(self.nodes)} nodes {voting} vote, and {self.quorum} must{in_short(votes)}"

    def _voting(self) -> int:
        return sum(not node.ailment for node in self.nodes)

    def _troubles(self) -> tuple[Vote, ...]:
        return tuple(Vote(node.title, node.ailment) for node in self.nodes if node.ailment)
