"""Locks of other languages: the sources of their programs in Java and Go, which the benchmarks build and start."""
