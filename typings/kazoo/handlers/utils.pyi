from collections.abc import Callable
from typing import Any

class AsyncResult:
    """The result of a request."""

    value: Any
    exception: Exception | None
    def __init__(
        self, handler: object, condition_factory: Callable[[], object], timeout_factory: type[Exception]
    ) -> None: ...
    def ready(self) -> bool:
        """Return whether the result has arrived."""

    def rawlink(self, callback: Callable[[AsyncResult], None]) -> None:
        """Call `callback` when the result arrives, or now if it has arrived."""
