"""Checks of jobs that run once in a window, or for a key."""

# ruff: noqa: D401 - a check's docstring is the guarantee, not an order

from collections.abc import Callable, Coroutine
from typing import Any, cast

from tenure import FingerprintMismatch, JobStatus
from tenure.client import AsyncClient
from tenure.runtimes.threads import complete
from tenure_testing.conformance.check import check
from tenure_testing.conformance.kit import Kit, expect

YEAR = 366 * 86_400.0
"""A window that ends during no check, in seconds."""

Work = Callable[[], Coroutine[Any, Any, Any]]


def _in_form(kit: Kit, work: Work) -> Work:
    """Return `work` as the function that a job of this form runs."""
    return work if kit.form == "asyncio" else cast("Work", lambda: complete(work()))


async def _call(kit: Kit, client: AsyncClient, work: Work, **options: Any) -> Any:  # noqa: ANN401 - a result in either form
    return await client.once("job", **options).run(_in_form(kit, work))


async def _nothing() -> None: ...


async def _fail() -> None:
    raise ArithmeticError("no luck")


@check(cells=True)
async def job_runs_once_in_a_window(kit: Kit) -> None:
    """Of all calls in a window one runs the function, and the others learn that it runs, or who did it."""
    here, there = kit.client(owner="here"), kit.client(owner="there")
    began: list[str] = []

    async def work() -> str:
        began.append("here")
        running = await _call(kit, there, _fail, window=YEAR)
        expect(running.status is JobStatus.RUNNING and running.by == "here", "a call meanwhile learns who runs it")
        return "value"

    ran = await _call(kit, here, work, window=YEAR)
    expect(ran.ran and ran.value == "value" and began == ["here"], "the first call runs the function")
    for client in (here, there):
        done = await _call(kit, client, _fail, window=YEAR)
        expect(done.status is JobStatus.DONE and done.by == "here" and done.at == ran.at, "it is not run again")
    (view,) = await there.jobs()
    expect(view.name == "job" and view.done and len(view.runs) == 1, "the run is in the history")


@check(cells=True)
async def key_is_run_once_and_the_others_wait(kit: Kit) -> None:
    """Of all calls for a key one runs the function, and the others return when it is done."""
    clients = [kit.client() for _ in range(4)]
    began: list[str] = []

    async def work() -> None:
        began.append("")
        await kit.pause(0.1)

    running = [kit.start(lambda client=each: _call(kit, client, work, key="k")) for each in clients]  # type: ignore[misc]
    statuses = sorted([str((await each.result()).status) for each in running])
    expect(statuses == ["done", "done", "done", "ran"] and len(began) == 1, "one call runs it, the others wait")
    expect((await _call(kit, clients[0], _nothing, key="other")).ran, "another key is run for itself")


@check(cells=True)
async def every_caller_for_a_key_gets_the_result_of_its_run(kit: Kit) -> None:
    """With `keep` the result of the one run goes to all callers; a call for other work is refused, and runs nothing."""
    clients = [kit.client() for _ in range(3)]
    began: list[str] = []

    async def work() -> tuple[str, int]:
        began.append("")
        await kit.pause(0.1)
        return "paid", len(began)

    async def call(client: AsyncClient, body: str) -> Any:  # noqa: ANN401 - a result in either form
        return await _call(kit, client, work, key="k", keep=3600.0, fingerprint={"body": body})

    running = [kit.start(lambda client=each: call(client, "a")) for each in clients]  # type: ignore[misc]
    values = [(await each.result()).value for each in running]
    expect(values == [["paid", 1]] * 3 and len(began) == 1, "all get the result of the one run")
    try:
        await call(clients[0], "b")
    except FingerprintMismatch:
        pass
    else:
        expect(False, "another fingerprint is refused")  # noqa: FBT003 - it is wrong to come here
    expect((await call(clients[1], "a")).value == ["paid", 1] and len(began) == 1, "the key stays as it was")


@check(cells=True)
async def failed_job_has_no_more_runs_than_attempts(kit: Kit) -> None:
    """A run that fails is noted with its error; after the last attempt no call runs the function."""
    client = kit.client(owner="here")
    try:
        await _call(kit, client, _fail, window=YEAR)
    except ArithmeticError:
        pass
    else:
        expect(False, "the error of the function is raised")  # noqa: FBT003 - it is wrong to come here
    failed = await _call(kit, client, _nothing, window=YEAR)
    expect(failed.status is JobStatus.FAILED and failed.attempts == 1, "its one attempt has failed")
    expect("no luck" in failed.error, "the error is noted")
    expect(await client.job("job").repeat(), "an operator lets it run again")
    expect((await _call(kit, client, _nothing, window=YEAR)).ran, "then it runs")
    expect(await client.job("job").forget() and await client.jobs() == [], "a forgotten job is unknown")
