"""Random histories of holders that all trust their leases: no update is lost, and bugs in the guard are found.

Each holder adds 1 to an account, twice: in one transaction, or with its read in one and its write in another. A
scheduler takes the steps of all holders in a random order, and waits after each until it is done or waits for a lock.
So a seed gives one history.
"""

import random
from collections.abc import Generator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import tenure
from tenure.fencing.dialects import DIALECTS
from tests.fencing.conftest import database_of
from tests.fencing.kinds import Kind, PercentDriver, finished
from tests.fencing.writers import READ, TEST_TIMEOUT, WRITE, Guard, Writer, guard_first
from tests.servers.waiting import wait_until

HOLDERS = 3
Steps = Generator[Future[Any], Any, None]


@dataclass
class History:
    """What was committed, in the order of the commits."""

    writes: list[tuple[int, int, int]] = field(default_factory=list[tuple[int, int, int]])
    """The token of each committed write, what its holder had read, and what it wrote."""
    refused: list[int] = field(default_factory=list[int])
    """The tokens of the holders that were refused."""

    def problems(self, newest: int) -> list[str]:
        """Return what is wrong with the history."""
        found: list[str] = []
        for before, after in zip([(0, 0, 0), *self.writes], self.writes, strict=False):
            if after[1] != before[2]:
                found.append(f"an update is lost: {after} does not know {before}")
            if after[0] < before[0]:
                found.append(f"a stale write is accepted: {after} after {before}")
        if newest in self.refused:
            found.append("the newest holder is refused")
        return found


def work(writer: Writer, history: History, together: bool, late: bool) -> Steps:
    """Take the steps of one holder; `late`: guard after the read."""
    try:
        for _ in range(2):
            if not late:
                yield writer.starts_to_guard()
            seen = yield writer.starts_to_execute(READ, name=writer.name)
            if late or not together:
                if not together:
                    yield writer.starts_to_commit()
                yield writer.starts_to_guard()
            yield writer.starts_to_execute(WRITE, name=writer.name, value=int(seen) + 1)
            yield writer.starts_to_commit()
            history.writes.append((writer.token, int(seen), int(seen) + 1))
    except tenure.StaleTokenError:
        history.refused.append(writer.token)
        yield writer.starts_to_roll_back()


def run(kind: Kind, name: str, seed: int, guard: Guard = guard_first, *, late: bool = False) -> list[str]:
    """Run one history, and return what is wrong with it."""
    chance, history = random.Random(seed), History()
    kind.database.open_account(name)
    with ExitStack() as opened:
        writers = [opened.enter_context(Writer(kind, name, guard=guard)) for _ in range(HOLDERS)]
        schedule(kind, chance, [work(writer, history, chance.random() < 0.5, late) for writer in writers])
        return history.problems(writers[-1].token)


def schedule(kind: Kind, chance: random.Random, holders: Sequence[Steps]) -> None:
    """Take the steps of all holders in a random order, until all have ended."""
    pending: dict[int, Future[Any]] = {}
    ready: dict[int, Any] = dict.fromkeys(range(len(holders)))
    while ready or pending:
        for index in [index for index, step in pending.items() if step.done()]:
            ready[index] = pending.pop(index)
        if not ready:
            wait_until(lambda: any(step.done() for step in pending.values()), "a step of a holder", TEST_TIMEOUT)
            continue
        index = chance.choice(sorted(ready))
        step = resume(holders[index], ready.pop(index))
        if step is not None:
            pending[index] = step
            wait_until(lambda: is_at_rest(kind, pending), "steps that are done or wait", TEST_TIMEOUT)


def resume(holder: Steps, last: Future[Any] | None) -> Future[Any] | None:
    """Give a holder the result of its last step; return its next step, None if it has ended."""
    try:
        if last is None:
            return next(holder)
        error = last.exception()
        return holder.throw(error) if error is not None else holder.send(last.result())
    except StopIteration:
        return None


