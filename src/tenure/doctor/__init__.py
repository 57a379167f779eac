"""The rules of `tenure doctor`: pure functions from what is known of a store to what is wrongly set there for locks.

`Client.examine` gathers the facts and returns a `Report`. What a client logs when it opens its store are findings of
the same rules.
"""

from tenure.contracts.findings import Facts, Finding, Report, Severity, Unseen

__all__ = ["Facts", "Finding", "Report", "Severity", "Unseen"]
