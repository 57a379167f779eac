"""Locks in ZooKeeper."""

import re
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from urllib.parse import SplitResult

from holdfast.contracts.runtime import Runtime
from holdfast.contracts.store import StoreSource
from holdfast.errors import UsageError
from holdfast.stores.ordered.store import CAPABILITIES, OrderedStore
from holdfast.stores.zookeeper.options import ZooKeeperAccess, access_of

__all__ = ["zookeeper_url_source"]

OLDEST = (2, 11)
"""The first version of kazoo that will do."""


def zookeeper_url_source(parts: SplitResult) -> StoreSource:
    """Return the store of a URL. Raises UsageError if it can't be understood."""
    if find_spec("kazoo") is None:
        raise UsageError("the ZooKeeper store needs kazoo, which is not installed: pip install 'holdfast[zookeeper]'")
    if _is_too_old(found := version("kazoo")):
        raise UsageError(f"the ZooKeeper store needs kazoo 2.11 or later, and this is {found}: pip install -U kazoo")
    access = access_of(parts)
    if access.sasl and find_spec("puresasl") is None:
        raise UsageError("a SASL login needs pure-sasl, which is not installed: pip install 'holdfast[zookeeper-sasl]'")
    if access.sasl == "GSSAPI" and find_spec("kerberos") is None:
        raise UsageError("a login by GSSAPI needs the module kerberos, which is not installed: pip install kerberos")
    return StoreSource(access.title, CAPABILITIES, partial(_make, access))


def _is_too_old(kazoo: str) -> bool:
    """Tell whether this version lacks what is used of it."""
    return tuple(map(int, re.findall(r"\d+", kazoo)[:2])) < OLDEST


def _make(access: ZooKeeperAccess, runtime: Runtime) -> OrderedStore:
    from holdfast.stores.zookeeper.directory import ZooKeeperDirectory

    return OrderedStore(runtime, ZooKeeperDirectory(runtime, access))
