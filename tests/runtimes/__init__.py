"""Tests of what runs the protocol."""
