"""The resource that a lock protects: a value that is read, changed and written back, behind a fence."""

from dataclasses import dataclass


@dataclass(slots=True)
class Resource:
    """A counter, and the highest token that has read or written it. Two holders at once would lose updates."""

    fence: int = 0
    value: int = 0
    accepted: int = 0
    refused: int = 0

    def read(self, token: int) -> int | None:
        """Raise the fence and return the value; return None if the token is stale."""
        if token < self.fence:
            self.refused += 1
            return None
        self.fence = token
        return self.value

    def write(self, token: int, value: int) -> None:
        """Accept a write unless the token is stale."""
        if token < self.fence:
            self.refused += 1
            return
        self.value = value
        self.accepted += 1
