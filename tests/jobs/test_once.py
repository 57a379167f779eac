"""Calls of a job: threads, tasks and processes that call it at the same time, die in it, and lose replies."""

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tenure import AsyncClient, Client, JobNotDone, JobStatus, LeaseLost, LockTimeout, StoreUnavailable, UsageError
from tenure.contracts.cells import Cell
from tenure.contracts.store import Capabilities, StoreSource
from tenure.primitives.once import OnceJob
from tenure.stores.memory import MemoryStore, MemoryTable, memory_source
from tests.core.test_cells import LossyStore
from tests.hazards.helpers import TEST_TIMEOUT, Script, eventually

HOUR = 3600.0
START = 1_800_000_000_000_000
"""A full hour, by the wall clock of the tests."""


class Wall:
    """A wall clock that a test moves."""

    def __init__(self) -> None:
        """Begin on the full hour."""
        self.now = START

    def __call__(self) -> int:
        """Return the time in microseconds."""
        return self.now

    def advance(self, seconds: float) -> None:
        """Move the clock, also back."""
        self.now += round(seconds * 1e6)


@pytest.fixture
def wall() -> Wall:
    """Return the store's clock."""
    return Wall()


@pytest.fixture
def source(wall: Wall) -> StoreSource:
    """Return a store whose wall clock the test moves."""
    return memory_source(MemoryTable(wall=wall))


@pytest.fixture
def client(source: StoreSource) -> Iterator[Client]:
    """Return a client of that store."""
    with Client(store=source, owner="here") as client:
        yield client


def fail() -> None:
    """Raise an error."""
    raise ValueError("no luck")


def test_a_window_is_run_once(client: Client, source: StoreSource, wall: Wall) -> None:
    """Whoever calls in the same window learns who ran it, when and for how long; the next window is run again."""
    job = client.once("report", window="hourly")

    def report(of: str) -> str:
        wall.advance(2)
        return f"report of {of}"

    ran = job.run(report, "today")
    assert ran.ran
    assert (ran.status, ran.value, ran.by, ran.attempts, ran.took) == (JobStatus.RAN, "report of today", "here", 1, 2.0)
    assert ran.window == "2027-01-15T08:00:00Z"
    with Client(store=source, owner="there") as other:
        done = other.once("report", window="hourly").run(report, "today")
        assert not done.ran
        assert (done.status, done.by, done.at, done.took) == (JobStatus.DONE, "here", ran.at, 2.0)
        wall.advance(HOUR)
        assert other.once("report", window="hourly").run(report, "later").by == "there"


def test_a_decorated_function_runs_once(client: Client) -> None:
    """And its calls return what became of them."""

    @client.once("report", window="daily")
    def report(number: int) -> int:
        return number + 1

    assert report(1).value == 2
    assert report(1).status is JobStatus.DONE


def test_a_decorated_function_runs_once_for_each_name_and_key(source: StoreSource) -> None:
    """They are filled from the arguments of the call; async functions too."""

    async def main() -> None:
        async with AsyncClient(store=source) as client:

            @client.once("import:{customer}", key="{day}:{{x}}")
            async def load(customer: int, day: str) -> str:
                return f"{customer} {day}"

            assert [(await load(*each)).ran for each in ((1, "a"), (2, "a"), (1, "b"), (1, "a"))] == [True] * 3 + [
                False
            ]
            assert [view.name for view in await client.jobs()] == ["import:1", "import:2"]
            assert (await client.once("import:1", key="a:{x}").run(load, 1, "a")).status is JobStatus.DONE

    asyncio.run(main())
    with Client(store=source) as client:

        @client.once("report:{number}", window="daily")
        def report(number: int) -> int:
            return number + 1

        assert [report(each).ran for each in (1, 2, 1)] == [True, True, False]
        with pytest.raises(UsageError, match="no such parameter"):
            client.once("migrate", key="{revision}")(report)


