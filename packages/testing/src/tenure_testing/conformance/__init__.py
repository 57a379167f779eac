"""The conformance suite: the guarantees of every store, as checks that the author of a store can run on it.

    from tenure_testing.conformance import check_store

    check_store(my_source, "threads")
    check_store(my_source, "asyncio")

raises an ExceptionGroup that names each guarantee that does not hold. Under pytest, inherit from `StoreConformance`
to make each guarantee a test of its own. A check uses a namespace of its own, so the store may be in use.

Checks are written once, for both forms of the API and for every store. A check never relies on a fixed sleep: it waits
for a condition until a generous deadline, and compares a duration only with others of the same run.
"""

from tenure_testing.conformance.check import API_FORMS, Check
from tenure_testing.conformance.kit import Violation
from tenure_testing.conformance.suite import CHECKS, StoreConformance, check_store, checks_for, run_check

__all__ = [
    "API_FORMS",
    "CHECKS",
    "Check",
    "StoreConformance",
    "Violation",
    "check_store",
    "checks_for",
    "run_check",
]
