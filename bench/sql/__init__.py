"""Benchmarks of the stores in SQL databases and memcached, beside other locks there. Each starts its own server."""
