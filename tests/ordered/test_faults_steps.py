"""Connections that break, and cancellations that come, at each step of an acquisition: nothing is left behind."""

import asyncio
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from itertools import count
from typing import Any, Generic, TypeVar, cast

import pytest

from tenure import AsyncClient, AsyncLease, LockTimeout, StoreUnavailable
from tenure.runtimes.clocks import steady
from tenure_testing.conformance.kit import Kit
from tests.faults.scenes import API_FORMS, play
from tests.ordered.ensembles import Ensemble, Party, note, proxies
from tests.servers import Proxy

T = TypeVar("T")

LONG = 30.0
"""A session, and a ttl, that outlive every test: what is left behind is seen."""

AMPLE = 10.0
"""How long a request may take, in seconds, of clients whose way is not disturbed: the machine may be busy."""

TIMEOUT = 3.0
"""How long a victim waits for the name, in seconds."""

TEST_TIMEOUT = 15.0
"""How long to wait, in seconds, for what must happen: only ever used up by a failure, and shorter than a session."""

MOST = 60
"""More steps than anything here takes."""

FAULTS = ("swallow", "lose", "lose-again-and-again")

Act = Callable[[Kit, AsyncClient, AsyncClient], Coroutine[Any, Any, AsyncLease]]
"""What a victim does, while another client may have the name at first."""


async def uncontended(kit: Kit, victim: AsyncClient, other: AsyncClient) -> AsyncLease:
    """Acquire a free name."""
    return await victim.lock("name", ttl=LONG).acquire(timeout=TIMEOUT)


async def handed_over(kit: Kit, victim: AsyncClient, other: AsyncClient) -> AsyncLease:
    """Acquire a held name, which is released when the victim waits, or has given up."""
    held = await other.lock("name", ttl=LONG).acquire()
    waiting = kit.start(lambda: victim.lock("name", ttl=LONG).acquire(timeout=TIMEOUT))

    async def queued() -> bool:
        return waiting.done() or bool((await other.inspect("name")).waiters)

    await kit.until(queued, "the victim in the queue")
    await held.release()
    return await waiting.result()


async def left_nothing(kit: Kit, other: AsyncClient) -> None:
    """Assert that nobody holds or waits, and that another client gets the name."""

    async def empty() -> bool:
        view = await other.inspect("name")
        return not view.holders and not view.waiters

    await kit.until(empty, "nothing left", TEST_TIMEOUT)
    lease = await other.lock("name", ttl=LONG).try_acquire()
    assert lease is not None
    await lease.release()


# -- connections -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("act", [uncontended, handed_over])
@pytest.mark.parametrize(("fault", "times"), [(Proxy.swallow, 1), (Proxy.lose, 1), (Proxy.lose, 4)], ids=FAULTS)
@pytest.mark.parametrize(
    ("ensemble", "form"),
    [("zookeeper", "threads"), *(("etcd", form) for form in API_FORMS)],  # to ZooKeeper, both go by one thread
    indirect=["ensemble"],
)
def test_a_connection_that_breaks_at_any_step(
    ensemble: Ensemble, space: str, form: str, *, act: Act, fault: Callable[..., None], times: int
) -> None:
    """The name is acquired and released all the same, once, or an error says that it was not; nothing is left.

    Whether the request had been carried out by then, and its reply is lost, or not; and if that happens again, once
    more than anybody asks who has to leave.
    """

    async def scene(kit: Kit) -> None:
        other = Party(kit, ensemble.url(space, LONG), operation_timeout=AMPLE).client
        outcomes: list[str] = []
        took: list[float] = []
        with proxies(ensemble.servers[:1]) as (wall,):
            url = ensemble.url(space, LONG, [wall.address])
            for step in count():
                assert step < MOST
                victim = Party(kit, url).client
                await victim.names()
                hit = wall.counts.swallowed + wall.counts.lost
                fault(wall, times, after=step)
                began = steady()
                try:
                    lease = await act(kit, victim, other)
                    view = await other.inspect("name")
                    assert [holder.token for holder in view.holders] == [lease.token]
                    outcome = await lease.release()
                    assert outcome.kept, f"step {step}: {outcome}"
                    outcomes.append(outcome.name)
                except (StoreUnavailable, LockTimeout) as error:
                    outcomes.append(type(error).__name__)
                took.append(steady() - began)
                done = wall.counts.swallowed + wall.counts.lost == hit
                wall.heal()
                await left_nothing(kit, other)
                await victim.close()
                if done:
                    break
        note(f"{ensemble.kind} {form} {act.__name__}: {outcomes}, longest {max(took):.3f} s")
        assert outcomes[-1] == "RELEASED"

    play(form, ensemble.url(space, LONG), scene)
    assert ensemble.left(space) == []


