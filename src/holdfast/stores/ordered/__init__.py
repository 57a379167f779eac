"""Stores that keep things in the order in which they came, and drop what belongs to a client that is gone.

ZooKeeper and etcd are such. Who stands where is in the order of the entries of a name, and how it is read is decided
here once (`entries.py`); a store of a kind is a `Directory` (`directory.py`).
"""

from holdfast.stores.ordered.directory import Directory, Watcher
from holdfast.stores.ordered.entries import Detail, Entry, Kind, Listing, Record

__all__ = ["Detail", "Directory", "Entry", "Kind", "Listing", "Record", "Watcher"]
