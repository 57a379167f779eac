"""Benchmarks of the Redis store, beside the locks that other libraries keep in Redis. Each runs a server of its own."""
