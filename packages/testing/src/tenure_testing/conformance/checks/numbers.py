"""Checks of counters, limits and stocks: exact by however many clients, and refused by none that could be served."""

# ruff: noqa: D401 - a check's docstring is the guarantee, not an order

from functools import partial

from tenure.client import AsyncClient
from tenure.errors import LockTimeout, UsageError
from tenure_testing.conformance.check import check
from tenure_testing.conformance.kit import Kit, expect

FARTHEST = 2**53 - 1
LONG = 60.0


@check(cells=True)
async def counter_counts_each_call_once(kit: Kit) -> None:
    """Several clients that add to a counter at the same time lose no addition, and no two get the same value."""
    clients = [kit.client() for _ in range(3)]

    async def add(client: AsyncClient) -> list[int]:
        counter = client.counter("n")
        return [await counter.add() for _ in range(8)]

    running = [kit.start(partial(add, each)) for each in clients]
    values = [value for each in running for value in await each.result()]
    expect(sorted(values) == list(range(1, 25)), "each addition counts once")
    counter = clients[0].counter("n")
    expect(await counter.get() == 24, "the counter has all additions")
    expect(await counter.reset(5) == 24 and await counter.get() == 5, "`reset` returns the value before")
    expect(not await counter.compare_and_set(4, 9), "a counter with another value is not set")
    expect(await counter.compare_and_set(5, -9) and await counter.get() == -9, "a counter with this value is set")


@check(exercises="store", cells=True)
async def counter_is_exact_to_its_bounds(kit: Kit) -> None:
    """A counter keeps every whole number within +-(2**53 - 1), and refuses to go beyond."""
    counter = kit.client().counter("n")
    for bound in (FARTHEST, -FARTHEST):
        step = 1 if bound > 0 else -1
        await counter.reset(bound - step)
        expect(await counter.add(step) == bound == await counter.get(), "the bound is reached exactly")
        try:
            await counter.add(step)
        except UsageError:
            pass
        else:
            expect(holds=False, what="an addition beyond the bound is refused")
        expect(await counter.get() == bound, "a refused addition changes nothing")


@check(cells=True)
async def limit_lets_no_more_pass(kit: Kit) -> None:
    """A limit lets its rate pass at once and refuses what is more, for all clients together and each key alone."""
    here, there = kit.client(), kit.client()
    first, second = here.limit("l", 3, LONG), there.limit("l", 3, LONG)
    expect(await first.try_acquire(2) and await second.try_acquire(), "the rate passes at once")
    expect(not await first.try_acquire() and not await second.try_acquire(), "no more pass")
    try:
        await second.acquire(timeout=LONG / 10)
    except LockTimeout as error:
        expect(error.wait is not None and error.wait > LONG / 2, "the refusal says how long the wait would have been")
    else:
        expect(holds=False, what="a timeout that cannot be met is refused")
    expect(await second.try_acquire(3, key="another"), "each key has a limit of its own")
    expect(not await first.try_acquire(key="another"), "for all clients")


@check(cells=True)
async def limit_lets_waiters_pass(kit: Kit) -> None:
    """A waiter passes when its slot has come, and none of several waiters passes before its slot."""
    limit = kit.client().limit("l", 20, 1.0, smooth=True)
    began = kit.now()
    for _ in range(5):
        await limit.acquire(timeout=10)
    expect(kit.now() - began >= 0.2 * 0.99, "four slots after the first lie 50 ms apart")


@check(cells=True)
async def stock_sells_each_unit_once(kit: Kit) -> None:
    """Several clients that empty a stock get all of its units, and each unit once."""
    clients = [kit.client() for _ in range(3)]
    await clients[0].stock("s", 3).restock(20)

    async def buy(client: AsyncClient, units: int) -> int:
        stock, bought = client.stock("s", 3), 0
        while taken := await stock.take(units):
            bought += taken
        return bought

    running = [kit.start(partial(buy, each, units)) for units, each in enumerate(clients, 1)]
    bought = [await each.result() for each in running]
    expect(sum(bought) == 20, "all units are sold once")
    expect(await clients[1].stock("s", 3).total() == 0, "no unit is left")


@check(cells=True)
async def stock_moves_units_together(kit: Kit) -> None:
    """A take of more units than any segment has gets them as long as there are so many in all."""
    stock = kit.client().stock("s", 4)
    await stock.restock(10)
    expect(await stock.take(7) == 7, "units of several segments are taken together")
    expect(await stock.take(4) == 0 and await stock.total() == 3, "too few units are not taken")
    expect(await stock.take(3) == 3 and await stock.take() == 0, "the last units are taken")


@check(exercises="store", cells=True)
async def stock_keeps_reservations(kit: Kit) -> None:
    """Reserved units are nobody else's until the reservation is confirmed, cancelled or has expired."""
    here, there = kit.client(), kit.client()
    stock, other = here.stock("s", 2), there.stock("s", 2)
    await stock.restock(4)
    kept, given = await stock.reserve(2, LONG), await stock.reserve(2, LONG)
    expect(kept is not None and given is not None, "units are reserved")
    if kept is None or given is None:
        return
    expect(await other.take() == 0 and await other.reserve(1, LONG) is None, "reserved units are not taken")
    expect(await given.cancel() and not await given.confirm(), "a cancelled reservation is not confirmed")
    expect(await other.total() == 2, "the units of a cancelled reservation are there again")
    expect(await kept.confirm() and not await kept.cancel(), "a confirmed reservation is not cancelled")
    brief = await other.reserve(2, 0.05)
    expect(brief is not None, "the units are reserved again")

    async def returned() -> bool:
        return await stock.total() == 2

    await kit.until(returned, "the units of an expired reservation there again")
    expect(brief is not None and not await brief.confirm(), "an expired reservation is not confirmed")
    expect(await stock.take(2) == 2, "its units are taken")
