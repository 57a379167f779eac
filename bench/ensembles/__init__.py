"""Benchmarks of the ZooKeeper and etcd stores, beside the locks of other clients. Each starts its own servers."""
