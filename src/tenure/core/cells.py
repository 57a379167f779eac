"""The cells of one client: it changes them by pure functions, each change exactly once.

A *round* reads the cell, lets a function say what the cell becomes, and writes it if nobody else has written meanwhile.
If somebody has, the refusal brings the cell as it is now, and the next write follows at once. A client that has just
written has to read first, so clients take turns. After several refusals a client pauses, and reads anew.

All changes of one client to one cell that come while a round is under way are made by the next round, one on top of the
other, in one write. One of the callers leads: it sends the requests for all. If it leaves, another caller goes on.

A write whose reply was lost may have happened, or may still. So each write, a *batch* of changes, has a number, and the
cell keeps the number of the last batch of each client, in the *lane* of the client. A batch whose number is there was
made, and the client knows the replies. A batch whose number is not there cannot be made any more once the cell has
another version. Until then the next batch expects the same version, so only one of the two is made. The memory of a
cell grows with the clients that change it, not with their callers or changes.

A cell keeps the last numbers that it has room for. Beside each number stands the version that its batch expected. When
the oldest numbers go, the cell notes a version that is larger than theirs. If a client has no number in the cell, its
batch without a reply was not made if it expected that version or a later one. Else the outcome is unknown, and the
changes of the batch are not made again. An addition expects no version, so its outcome is unknown as soon as the cell
has forgotten any number.
"""

import json
from collections.abc import Callable, Coroutine, Sequence
from copy import copy
from dataclasses import dataclass, field
from itertools import count
from typing import Any, NamedTuple, TypeVar, cast

from tenure.contracts import forms
from tenure.contracts.cells import LARGEST_CELL, AddingCellStore, Addition, Cell, CellStore, Change
from tenure.contracts.deadlines import NEVER
from tenure.contracts.runtime import Event
from tenure.core.access import StoreAccess
from tenure.errors import OutcomeUnknown, StoreError, StoreUnavailable, TenureError, UsageError
from tenure.escaping import quoted

__all__ = ["Cells", "Change"]

T = TypeVar("T")

REMEMBERED = 600_000_000
"""How long a cell without a state stays, in microseconds: no request is repeated or under way for as long."""

FULL = 32_768
"""How many bytes a cell has at most before its oldest replies go. A larger one is left to this module by scripts."""

REPLIES = 16_384
"""How many bytes of replies a full cell keeps: those of some 250 clients. The state of a cell may have what is left of
LARGEST_CELL, less a reply."""

FORGOTTEN = ""
"""The lane of no client. Its version is larger than that of each reply that the cell has forgotten."""

AT_ONCE = 8
"""How many rounds follow each other at once while other clients are faster."""

FIRST_PAUSE, LONGEST_PAUSE = 0.0005, 0.05
"""The bounds of the pause after that, and after a request without a reply, in seconds."""

MOST_AT_ONCE = 1000
"""The most changes that one write makes, so that an event loop is not held up for long."""

FARTHEST_SUM = 2**52
"""The largest sum of additions that are made as one: servers calculate exactly up to twice that."""


@dataclass(slots=True)
class _Content:
    """What stands in a cell."""

    state: Any = None
    replies: dict[str, list[Any]] = field(default_factory=dict[str, list[Any]])
    """By lane, the oldest first: the number of the last batch, what an addition led to (else 0), and the version that
    the cell had before the batch."""


class _Seen(NamedTuple):
    """A cell as a request has brought it."""

    cell: Cell
    content: _Content
    request: int
    """The number of the request, among those of its line."""


Result = tuple[Any, Exception | None]
"""The reply of a change, or the error that its function raised."""


@dataclass(slots=True, eq=False)
class _CellShare:
    """The change of one caller, and what became of it."""

    change: Callable[[Any, int], Change]
    addition: Addition | None
    began: float
    last_try: float
    """The local instant after which no request is repeated that the store has not answered."""
    end: float
    """The local instant at which the caller is told what is known."""
    since: int = 0
    """The last request that was sent before this change came."""
    refused_before: int = 0
    """How often another client had been faster before this change came."""
    event: Event | None = None
    """Wakes the caller, if it waits: its change has ended, or nobody leads."""
    result: Result | None = None
    gone: bool = False
    """Whether the caller has left, so that no further batch has this change."""

    def finish(self, result: Result) -> None:
        """Tell the caller what became of the change."""
        if self.result is None:
            self.result = result
        if self.event is not None:
            self.event.set()

    def waits(self) -> bool:
        """Return whether the change is still to be made."""
        return self.result is None and not self.gone


