"""How long a PLACEHOLDER or BLOCK entry counts in etcd. etcd tells no time, so each client counts by its own clock."""

from tenure.contracts.runtime import Runtime
from tenure.stores.etcd import requests
from tenure.stores.etcd.changes import EtcdChanges
from tenure.stores.etcd.gateway import Gateway
from tenure.stores.etcd.keys import number, read_value
from tenure.stores.etcd.reads import EtcdReads
from tenure.stores.ordered.entries import Entry, Kind


class EtcdLifetimes:
    """The time that is left to entries, as one client counts it."""

    def __init__(self, runtime: Runtime, gateway: Gateway, reads: EtcdReads, changes: EtcdChanges) -> None:
        """Read entries with `reads`, and remove with `changes` those whose time is over."""
        self._runtime = runtime
        self._gateway = gateway
        self._reads = reads
        self._changes = changes
        self._first_read_at: dict[tuple[str, str, int], float] = {}
        """The local instant at which this client first read how long an entry still counts."""

    async def remains(self, name: str, entry: Entry, until: float) -> float:
        """Return for how many seconds a PLACEHOLDER or BLOCK entry still counts; remove it if its time is over.

        etcd tells no time, so each client counts by its own clock from its first request on. The lease of the entry
        ends it for all clients.
        """
        place = (name, entry.key, entry.position)
        [kv] = await self._reads.read([(name, entry)], until)
        if kv is None:
            self._first_read_at.pop(place, None)
            return 0.0
        now = self._runtime.now()
        left = read_value(kv).counts_for - (now - self._first_read_at.setdefault(place, now))
        if entry.kind is Kind.PLACEHOLDER:
            said = await self._gateway.exchange("lease/timetolive", {"ID": kv.get("lease", "0")}, until)
            left = min(left, number(said, "TTL") + 1.0)
        if left > 0.0:
            self._forget_old_reads(now)
            return left
        await self._changes.change(name, [entry], [], until)
        self._first_read_at.pop(place, None)
        return 0.0

    def _forget_old_reads(self, now: float) -> None:
        """Forget requests of more than an hour ago. If a client repeats one, the entry counts a little longer."""
        if len(self._first_read_at) > requests.LARGEST:
            for place, read_at in list(self._first_read_at.items()):
                if read_at < now - 3600.0:
                    self._first_read_at.pop(place, None)
