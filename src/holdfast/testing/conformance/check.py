"""A check: one guarantee, and the code that looks whether it holds."""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from holdfast.contracts.store import Capabilities
from holdfast.testing.conformance.kit import Kit

COLOURS = ("threads", "asyncio")

Body = Callable[[Kit], Coroutine[Any, Any, None]]


@dataclass(slots=True, frozen=True)
class Check:
    """One guarantee of Holdfast."""

    name: str
    guarantee: str
    """The guarantee, in one sentence."""
    body: Body
    colours: tuple[str, ...] = COLOURS
    """Where it has a meaning."""
    queue: bool = False
    """Whether it is about stores that keep a queue."""
    weights: bool = False
    """Whether it is about stores that know weights."""
    together: bool = False
    """Whether it is about stores that grant several names in one step."""

    def applies_to(self, capabilities: Capabilities, colour: str) -> bool:
        """Tell whether a store with these capabilities gives this guarantee at all."""
        if colour not in self.colours:
            return False
        needs = (
            (self.queue, capabilities.queue),
            (self.weights, capabilities.weights),
            (self.together, capabilities.together),
        )
        return all(has or not needed for needed, has in needs)

    def __str__(self) -> str:
        return self.name


def check(
    *, colours: tuple[str, ...] = COLOURS, queue: bool = False, weights: bool = False, together: bool = False
) -> Callable[[Body], Check]:
    """Make a check of a function: its docstring is the guarantee."""

    def make(body: Body) -> Check:
        guarantee = (body.__doc__ or "").strip()
        return Check(body.__name__, guarantee, body, colours, queue, weights, together)

    return make
