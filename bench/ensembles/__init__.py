"""Benchmarks of the ZooRenewer and etcd stores, beside the locks of other clients. Each runs servers of its own."""
