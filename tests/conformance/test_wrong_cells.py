"""Stores whose cells are wrong in one place: the checks notice each."""

import random

import pytest

from tenure.contracts.cells import Cell
from tenure.contracts.store import StoreSource
from tenure.stores.memory import MemoryStore, MemoryTable
from tenure_testing.conformance.check import API_FORMS, Check
from tenure_testing.conformance.checks import cells
from tenure_testing.conformance.kit import Violation
from tenure_testing.conformance.suite import run_check


class IgnoresTheVersion(MemoryStore):
    """Writes whatever version is expected."""

    async def write_cell(self, name: str, value: bytes, version: int, keep: int, until: float) -> Cell:
        """Write."""
        known = await self.read_cell(name, until)
        return await super().write_cell(name, value, known.version, keep, until)


class CountsFromOne(MemoryStore):
    """Counts the versions of a cell from 1 on again after a removal."""

    versions: dict[str, int]

    async def read_cell(self, name: str, until: float) -> Cell:
        """Read, with its own version."""
        cell = await super().read_cell(name, until)
        return Cell(cell.value, self.versions.get(name, 0) if cell.version else 0, cell.now)

    async def write_cell(self, name: str, value: bytes, version: int, keep: int, until: float) -> Cell:
        """Write, with its own version."""
        if version != (await self.read_cell(name, until)).version:
            return await self.read_cell(name, until)
        true = await super().read_cell(name, until)
        written = await super().write_cell(name, value, true.version, keep, until)
        self.versions[name] = version + 1 if value else 0
        return Cell(written.value, self.versions[name], written.now, written=True)


class LosesUpdates(MemoryStore):
    """Reads and writes in two steps."""

    async def write_cell(self, name: str, value: bytes, version: int, keep: int, until: float) -> Cell:
        """Compare, and write after a while."""
        known = await self.read_cell(name, until)
        if known.version != version:
            return known
        await self._runtime.sleep(0.002 * random.random())
        now = await self.read_cell(name, until)
        return await super().write_cell(name, value, now.version, keep, until)


class KeepsText(MemoryStore):
    """Keeps values as text."""

    async def write_cell(self, name: str, value: bytes, version: int, keep: int, until: float) -> Cell:
        """Write a text."""
        return await super().write_cell(name, value.decode(errors="replace").encode(), version, keep, until)


class TellsTheUptime(MemoryStore):
    """Tells how long it has been up, not what time it is."""

    async def read_cell(self, name: str, until: float) -> Cell:
        """Read, with a wrong clock."""
        cell = await super().read_cell(name, until)
        return Cell(cell.value, cell.version, 5_000_000)


FOUND: dict[type[MemoryStore], Check] = {
    IgnoresTheVersion: cells.cell_is_written_if_its_version_is_as_expected,
    CountsFromOne: cells.removed_cell_never_has_an_old_version_again,
    LosesUpdates: cells.cells_lose_no_update,
    KeepsText: cells.cell_keeps_any_value_under_any_name,
    TellsTheUptime: cells.cell_is_written_if_its_version_is_as_expected,
}


@pytest.mark.parametrize("form", API_FORMS)
@pytest.mark.parametrize("wrong", FOUND, ids=lambda wrong: wrong.__name__)
def test_a_wrong_store_is_noticed(wrong: type[MemoryStore], form: str) -> None:
    """By the check of what it does wrong."""
    table, versions = MemoryTable(), dict[str, int]()

    def make(runtime: object) -> MemoryStore:
        store = wrong(runtime, table)  # type: ignore[arg-type]
        store.versions = versions  # type: ignore[attr-defined]
        return store

    with pytest.raises(Violation):
        run_check(FOUND[wrong], StoreSource("wrong://", MemoryStore.capabilities, make), form)
