"""The etcd store: locks on one etcd server or an ensemble, through the JSON gateway."""

from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import SplitResult

from tenure.contracts.runtime import Runtime
from tenure.contracts.store import StoreSource
from tenure.stores.etcd.options import EtcdDeployment, deployment_of

if TYPE_CHECKING:
    from tenure.stores.etcd.directory import EtcdDirectory
    from tenure.stores.ordered.store import OrderedCellStore


def etcd_url_source(parts: SplitResult) -> StoreSource:
    """Return the source of stores for an etcd URL. Raises UsageError if the URL can't be understood."""
    from tenure.stores.ordered.store import WITH_CELLS

    deployment = deployment_of(parts)
    return StoreSource(deployment.title(), WITH_CELLS, partial(_store, deployment))


def etcd_directory(deployment: EtcdDeployment, runtime: Runtime) -> "EtcdDirectory":
    """Return the directory of one client, on the link of its runtime."""
    from tenure.stores.etcd.directory import EtcdDirectory
    from tenure.stores.etcd.link import EtcdLink

    return EtcdDirectory(runtime, deployment, EtcdLink(runtime, deployment))


def _store(deployment: EtcdDeployment, runtime: Runtime) -> "OrderedCellStore":
    from tenure.stores.ordered.store import OrderedCellStore

    directory = etcd_directory(deployment, runtime)
    return OrderedCellStore(runtime, directory, directory.cells)