def is_at_rest(kind: Kind, pending: dict[int, Future[Any]]) -> bool:
    """Return whether each step is done, or waits for a lock. A step that ends its wait is counted until it is done."""
    waiting = sum(not step.done() for step in pending.values())
    return not waiting or (kind.database.waiting() == waiting == sum(not step.done() for step in pending.values()))


@pytest.fixture(params=["postgresql", "mariadb"])
def kind(request: pytest.FixtureRequest, tmp_path: Path) -> Kind:
    """Return the two databases that let several transactions write at a time."""
    return PercentDriver(database_of(request.param, request, tmp_path))


@pytest.mark.parametrize("seed", range(12))
def test_no_update_is_lost(kind: Kind, account: str, seed: int) -> None:
    """No stale write is accepted either, and the newest holder is never refused."""
    assert run(kind, account, seed) == []


# -- planted bugs --------------------------------------------------------------------------------------------

SELECT = "SELECT token FROM tenure_fences WHERE name = {name}"


async def refuse_if_stale(lease: Any, connection: Any, kind: Kind, *, equal: bool = False) -> None:  # noqa: ANN401
    """Check the fence by a plain read, and lock nothing. `equal`: refuse the token of the fence itself, too."""
    name = DIALECTS[kind.database.name].stored(lease.name)
    seen = await kind.execute(connection, SELECT, {"name": name})
    if seen is not None and (seen > lease.token or (equal and seen == lease.token)):
        raise tenure.StaleTokenError(f"{lease.token} is below {seen}")


async def select_then_update(lease: Any, connection: Any, kind: Kind) -> None:  # noqa: ANN401 - of any driver
    """Plant: the check is not atomic with the rise."""
    await refuse_if_stale(lease, connection, kind)
    for statement in statements(kind):
        await kind.execute(connection, statement, values_of(lease, kind))


async def check_only(lease: Any, connection: Any, kind: Kind) -> None:  # noqa: ANN401 - of any driver
    """Plant: the check locks no row, and the fence rises over another connection, after the check."""
    await refuse_if_stale(lease, connection, kind)
    await raise_elsewhere(lease, kind)


async def on_another_connection(lease: Any, _connection: Any, kind: Kind) -> None:  # noqa: ANN401 - of any driver
    """Plant: a guard of another transaction, which ends before anything is written."""
    other = await kind.open()
    try:
        await finished(lease.guard(other))
        await finished(other.commit())
    finally:
        await kind.close(other)


async def equal_is_stale(lease: Any, connection: Any, kind: Kind) -> None:  # noqa: ANN401 - of any driver
    """Plant: `<` where `<=` belongs, so a holder is refused by its own fence."""
    await refuse_if_stale(lease, connection, kind, equal=True)
    await guard_first(lease, connection, kind)


async def raise_elsewhere(lease: Any, kind: Kind) -> None:  # noqa: ANN401 - of any driver
    """Raise the fence over another connection."""
    other = await kind.open()
    try:
        for statement in statements(kind):
            await kind.execute(other, statement, values_of(lease, kind))
        await finished(other.commit())
    finally:
        await kind.close(other)


def statements(kind: Kind) -> list[str]:
    """Return the statement that raises a fence, whatever the fence was."""
    return [DIALECTS[kind.database.name].raise_fence.replace("{table}", "tenure_fences")]


def values_of(lease: Any, kind: Kind) -> dict[str, object]:  # noqa: ANN401 - of any form
    """Return the values of that statement."""
    return {"name": DIALECTS[kind.database.name].stored(lease.name), "token": lease.token}


PLANTED: dict[str, tuple[Guard, bool]] = {
    "the guard after the read": (guard_first, True),
    "a select, then an update": (select_then_update, False),
    "no row lock": (check_only, False),
    "another connection": (on_another_connection, False),
    "an equal token is refused": (equal_is_stale, False),
}


@pytest.mark.parametrize("planted", PLANTED)
def test_a_planted_bug_is_found(kind: Kind, account: str, planted: str) -> None:
    """Within a few histories."""
    guard, late = PLANTED[planted]
    assert any(run(kind, f"{account}-{seed}", seed, guard, late=late) for seed in range(40))