# -- cancellations ---------------------------------------------------------------------------------------------------


class Cancelled(Generic[T]):
    """Awaits something, and cancels its task when that is suspended for the n-th time.

    `late`: not before what is awaited is there, so that it is just not heard of any more.
    """

    def __init__(self, work: Coroutine[Any, Any, T], at: int, *, late: bool) -> None:
        self._work = work
        self._at = at
        self._late = late
        self.count = 0

    def __await__(self) -> Generator[Any, Any, T]:
        error: BaseException | None = None
        while True:
            try:
                awaited = self._work.send(None) if error is None else self._work.throw(error)
            except StopIteration as end:
                result: T = end.value
                return result
            self.count += 1
            if self.count == self._at:
                self._cancel(awaited)
            error = None
            try:
                yield awaited
            except BaseException as raised:  # noqa: BLE001 - whatever it is, it is for what is awaited
                error = raised

    def _cancel(self, awaited: object) -> None:
        task = asyncio.current_task()
        assert task is not None
        if self._late and isinstance(awaited, asyncio.Future):
            cast("asyncio.Future[object]", awaited).add_done_callback(lambda _: task.cancel())
        else:
            task.cancel()


async def cold(victim: AsyncClient) -> AsyncLease:
    """Acquire with a client that has no session yet."""
    return await victim.lock("name", ttl=LONG).acquire()


async def warm(victim: AsyncClient) -> AsyncLease:
    """Acquire with one that has."""
    return await victim.lock("name", ttl=LONG).acquire()


async def queued(victim: AsyncClient) -> AsyncLease:
    """Acquire what another has, who releases it when the victim waits, or has given up."""
    return await victim.lock("name", ttl=LONG).acquire()


async def has_come(task: asyncio.Task[AsyncLease], other: AsyncClient) -> bool:
    """Tell whether a victim waits, or has given up."""
    return task.done() or bool((await other.inspect("name")).waiters)


@pytest.mark.parametrize("late", [False, True], ids=["early", "late"])
@pytest.mark.parametrize("act", [cold, warm, queued])
def test_cancelled_at_any_await_nothing_is_left(
    ensemble: Ensemble, space: str, act: Callable[[AsyncClient], Coroutine[Any, Any, AsyncLease]], late: bool
) -> None:
    """No node and no key; the name is free for others at once; the cancellation is not swallowed."""

    async def scene(kit: Kit) -> None:
        other = Party(kit, ensemble.url(space, LONG), operation_timeout=AMPLE).client
        for at in range(1, MOST):
            victim = Party(kit, ensemble.url(space, LONG), operation_timeout=AMPLE).client
            if act is not cold:
                await victim.names()
            held = await other.lock("name", ttl=LONG).acquire() if act is queued else None
            steps = Cancelled(act(victim), at, late=late)

            async def run(steps: Cancelled[AsyncLease] = steps) -> AsyncLease:
                return await steps

            task = asyncio.ensure_future(run())
            if held is not None:
                await kit.until(partial(has_come, task, other), "the victim in the queue")
                await held.release()
            await asyncio.wait({task}, timeout=TEST_TIMEOUT)
            assert task.done()
            if not task.cancelled():
                lease = task.result()
                lease.check()
                await lease.release()
                assert steps.count < at, "a cancellation was swallowed"
            await left_nothing(kit, other)
            await victim.close()
            if not task.cancelled():
                note(f"{ensemble.kind} {act.__name__}: {steps.count} awaits")
                return
        raise AssertionError

    play("asyncio", ensemble.url(space, LONG), scene)
    assert ensemble.left(space) == []
