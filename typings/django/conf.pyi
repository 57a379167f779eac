from typing import Any

class LazySettings:
    """The settings: they have whatever the project gives them."""

    DEBUG: bool

    def __getattr__(self, name: str) -> Any: ...

settings: LazySettings
