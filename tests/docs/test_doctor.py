"""What docs/doctor.md lists is what `tenure doctor` finds."""

import re
from dataclasses import fields
from pathlib import Path

from tenure.contracts.findings import Finding, Unseen
from tests.doctor.cases import CASES

TEXT = (Path(__file__).parents[2] / "docs" / "doctor.md").read_text("utf-8")

KINDS = "redis|quorum|postgresql|mysql|etcd|zookeeper|memcached|lock-file|table"


def test_every_finding_is_listed() -> None:
    """By its id, in the tables of what is looked at; and none that there is not."""
    table = TEXT.partition("## Settings that the doctor reads")[2]
    listed = set(re.findall(rf"`((?:{KINDS})-[a-z-]+)`", table))
    found = {each.partition(" ")[0] for _, _, findings in CASES for each in findings}
    assert listed == found


def test_every_field_of_json_is_listed() -> None:
    """As the command prints it."""
    (row,) = re.findall(r"^\| `--json` \| (.*) \|$", TEXT, re.MULTILINE)
    named = re.findall(r"`(\w+)`", row)
    assert {each.name for each in (*fields(Finding), *fields(Unseen))} | {"store", "sound", "findings", "unseen"} == {
        *named
    }
