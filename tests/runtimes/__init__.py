"""Tests of the runtimes of the protocol."""
