from collections.abc import Callable

class CheckMessage:
    """What a check has found."""

    id: str
    msg: str

    def __init__(self, msg: str, hint: str | None = None, obj: object = None, id: str | None = None) -> None: ...

class Error(CheckMessage):
    """What cannot work."""

class Warning(CheckMessage):
    """What is hardly meant."""

def register(check: Callable[..., list[CheckMessage]]) -> object:
    """Have `manage.py check` call a check."""