def test_async_calls(source: StoreSource) -> None:
    """Tasks that call a job at the same time: one runs it, the others say so."""

    async def main() -> None:
        async with AsyncClient(store=source) as client:
            job = client.once("report", window="hourly")
            began, go_on = asyncio.Event(), asyncio.Event()

            async def report() -> str:
                began.set()
                await go_on.wait()
                return "done"

            running = asyncio.create_task(job.run(report))
            await began.wait()
            assert (await job.run(report)).status is JobStatus.RUNNING
            waiting = [
                asyncio.create_task(client.once("report", window="hourly", busy="wait").run(report)) for _ in "ab"
            ]
            await asyncio.sleep(0.01)
            go_on.set()
            assert (await running).value == "done"
            assert [(await each).status for each in waiting] == [JobStatus.DONE] * 2

            @client.once("another", window="hourly")
            async def another() -> int:
                return 1

            assert (await another()).value == 1
            assert (await another()).status is JobStatus.DONE
            assert [view.name for view in await client.jobs()] == ["another", "report"]
            assert await client.job("another").pause()
            assert await client.job("another").resume()
            assert await client.job("another").repeat()
            assert (await another()).ran
            assert await client.job("another").forget()

    asyncio.run(main())


def test_a_cancelled_run_is_a_failed_attempt(source: StoreSource) -> None:
    """And leaves no lock behind."""

    async def main() -> None:
        async with AsyncClient(store=source) as client:
            job = client.once("report", window="hourly", attempts=1)
            began = asyncio.Event()

            async def report() -> None:
                began.set()
                await asyncio.Event().wait()

            running = asyncio.create_task(job.run(report))
            await began.wait()
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            assert await client.names() == []
            again = await job.run(report)
            assert (again.status, again.error) == (JobStatus.FAILED, "CancelledError: ")

    asyncio.run(main())


def test_an_error_is_noted_and_raised(client: Client, wall: Wall) -> None:
    """The next attempt waits for its back-off, and after the last one the window has failed."""
    job = client.once("report", window="hourly", attempts=2)
    with pytest.raises(ValueError, match="no luck"):
        job.run(fail)
    early = job.run(fail)
    assert (early.status, early.attempts, early.error) == (JobStatus.FAILED, 1, "ValueError: no luck")
    wall.advance(1)
    with pytest.raises(ValueError, match="no luck"):
        job.run(fail)
    wall.advance(60)
    last = job.run(fail)
    assert (last.status, last.attempts, last.by) == (JobStatus.FAILED, 2, "here")
    with pytest.raises(JobNotDone, match="failed after 2 attempts: ValueError: no luck"):
        last.check()


def test_a_call_that_waits_makes_the_next_attempt(client: Client, wall: Wall) -> None:
    """With busy="wait" a failed run is tried again after its back-off, in the same window."""
    with pytest.raises(ValueError, match="no luck"):
        client.once("report", window="hourly", attempts=2).run(fail)
    threading.Timer(0.1, wall.advance, (1.5,)).start()
    ran = client.once("report", window="hourly", attempts=2, busy="wait").run(lambda: "at last")
    assert (ran.value, ran.attempts) == ("at last", 2)


def test_a_window_that_is_over_is_not_started(wall: Wall) -> None:
    """A call that looked in a window, and would begin in the next one, says so; the function is not run."""
    table, late = MemoryTable(wall=wall), list[float]()

    class LateStore(MemoryStore):
        async def read_cell(self, name: str, until: float) -> Cell:
            cell = await super().read_cell(name, until)
            if late:
                wall.advance(late.pop())
            return cell

    source = StoreSource("late", MemoryStore.capabilities, lambda runtime: LateStore(runtime, table))
    with Client(store=source) as client:
        job = client.once("report", window="hourly")
        late.append(HOUR)
        assert job.run(fail).status is JobStatus.OVER
        assert job.run(lambda: None).ran


