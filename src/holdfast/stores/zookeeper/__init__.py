"""Locks in ZooKeeper."""

from functools import partial
from importlib.util import find_spec
from urllib.parse import SplitResult

from holdfast.errors import UsageError
from holdfast.runtimes.runtime import Runtime
from holdfast.stores.ordered.store import CAPABILITIES, OrderedStore
from holdfast.stores.store import StoreSource
from holdfast.stores.zookeeper.options import Access, access_of

__all__ = ["zookeeper_url_source"]


def zookeeper_url_source(parts: SplitResult) -> StoreSource:
    """Return the store of a URL. Raises UsageError if it can't be understood."""
    if find_spec("kazoo") is None:
        raise UsageError("the ZooKeeper store needs kazoo, which is not installed: pip install 'holdfast[zookeeper]'")
    access = access_of(parts)
    if access.sasl and find_spec("puresasl") is None:
        raise UsageError("a SASL login needs pure-sasl, which is not installed: pip install 'holdfast[zookeeper-sasl]'")
    if access.sasl == "GSSAPI" and find_spec("kerberos") is None:
        raise UsageError("a login by GSSAPI needs the module kerberos, which is not installed: pip install kerberos")
    return StoreSource(access.title, CAPABILITIES, partial(_make, access))


def _make(access: Access, runtime: Runtime) -> OrderedStore:
    from holdfast.stores.zookeeper.directory import ZooKeeperDirectory

    return OrderedStore(runtime, ZooKeeperDirectory(runtime, access))
