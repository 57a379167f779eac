from collections.abc import Callable
from typing import TypeVar

_Receiver = TypeVar("_Receiver", bound=Callable[..., object])

class Signal:
    def connect(self, receiver: _Receiver) -> _Receiver: ...

worker_init: Signal