def test_a_run_does_not_wait_for_the_list_of_jobs(wall: Wall) -> None:
    """A job runs though its name cannot be listed, and is listed while it runs, or at its end."""
    table, full = MemoryTable(wall=wall), threading.Event()

    class FullStore(MemoryStore):
        async def write_cell(self, name: str, value: bytes, version: int, keep: int, until: float) -> Cell:
            if full.is_set() and name.startswith("jobs"):
                raise StoreUnavailable("no room")
            return await super().write_cell(name, value, version, keep, until)

    def names() -> list[str]:
        return [each.name for each in listing.jobs()]

    source = StoreSource("full", MemoryStore.capabilities, lambda runtime: FullStore(runtime, table))
    with Client(store=source, retry_for=30.0, operation_timeout=0.2) as client, Client(store=source) as listing:
        client.once("first", window="hourly").run(lambda: eventually(lambda: names() == ["first"], "it is listed"))
        full.set()
        for job in ("second", "third"):
            with pytest.raises(ValueError, match="no luck"):
                client.once(job, window="hourly", attempts=2).run(fail)
        assert names() == ["first"]
        full.clear()
        with pytest.raises(ValueError, match="no luck"):
            client.once("fourth", window="hourly").run(fail)
        assert names() == ["first", "fourth"]


def test_a_clock_that_steps_back_runs_nothing_twice(client: Client, wall: Wall) -> None:
    """By up to an hour: the window that it shows again is over."""
    job = client.once("report", window="hourly")
    assert job.run(lambda: None).ran
    wall.advance(HOUR)
    assert job.run(lambda: None).ran
    wall.advance(-1800)
    assert job.run(fail).status is JobStatus.OVER
    wall.advance(1800)
    assert job.run(fail).status is JobStatus.DONE


def test_a_key_is_run_once_for_ever(client: Client) -> None:
    """Each key for itself; whoever calls meanwhile waits, and nobody takes longer than the one run."""
    runs = list[str]()

    def migrate() -> None:
        runs.append("a")
        time.sleep(0.2)

    results = list[JobStatus]()
    threads = [
        threading.Thread(target=lambda: results.append(client.once("migrate", key="a").run(migrate).status))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TEST_TIMEOUT)
    assert runs == ["a"]
    assert sorted(results) == [JobStatus.DONE] * 7 + [JobStatus.RAN]
    assert client.once("migrate", key="b").run(lambda: None).ran
    assert client.once("migrate", key="a").run(fail).status is JobStatus.DONE
    assert client.job("migrate").forget("a")
    assert client.once("migrate", key="a").run(lambda: None).ran
    (view,) = client.jobs()
    assert (view.name, view.every, len(view.runs)) == ("migrate", "by key", 3)


def test_names_and_keys_never_meet(client: Client) -> None:
    """A colon in a job's name or key makes no other job's name of it."""
    pairs = [("a:b", "c"), ("a", "b:c"), ("a%3Ab", "c"), ("a", "b%3Ac")]
    assert [client.once(job, key=key).run(lambda: None).ran for job, key in pairs] == [True] * 4
    assert client.once("a:b:c", window=60).run(lambda: None).ran
    assert [client.once(job, key=key).run(fail).status for job, key in pairs] == [JobStatus.DONE] * 4


def test_a_busy_job(client: Client, source: StoreSource) -> None:
    """By `busy` a call returns at once, raises, or waits up to its timeout."""
    began, go_on = threading.Event(), threading.Event()

    def work() -> None:
        began.set()
        go_on.wait(TEST_TIMEOUT)

    running = threading.Thread(target=client.once("report", window="hourly").run, args=(work,))
    running.start()
    began.wait(TEST_TIMEOUT)
    with Client(store=source) as other:
        skipped = other.once("report", window="hourly").run(fail)
        assert (skipped.status, skipped.by) == (JobStatus.RUNNING, "here")
        assert skipped.at is not None
        (view,) = other.jobs()
        assert (view.running, view.done) == ("here", False)
        with pytest.raises(LockTimeout, match="job 'report' was not run: it is run by here"):
            other.once("report", window="hourly", busy="raise").run(fail)
        with pytest.raises(LockTimeout, match=r"not run within 0\.05 s: it is run by here"):
            other.once("report", window="hourly", busy="wait", timeout=0.05).run(fail)
        with pytest.raises(LockTimeout, match="already has 0 waiters, max_waiters=0"):
            other.once("report", window="hourly", busy="wait", max_waiters=0).run(fail)
    go_on.set()
    running.join(TEST_TIMEOUT)


