"""What runs under a lock: told of a loss, never masked by it, and cancelled without a trace."""

# ruff: noqa: D401 - a check's docstring is the guarantee, not an order

import asyncio
from collections.abc import Awaitable

from holdfast import AsyncClient, AsyncLease
from holdfast.errors import LeaseLost
from holdfast.testing.conformance.check import check
from holdfast.testing.conformance.kit import TEST_TIMEOUT, Kit, cancel_after, expect
from holdfast.testing.conformance.wire import Wire

SHORT = 0.2
LONG = 20.0


class _MishapError(Exception):
    """The body's own error."""


def _silent(kit: Kit) -> AsyncClient:
    wire = Wire()
    wire.cut = True
    return kit.client(wire)


@check()
async def body_releases_on_exit(kit: Kit) -> None:
    """Leaving a body releases the lock, by its end as by an error, which is passed on as it is."""
    here, there = kit.client(), kit.client()
    async with here.lock("name", ttl=LONG):
        expect(await there.lock("name", ttl=LONG).try_acquire() is None, "the body holds the lock")
    lease = await there.lock("name", ttl=LONG).try_acquire()
    expect(lease is not None, "the end of the body releases it")
    if lease is not None:
        await lease.release()
    caught: BaseException | None = None
    try:
        async with here.lock("name", ttl=LONG):
            raise _MishapError  # noqa: TRY301 - the body's own
    except _MishapError as error:
        caught = error
    expect(caught, "the body's error is passed on")
    expect(not getattr(caught, "__notes__", []), "nothing is added to it")
    expect(await there.lock("name", ttl=LONG).try_acquire() is not None, "an error releases it")


@check()
async def lost_lease_raises_on_exit(kit: Kit) -> None:
    """A body whose lease was lost ends in LeaseLost."""
    caught: LeaseLost | None = None
    lease: AsyncLease | None = None
    try:
        async with _silent(kit).lock("name", ttl=SHORT) as lease:
            await lease.lost.wait(TEST_TIMEOUT)
    except LeaseLost as error:
        caught = error
    expect(caught is not None, "the loss is raised on exit")
    expect("name" in str(caught), "it says what was lost")


@check()
async def loss_masks_no_error(kit: Kit) -> None:
    """A body's own error is passed on even if the lease was lost; the loss is a note to it."""
    caught: BaseException | None = None
    try:
        async with _silent(kit).lock("name", ttl=SHORT) as lease:
            try:
                await lease.lost.wait(TEST_TIMEOUT)
            finally:
                raise _MishapError
    except _MishapError as error:
        caught = error
    expect(caught, "the body's error is passed on")
    expect("lost" in "".join(getattr(caught, "__notes__", [])), "the loss is noted")


@check(forms=("asyncio",))
async def loss_cancels_the_body(kit: Kit) -> None:
    """An asyncio body is cancelled when its lease is lost, and LeaseLost, not the cancellation, comes out."""
    passed: list[str] = []

    async def body() -> None:
        async with _silent(kit).lock("name", ttl=SHORT):
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


@check(forms=("asyncio",))
async def outside_cancellation_is_not_swallowed(kit: Kit) -> None:
    """A cancellation from elsewhere passes through a body, whether or not the lease is lost then as well."""
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
    expect(await _was_cancelled(running.result()), "the cancellation comes out")

    async def body_that_is_lost_then() -> None:
        async with _silent(kit).lock("name", ttl=SHORT) as lease:
            _cancel_this_task()
            try:
                await kit.pause(TEST_TIMEOUT)
            finally:
                _outlive(lease)

    expect(await _was_cancelled(kit.start(body_that_is_lost_then).result()), "the cancellation comes out")
    expect(await kit.client().lock("name", ttl=LONG).acquire(timeout=TEST_TIMEOUT), "nothing is left behind")


@check(forms=("asyncio",))
async def cancellation_takes_precedence_over_loss(kit: Kit) -> None:
    """A body that is cancelled by its loss and by somebody else at once ends in the cancellation."""

    async def body() -> None:
        async with _silent(kit).lock("name", ttl=SHORT) as lease:
            _outlive(lease)
            _cancel_this_task()
            await kit.pause(TEST_TIMEOUT)

    expect(await _was_cancelled(kit.start(body).result()), "the cancellation comes out")


def _outlive(lease: AsyncLease) -> None:
    """Wait until a lease is lost, without awaiting, so that what happens then falls into the same step of the loop."""
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


@check(forms=("asyncio",))
async def cancelled_acquire_leaves_nothing(kit: Kit) -> None:
    """An acquisition that is cancelled, at whatever step, leaves no holder and no waiter behind."""
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


@check(forms=("asyncio",))
async def cancelled_release_is_carried_out(kit: Kit) -> None:
    """A release that is cancelled is carried out all the same."""
    here, there = kit.client(), kit.client()
    for steps in range(4):
        lease = await here.lock("name", ttl=LONG).acquire()
        running = kit.start(lease.release)
        for _ in range(steps):
            await asyncio.sleep(0)
        running.cancel()
        if steps == 0:  # the task was cancelled before its first step: nothing was asked for
            await _was_cancelled(running.result())
            await lease.release()
        await _was_cancelled(running.result())
        await kit.free(there, "name")
