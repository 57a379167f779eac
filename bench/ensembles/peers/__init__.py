"""Locks of ZooKeeper and etcd in Java and Go: the sources of their programs, which the benchmarks build and start."""