def test_two_runs_keep_their_distance(client: Client, wall: Wall) -> None:
    """Within `at_least` after the beginning of a run no other begins, also in the next window."""
    job = client.once("report", window=60, at_least=90)
    assert job.run(lambda: None).ran
    wall.advance(60)
    spaced = job.run(fail)
    assert (spaced.status, spaced.by) == (JobStatus.RUNNING, "here")
    wall.advance(30)
    assert job.run(lambda: None).ran


def test_a_run_whose_lease_was_lost_is_not_done_after_another_began(client: Client, source: StoreSource) -> None:
    """The function has returned, but another attempt counts: LeaseLost says so."""
    with Client(store=source, owner="there") as other:

        def overtaken() -> None:
            assert [holder.owner for holder in other.revoke("job:report", force=True)] == ["here"]
            assert other.once("report", window="hourly", attempts=2).run(lambda: "there").ran

        with pytest.raises(LeaseLost, match="the run was given up"):
            client.once("report", window="hourly", attempts=2).run(overtaken)
        done = other.once("report", window="hourly", attempts=2).run(fail)
        assert (done.status, done.by, done.attempts) == (JobStatus.DONE, "there", 2)


@pytest.mark.parametrize("fate", [["reply"], ["ok", "reply"], ["ok", "ok", "reply"], ["reply"] * 3, ["request"] * 5])
def test_lost_replies_change_nothing(fate: list[str], wall: Wall) -> None:
    """Whatever request or reply is lost, the job runs once and is done."""
    table = MemoryTable(wall=wall)

    def make(runtime: object) -> LossyStore:
        store = LossyStore(runtime, table)  # type: ignore[arg-type]
        store.fate = list(fate)
        return store

    with Client(store=StoreSource("lossy", MemoryStore.capabilities, make)) as client:
        ran = client.once("report", window="hourly").run(lambda: 1)
        assert (ran.status, ran.attempts) == (JobStatus.RAN, 1)
        assert client.once("report", window="hourly").run(fail).status is JobStatus.DONE
        assert len(client.jobs()[0].runs) == 1


def test_what_an_operator_does(client: Client) -> None:
    """A job can be paused, resumed, repeated and forgotten; an unknown one cannot."""
    job, operated = client.once("report", window="hourly"), client.job("report")
    assert not any((operated.pause(), operated.resume(), operated.repeat(), operated.forget()))
    assert job.run(lambda: 1).ran
    assert operated.pause()
    assert job.run(fail).status is JobStatus.PAUSED
    assert client.jobs()[0].paused
    assert operated.resume()
    assert job.run(fail).status is JobStatus.DONE
    assert operated.repeat()
    assert job.run(lambda: 2).value == 2
    assert operated.forget()
    assert client.jobs() == []
    assert job.run(lambda: 3).value == 3


class Running:
    """A run in a thread of its own, from the moment when its function has begun."""

    def __init__(self, client: Client, name: str = "report", outcome: object = None, **options: Any) -> None:  # noqa: ANN401 - of a job
        """Return when the function runs. It will return `outcome`, or raise it if that is an error."""
        self._began, self._go_on, self._outcome = threading.Event(), threading.Event(), outcome
        self.outcome: object = None
        options = {"window": "hourly", **options} if "key" not in options else options
        job = client.once(name, **options)
        self._thread = threading.Thread(target=self._run, args=(job,))
        self._thread.start()
        assert self._began.wait(TEST_TIMEOUT)

    def _run(self, job: OnceJob) -> None:
        try:
            self.outcome = job.run(self._work)
        except Exception as error:  # noqa: BLE001 - for the test to look at
            self.outcome = error

    def _work(self) -> object:
        self._began.set()
        assert self._go_on.wait(TEST_TIMEOUT)
        if isinstance(self._outcome, Exception):
            raise self._outcome
        return self._outcome

    def end(self) -> object:
        """Let the function end, and return the result or the error of the call."""
        self._go_on.set()
        self._thread.join(TEST_TIMEOUT)
        return self.outcome


