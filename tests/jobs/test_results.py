"""Results by key: every caller gets that of the one run, for the same work, as long as it is kept."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tenure import (
    AsyncClient,
    Client,
    FingerprintMismatch,
    JobStatus,
    LockTimeout,
    ResultNotKept,
    StoreUnavailable,
    UsageError,
)
from tenure.contracts.cells import Cell
from tenure.contracts.limits import BUSY
from tenure.contracts.store import StoreSource
from tenure.jobs import once as calls
from tenure.jobs import record
from tenure.primitives import once as faces
from tenure.stores.memory import MemoryStore, MemoryTable, memory_source
from tests.core.test_cells import LossyStore
from tests.hazards.helpers import TEST_TIMEOUT, eventually
from tests.jobs.test_once import HOUR, Running, Wall, fail
from tests.planting import module_with, planted

CIRCLE: list[Any] = []
CIRCLE.append(CIRCLE)

UNKEPT: list[tuple[object, str]] = [
    (object(), "TypeError: Object of type object"),
    (float("nan"), "ValueError: Out of range float"),
    (CIRCLE, "ValueError: Circular reference"),
    (10**5000, "ValueError: Exceeds the limit"),
    ({1: "a", "1": "b"}, "keys of a dict become the same str"),
    ("\u9501" * 4000, "takes 24006 bytes, and a record has room for 16384"),
]
"""Results that a record cannot have, and why."""


class Jobs:
    """Runs by key in one store, whose clock the test moves."""

    def __init__(self) -> None:
        """Start empty."""
        self.wall = Wall()
        self.source = memory_source(MemoryTable(wall=self.wall))
        self.client = Client(store=self.source, owner="here")
        self.runs = list[str]()

    def call(self, returns: object = 1, key: str = "k", keep: float | None = HOUR, **options: Any) -> Any:  # noqa: ANN401 - of a job, and what it returns
        """Call the job."""

        def work() -> object:
            self.runs.append(key)
            return returns

        return self.client.once("pay", key=key, keep=keep, **options).run(work)


@pytest.fixture
def jobs() -> Iterator[Jobs]:
    """Return runs in a new store."""
    jobs = Jobs()
    with jobs.client:
        yield jobs


def test_every_caller_gets_the_same_result(jobs: Jobs) -> None:
    """Whoever ran the function: the first caller has what JSON makes of it, too."""
    ran, done = jobs.call(("a", {"b": None})), jobs.call("another")
    assert [(each.status, each.value) for each in (ran, done)] == [
        (JobStatus.RAN, ["a", {"b": None}]),
        (JobStatus.DONE, ["a", {"b": None}]),
    ]
    assert jobs.call(None, key="none").value is jobs.call("another", key="none").value is None
    value = object()
    assert jobs.call(value, key="for ever", keep=None).value is value
    assert jobs.call(key="for ever").value is None
    assert jobs.runs == ["k", "none", "for ever"]


def test_a_caller_that_waits_gets_the_result(jobs: Jobs) -> None:
    """It is that of the run it waited for; a call that does not wait has none."""
    running = Running(jobs.client, "pay", "paid", key="k", keep=HOUR)
    results = list[Any]()
    waiting = threading.Thread(target=lambda: results.append(jobs.call()))
    waiting.start()
    eventually(lambda: bool(jobs.client.inspect("job:pay:k").waiters), "the call waits")
    skipped = jobs.call(busy="skip")
    assert (skipped.status, skipped.value) == (JobStatus.RUNNING, None)
    running.end()
    waiting.join(TEST_TIMEOUT)
    assert [(each.status, each.value) for each in results] == [(JobStatus.DONE, "paid")]
    assert jobs.runs == []


@pytest.mark.parametrize(("value", "why"), UNKEPT, ids=[why.split(",")[0] for _, why in UNKEPT])
def test_a_result_that_cannot_be_kept_is_not_lost_in_silence(jobs: Jobs, value: object, why: str) -> None:
    """The run is done, and nobody repeats it. Every caller is told so, and the first one still gets the result."""
    with pytest.raises(ResultNotKept, match=f"'pay' is done, .* not kept: .*{why}.* an id or a URL") as first:
        jobs.call(value)
    with pytest.raises(ResultNotKept, match=why) as later:
        jobs.call()
    assert first.value.value is value
    assert later.value.value is None
    assert jobs.runs == ["k"]
    (view,) = jobs.client.jobs()
    assert [run.error for run in view.runs] == [""]


def test_the_largest_result_fits_beside_the_longest_history() -> None:
    """Of clients with the longest names, whose earlier runs have failed with the longest errors."""
    state, largest = None, "x" * (record.RESULT_BYTES - 6)  # the marks of the text, twice, escaped once
    rules, by = record.JobRules(30, keep=10**9), "\x01" * 512
    for number in range(30):
        now, run = 10**15 + 10**8 * number, record.RunId(f"{number:032x}", by)
        made = record.begin(state, now, calls.KEYED, rules, run)
        begun, error = record.BegunRun(run, now, made.reply["attempts"], 0), "e" * 5000 if number < 29 else None
        state = record.finish(made.state, now, begun, error, rules, True, record.stored(largest)).state
    assert state is not None
    assert state["done"]["value"] == f'"{largest}"'
    assert state["history"]
    assert record._size(state) + 16_384 < 65_536 - 8_000
    assert "unkept" in record.stored(largest + "x")


GIVE = "Give other work another key; a web handler answers 422."


def answer(jobs: Jobs, **options: Any) -> str:  # noqa: ANN401 - of a job
    """Call the job, and return why it was not run."""
    try:
        return str(jobs.call(**options).status)
    except (FingerprintMismatch, LockTimeout) as error:
        return str(error)


def test_another_fingerprint_is_refused(jobs: Jobs) -> None:
    """Nothing runs: while the first run goes on, whatever `busy` says, and after it. The order of keys is nothing."""
    running = Running(jobs.client, "pay", key="k", keep=HOUR, fingerprint={"to": "a", "eur": 1})
    other, same = {"to": "b", "eur": 1}, {"eur": 1, "to": "a"}
    said = [answer(jobs, fingerprint=other, busy=busy, timeout=0.1) for busy in BUSY]
    busy = answer(jobs, fingerprint=same, busy="raise")
    running.end()
    assert said == ["the job 'pay' was not run: its key came before with another fingerprint. " + GIVE] * 3
    assert "it is run by here" in busy
    with pytest.raises(FingerprintMismatch):
        jobs.call(fingerprint='{"to": "a", "eur": 1}')
    assert jobs.call(fingerprint={"eur": 1, "to": "a"}).status is JobStatus.DONE
    assert jobs.call().status is JobStatus.DONE
    assert jobs.call(key="other", fingerprint="b").ran
    assert jobs.runs == ["other"]
    assert issubclass(FingerprintMismatch, UsageError)


def test_of_first_callers_with_different_fingerprints_one_wins(jobs: Jobs) -> None:
    """However they meet: the others are refused, or get the result of the one that has theirs."""
    start, outcomes = threading.Barrier(8), list[Any]()

    def call(number: int) -> None:
        start.wait(TEST_TIMEOUT)
        try:
            outcomes.append((number % 2, jobs.call(number, fingerprint=number % 2).value))
        except FingerprintMismatch:
            outcomes.append((number % 2, None))

    threads = [threading.Thread(target=call, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TEST_TIMEOUT)
    (won,) = {value for _, value in outcomes} - {None}
    assert sorted(outcomes, key=str) == sorted([(won % 2, won)] * 4 + [(1 - won % 2, None)] * 4, key=str)
    assert jobs.runs == ["k"]


def test_an_operator_lets_a_key_run_again(jobs: Jobs) -> None:
    """`repeat` keeps the fingerprint and drops the result; `forget` drops both."""
    assert jobs.call(1, fingerprint="a").value == 1
    assert jobs.client.job("pay").repeat("k")
    with pytest.raises(FingerprintMismatch):
        jobs.call(2, fingerprint="b")
    assert [jobs.call(each, fingerprint="a").value for each in (3, 4)] == [3, 3]
    assert jobs.client.job("pay").forget("k")
    assert [jobs.call(each, fingerprint="b").value for each in (5, 6)] == [5, 5]


def test_a_run_that_was_forgotten_keeps_its_key(jobs: Jobs) -> None:
    """Its end makes the record anew, with its fingerprint and its result."""
    running = Running(jobs.client, "pay", key="k", keep=HOUR, fingerprint="a")
    assert jobs.client.job("pay").forget("k")
    running.end()
    with pytest.raises(FingerprintMismatch):
        jobs.call(fingerprint="b")
    assert jobs.runs == []


@pytest.mark.parametrize("repeated", [False, True])
def test_a_key_is_new_after_keep(jobs: Jobs, repeated: bool) -> None:
    """Also in a store that removes nothing, and with another fingerprint. No call, and no operator, prolongs that."""
    jobs.call(1, fingerprint="a")
    jobs.wall.advance(HOUR)
    if repeated:
        jobs.client.job("pay").repeat("k")
    else:
        assert jobs.call(2, fingerprint="a").value == 1
    jobs.wall.advance(1)
    assert jobs.call(3, fingerprint="b").value == 3


def test_a_repeated_key_is_removed_after_keep(jobs: Jobs) -> None:
    """The store is told how long to keep what an operator, or a clock that stepped back, has changed."""
    jobs.call()
    state = {**record.NEW, "now": 5, "keep": 7}
    assert record.repeat(state, 5).keep == record.rebase(state, 3).keep == 7


@pytest.mark.parametrize("fate", [["ok", "reply"], ["ok", "reply", "request"], ["reply"] * 3, ["request"] * 5])
def test_lost_replies_lose_no_result(fate: list[str]) -> None:
    """Whatever request or reply is lost, the function runs once, and all get its result."""
    table, runs = MemoryTable(), list[int]()

    def make(runtime: Any) -> LossyStore:  # noqa: ANN401
        store = LossyStore(runtime, table)
        store.fate = list(fate)
        return store

    def work() -> int:
        runs.append(1)
        return len(runs)

    with Client(store=StoreSource("lossy", MemoryStore.capabilities, make)) as client:
        job = client.once("pay", key="k", keep=HOUR, fingerprint="a")
        assert [job.run(work).value for _ in "ab"] == [1, 1]


def test_a_run_whose_end_was_not_noted_is_not_repeated() -> None:
    """If the store fails between the run and its note, the one attempt has been used: it fails, and runs no more."""
    table, down = MemoryTable(), threading.Event()

    class FailingStore(MemoryStore):
        async def write_cell(self, name: str, value: bytes, version: int, keep: int, until: float) -> Cell:
            if down.is_set():
                raise StoreUnavailable("down")
            return await super().write_cell(name, value, version, keep, until)

    source = StoreSource("failing", MemoryStore.capabilities, lambda runtime: FailingStore(runtime, table))
    with Client(store=source, retry_for=0.0, operation_timeout=0.2) as client:
        job = client.once("pay", key="k", keep=HOUR)
        with pytest.raises(StoreUnavailable):
            job.run(down.set)
        down.clear()
        assert job.run(fail).status is JobStatus.FAILED


def test_tasks_get_the_result(jobs: Jobs) -> None:
    """As threads do, with the same errors."""

    async def main() -> None:
        async with AsyncClient(store=jobs.source) as client:
            job = client.once("pay", key="k", keep=HOUR, fingerprint="a")

            async def work() -> Any:  # noqa: ANN401 - a tuple, which comes back as a list
                await asyncio.sleep(0)
                return (1, 2)

            async def nothing() -> object:
                return object()

            assert [(await each).value for each in [job.run(work) for _ in "abc"]] == [[1, 2]] * 3
            with pytest.raises(FingerprintMismatch):
                await client.once("pay", key="k", keep=HOUR, fingerprint="b").run(work)
            for _ in "ab":
                with pytest.raises(ResultNotKept):
                    await client.once("pay", key="other", keep=HOUR).run(nothing)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"fingerprint": b"secret"}, "fingerprint must be .*, not bytes .* give body.hex"),
        ({"fingerprint": {"a": float("inf")}}, "fingerprint must be .*, not dict or what it contains"),
        ({"key": None, "keep": None, "window": 60, "fingerprint": "a"}, "fingerprint is for a run by key"),
    ],
)
def test_a_fingerprint_must_be_json(jobs: Jobs, options: dict[str, Any], error: str) -> None:
    """Else the call is refused before it runs; the error does not quote it."""
    with pytest.raises(UsageError, match=error) as caught:
        jobs.call(**options)
    assert "secret" not in str(caught.value)
    assert jobs.runs == []


Test = Callable[[Jobs], None]


def _unkept(jobs: Jobs) -> None:
    test_a_result_that_cannot_be_kept_is_not_lost_in_silence(jobs, *UNKEPT[0])


def _same_keys(jobs: Jobs) -> None:
    test_a_result_that_cannot_be_kept_is_not_lost_in_silence(jobs, *UNKEPT[4])


def _after_keep(jobs: Jobs) -> None:
    test_a_key_is_new_after_keep(jobs, repeated=False)


IN_RECORD: dict[str, tuple[tuple[str, str], Test]] = {
    "keys that become one lose a value": (("if not same", "if False"), _same_keys),
    "a fingerprint is not bound": (
        ("if rules.fingerprint else {}\n    return bound", "if False else {}\n    return bound"),
        test_another_fingerprint_is_refused,
    ),
    "any fingerprint will do": (
        ("MISMATCH if rules.fingerprint and", "MISMATCH if False and"),
        test_another_fingerprint_is_refused,
    ),
    "a call without a fingerprint is refused": (
        ("MISMATCH if rules.fingerprint and bound !=", "MISMATCH if bound !="),
        test_another_fingerprint_is_refused,
    ),
    "a result is kept for ever": (("if _is_kept(state, now)", "if state is not None"), _after_keep),
    "a record begins its time with each run only": (('"keep": rules.keep,\n', ""), _after_keep),
    "a result is not in the record": (("facts | (result or {})", "facts"), test_every_caller_gets_the_same_result),
}
"""What record.py says, what it says then, and the test that finds it."""

IN_CALL: dict[str, tuple[tuple[str, str], Test]] = {
    "a call with another fingerprint waits, or is told that the job runs": (
        (' and verdict["status"] != MISMATCH', ""),
        test_another_fingerprint_is_refused,
    ),
}

IN_FACE: dict[str, tuple[tuple[str, str, str], Test]] = {
    "the first caller gets another value than the others": (
        ("_ran", "made if result else replace(made, value=value)", "replace(made, value=value)"),
        test_every_caller_gets_the_same_result,
    ),
    "a result that was not kept is None": (("_result", 'if "unkept" in verdict', "if False"), _unkept),
    "the first caller loses a result that was not kept": (("_ran", "error.value = value", "pass"), _unkept),
}


@pytest.mark.parametrize("bug", [*IN_RECORD, *IN_CALL, *IN_FACE])
def test_a_planted_bug_is_found(bug: str, jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test of the guarantee fails with the bug."""
    if bug in IN_RECORD:
        change, test = IN_RECORD[bug]
        wrong = module_with(record, change)
        for name in ("begin", "finish", "repeat"):
            monkeypatch.setattr(calls, name, getattr(wrong, name)) if hasattr(calls, name) else None
        monkeypatch.setattr(faces, "stored", wrong.stored)
    elif bug in IN_CALL:
        (right, wrong_text), test = IN_CALL[bug]
        monkeypatch.setattr(calls.Once, "_begin", planted(calls.Once, "_begin", right, wrong_text))
    else:
        (method, right, wrong_text), test = IN_FACE[bug]
        monkeypatch.setattr(faces._OnceBase, method, planted(faces._OnceBase, method, right, wrong_text))
    with pytest.raises((AssertionError, pytest.fail.Exception, FingerprintMismatch)):
        test(jobs)
