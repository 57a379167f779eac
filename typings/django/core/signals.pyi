from collections.abc import Callable

class Signal:
    """An event of Django."""

    def connect(self, receiver: Callable[..., object]) -> None:
        """Call the receiver with each event."""

setting_changed: Signal
