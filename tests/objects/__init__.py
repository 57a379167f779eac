"""Tests of locks in the buckets of object stores."""
