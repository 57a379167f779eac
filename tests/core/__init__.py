"""Tests of the parts of the protocol, each by itself."""
