from collections.abc import Callable
from typing import Any

def atomic(using: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Run a function in a transaction."""
