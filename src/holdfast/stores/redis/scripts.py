"""The Lua scripts, one an operation, with their digests computed when this module is imported.

A script is its header (the flags, and in prose what it takes and returns), the functions of `common.lua` and the
grant table that its operation needs, and the operation itself.
"""

import hashlib
from dataclasses import dataclass, field
from importlib.resources import files

_FOLDER = files("holdfast.stores.redis") / "lua"


@dataclass(slots=True, frozen=True)
class Script:
    """One script: its text, and the digest by which a server knows it."""

    name: str
    text: str
    digest: str = field(init=False)

    def __post_init__(self) -> None:
        """Compute the digest."""
        object.__setattr__(self, "digest", hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest())
