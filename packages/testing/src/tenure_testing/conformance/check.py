"""A check: one guarantee, and the code that verifies it."""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Literal

from tenure.contracts.store import Capabilities
from tenure_testing.conformance.kit import Kit

API_FORMS = ("threads", "asyncio")

Exercises = Literal["protocol", "store"]

Body = Callable[[Kit], Coroutine[Any, Any, None]]


@dataclass(slots=True, frozen=True)
class Check:
    """One guarantee of Tenure."""

    name: str
    guarantee: str
    """The guarantee, in one sentence."""
    body: Body
    forms: tuple[str, ...] = API_FORMS
    """The forms of the API to which the guarantee applies."""
    exercises: Exercises = "protocol"
    """Whose code the check exercises: that of every store anew, or the protocol, which is the same over all stores."""
    queue: bool = False
    """Whether only stores with a queue give the guarantee."""
    weights: bool = False
    """Whether only stores with weights give the guarantee."""
    multi_acquire: bool = False
    """Whether only stores that grant several names in one step give the guarantee."""
    tokens: bool = False
    """Whether only stores with fencing tokens give the guarantee, or it is told from them."""
    records: bool = False
    """Whether only stores that keep a record of each name give the guarantee."""
    cells: bool = False
    """Whether only stores that keep cells give the guarantee."""
    barging: bool = False
    """Whether only stores in which a waiter may be passed for a time give the guarantee."""
    hands_over: bool = False
    """Whether only stores that hand leases over give the guarantee."""
    notified: bool = False
    """Whether only stores whose clients hear of changes at once give the guarantee."""

    def applies_to(self, capabilities: Capabilities, form: str) -> bool:
        """Tell whether a store with these capabilities must give this guarantee."""
        if form not in self.forms:
            return False
        needs = (
            (self.queue, capabilities.queue),
            (self.weights, capabilities.weights),
            (self.multi_acquire, capabilities.multi_acquire),
            (self.tokens, capabilities.tokens),
            (self.records, capabilities.records),
            (self.cells, capabilities.cells),
            (self.barging, capabilities.barging),
            (self.hands_over, capabilities.hands_over),
        )
        return all(has or not needed for needed, has in needs)

    def __str__(self) -> str:
        return self.name


def check(
    *,
    forms: tuple[str, ...] = API_FORMS,
    exercises: Exercises = "protocol",
    queue: bool = False,
    weights: bool = False,
    multi_acquire: bool = False,
    tokens: bool = False,
    records: bool = False,
    cells: bool = False,
    barging: bool = False,
    hands_over: bool = False,
    notified: bool = False,
) -> Callable[[Body], Check]:
    """Turn a function into a check; its docstring is the guarantee."""

    def make(body: Body) -> Check:
        guarantee = (body.__doc__ or "").strip()
        needs = (queue, weights, multi_acquire, tokens, records, cells, barging, hands_over, notified)
        return Check(body.__name__, guarantee, body, forms, exercises, *needs)

    return make