RECORDS: list[dict[str, Any]] = [{"window": "hourly"}, {"key": "17"}]


@pytest.mark.parametrize("which", RECORDS)
def test_a_job_that_is_repeated_while_it_runs(client: Client, source: StoreSource, which: dict[str, Any]) -> None:
    """The run goes on and ends as it does; the next call after it runs the job again, and other calls wait for that."""
    running = Running(client, attempts=3, **which)
    with Client(store=source) as other:
        assert other.job("report").repeat(which.get("key"))
        job = other.once("report", attempts=3, busy="skip", **which)
        assert job.run(fail).status is JobStatus.RUNNING
        assert getattr(running.end(), "status", None) is JobStatus.RAN
        assert job.run(lambda: 2).value == 2
        assert job.run(fail).status is JobStatus.DONE
        assert [run.attempt for run in other.jobs()[0].runs] == [1, 1]


def test_a_repeated_run_that_fails_raises_its_own_error(client: Client, wall: Wall) -> None:
    """And later windows run the job."""
    running = Running(client, attempts=3, outcome=KeyError("its own"))
    assert client.job("report").repeat()
    assert isinstance(running.end(), KeyError)
    wall.advance(HOUR)
    assert client.once("report", window="hourly", attempts=3).run(lambda: 1).attempts == 1


@pytest.mark.parametrize("which", RECORDS)
def test_a_job_that_is_forgotten_while_it_runs(client: Client, source: StoreSource, which: dict[str, Any]) -> None:
    """Its run is noted when it ends: the job does not run twice, and is listed again."""
    running = Running(client, **which)
    with Client(store=source) as other:
        assert other.job("report").forget(which.get("key"))
        if "key" in which:
            other.job("report").forget()
        assert other.jobs() == []
        job = other.once("report", busy="skip", **which)
        assert job.run(fail).status is JobStatus.RUNNING
        assert getattr(running.end(), "status", None) is JobStatus.RAN
        assert job.run(fail).status is JobStatus.DONE
        (view,) = other.jobs()
        assert [run.error for run in view.runs] == [""]


def test_a_run_may_take_longer_than_its_record_is_kept(client: Client, source: StoreSource, wall: Wall) -> None:
    """It is noted as done all the same."""
    running = Running(client, key="17", keep=1)
    wall.advance(5.0)
    assert getattr(running.end(), "status", None) is JobStatus.RAN
    with Client(store=source) as other:
        assert other.once("report", key="17", keep=1, busy="skip").run(fail).status is JobStatus.DONE


def test_a_run_that_was_given_up_after_it_was_forgotten_is_not_noted(client: Client, source: StoreSource) -> None:
    """Its lock was taken by force: it gets LeaseLost, and the job runs again."""
    running = Running(client)
    with Client(store=source) as other:
        assert other.job("report").forget()
        assert other.revoke("job:report", force=True)
        result = other.once("report", window="hourly").run(lambda: 2)
        assert isinstance(running.end(), LeaseLost)
        assert result.value == 2
        assert len(other.jobs()[0].runs) == 1


def test_a_run_that_hangs_is_freed_by_force(client: Client, source: StoreSource) -> None:
    """As docs/jobs.md says: take its lock, and let the job run again if it has no attempt left."""
    running = Running(client)
    with Client(store=source) as other:
        job = other.once("report", window="hourly")
        assert job.run(fail).status is JobStatus.RUNNING
        assert other.revoke("job:report", force=True)
        assert job.run(fail).status is JobStatus.FAILED
        assert other.job("report").repeat()
        assert job.run(lambda: 2).value == 2
    assert isinstance(running.end(), LeaseLost)


