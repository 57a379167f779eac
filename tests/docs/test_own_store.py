"""The programs of docs/own-store.md run, and their tables keep the guarantees."""

import re
from pathlib import Path
from typing import Any

import pytest

from tenure.stores.rows import row_source
from tenure_testing.conformance import CHECKS, check_store, run_check, suite
from tests.docs.test_readme import ROOT

PAGE = (ROOT / "docs" / "own-store.md").read_text("utf-8")
PROGRAMS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize(("number", "table"), [(0, "DictTable"), (1, "SqliteTable")])
def test_tables_of_the_page_are_stores(
    number: int, table: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each program prints a token, and its table passes the first checks of each kind."""
    monkeypatch.chdir(tmp_path)
    space: dict[str, Any] = {}
    exec(PROGRAMS[number], space)  # noqa: S102 - our own page
    assert int(capsys.readouterr().out) > 10**15
    capabilities = row_source("", space[table]).capabilities
    firsts = {check.body.__module__: check for check in reversed(CHECKS) if check.applies_to(capabilities, "threads")}
    assert len(firsts) > 10
    for check in firsts.values():
        run_check(check, row_source("the table of the page", space[table]), "threads")


def test_the_page_leaves_out_what_a_table_without_watch_cannot_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else whoever follows the page would be told that a good table breaks two guarantees."""
    assert "`tenure_testing.conformance.check_store(row_source(...), notified=False)`" in PAGE

    def passes(*_: object) -> None:
        """Run no check."""

    monkeypatch.setattr(suite, "run_check", passes)
    source = row_source("a table", object)  # type: ignore[arg-type] # nothing is run
    left_out = {check.name for check in check_store(source)} - {
        check.name for check in check_store(source, notified=False)
    }
    assert left_out == {"holder_is_notified_of_a_revocation_request_once", "adopter_hears_revocation_requests"}
