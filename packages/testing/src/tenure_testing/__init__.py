"""Tools for testing: a conformance suite for stores, and a pytest plugin for programs that take locks.

The rule: this module imports nothing, for pytest imports it with the plugin wherever `tenure-testing` is installed.
"""
