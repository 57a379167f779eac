"""Checks of cells: the small values that a store changes by compare-and-write."""

# ruff: noqa: D401 - a check's docstring is the guarantee, not an order

from typing import cast

from tenure.contracts.cells import LARGEST_CELL, CellStore
from tenure_testing.conformance.check import check
from tenure_testing.conformance.kit import TEST_TIMEOUT, Kit, RawClient, expect

NAMES = ("plain", "n\0ul", "\u540d\u524d", "{brace}", "a/b", "%41", "x" * 450)

VALUES = (b"x", bytes(range(256)), b"\0", b"\n", b"\xff" * LARGEST_CELL)

CLOCKS_AGREE = 3600 * 1_000_000
"""By how many microseconds the clock of the store and the one of this machine may disagree."""


class _Cells:
    """The cells of a client, in the namespace of the check."""

    def __init__(self, kit: Kit, raw: RawClient) -> None:
        self._store = cast("CellStore", raw.store)
        self._runtime = raw.runtime
        self._space = f"{kit.space}:"
        self.wall = raw.runtime.wall

    async def read(self, name: str) -> tuple[bytes, int]:
        """Return the value and the version of a cell."""
        cell = await self._store.read_cell(self._space + name, self._runtime.now() + TEST_TIMEOUT)
        expect(not cell.written, "a cell that was only read is not written")
        expect(abs(cell.now - self.wall()) < CLOCKS_AGREE, "the time in a reply is that of a wall clock")
        return cell.value, cell.version

    async def write(self, name: str, value: bytes, version: int) -> tuple[bool, bytes, int]:
        """Write a cell of this version; return whether it was written, and the cell as it is then."""
        until = self._runtime.now() + TEST_TIMEOUT
        cell = await self._store.write_cell(self._space + name, value, version, 0, until)
        return cell.written, cell.value, cell.version


@check(exercises="store", cells=True)
async def cell_is_written_if_its_version_is_as_expected(kit: Kit) -> None:
    """A cell is written only by a request that knows its version; any other gets the cell as it is."""
    cells = _Cells(kit, await kit.raw())
    expect(await cells.read("name") == (b"", 0), "a cell that nobody wrote is empty, and its version is 0")
    expect(await cells.write("name", b"early", 5) == (False, b"", 0), "without a cell no version but 0 is right")
    written, value, first = await cells.write("name", b"one", 0)
    expect(written and value == b"one" and first > 0, "version 0 makes the cell")
    expect(await cells.read("name") == (b"one", first), "the cell has its value and version")
    expect(await cells.write("name", b"two", 0) == (False, b"one", first), "version 0 is wrong for a cell that exists")
    written, _, second = await cells.write("name", b"two", first)
    expect(written and second > first, "a write raises the version")
    expect(await cells.write("name", b"three", first) == (False, b"two", second), "an old version is wrong")
    expect(await cells.read("name") == (b"two", second), "a refused write changes nothing")


@check(exercises="store", cells=True)
async def removed_cell_never_has_an_old_version_again(kit: Kit) -> None:
    """A removed cell is as if it had never been, but no version of it comes again."""
    cells = _Cells(kit, await kit.raw())
    seen: list[int] = []
    for _ in range(3):
        written, _, version = await cells.write("name", b"x", 0)
        expect(written and version > max(seen, default=0), "a new cell has a larger version than any before it")
        seen.append(version)
        expect(await cells.write("name", b"", version) == (True, b"", 0), "an empty value removes the cell")
        expect(await cells.read("name") == (b"", 0), "a removed cell is empty")
        for old in seen:
            expect(not (await cells.write("name", b"y", old))[0], "a version from before a removal is wrong")


@check(exercises="store", cells=True)
async def cell_keeps_any_value_under_any_name(kit: Kit) -> None:
    """A cell keeps every value of up to 64 KiB unchanged, under every name, apart from the lock of that name."""
    client, raw = kit.client(), await kit.raw()
    cells = _Cells(kit, raw)
    for number, name in enumerate(NAMES):
        written, _, _ = await cells.write(name, b"%d" % number, 0)
        expect(written, f"{name[:20]!r} is a name of its own")
    for number, name in enumerate(NAMES):
        expect((await cells.read(name))[0] == b"%d" % number, f"the cell {name[:20]!r} has its own value")
    version = 0
    for value in VALUES:
        written, back, version = await cells.write("value", value, version)
        expect(written and back == value, "a write returns the value")
        expect(await cells.read("value") == (value, version), "a value comes back unchanged")
    lease = await client.lock("plain").acquire()
    expect((await cells.read("plain"))[0] == b"0", "a lock does not touch the cell of the same name")
    await lease.release()
    if kit.lists:
        expect(await client.names() == [], "cells are no locks")


@check(exercises="store", cells=True)
async def cells_lose_no_update(kit: Kit) -> None:
    """Clients that change a cell at the same time lose no change."""
    clients = [_Cells(kit, await kit.raw()) for _ in range(4)]

    async def add(cells: _Cells) -> None:
        for _ in range(10):
            while True:
                value, version = await cells.read("sum")
                if (await cells.write("sum", b"%d" % (int(value or b"0") + 1), version))[0]:
                    break
                await kit.pause()

    running = [kit.start(lambda cells=each: add(cells)) for each in clients]  # type: ignore[misc]
    for each in running:
        await each.result()
    expect((await clients[0].read("sum"))[0] == b"40", "forty changes add up to forty")
