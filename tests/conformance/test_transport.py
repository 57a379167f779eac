"""The checks for a connection to a store cover all requests and notifications."""

from collections.abc import Callable
from typing import Any

from tenure.contracts.messages import Notification, NotificationKind
from tenure.contracts.runtime import Runtime
from tenure.contracts.store import Store, StoreSource
from tenure.stores.memory import MemoryTable, memory_source
from tenure_testing.conformance import run_check
from tests.conformance.transport import TRANSPORT

UNSAID = {"identity", "abandon"}
"""The methods of a store that send nothing."""


class Recorder:
    """A store that records its requests and its notifications."""

    def __init__(self, store: Store, seen: set[str]) -> None:
        """Stand in front of a store."""
        self._store = store
        self._seen = seen

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the store has
        self._seen.add(name)
        return getattr(self._store, name)

    async def open(self, deliver: Callable[[Notification], None], until: float) -> str:
        """Open the store."""

        def hear(notification: Notification) -> None:
            self._seen.add(notification.kind)
            deliver(notification)

        return await self._store.open(hear, until)


def test_every_request_is_sent_and_every_notification_arrives() -> None:
    """So they find a connection to a server on which one of them fails."""
    seen: set[str] = set()
    memory = memory_source(MemoryTable())

    def make(runtime: Runtime) -> Any:  # noqa: ANN401 - all of a store
        return Recorder(memory.make(runtime), seen)

    source = StoreSource("recorded", memory.capabilities, make)
    for check in TRANSPORT:
        run_check(check, source, check.forms[0])
    requests = {name for name in vars(Store) if callable(getattr(Store, name)) and not name.startswith("_")}
    assert requests - UNSAID <= seen | {"open"}
    assert set(NotificationKind) - {NotificationKind.GAP} <= seen, (
        "all but the one that a client's own connection sends"
    )
