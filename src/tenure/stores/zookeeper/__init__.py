"""The ZooKeeper store: locks on a ZooKeeper ensemble, through kazoo."""

import re
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from urllib.parse import SplitResult

from tenure.contracts.runtime import Runtime
from tenure.contracts.store import StoreSource
from tenure.errors import UsageError
from tenure.stores.ordered.store import WITH_CELLS, OrderedCellStore
from tenure.stores.zookeeper.options import ZooKeeperAccess, access_of

__all__ = ["zookeeper_url_source"]

OLDEST = (2, 11)
"""The oldest version of kazoo that works."""


def zookeeper_url_source(parts: SplitResult) -> StoreSource:
    """Return the source of stores for a ZooKeeper URL. Raises UsageError if the URL can't be understood."""
    if find_spec("kazoo") is None:
        raise UsageError("the ZooKeeper store needs kazoo, which is not installed: pip install 'tenure[zookeeper]'")
    if _is_too_old(found := version("kazoo")):
        raise UsageError(f"the ZooKeeper store needs kazoo 2.11 or later, and this is {found}: pip install -U kazoo")
    access = access_of(parts)
    if access.sasl and find_spec("puresasl") is None:
        raise UsageError("a SASL login needs pure-sasl, which is not installed: pip install 'tenure[zookeeper-sasl]'")
    if access.sasl == "GSSAPI" and find_spec("kerberos") is None:
        raise UsageError("a login by GSSAPI needs the module kerberos, which is not installed: pip install kerberos")
    return StoreSource(access.title, WITH_CELLS, partial(_make, access))


def _is_too_old(kazoo: str) -> bool:
    """Return whether this version of kazoo is too old for this store."""
    return tuple(map(int, re.findall(r"\d+", kazoo)[:2])) < OLDEST


def _make(access: ZooKeeperAccess, runtime: Runtime) -> OrderedCellStore:
    from tenure.stores.zookeeper.directory import ZooKeeperDirectory

    directory = ZooKeeperDirectory(runtime, access)
    return OrderedCellStore(runtime, directory, directory.cells)
