"""The memcached store: locks on one or several memcached servers, by their meta commands."""

from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import SplitResult

from tenure.contracts.runtime import Runtime
from tenure.contracts.store import StoreSource
from tenure.stores.memcached.options import MemcachedDeployment, deployment_of

if TYPE_CHECKING:
    from tenure.stores.memcached.store import MemcachedStore


def memcached_url_source(parts: SplitResult) -> StoreSource:
    """Return the source of stores for a memcached URL. Raises UsageError if the URL can't be understood."""
    return memcached_source(deployment_of(parts))


def memcached_source(deployment: MemcachedDeployment) -> StoreSource:
    """Return the source of stores for these servers."""
    from tenure.stores.memcached.store import CAPABILITIES

    return StoreSource(deployment.title(), CAPABILITIES, partial(_store, deployment))


def _store(deployment: MemcachedDeployment, runtime: Runtime) -> "MemcachedStore":
    from tenure.stores.memcached.link import MemcachedLink
    from tenure.stores.memcached.store import MemcachedStore

    return MemcachedStore(runtime, deployment, MemcachedLink(runtime, deployment))
