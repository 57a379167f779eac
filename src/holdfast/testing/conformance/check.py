"""A check: one guarantee, and the code that looks whether it holds."""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from holdfast.contracts.store import Capabilities
from holdfast.testing.conformance.kit import Kit

API_FORMS = ("threads", "asyncio")

Body = Callable[[Kit], Coroutine[Any, Any, None]]


@dataclass(slots=True, frozen=True)
class Check:
    """One guarantee of Holdfast."""

    name: str
    guarantee: str
    """The guarantee, in one sentence."""
    body: Body
    forms: tuple[str, ...] = API_FORMS
    """Where it has a meaning."""
    queue: bool = False
    """Whether it is about stores that keep a queue."""
    weights: bool = False
    """Whether it is about stores that know weights."""
    multi_acquire: bool = False
    """Whether it is about stores that grant several names in one step."""

    def applies_to(self, capabilities: Capabilities, form: str) -> bool:
        """Tell whether a store with these capabilities gives this guarantee at all."""
        if form not in self.forms:
            return False
        needs = (
            (self.queue, capabilities.queue),
            (self.weights, capabilities.weights),
            (self.multi_acquire, capabilities.multi_acquire),
        )
        return all(has or not needed for needed, has in needs)

    def __str__(self) -> str:
        return self.name


def check(
    *, forms: tuple[str, ...] = API_FORMS, queue: bool = False, weights: bool = False, multi_acquire: bool = False
) -> Callable[[Body], Check]:
    """Make a check of a function: its docstring is the guarantee."""

    def make(body: Body) -> Check:
        guarantee = (body.__doc__ or "").strip()
        return Check(body.__name__, guarantee, body, forms, queue, weights, multi_acquire)

    return make