def test_a_run_has_failed_after_at_most(client: Client, source: StoreSource, wall: Wall) -> None:
    """Its lease is lost, another attempt is done, and the late end of the first gets LeaseLost."""
    running = Running(client, attempts=2, at_most=0.2)
    with Client(store=source) as other:
        job = other.once("report", window="hourly", attempts=2, at_most=0.2, busy="wait", timeout=TEST_TIMEOUT)
        wall.advance(0.3)
        result = job.run(lambda: 2)
        assert (result.value, result.attempts) == (2, 2)
        assert isinstance(running.end(), LeaseLost)
        assert [run.error for run in other.jobs()[0].runs] == ["here ran it for longer than at_most=0.2 s", ""]


def test_a_run_that_ends_after_at_most_has_failed(client: Client, source: StoreSource, wall: Wall) -> None:
    """Also if no other has begun: what was said of it does not change."""
    running = Running(client, attempts=2, at_most=0.2)
    wall.advance(0.3)
    error = running.end()
    assert isinstance(error, LeaseLost)
    assert "longer than at_most=0.2 s" in str(error)
    with Client(store=source) as other:
        wall.advance(5.0)
        assert other.once("report", window="hourly", attempts=2).run(lambda: 2).attempts == 2


def test_an_async_run_is_cancelled_after_at_most(source: StoreSource) -> None:
    """And has failed. A cancellation from elsewhere is not taken for that."""
    began = asyncio.Event()

    async def hang() -> None:
        began.set()
        await asyncio.Event().wait()

    async def main() -> None:
        async with AsyncClient(store=source, owner="here") as client:
            job = client.once("report", window="hourly", attempts=2, at_most=0.1)
            with pytest.raises(LeaseLost, match=r"was cancelled after at_most=0\.1 s"):
                await job.run(hang)
            began.clear()
            (view,) = await client.jobs()
            assert (view.running, view.done, len(view.runs)) == ("", False, 1)
            task = asyncio.create_task(client.once("other", window="hourly", at_most=HOUR).run(hang))
            await began.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(main())


def test_a_running_job_shows_for_how_long(client: Client, wall: Wall) -> None:
    """And how long it usually takes: the median of its last runs that were done."""
    for took in (1.0, 2.0, 50.0):
        client.once("report", window="hourly").run(wall.advance, took)
        wall.advance(HOUR)
    assert (client.jobs()[0].running_for, client.jobs()[0].usual) == (None, 2.0)
    running = Running(client)
    wall.advance(9 * HOUR)
    assert (client.jobs()[0].running_for, client.jobs()[0].usual) == (9 * HOUR, 2.0)
    running.end()


def test_a_paused_job_runs_for_no_key(client: Client) -> None:
    """A pause holds for all keys of the job."""
    assert client.once("migrate", key="a").run(lambda: None).ran
    assert client.job("migrate").pause()
    assert client.once("migrate", key="b").run(fail).status is JobStatus.PAUSED


def test_a_run_by_key_is_repeated_by_its_key(client: Client) -> None:
    """The other keys of the job stay done."""
    jobs = {key: client.once("migrate", key=key) for key in "ab"}
    assert all(job.run(lambda: None).ran for job in jobs.values())
    assert client.job("migrate").repeat("a")
    assert not client.job("migrate").repeat("c")
    assert jobs["a"].run(lambda: None).ran
    assert jobs["b"].run(fail).status is JobStatus.DONE


