"""Concurrent requests in one thread: an answer that arrives late is neither lost nor taken for another one."""

import socket
import threading
from collections.abc import Generator
from contextlib import ExitStack
from functools import partial

import pytest

from tenure.runtimes import clocks
from tenure.runtimes import fan_out as scatter_module
from tenure.runtimes.fan_out import FanOut, readable
from tests.servers import wait_until

TEST_TIMEOUT = 60.0

Results = list[str | Exception | None]


class Line:
    """A connection to a server, and its other end."""

    def __init__(self) -> None:
        self.ours, self.theirs = socket.socketpair()
        self.asked = 0

    def answer(self, text: str) -> None:
        """Have the server answer."""
        self.theirs.sendall(text.encode())

    def close(self) -> None:
        """Close both ends."""
        self.ours.close()
        self.theirs.close()

    async def ask(self, within: float = TEST_TIMEOUT) -> str:
        """Send a request, and wait for the answer."""
        until = clocks.steady() + within
        self.asked += 1
        await readable(self.ours.fileno(), until)
        if clocks.steady() >= until:
            raise TimeoutError
        return self.ours.recv(100).decode()


@pytest.fixture
def lines() -> Generator[list[Line]]:
    """Connect with three servers."""
    with ExitStack() as stack:
        made = [Line() for _ in range(3)]
        for line in made:
            stack.callback(line.close)
        yield made


def test_all_requests_are_sent_before_the_first_answer_is_awaited(lines: list[Line]) -> None:
    """Each answer gets to its own place in the results."""
    results: Results = [None] * 3
    for number, line in enumerate(lines):
        line.answer(f"answer {number}")
    FanOut().race([line.ask() for line in lines], results, 3, lambda: True)
    assert results == ["answer 0", "answer 1", "answer 2"]


def test_a_place_without_work_is_left_alone(lines: list[Line]) -> None:
    """Its earlier result stays."""
    results: Results = [None, "as it was", None]
    lines[0].answer("a")
    lines[2].answer("c")
    FanOut().race([lines[0].ask(), None, lines[2].ask()], results, 2, lambda: True)
    assert results == ["a", "as it was", "c"]


def test_an_answer_that_is_not_needed_is_not_awaited(lines: list[Line]) -> None:
    """Its result arrives all the same, with a later race."""
    fan_out = FanOut()
    results: Results = [None] * 3
    again: Results = [None]
    lines[0].answer("a")
    lines[1].answer("b")
    fan_out.race([line.ask() for line in lines], results, 2, lambda: results.count(None) <= 1)
    assert results == ["a", "b", None]
    lines[2].answer("late")
    lines[0].answer("again")
    fan_out.race([lines[0].ask()], again, 1, lambda: True)
    assert (results, again) == (["a", "b", "late"], ["again"])


def test_a_race_awaits_a_minimum_of_answers(lines: list[Line]) -> None:
    """The race calls the condition only after that many answers."""
    results: Results = [None] * 3
    asked: list[int] = []

    def enough() -> bool:
        asked.append(3 - results.count(None))
        return True

    async def first() -> str:
        answer = await lines[0].ask()
        lines[1].answer("b")
        return answer

    lines[0].answer("a")
    FanOut().race([first(), lines[1].ask(), lines[2].ask()], results, 2, enough)
    assert asked == [2]
    assert results == ["a", "b", None]


def test_an_error_is_a_result(lines: list[Line]) -> None:
    """It is the result of that request alone."""
    results: Results = [None] * 2
    lines[1].answer("b")
    FanOut().race([lines[0].ask(within=0.05), lines[1].ask()], results, 2, lambda: False)
    assert isinstance(results[0], TimeoutError)
    assert results[1] == "b"


def test_a_request_that_was_put_aside_ends_in_time(lines: list[Line]) -> None:
    """`settle` waits for it, at most until its own deadline."""
    fan_out = FanOut()
    results: Results = [None] * 2
    lines[0].answer("a")
    fan_out.race([lines[0].ask(), lines[1].ask(within=0.1)], results, 1, lambda: True)
    began = clocks.steady()
    fan_out.settle(began + TEST_TIMEOUT)
    assert isinstance(results[1], TimeoutError)
    assert clocks.steady() < began + TEST_TIMEOUT / 2


def test_a_request_that_was_put_aside_goes_on_by_itself(lines: list[Line]) -> None:
    """It goes on without another race, because its next step may release a lock."""

    async def ask_twice() -> str:
        await lines[1].ask()
        return await lines[2].ask()

    before = threading.enumerate()
    fan_out = FanOut()
    results: Results = [None] * 2
    lines[0].answer("a")
    fan_out.race([lines[0].ask(), ask_twice()], results, 1, lambda: True)
    lines[1].answer("b")
    wait_until(lambda: lines[2].asked, "the second question")
    lines[2].answer("c")
    wait_until(lambda: results[1], "the second answer")
    fan_out.drop()
    assert results == ["a", "c"]
    assert set(threading.enumerate()) <= set(before)


def test_the_background_thread_ends_when_it_has_no_requests(lines: list[Line], monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread for the requests that were put aside ends after an idle time. Another one can start."""
    monkeypatch.setattr(scatter_module, "LOOK_TIMEOUT", 2)
    fan_out = FanOut()
    for _ in range(2):
        results: Results = [None] * 2
        lines[0].answer("a")
        fan_out.race([lines[0].ask(), lines[1].ask()], results, 1, lambda: True)
        lines[1].answer("b")
        wait_until(partial(results.__getitem__, 1), "the late answer")
        wait_until(lambda: not fan_out.is_tended(), "the end of the thread")
    fan_out.drop()


def test_a_dropped_request_ends_at_its_await(lines: list[Line]) -> None:
    """It can then give up its connection, on which an answer may still arrive."""
    ended: list[str] = []

    async def ask() -> str:
        try:
            return await lines[1].ask()
        except GeneratorExit:
            ended.append("dropped")
            raise

    fan_out = FanOut()
    results: Results = [None] * 2
    lines[0].answer("a")
    fan_out.race([lines[0].ask(), ask()], results, 1, lambda: True)
    fan_out.drop()
    assert (results, ended) == (["a", None], ["dropped"])


def test_an_interrupt_leaves_no_request_that_was_never_begun(lines: list[Line]) -> None:
    """The sent requests are put aside, and the others are closed: no coroutine is forgotten."""

    async def interrupted() -> str:
        raise KeyboardInterrupt

    fan_out = FanOut()
    results: Results = [None] * 3
    with pytest.raises(KeyboardInterrupt):
        fan_out.race([lines[0].ask(), interrupted(), lines[2].ask()], results, 3, lambda: True)
    assert [line.asked for line in lines] == [1, 0, 0]
    lines[0].answer("a")
    fan_out.settle(clocks.steady() + TEST_TIMEOUT)
    assert results == ["a", None, None]
