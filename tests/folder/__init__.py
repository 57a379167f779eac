"""Tests of locks in a folder on a shared volume."""