@dataclass(slots=True, eq=False)
class _CellBatch:
    """Changes that one request makes, all or none."""

    number: int
    shares: list[_CellShare]
    results: Sequence[Result] = ()
    """Empty if the changes are made as one addition, whose result tells the replies."""
    version: int = 0
    """The version that the cell must have; 0: any, if it is an addition."""
    addition: Addition | None = None

    def made(self, total: int = 0) -> None:
        """Tell all callers that their changes were made; `total` is what an addition led to."""
        results = self.results if self.addition is None else _replies(self.shares, total)
        for share, result in zip(self.shares, results, strict=True):
            share.finish(result)


class _CellLine:
    """The changes of this client to one cell. It lasts as long as a caller has one."""

    __slots__ = ("error", "late", "leader", "refusals", "requests", "seen", "shares")

    def __init__(self) -> None:
        self.shares: list[_CellShare] = []
        self.leader: _CellShare | None = None
        """The one whose caller sends the requests of all."""
        self.late: list[_CellBatch] = []
        """The batches that may have been made, or may still be."""
        self.seen: _Seen | None = None
        """The cell as a refusal has just brought it."""
        self.requests = 0
        """The number of the last request that reads the cell or writes it."""
        self.refusals = 0
        """How often another client was faster."""
        self.error: StoreUnavailable | None = None
        """Why the last round has failed."""


