"""The runners of the checks: all checks in one call, or each as a test of its own under pytest."""

import asyncio
from collections.abc import Iterable
from typing import Any

from tenure.contracts.store import Capabilities, StoreSource
from tenure.errors import UsageError
from tenure.runtimes.threads import complete
from tenure_testing.conformance.check import API_FORMS, Check
from tenure_testing.conformance.checks import (
    cells,
    changes,
    closing,
    contract,
    deadlocks,
    elections,
    exclusion,
    fencing,
    handover,
    jobs,
    lease_lifecycle,
    multi_acquire,
    numbers,
    reacquisition,
    shared,
    waiting,
    with_statements,
)
from tenure_testing.conformance.kit import AsyncioKit, Kit, ThreadsKit

_modules = (
    exclusion,
    waiting,
    reacquisition,
    shared,
    changes,
    multi_acquire,
    elections,
    deadlocks,
    fencing,
    lease_lifecycle,
    handover,
    closing,
    with_statements,
    contract,
    cells,
    numbers,
    jobs,
)

CHECKS: tuple[Check, ...] = tuple(
    each for module in _modules for each in vars(module).values() if isinstance(each, Check)
)
"""Every guarantee, the basic ones first."""


def checks_for(capabilities: Capabilities, form: str) -> list[Check]:
    """Return the checks that a store with these capabilities has to pass."""
    return [check for check in CHECKS if check.applies_to(capabilities, form)]


def run_check(check: Check, source: StoreSource, form: str = "threads") -> None:
    """Run one check. Raises Violation, or what the store raised, if the guarantee does not hold."""
    if form == "threads":
        complete(_run(check, ThreadsKit(source)))
    elif form == "asyncio":
        asyncio.run(_run(check, AsyncioKit(source)))
    else:
        message = f"{form!r} is no form of the API: give one of {', '.join(API_FORMS)}"
        raise UsageError(message)


async def _run(check: Check, kit: Kit) -> None:
    try:
        await check.body(kit)
    except Exception as error:
        error.add_note(f"{check.name} ({kit.form}, {kit.source.title}): {check.guarantee}")
        raise
    finally:
        await kit.close()


def check_store(source: StoreSource, form: str = "threads", *, notified: bool = True) -> list[Check]:
    """Run every check that applies to `source`; return the checks that ran.

    `notified` is False for a store whose clients hear of no change, as a table of rows without `watch`.

    Raises an ExceptionGroup with one error for each guarantee that does not hold.
    """
    checks = [check for check in checks_for(source.capabilities, form) if notified or not check.notified]
    broken: list[Exception] = []
    for check in checks:
        try:
            run_check(check, source, form)
        except Exception as error:  # noqa: BLE001 - collected, and raised together
            broken.append(error)
    if broken:
        message = f"{source.title} does not keep {len(broken)} of {len(checks)} guarantees"
        raise ExceptionGroup(message, broken)
    return checks


class StoreConformance:
    """The suite under pytest: a test for each guarantee and form of the API.

    Inherit from it in a test module, name the capabilities of the store, and add a fixture that makes a source::

        class TestMyStore(StoreConformance):
            capabilities = MyStore.capabilities

            @pytest.fixture
            def source(self) -> StoreSource:
                return my_source("mystore://localhost")

    A guarantee that the store does not claim makes no test, not even a skipped one. If a store is reached in several
    ways, `checks` may name a part of the guarantees for each way.
    """

    capabilities: Capabilities
    forms: tuple[str, ...] = API_FORMS
    checks: tuple[Check, ...] = CHECKS

    @classmethod
    def pytest_generate_tests(cls, metafunc: Any) -> None:  # noqa: ANN401 - this module does without pytest
        """Parametrize the test by the checks and forms."""
        if "check" in metafunc.fixturenames:
            cases = [
                (check, form) for form in cls.forms for check in cls.checks if check.applies_to(cls.capabilities, form)
            ]
            metafunc.parametrize(("check", "form"), cases, ids=_ids(cases))

    def test_guarantee(self, check: Check, form: str, source: StoreSource) -> None:
        """Every guarantee of Tenure holds at this store."""
        run_check(check, source, form)


def _ids(cases: Iterable[tuple[Check, str]]) -> list[str]:
    return [f"{check.name}-{form}" for check, form in cases]
