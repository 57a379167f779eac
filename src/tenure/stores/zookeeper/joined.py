"""The contenders that a client has added in its session."""

from tenure.stores.ordered import Entry


class JoinedContenders:
    """Maps names and requests to the entries of this session's joins."""

    def __init__(self) -> None:
        """Begin without contenders."""
        self._entries: dict[tuple[str, str], Entry | None] = {}
        """The entry is None if a join got no reply."""

    def send(self, name: str, request_id: str) -> None:
        """Record that a join is sent: from now on the store may have a contender of the request."""
        self._entries[name, request_id] = None

    def add(self, name: str, request_id: str, entry: Entry) -> None:
        """Record the entry of a request's contender."""
        self._entries[name, request_id] = entry

    def forget(self, name: str, request_id: str) -> None:
        """Record that the store has no contender of the request."""
        self._entries.pop((name, request_id), None)

    def clear(self) -> None:
        """Forget all contenders, because their session has ended."""
        self._entries.clear()

    def may_have(self, name: str, request_id: str) -> bool:
        """Return whether the store may have a contender of the request."""
        return (name, request_id) in self._entries

    def entry_of(self, name: str, request_id: str) -> Entry | None:
        """Return the entry of a request's contender; None if no reply told it."""
        return self._entries.get((name, request_id))