class Cells:
    """The cells of one client."""

    def __init__(self, access: StoreAccess) -> None:
        """Use the store of `access`, which must have the capability `cells`."""
        self._access = access
        self._store = cast("CellStore", access.store)
        self._adding = access.store if isinstance(access.store, AddingCellStore) else None
        self._lane = access.runtime.new_id()
        self._numbers = count(1)
        self._lines: dict[str, _CellLine] = {}

    async def look(self, name: str, timeout: float | None = 0.0) -> tuple[Any, int]:
        """Return the state in a cell (None: there is none), and the time of the store in microseconds.

        The `timeout` is as that of `change`, but a store that is not open has the time that `StoreAccess.open` gives
        it if the timeout is 0. Raises StoreError if the store did not answer.
        """
        access = self._access
        if timeout == 0:
            await access.open()
        _, last_try, end = await self._open(timeout)

        def read(until: float) -> Coroutine[Any, Any, Cell]:
            return self._store.read_cell(name, min(until, access.runtime.now() + access.requests.operation_timeout))

        cell = await access.requests.repeat_until(read, end, last_try)
        return _read(name, cell).state, cell.now

    async def read(self, name: str, of: Callable[[Any, int], T], timeout: float | None = 0.0) -> T:
        """Return what a function makes of the state in a cell and the store's time. Raises as `look` does."""
        state, now = await self.look(name, timeout)
        return _ours(name, of, state, now)

    async def change(
        self,
        name: str,
        change: Callable[[Any, int], Change],
        addition: Addition | None = None,
        timeout: float | None = None,
        *,
        closing: bool = False,
    ) -> Any:  # noqa: ANN401 - what JSON knows
        """Change a cell by a function of its state (None: there is none) and the store's time; return the reply.

        The function is called once or several times, and its last result counts: it must have no effects. An
        `addition` makes the same change of a state that allows it, for stores that do this faster. With a `timeout` in
        seconds, the call takes no longer than the larger of it and `operation_timeout`, and with one of 0 as long again
        to open the store. `closing` is for the end of the client, which was open until then. Raises StoreUnavailable if
        the store did not answer within `retry_for` seconds (or within the timeout) or others wrote all the time, and
        OutcomeUnknown if the change may have been made: then it was made once or not at all.
        """
        mine = _CellShare(change, addition, *await self._open(timeout, closing=closing))
        line: _CellLine | None = None
        try:
            line = self._join(name, mine)
            while mine.result is None:
                if line.leader is mine or self._leads(line, mine):
                    await self._lead(name, line, mine)
                elif mine.result is None and mine.event is not None:  # looked at again, now that there is an event
                    if not await mine.event.wait(mine.end):
                        self._give_up(name, line, mine)
                    mine.event.clear()
        finally:
            mine.gone = True  # first, so that an interrupt of what follows leaves no leader that never leads
            if line is not None:
                try:
                    self._leave(name, line, mine)
                except BaseException:
                    self._leave(name, line, mine)
                    raise
        reply, error = mine.result
        if error is not None:
            raise error
        return reply

    async def _open(self, timeout: float | None, *, closing: bool = False) -> tuple[float, float, float]:
        """Open the store; return when that began, after when no request is repeated, and when the last one ends.

        The last request has its time, however long the opening took, but not beyond a timeout.
        """
        access, request_time = self._access, self._access.requests.operation_timeout
        began = opened = access.runtime.now()
        longest = max(timeout, request_time) if timeout else NEVER
        if not (access.opened or closing):
            await access.open_within(timeout and longest)
            opened = access.runtime.now()
        retry_for = access.requests.retry_for
        more = retry_for if timeout is None else min(retry_for, max(0.0, timeout - request_time))
        end = min(max(began + more, opened) + request_time, began + longest)
        return began, min(max(began + more, opened + request_time / 2), end), end

    # -- one leads, the others wait ------------------------------------------------------------------------

    def _join(self, name: str, mine: _CellShare) -> _CellLine:
        """Add a change to the line of its cell; the first one leads."""
        with self._access.mutex:
            line = self._lines.get(name)
            if line is None:
                line = self._lines[name] = _CellLine()
                line.leader = mine
            mine.since, mine.refused_before = line.requests, line.refusals
            line.shares.append(mine)
        return line

    def _leads(self, line: _CellLine, mine: _CellShare) -> bool:
        """Take the lead unless another one has it; if so, prepare to wait."""
        with self._access.mutex:
            if line.leader is None or line.leader.gone:
                line.leader = mine
            elif mine.event is None:
                mine.event = self._access.runtime.event()
            return line.leader is mine

    def _leave(self, name: str, line: _CellLine, mine: _CellShare) -> None:
        """Leave the line; wake one of those who wait if nobody leads."""
        with self._access.mutex:
            if line.leader is mine:
                line.leader = None
            if line.leader is not None:
                return
            line.shares = [each for each in line.shares if each.waits()]
            if not line.shares:
                if self._lines.get(name) is line:
                    del self._lines[name]
            elif event := next((each.event for each in line.shares if each.event), None):
                event.set()

    async def _lead(self, name: str, line: _CellLine, mine: _CellShare) -> None:
        """Make round after round until the own change has ended: each makes the changes of all who wait."""
        access, runtime = self._access, self._access.runtime
        rounds, pause = 0, FIRST_PAUSE
        while mine.result is None:
            now = runtime.now()
            if now >= (mine.last_try if line.error is not None else mine.end):
                self._give_up(name, line, mine)
                return
            try:
                await self._round(name, line, min(now + access.requests.operation_timeout, mine.end))
                line.error, rounds = None, rounds + 1
            except StoreUnavailable as error:
                line.error, line.seen, rounds = error, None, 0
            except StoreError as error:
                self._fail(name, line, error, self._waiting(line))
            if mine.result is None and rounds % AT_ONCE == 0:
                await runtime.sleep(min(pause * (0.5 + runtime.random()), max(0.0, mine.end - runtime.now())))
                pause = min(2 * pause, LONGEST_PAUSE)
                line.seen = None

    # -- rounds --------------------------------------------------------------------------------------------

    async def _round(self, name: str, line: _CellLine, until: float) -> None:
        """Try once to make the changes of all who wait."""
        by_functions = self._adding is None or not await self._add(self._adding, name, line, until)
        if not by_functions and len(line.shares) == 1:
            return
        most = MOST_AT_ONCE
        while waiting := self._waiting(line, additions=by_functions):
            seen = line.seen
            # A change is not made by a cell, and a time, that may be older than its call.
            shares = [] if seen is None else [each for each in waiting if each.since < seen.request][:most]
            if seen is None or not shares:
                line.requests = request = line.requests + 1
                cell = await self._store.read_cell(name, until)
                self._settle(name, line, _Seen(cell, _read(name, cell), request))
                continue  # without those whose changes were made
            batch, change = self._try_out(name, shares, seen)
            if not change.changed and not line.late:
                batch.made()
                return
            others = {lane: kept for lane, kept in seen.content.replies.items() if lane != self._lane}
            replies = {**others, self._lane: [batch.number, 0, seen.cell.version]}
            try:
                value = _write(name, change.state, replies)
            except UsageError as error:  # too large
                if len(shares) == 1:
                    self._fail(name, line, error, shares)
                most = max(1, len(shares) // 2)
                continue
            if self._begins(line, batch):
                await self._send(name, line, batch, value, REMEMBERED if change.state is None else change.keep, until)
                return

    async def _add(self, store: AddingCellStore, name: str, line: _CellLine, until: float) -> bool:
        """Make the additions that wait in one request; return False if the functions have to make them."""
        repeated = bool(line.late)
        if repeated:
            batch = line.late[0]
            if batch.addition is None or len(line.late) > 1:
                return False
        else:
            adding = [each for each in self._waiting(line) if each.addition is not None]
            batch = _CellBatch(next(self._numbers), _summable(adding))
            if not adding or not self._begins(line, batch):
                return False
            batch.addition = adding[0].addition if len(adding) == 1 else _sum(batch.shares)
        try:
            total = await store.add_to_cell(name, cast("Addition", batch.addition), self._lane, batch.number, until)
        except StoreError as error:
            if not repeated and not isinstance(error, OutcomeUnknown):
                line.late = []
            raise
        if total is None:
            if not repeated:
                line.late = []
            return False
        batch.made(total)
        line.late, line.seen = [], None
        return True

    async def _send(self, name: str, line: _CellLine, batch: _CellBatch, value: bytes, keep: int, until: float) -> None:  # noqa: PLR0917
        """Write a batch; if another client was faster, note what the cell is now."""
        line.requests = request = line.requests + 1
        line.seen = None
        try:
            cell = await self._store.write_cell(name, value, batch.version, keep, until)
        except StoreError as error:
            if not isinstance(error, OutcomeUnknown):
                line.late = [each for each in line.late if each is not batch]
            raise
        if cell.written:
            batch.made()
            line.late = []
        else:
            line.refusals += 1
            self._settle(name, line, _Seen(cell, _read(name, cell), request), refused=batch)

    def _settle(self, name: str, line: _CellLine, seen: _Seen, refused: _CellBatch | None = None) -> None:
        """Note the present cell: it tells which of the batches was made, and which cannot be made any more.

        The changes of a batch end if the cell may have forgotten it, unless the store has just refused it.
        """
        line.seen = seen
        number, total, _ = seen.content.replies.get(self._lane, (0, 0, 0))
        made = next((each for each in line.late if each.number == number), None)
        if made is not None:
            made.made(total)
            line.late = []
        else:
            late, content = line.late, seen.content
            lost = [each for each in late if each is not refused and _may_be_forgotten(content, self._lane, each)]
            for share in (each for batch in lost for each in batch.shares):
                share.finish((None, _forgot(name)))  # first: a caller that gives up now finds its batch in `late`
            rest = [each for each in late if each not in lost]
            line.late = [each for each in rest if each.addition or each.version == seen.cell.version]

    def _waiting(self, line: _CellLine, *, additions: bool = True) -> list[_CellShare]:
        """Return the changes that are to be made, perhaps without those that are additions."""
        return [each for each in line.shares if each.waits() and (additions or each.addition is None)]

    def _try_out(self, name: str, shares: list[_CellShare], seen: _Seen) -> tuple[_CellBatch, Change]:
        """Return a batch of changes, each on top of the one before, and what they make of the state together."""
        after = Change(seen.content.state, None, changed=False)
        results: list[Result] = []
        for share in shares:
            try:
                made = _ours(name, share.change, after.state, seen.cell.now)
            except Exception as error:  # noqa: BLE001 - its caller raises it
                results.append((None, error))
                continue
            results.append((made.reply, None))
            if made.changed:
                after = made
            elif not after.changed:
                after.keep = made.keep
        return _CellBatch(next(self._numbers), shares, results, seen.cell.version), after

    def _begins(self, line: _CellLine, batch: _CellBatch) -> bool:
        """Note that a batch may be made from now on; return False if one of its callers has left."""
        with self._access.mutex:
            if any(each.gone for each in batch.shares):
                return False
            line.late = [*line.late, batch]
            return True

    # -- errors --------------------------------------------------------------------------------------------

    def _give_up(self, name: str, line: _CellLine, mine: _CellShare) -> None:
        """End the change of a caller whose time is up."""
        with self._access.mutex:
            mine.gone = True  # from now on no batch begins with it
            unsure = _may_be_made(line, mine)
        after, refusals = self._access.runtime.now() - mine.began, line.refusals - mine.refused_before
        mine.finish((None, _gave_up(name, after, line.error, refusals, unsure=unsure)))

    def _fail(self, name: str, line: _CellLine, failure: Exception, shares: Sequence[_CellShare]) -> None:
        """End changes that no further try can make."""
        for share in shares:
            with self._access.mutex:
                share.gone = True
                unsure = _may_be_made(line, share)
            share.finish((None, _refused(name, failure) if unsure else _another(failure)))


def _may_be_made(line: _CellLine, share: _CellShare) -> bool:
    return any(share in each.shares for each in line.late)


def _summable(shares: Sequence[_CellShare]) -> list[_CellShare]:
    """Return the first of the additions, as many as may be made as one."""
    total, found = 0, list[_CellShare]()
    for share in shares[:MOST_AT_ONCE]:
        total += cast("Addition", share.addition).by
        if found and abs(total) > FARTHEST_SUM:
            break
        found.append(share)
    return found


def _sum(shares: Sequence[_CellShare]) -> Addition:
    """Return one addition that is made if and only if all of some additions can be, one after the other."""
    additions = [cast("Addition", each.addition) for each in shares]
    total = rest = sum(each.by for each in additions)
    leasts, mosts = list[int](), list[int]()
    for each in additions:
        rest -= each.by
        leasts.append(each.least + rest)
        mosts.append(each.most + rest)
    return Addition(total, max(leasts), min(mosts))


def _replies(shares: Sequence[_CellShare], total: int) -> list[Result]:
    """Return the replies of additions that led to a total together."""
    additions = [cast("Addition", each.addition) for each in shares]
    number = total - sum(each.by for each in additions)
    results: list[Result] = []
    for each in additions:
        number += each.by
        results.append((number if each.reply is None else each.reply, None))
    return results


def _another(error: Exception) -> Exception:
    """Return an error like this one, for each caller to raise its own."""
    other = copy(error)
    other.__cause__ = error.__cause__
    return other


def _refused(name: str, failure: Exception) -> OutcomeUnknown:
    return OutcomeUnknown(
        f"{name!r} may have been changed, once or not at all: after a request without a reply the store refused to say "
        f"which it is ({quoted(failure)})"
    )


def _forgot(name: str) -> OutcomeUnknown:
    return OutcomeUnknown(
        f"{name!r} may have been changed, once or not at all: after a request without a reply so many others have "
        "changed it that it no longer says which it is"
    )


def _gave_up(name: str, after: float, error: StoreUnavailable | None, refusals: int, *, unsure: bool) -> Exception:
    if unsure:
        why = f" ({quoted(error)})" if error is not None else ""
        return OutcomeUnknown(
            f"{name!r} may have been changed, once or not at all: after a request without a reply the store did not "
            f"say within {after:.3g} s which it is{why}"
        )
    if error is not None:
        return _another(error)
    why = f"others were faster {refusals} times" if refusals else "the store, or this process, was slow"
    return StoreUnavailable(f"{name!r} was not changed within {after:.3g} s: {why}. Try again, or give it more time")


def _read(name: str, cell: Cell) -> _Content:
    if not cell.value:
        return _Content()
    forms.check(cell.value[:100].decode("ascii", "replace"), f"the cell {name!r}")
    return _ours(name, _content, cell.value)


def _content(value: bytes) -> _Content:
    state, replies = json.loads(value)
    for _, _, _ in replies.values():
        pass  # what these are is read where it counts
    return _Content(state, replies)


def _ours(name: str, read: Callable[..., T], *what: Any) -> T:  # noqa: ANN401 - what JSON knows
    """Return what `read` makes of a value in a cell. Raises StoreError if it is none that Tenure wrote."""
    try:
        return read(*what)
    except TenureError:
        raise
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise StoreError(f"the cell {name!r} has a value that Tenure did not write; remove it") from error


def _may_be_forgotten(content: _Content, lane: str, batch: _CellBatch) -> bool:
    """Return whether a late batch of a lane may have been made although the cell does not show it.

    The version of an addition is 0, so each cell that has forgotten replies may have forgotten the addition.
    """
    _, _, forgotten = content.replies.get(FORGOTTEN, (0, None, 0))
    return lane not in content.replies and batch.version < forgotten


def _write(name: str, state: Any, replies: dict[str, list[Any]]) -> bytes:  # noqa: ANN401 - what JSON knows
    """Return the value of a cell, without its oldest replies if there are too many."""
    value = _text([state, replies])
    if len(value) > FULL:
        value = _text([state, _latest(replies)])
    if len(value) > LARGEST_CELL:
        raise UsageError(f"{name!r} became larger than the {LARGEST_CELL} bytes that a store keeps in one cell")
    return value


def _latest(replies: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """Return the latest replies, at least one and as many as REPLIES allows, and which versions are forgotten."""
    _, _, forgotten = replies.get(FORGOTTEN, (0, None, 0))
    inorder = [(lane, reply) for lane, reply in replies.items() if lane != FORGOTTEN]
    room, first = REPLIES, len(inorder)
    while first and (room := room - len(_text(dict(inorder[first - 1 : first])))) >= 0:
        first -= 1
    first = min(first, len(inorder) - 1)
    forgotten = max([forgotten, *(before + 1 for _, (_, _, before) in inorder[:first])])
    return {**({FORGOTTEN: [0, None, forgotten]} if forgotten else {}), **dict(inorder[first:])}


def _text(value: Any) -> bytes:  # noqa: ANN401 - what JSON knows
    return json.dumps(value, separators=(",", ":")).encode()
