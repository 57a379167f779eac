"""Run the checks: all of them by a call, or each as a test of its own under pytest."""

import asyncio
from collections.abc import Iterable
from typing import Any

from holdfast.contracts.store import Capabilities, StoreSource
from holdfast.errors import UsageError
from holdfast.runtimes.threads import drive
from holdfast.testing.conformance.check import API_FORMS, Check
from holdfast.testing.conformance.checks import (
    again,
    bodies,
    changes,
    circles,
    closing,
    contract,
    exclusion,
    fencing,
    lapse,
    leading,
    multi_acquire,
    shared,
    waiting,
)
from holdfast.testing.conformance.kit import AsyncioKit, Kit, ThreadsKit

_modules = (
    exclusion,
    waiting,
    again,
    shared,
    changes,
    multi_acquire,
    leading,
    circles,
    fencing,
    lapse,
    closing,
    bodies,
    contract,
)

CHECKS: tuple[Check, ...] = tuple(
    each for module in _modules for each in vars(module).values() if isinstance(each, Check)
)
"""Every guarantee, in the order in which it is best read."""


def checks_for(capabilities: Capabilities, form: str) -> list[Check]:
    """Return the checks that a store with these capabilities has to pass."""
    return [check for check in CHECKS if check.applies_to(capabilities, form)]


def run_check(check: Check, source: StoreSource, form: str = "threads") -> None:
    """Look whether one guarantee holds. Raises Violation, or whatever the store raised, if it does not."""
    if form == "threads":
        drive(_run(check, ThreadsKit(source)))
    elif form == "asyncio":
        asyncio.run(_run(check, AsyncioKit(source)))
    else:
        message = f"a colour is one of {', '.join(API_FORMS)}, not {form!r}"
        raise UsageError(message)


async def _run(check: Check, kit: Kit) -> None:
    try:
        await check.body(kit)
    except Exception as error:
        error.add_note(f"{check.name} ({kit.form}, {kit.source.title}): {check.guarantee}")
        raise
    finally:
        await kit.close()


def check_store(source: StoreSource, form: str = "threads") -> list[Check]:
    """Run every check that applies to `source`; return which did.

    Raises an ExceptionGroup with one error for each guarantee that does not hold.
    """
    checks = checks_for(source.capabilities, form)
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
    """The suite under pytest, a test for each guarantee and colour.

    Inherit from it in a test module, say what the store can do, and give a fixture that makes a source::

        class TestMyStore(StoreConformance):
            capabilities = MyStore.capabilities

            @pytest.fixture
            def source(self) -> StoreSource:
                return my_source("mystore://localhost")

    A guarantee that the store does not claim is no test, rather than a skipped one. A store that is reached in several
    ways need not show everything on each: `checks` may name some of the guarantees.
    """

    capabilities: Capabilities
    forms: tuple[str, ...] = API_FORMS
    checks: tuple[Check, ...] = CHECKS

    @classmethod
    def pytest_generate_tests(cls, metafunc: Any) -> None:  # noqa: ANN401 - this module does without pytest
        """Make the tests."""
        if "check" in metafunc.fixturenames:
            cases = [
                (check, form) for form in cls.forms for check in cls.checks if check.applies_to(cls.capabilities, form)
            ]
            metafunc.parametrize(("check", "form"), cases, ids=_ids(cases))

    def test_guarantee(self, check: Check, form: str, source: StoreSource) -> None:
        """Every guarantee of Holdfast holds at this store."""
        run_check(check, source, form)


def _ids(cases: Iterable[tuple[Check, str]]) -> list[str]:
    return [f"{check.name}-{form}" for check, form in cases]
