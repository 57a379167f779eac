"""Cells in etcd: contracts/cells.py. A cell is a key, and its version the revision of the store that wrote it.

etcd tells no time, but the gateway tells the server's clock in whole seconds, as HTTP does. The fraction comes from the
client's own clock if that is in the same second. So the time is less than a second wrong, and exact if both agree.
"""

from base64 import b64decode, b64encode
from email.utils import parsedate_to_datetime

from holdfast.contracts.cells import Cell
from holdfast.contracts.deadlines import MICROS
from holdfast.contracts.runtime import Runtime
from holdfast.errors import StoreError
from holdfast.stores.etcd import requests
from holdfast.stores.etcd.gateway import Gateway
from holdfast.stores.etcd.keys import Keys, number
from holdfast.stores.etcd.link import Said


class EtcdCells:
    """One client's access to the cells."""

    def __init__(self, runtime: Runtime, gateway: Gateway, keys: Keys) -> None:
        """Send the requests by `gateway`."""
        self._runtime = runtime
        self._gateway = gateway
        self._keys = keys

    async def read_cell(self, name: str, until: float) -> Cell:
        """Return a cell as the last write left it."""
        said = await self._gateway.exchange("kv/txn", requests.transaction([], [self._get(name)]), until)
        return self._found(said)

    async def write_cell(self, name: str, value: bytes, version: int, keep: int, until: float) -> Cell:  # noqa: ARG002 - kept for ever
        """Write a cell if it has this version, in one transaction."""
        key = self._keys.cell(name)
        write = requests.put_bytes(key, b64encode(value).decode()) if value else requests.delete(key)
        body = requests.transaction([requests.changed(key, version)], [write], [self._get(name)])
        said = await self._gateway.exchange("kv/txn", body, until, again=False)
        if not said.get("succeeded"):
            return self._found(said)
        return Cell(value, number(said["header"], "revision") if value else 0, self._time(said), written=True)

    def _get(self, name: str) -> Said:
        return requests.get(self._keys.cell(name))

    def _found(self, said: Said) -> Cell:
        kvs = said["responses"][0]["response_range"].get("kvs", [])
        if not kvs:
            return Cell(b"", 0, self._time(said))
        return Cell(b64decode(kvs[0].get("value", "")), number(kvs[0], "mod_revision"), self._time(said))

    def _time(self, said: Said) -> int:
        try:
            second = round(parsedate_to_datetime(said["date"]).timestamp()) * MICROS
        except (KeyError, ValueError) as error:
            raise StoreError(
                "the etcd gateway tells no time: is there a proxy that drops the header `Date`?"
            ) from error
        return min(max(self._runtime.wall(), second), second + MICROS - 1)
