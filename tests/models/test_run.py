"""The runner of the models takes nothing for proven that a search did not prove, and leaves no variant out."""

import re
from pathlib import Path

import pytest

from models.run import CHECKS, HERE, OK, Check, Finding, judge

COMPLETE = """
(Spin Version 6.5.2 -- 6 December 2019)
Full statespace search for:
State-vector 108 byte, depth reached 160, errors: 0
 1.327e+07 states, stored
"""

VIOLATED = """
pan:1: assertion violated  !(overlap) (at depth 40)
pan: wrote handoff.pml.trail
Warning: Search not completed
State-vector 108 byte, depth reached 41, errors: 1
    386000 states, stored
"""

SOUND = Check("handoff", "SOUND", "", least=1000)
UNSOUND = Check("handoff", "NO_TOKEN_TEST", "", "overlap")


def documented(model: str) -> set[tuple[str, str]]:
    """Return the variants in the header of a model, each with its expected verdict."""
    header = (HERE / f"{model}.pml").read_text().split("*/")[0]
    rows = re.findall(r"^ {3}([A-Z_]{3,})\s.*\s(ok|[a-z]+(?:_[a-z]+)?)\s*$", header, re.MULTILINE)
    return {(variant, verdict) for variant, verdict in rows if variant not in {"VARIANT", "MODEL", "BOUNDS", "CLAIM"}}


def test_a_complete_search_is_ok() -> None:
    """A search that ended without a violation proves the model, within its bounds."""
    finding = judge(COMPLETE)
    assert finding == Finding(OK, 13_270_000)
    assert not finding.complaint(SOUND)


def test_a_violation_is_named_after_its_claim() -> None:
    """A variant that breaks another claim than the intended one is a complaint."""
    finding = judge(VIOLATED)
    assert finding == Finding("overlap", 386_000)
    assert not finding.complaint(UNSOUND)
    assert finding.complaint(SOUND)
    assert finding.complaint(Check("handoff", "NO_TOMBSTONE", "", "orphan"))


@pytest.mark.parametrize(
    "report",
    [
        COMPLETE + "error: max search depth too small",
        COMPLETE + "pan: reached -DMEMLIM bound",
        COMPLETE + "Warning: Search not completed",
        COMPLETE.replace("errors: 0", "errors: 1"),
        "pan: out of memory",
        "",
    ],
)
def test_a_search_that_was_cut_short_proves_nothing(report: str) -> None:
    """Neither where a proof is expected, nor where a violation is."""
    assert judge(report).verdict == "cut short"
    assert judge(report).complaint(SOUND)
    assert judge(report).complaint(UNSOUND)


def test_another_error_is_not_the_expected_one() -> None:
    """A deadlock of the model itself is told as what it is."""
    assert judge(VIOLATED.replace("assertion violated  !(overlap)", "invalid end state")).verdict == "invalid end state"


def test_a_search_of_suspiciously_few_states_proves_nothing() -> None:
    """A model that can hardly take a step holds every claim."""
    assert judge(COMPLETE.replace("1.327e+07", "12")).complaint(SOUND)


@pytest.mark.parametrize("model", sorted({check.model for check in CHECKS}))
def test_every_documented_variant_is_checked(model: str) -> None:
    """The header of a model and the table of searches say the same."""
    assert {(check.variant, check.expected) for check in CHECKS if check.model == model} == documented(model)


def test_every_model_is_checked() -> None:
    """No file is left out, except the one that others include."""
    assert {check.model for check in CHECKS} == {file.stem for file in Path(HERE).glob("*.pml")} - {"table"}


def test_every_proof_has_a_least_number_of_states() -> None:
    """So that a model that lost its steps is noticed."""
    assert all(check.least for check in CHECKS if check.expected == OK)
