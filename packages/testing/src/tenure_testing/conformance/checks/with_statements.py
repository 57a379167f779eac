"""Checks of `with` statements: the errors of a body, its cancellation, and the loss of its lease."""

# ruff: noqa: D401 - a check's docstring is the guarantee, not an order

import asyncio
from collections.abc import Awaitable

from tenure import AsyncClient, AsyncLease
from tenure.errors import LeaseLost
from tenure_testing.conformance.check import check
from tenure_testing.conformance.kit import TEST_TIMEOUT, Kit, cancel_after, expect
from tenure_testing.conformance.wire import FaultyWire

LONG = 20.0


class _BodyError(Exception):
    """The body's own error."""


def _silent(kit: Kit) -> AsyncClient:
    wire = FaultyWire()
    wire.cut = True
    return kit.client(wire)


@check()
async def body_releases_on_exit(kit: Kit) -> None:
    """The lock is released when its body ends, also by an error; the error is raised unchanged."""
    here, there = kit.client(), kit.client()
    async with here.lock("name", ttl=LONG):
        expect(await there.lock("name", ttl=LONG).try_acquire() is None, "the body holds the lock")
    lease = await there.lock("name", ttl=LONG).try_acquire()
    expect(lease is not None, "the end of the body releases the lock")
    if lease is not None:
        await lease.release()
    caught: BaseException | None = None
    try:
        async with here.lock("name", ttl=LONG):
            raise _BodyError  # noqa: TRY301 - the body's own
    except _BodyError as error:
        caught = error
    expect(caught, "the body's error is raised")
    expect(not getattr(caught, "__notes__", []), "the body's error has no notes")
    expect(await there.lock("name", ttl=LONG).try_acquire() is not None, "an error in the body releases the lock")


@check(exercises="store")
async def lost_lease_raises_on_exit(kit: Kit) -> None:
    """A body whose lease was lost raises LeaseLost on exit."""
    caught: LeaseLost | None = None
    lease: AsyncLease | None = None
    try:
        async with _silent(kit).lock("name", ttl=kit.short) as lease:
            await lease.lost.wait(TEST_TIMEOUT)
    except LeaseLost as error:
        caught = error
    expect(caught is not None, "the loss is raised on exit")
    expect("name" in str(caught), "the error names the lost lock")


@check()
async def loss_masks_no_error(kit: Kit) -> None:
    """A body's own error is raised even if the lease was lost; the loss is a note of that error."""
    caught: BaseException | None = None
    try:
        async with _silent(kit).lock("name", ttl=kit.short) as lease:
            try:
                await lease.lost.wait(TEST_TIMEOUT)
            finally:
                raise _BodyError
    except _BodyError as error:
        caught = error
    expect(caught, "the body's error is raised")
    expect("lost" in "".join(getattr(caught, "__notes__", [])), "a note reports the loss")


@check(forms=("asyncio",))
async def loss_cancels_the_body(kit: Kit) -> None:
    """An asyncio body is cancelled when its lease is lost, and raises LeaseLost instead of the cancellation."""
    passed: list[str] = []

    async def body() -> None:
        async with _silent(kit).lock("name", ttl=kit.short):
            await kit.pause(TEST_TIMEOUT)
            passed.append("the end of the body")

    running = kit.start(body)
    caught: BaseException | None = None
    try:
        await running.result()
    except LeaseLost as error:
        caught = error
    expect(not passed, "the body is cancelled")
    expect(caught is not None, "the loss is raised on exit")


@check(exercises="store", forms=("asyncio",))
async def outside_cancellation_is_not_swallowed(kit: Kit) -> None:
    """A cancellation from outside is raised through a body, whether or not the lease is lost as well."""
    entered: list[AsyncLease] = []

    async def body() -> None:
        async with kit.client().lock("name", ttl=LONG) as lease:
            entered.append(lease)
            await kit.pause(TEST_TIMEOUT)

    async def inside() -> bool:
        return bool(entered)

    running = kit.start(body)
    await kit.until(inside, "a body that runs")
    running.cancel()
    expect(await _was_cancelled(running.result()), "the cancellation is raised")

    async def body_that_is_lost_then() -> None:
        async with _silent(kit).lock("name", ttl=kit.short) as lease:
            _cancel_this_task()
            try:
                await kit.pause(TEST_TIMEOUT)
            finally:
                _outlive(lease)

    expect(await _was_cancelled(kit.start(body_that_is_lost_then).result()), "the cancellation is raised")
    expect(await kit.client().lock("name", ttl=LONG).acquire(timeout=TEST_TIMEOUT), "nothing is left behind")


@check(forms=("asyncio",))
async def cancellation_takes_precedence_over_loss(kit: Kit) -> None:
    """A body that is cancelled from outside and by the loss of its lease raises the cancellation."""

    async def body() -> None:
        async with _silent(kit).lock("name", ttl=kit.short) as lease:
            _outlive(lease)
            _cancel_this_task()
            await kit.pause(TEST_TIMEOUT)

    expect(await _was_cancelled(kit.start(body).result()), "the cancellation is raised")


def _outlive(lease: AsyncLease) -> None:
    """Wait until a lease is lost, without awaiting, so that the next statement runs in the same step of the loop."""
    while not lease.lost.is_set():
        pass


def _cancel_this_task() -> None:
    task = asyncio.current_task()
    if task is not None:
        task.cancel()


async def _was_cancelled(result: Awaitable[object]) -> bool:
    try:
        await result
    except asyncio.CancelledError:
        return True
    return False


@check(exercises="store", forms=("asyncio",))
async def cancelled_acquire_leaves_nothing(kit: Kit) -> None:
    """An acquisition that is cancelled at any step leaves no holder and no waiter behind."""
    there = kit.client()
    for held in (False, True):
        for steps in range(12):
            lease = await there.lock("name", ttl=LONG).acquire() if held else None
            client = kit.client()
            await cancel_after(kit.start(client.lock("name", ttl=LONG).acquire), steps)
            if lease is not None:
                lease.check()
                await kit.waiters(there, "name", 0)
                await lease.release()
            await kit.free(there, "name")
            await kit.waiters(there, "name", 0)


@check(exercises="store", forms=("asyncio",))
async def cancelled_release_is_carried_out(kit: Kit) -> None:
    """A cancelled release is carried out nevertheless."""
    here, there = kit.client(), kit.client()
    for steps in range(4):
        lease = await here.lock("name", ttl=LONG).acquire()
        running = kit.start(lease.release)
        for _ in range(steps):
            await asyncio.sleep(0)
        running.cancel()
        if steps == 0:  # the task was cancelled before its first step, so it sent no request
            await _was_cancelled(running.result())
            await lease.release()
        await _was_cancelled(running.result())
        await kit.free(there, "name")
