"""Tests of the memcached store."""
