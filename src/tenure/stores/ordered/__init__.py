"""The common part of the ZooKeeper and etcd stores: both keep entries in order, and drop those of a dead client.

The order of the entries of a name decides who holds the name. `granting.py` decides this once for all such stores;
a store implements `Directory` (`directory.py`).
"""

from tenure.stores.ordered.directory import Directory, Watcher
from tenure.stores.ordered.entries import Detail, Entry, Kind, Listing, Record

__all__ = ["Detail", "Directory", "Entry", "Kind", "Listing", "Record", "Watcher"]
