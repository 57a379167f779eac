"""The conformance suite: what every store has to guarantee, as checks that anybody can run on a store of theirs.

    from holdfast.testing.conformance import check_store

    check_store(my_source, "threads")
    check_store(my_source, "asyncio")

raises an ExceptionGroup that names each guarantee which does not hold. Under pytest, inherit from `StoreConformance`
to have each guarantee as a test of its own. A check uses a namespace of its own, so the store may be in use.

Checks are written once, for both forms of the API and for every store. Nothing sleeps and hopes: a check waits for a
condition until a generous deadline, and compares times with others of the same run.
"""

from holdfast.testing.conformance.check import API_FORMS, Check
from holdfast.testing.conformance.kit import Violation
from holdfast.testing.conformance.suite import CHECKS, StoreConformance, check_store, checks_for, run_check

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
