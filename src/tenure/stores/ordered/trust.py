"""For how long a grant or a renewal may count: as long as the session certainly keeps the entry."""

from tenure.contracts.deadlines import DRIFT, micros
from tenure.stores.ordered.directory import Directory
from tenure.stores.ordered.entries import Entry


class SessionTrust:
    """Tells from the last proof of a directory's session for how long its entries certainly stay."""

    def __init__(self, directory: Directory) -> None:
        """Read the proofs of `directory`."""
        self._directory = directory

    def trusted(self, entry: Entry, sent: float) -> int:
        """Return for how many microseconds after `sent` the session certainly keeps an entry.

        The store's clock may be faster than ours. The holder allows for that drift from `sent` on, but knows nothing of
        the time between the proof and `sent`, so the drift of that time is subtracted here.
        """
        proved_at, trust = self._directory.proved_at, self._directory.trust
        if entry.session != self._directory.session():  # checked last: the proof may belong to the next session
            return 0
        since = max(sent - proved_at, 0.0)
        return max(0, micros(trust - since / (1.0 - DRIFT))) if since < trust else 0
