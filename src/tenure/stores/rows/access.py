"""One client's access to a table: its requests and their errors, and since when it has seen each row as it is."""

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from inspect import isawaitable
from typing import Any, TypeVar, cast

from tenure.contracts.findings import judge
from tenure.contracts.runtime import Runtime
from tenure.doctor.rows import RULES, TableFacts
from tenure.errors import OutcomeUnknown, StoreError, StoreUnavailable
from tenure.stores.rows.contract import AsyncRowTable, Row, RowTable, WatchedTable, safe_key
from tenure.stores.rows.values import LOCK, LockRow, load_row, signs
from tenure.transport.errors import too_late

T = TypeVar("T")

REMEMBERED = 4096
"""How many rows a client remembers. For a row that it forgets, it begins to count anew when it sees it again."""

PROOF = "proof"
"""The kind of the rows by which clients prove that a table refuses stale writes: sixteen, so that they seldom meet."""


@dataclass(slots=True)
class SeenRow:
    """A row as this client saw it last. Instants are of the local clock."""

    row: Row
    since: float
    """When it had certainly been written: since then the client has seen no other version."""
    parts: dict[str, tuple[object, float]]
    """By request, of a lock's holders and waiters, and of its lock delay: a sign that changes whenever it is prolonged,
    and since when the client has seen this one."""
    last: bool = True
    """Whether no other version is known."""


class TableAccess:
    """The requests of one client, and the rows that it has seen."""

    def __init__(
        self,
        title: str,
        make: Callable[[str], RowTable | AsyncRowTable],
        runtime: Runtime,
        on_lock: Callable[[str, LockRow], None],
    ) -> None:
        """Use the tables of `make`, which takes the form of the API; call `on_lock` with each new row of a lock."""
        self._title = title
        self._make = make
        self._runtime = runtime
        self._on_lock = on_lock
        self._mutex = runtime.mutex()
        self._opening = runtime.mutex()
        self._table: RowTable | AsyncRowTable | None = None
        self._seen: OrderedDict[str, SeenRow] = OrderedDict()
        self._proven = False

    def open(self, changed: Callable[[str, Row], None]) -> bool:
        """Make the table; return whether it tells of changes, of which it tells `changed`."""
        with self._opening:  # an examination may come beside the opening of the client, in another thread
            if self._table is None:
                self._table = self._make(self._runtime.form)
                if isinstance(self._table, WatchedTable):
                    self._table.watch(changed)
            return isinstance(self._table, WatchedTable)

    async def close(self) -> None:
        """Disconnect."""
        table, self._table = self._table, None
        if table is not None:
            await _result(table.close())

    def abandon(self) -> None:
        """In a forked child: forget the table of the parent."""
        self._table = None

    def seen(self, key: str) -> SeenRow | None:
        """Return a row as this client saw it last."""
        return self._seen.get(key)

    async def call(self, send: Callable[[Any, float], T | Awaitable[T]], until: float, *, writes: bool = False) -> T:
        """Send a request; translate the errors of the table."""
        left = until - self._runtime.now()
        if left <= 0 or self._table is None:
            raise too_late(self._title)
        try:
            return await _result(send(self._table, left))
        except StoreError:
            raise
        except Exception as error:
            kind = OutcomeUnknown if writes else StoreUnavailable
            raise kind(f"a request to {self._title} failed with {type(error).__name__}") from error

    async def read(self, key: str, until: float) -> SeenRow:
        """Read a row, and note since when this client has seen its version."""
        row = await self.call(lambda table, left: table.read(key, left), until)
        return self.remember(key, row)

    async def write(self, key: str, value: bytes, version: object, until: float) -> bool:
        """Write a row if it is unchanged; return whether it was. Raises StoreError if the table ignores conditions."""
        if not self._proven:
            await self._prove(until)
        try:
            written = await self._write(key, value, version, until)
        except BaseException:  # a cancelled write may have been done, too
            self._doubt(key, version)
            raise
        if written is None:
            self._doubt(key, version)
            return False
        self.remember(key, Row(value, written))
        return True

    async def examine(self, until: float) -> TableFacts:
        """Look whether the table honours conditions, on a row that has nothing else in it."""
        key = safe_key(PROOF, self._runtime.new_id()[0])
        ignored = await ignored_condition(
            lambda: self.call(lambda table, left: table.read(key, left), until),
            lambda version: self._write(key, self._runtime.new_id().encode(), version, until),
        )
        return TableFacts(self._title, ignored=ignored)

    async def _prove(self, until: float) -> None:
        if found := judge(await self.examine(until), RULES):
            raise StoreError(found[0].text())
        self._proven = True

    async def _write(self, key: str, value: bytes, version: object, until: float) -> object | None:
        return await self.call(lambda table, left: table.write(key, value, version, left), until, writes=True)

    def remember(self, key: str, row: Row) -> SeenRow:
        """Note a row that was just seen, and since when its parts are as they are."""
        parts: dict[str, tuple[object, float]] = {}
        said = load_row(key, row) if key.startswith(f"{LOCK}.") else None
        now = self._runtime.now()
        with self._mutex:
            before = self._seen.get(key)
            if before is not None and before.row.version == row.version:
                before.last = True
                return before
            if said is not None:
                known = before.parts if before is not None else {}
                for part, sign in signs(said).items():
                    parts[part] = known[part] if part in known and known[part][0] == sign else (sign, now)
            seen = self._seen[key] = SeenRow(row, now, parts)
            self._seen.move_to_end(key)
            if len(self._seen) > REMEMBERED:
                self._seen.popitem(last=False)
        if said is not None:
            self._on_lock(key, said)
        return seen

    def _doubt(self, key: str, version: object) -> None:
        """Write no more on top of a version that is not the last, or may not be."""
        with self._mutex:
            if (seen := self._seen.get(key)) is not None and seen.row.version == version:
                seen.last = False


async def _result(found: T | Awaitable[T]) -> T:
    """Return what a call of either form returns."""
    if isawaitable(found):
        return await cast("Awaitable[T]", found)
    return found


async def ignored_condition(
    read: Callable[[], Awaitable[Row]], write: Callable[[object], Awaitable[object | None]]
) -> str:
    """Return which condition the table of a row ignores, or "". `write` writes anything new on top of a version.

    A write that another client is faster with is refused as well, and so proves the same.
    """
    if await write(None) is not None and await write(None) is not None:
        return "that a row must not be there yet"
    seen = (await read()).version
    if await write(seen) is not None and await write(seen) is not None:
        return "that a row must be unchanged"
    return ""
