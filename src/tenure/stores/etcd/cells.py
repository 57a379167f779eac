"""Cells in etcd: contracts/cells.py. A cell is a key, and its version the revision of the store that wrote it.

etcd tells no time, but the gateway tells the server's clock in whole seconds, as HTTP does. The fraction comes from the
client's own clock if that is in the same second. So the time is less than a second wrong, and exact if both agree.

Clients whose clocks disagree would see the time of a cell step back and forth, and a limit would count each step ahead
as time that has passed. So a cell also keeps the time at which it was written, and shows no earlier one: unless it is
earlier by more than clocks may disagree, for then the servers' clocks were set back.
"""

from base64 import b64decode, b64encode
from email.utils import parsedate_to_datetime

from tenure.contracts.cells import Cell
from tenure.contracts.deadlines import MICROS
from tenure.contracts.runtime import Runtime
from tenure.errors import StoreError
from tenure.stores.etcd import requests
from tenure.stores.etcd.gateway import Gateway
from tenure.stores.etcd.http import JsonObject
from tenure.stores.etcd.keys import Keys, number

DISAGREEMENT = 2 * MICROS
"""By how much the times of two clients may disagree, in microseconds."""

DIGITS = 16
"""How many digits the time has, in front of the value."""


class EtcdCells:
    """One client's access to the cells."""

    def __init__(self, runtime: Runtime, gateway: Gateway, keys: Keys) -> None:
        self._runtime = runtime
        self._gateway = gateway
        self._keys = keys
        self._latest = 0
        """The latest time that a reply of this client had."""

    async def read_cell(self, name: str, until: float) -> Cell:
        """Return a cell as the last write left it."""
        said = await self._gateway.exchange("kv/txn", requests.transaction([], [self._get(name)]), until)
        return self._found(said)

    async def write_cell(self, name: str, value: bytes, version: int, keep: int, until: float) -> Cell:  # noqa: ARG002 - kept for ever
        """Write a cell if it has this version, in one transaction."""
        key = self._keys.cell(name)
        kept = b64encode(b"%0*d%b" % (DIGITS, self._latest, value)).decode()
        write = requests.put_bytes(key, kept) if value else requests.delete(key)
        body = requests.transaction([requests.changed(key, version)], [write], [self._get(name)])
        said = await self._gateway.exchange("kv/txn", body, until, again=False)
        if not said.get("succeeded"):
            return self._found(said)
        return Cell(value, number(said["header"], "revision") if value else 0, self._time(said), written=True)

    def _get(self, name: str) -> JsonObject:
        return requests.get(self._keys.cell(name))

    def _found(self, said: JsonObject) -> Cell:
        kvs = said["responses"][0]["response_range"].get("kvs", [])
        if not kvs:
            return Cell(b"", 0, self._time(said))
        kept = b64decode(kvs[0].get("value", ""))
        if not kept[:DIGITS].isdigit():
            raise StoreError("the key of a cell in etcd has a value that Tenure did not write; remove it")
        return Cell(kept[DIGITS:], number(kvs[0], "mod_revision"), self._time(said, int(kept[:DIGITS])))

    def _time(self, said: JsonObject, written_at: int = 0) -> int:
        """Return the time of a reply about a cell that was written at an instant; 0: nobody knows."""
        try:
            second = round(parsedate_to_datetime(said["date"]).timestamp()) * MICROS
        except (KeyError, ValueError) as error:
            raise StoreError(
                "the etcd gateway tells no time: is there a proxy that drops the header `Date`?"
            ) from error
        now = _later(min(max(self._runtime.wall(), second), second + MICROS - 1), written_at)
        self._latest = _later(now, self._latest)
        return now


def _later(now: int, other: int) -> int:
    """Return the later of two times, but the first if the other is later than clocks may disagree."""
    return other if now < other <= now + DISAGREEMENT else now
