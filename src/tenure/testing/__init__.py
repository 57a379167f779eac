"""Tools for testing: a conformance suite for stores, and a pytest plugin for programs that take locks."""
