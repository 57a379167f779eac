"""Benchmarks of the Redis store, beside the locks of other libraries in Redis. Each starts a server of its own."""