def test_namespaces_have_jobs_of_their_own(source: StoreSource) -> None:
    """The same name in another namespace is another job."""
    with Client(store=source, namespace="a") as one, Client(store=source, namespace="b") as other:
        assert one.once("report", window="hourly").run(lambda: None).ran
        assert other.once("report", window="hourly").run(lambda: None).ran
        assert [view.name for view in one.jobs()] == ["report"]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({}, "give either window="),
        ({"window": "hourly", "key": "a"}, "give either window="),
        ({"window": "hourly", "busy": "never"}, "busy must be one of 'skip', 'wait', 'raise'"),
        ({"window": "hourly", "attempts": 0}, "attempts must be a whole number from 1"),
        ({"window": "hourly", "keep": 5}, "keep is for a run by key"),
        ({"window": "hourly", "max_waiters": -1}, "max_waiters must be a whole number"),
        ({"window": "hourly", "ttl": 0.001}, "ttl must be"),
        ({"key": ""}, "a key must be a non-empty str"),
        ({"key": "k" * 510}, "a job with its namespace and key may have up to 512 bytes"),
    ],
)
def test_wrong_options_are_refused(client: Client, options: dict[str, object], error: str) -> None:
    """When the job is made."""
    with pytest.raises(UsageError, match=error):
        client.once("report", **options)  # type: ignore[arg-type]


def test_the_wrong_form_is_refused(client: Client) -> None:
    """An async function needs an AsyncClient, and a generator is run by nobody."""

    async def report() -> None:
        pass

    def generate() -> Iterator[int]:
        yield 1

    with pytest.raises(UsageError, match="is async: give it to a job of an AsyncClient"):
        client.once("report", window=60)(report)
    with pytest.raises(UsageError, match="is a generator"):
        client.once("report", window=60)(generate)
    with pytest.raises(UsageError, match="is not async"):
        AsyncClient("memory://").once("report", window=60)(fail)  # type: ignore[arg-type]


def test_a_store_without_cells_refuses_when_the_job_is_made() -> None:
    """With another store to use."""
    plain = Capabilities(min_ttl=0.1, queue=True, weights=True, runs_in_caller=True)
    client = Client(store=StoreSource("plain://", plain, lambda _runtime: None))  # type: ignore[arg-type,return-value]
    with pytest.raises(
        UsageError, match=r"plain:// keeps no jobs that run once.*sqlite:///path, redis://host or postgresql"
    ):
        client.once("report", window=60)


CALL = """
import os, pathlib, sys, time, tenure
url, log, fate = sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3]
def push():
    with log.open("a") as file:
        file.write("began\\n")
    print("began", flush=True)
    if fate == "dies":
        sys.stdin.readline()
    time.sleep(0.05)
    with log.open("a") as file:
        file.write("done\\n")
with tenure.Client(url, owner=str(os.getpid())) as client:
    result = client.once("push", window="daily", attempts=3, busy="wait", ttl=0.5).run(push)
    print(result.status, result.attempts, flush=True)
"""


def test_of_many_processes_one_runs_and_a_killed_one_is_followed(tmp_path: Path) -> None:
    """Whoever runs is killed twice; the third attempt is done, and all others say so."""
    url, log = f"sqlite://{tmp_path}/locks.db", tmp_path / "log"
    for _ in range(2):
        victim = Script(CALL, url, str(log), "dies")
        assert victim.hear() == "began"
        victim.kill()
    scripts = [Script(CALL, url, str(log), "lives") for _ in range(6)]
    said = [script.end() for script in scripts]
    assert [errors for _, errors in said] == [""] * 6
    assert sorted(out.splitlines()[-1] for out, _ in said) == ["done 3"] * 5 + ["ran 3"]
    assert log.read_text().splitlines() == ["began"] * 3 + ["done"]
    with Client(url) as client:
        (view,) = client.jobs()
        assert [bool(run.error) for run in view.runs] == [True, True, False]
        assert "fell silent" in view.runs[0].error
        late = client.once("push", window="daily", attempts=3).run(fail)
        assert late.status is JobStatus.DONE


def test_attempts_are_never_exceeded_by_nodes_that_die(tmp_path: Path) -> None:
    """After the third death the window has failed, and the last error says who fell silent."""
    url, log = f"sqlite://{tmp_path}/locks.db", tmp_path / "log"
    for _ in range(3):
        victim = Script(CALL, url, str(log), "dies")
        assert victim.hear() == "began"
        victim.kill()
    out, _ = Script(CALL, url, str(log), "lives").end()
    assert out.splitlines()[-1] == "failed 3"
    assert log.read_text().splitlines() == ["began"] * 3
