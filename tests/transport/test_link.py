"""What becomes of a request and of its connection, in whichever form: without a socket, at lines of the test's own."""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import pytest

from tenure.errors import OutcomeUnknown, StoreUnavailable
from tenure.runtimes.aio import AsyncioRuntime
from tenure.runtimes.threads import ThreadsRuntime, drive
from tenure.transport.errors import OtherProcess, ServerErrors, Unsent
from tenure.transport.link import MOST_OWED, Conversation, ServerAddress, ServerLink
from tenure.transport.pool import ConnectionPool, SharedPool

ADDRESS = ServerAddress("server", 7)
LAST = "the last reply"


class Talk:
    """A conversation of which only the process matters."""

    peer = "first"
    pack = feed = reply = goes_on = None

    def __init__(self) -> None:
        self.owed: list[Callable[[Any], None]] = []


class FakeLine:
    """Does with each request what the test says, and notes what becomes of it."""

    def __init__(self, faults: list[BaseException | str]) -> None:
        self.conversation = Talk()
        self.used = 0.0
        self.faults = faults
        self.carried: list[str] = []
        self.open = True

    async def exchange(self, request: str, until: float) -> str:
        """Reply by the request itself, unless there is a fault."""
        fault = self.faults.pop(0) if self.faults else ""
        if isinstance(fault, Unsent):
            self.open = False
            raise fault
        self.carried.append(request)
        if isinstance(fault, BaseException):
            self.open = False
            raise fault
        self.open = fault != LAST
        return request

    def send_owed(self, request: str, told: Callable[[str | None], None], until: float) -> None:
        """Send a request, unless there is a fault."""
        fault = self.faults.pop(0) if self.faults else ""
        if isinstance(fault, BaseException):
            self.open = False
            raise fault
        self.carried.append(request)
        self.conversation.owed.append(told)

    def collect(self) -> None:
        """Take the replies, unless there is a fault."""
        fault = self.faults.pop(0) if self.faults else ""
        if isinstance(fault, BaseException):
            self.open = False
            raise fault
        while self.conversation.owed:
            self.conversation.owed.pop(0)(self.carried[-1])

    def goes_on(self) -> bool:
        """Tell whether nothing went wrong."""
        return self.open

    def is_stale(self) -> bool:
        """Tell whether it was closed."""
        return not self.open

    def close(self) -> None:
        """Note it, and tell that no reply comes."""
        self.open = False
        while self.conversation.owed:
            self.conversation.owed.pop(0)(None)

    abandon = close


class Ready(asyncio.Event):
    """Set from the beginning."""

    def __init__(self) -> None:
        super().__init__()
        self.set()


class FakeLink(ServerLink[str, str]):
    """A link over such lines, and the pump that makes them."""

    def __init__(self, runtime: Any, *faults: BaseException | str, shared: bool = False) -> None:  # noqa: ANN401 - of either form
        super().__init__(runtime, self, ServerErrors("test", "the test"), 5.0)
        self.runtime, self.shared = runtime, shared
        self.faults = list(faults)
        self.made: list[FakeLine] = []
        self.ready = Ready()

    def pool(self) -> ConnectionPool[Any]:
        """Return a pool of the form."""
        return SharedPool(self.runtime) if self.shared else ConnectionPool()

    async def connect(self, address: object, tls: object, conversation: object, until: float) -> Any:  # noqa: ANN401 - a line of the link
        """Make a line."""
        await self.ready.wait()
        line = FakeLine(self.faults)
        self.made.append(line)
        return line

    async def close(self, lines: Sequence[Any] | None = None) -> None:
        """Close the link, and as the pump its lines."""
        if lines is None:
            await super().close()

    def _conversation(self, address: ServerAddress) -> Conversation[str, str]:
        return Talk()  # type: ignore[return-value]

    def ask(self, request: str = "request", peer: str = "") -> str:
        """Send a request in this thread."""
        return drive(self.exchange(ADDRESS, request, self.runtime.now() + 9.0, peer))

    def send(self, told: Callable[[str | None], None], request: str = "sent") -> bool:
        """Send a request whose reply `told` gets."""
        return self.send_owed(ADDRESS, request, self.runtime.now() + 9.0, told)

    def carried(self) -> list[list[str]]:
        """Return which requests each line has carried."""
        return [line.carried for line in self.made]


def test_a_request_that_was_not_sent_goes_once_to_a_new_line() -> None:
    """Then the server was not reached, and no line is left."""
    link = FakeLink(ThreadsRuntime(), "", Unsent("closed"))
    assert [link.ask("one"), link.ask("two")] == ["one", "two"]
    assert link.carried() == [["one"], ["two"]]
    link.faults += [Unsent("closed"), Unsent("closed")]
    with pytest.raises(StoreUnavailable, match="cannot reach the test server at server:7 ") as caught:
        link.ask()
    assert not isinstance(caught.value, OutcomeUnknown)
    assert len(link.made) == 3
    assert not any(line.open for line in link.made)


@pytest.mark.parametrize("error", [TimeoutError(), ConnectionResetError("gone"), ValueError("what is that")])
def test_a_request_that_was_sent_is_never_sent_again(error: Exception) -> None:
    """Nobody knows whether it was carried out; its line is closed, and the next request gets another."""
    link = FakeLink(ThreadsRuntime(), error)
    with pytest.raises(OutcomeUnknown, match="may or may not have been carried out"):
        link.ask("one")
    assert link.ask("two") == "two"
    assert link.carried() == [["one"], ["two"]]


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt(), GeneratorExit()])
def test_no_line_is_used_again_while_a_reply_is_due(interrupt: BaseException) -> None:
    """Whatever interrupts its caller: a late reply would answer the next request."""
    link = FakeLink(ThreadsRuntime(), interrupt)
    with pytest.raises(type(interrupt)):
        link.ask("one")
    assert link.ask("two") == "two"
    assert link.carried() == [["one"], ["two"]]


def test_a_line_that_the_server_ends_carries_nothing_more() -> None:
    """Its last reply counts."""
    link = FakeLink(ThreadsRuntime(), LAST)
    assert [link.ask("one"), link.ask("two")] == ["one", "two"]
    assert link.carried() == [["one"], ["two"]]


def test_a_request_for_another_process_is_not_sent() -> None:
    """The line stays for others."""
    link = FakeLink(ThreadsRuntime())
    with pytest.raises(OtherProcess):
        link.ask("one", peer="second")
    assert link.ask("two", peer="first") == "two"
    assert link.carried() == [["two"]]


def test_nothing_is_sent_too_late_or_after_the_end() -> None:
    """Both are told, and nothing is connected for them."""
    runtime = ThreadsRuntime()
    link = FakeLink(runtime)
    with pytest.raises(StoreUnavailable, match="timed out before it was sent"):
        drive(link.exchange(ADDRESS, "request", runtime.now()))
    drive(link.close())
    with pytest.raises(StoreUnavailable, match="is closed; make a new one"):
        link.ask()
    assert link.made == []


def test_all_tasks_share_one_line_and_one_of_them_makes_it() -> None:
    """If that one is cancelled or fails meanwhile, another does; nobody waits for ever."""

    async def scene() -> None:
        runtime = AsyncioRuntime()
        link = FakeLink(runtime, shared=True)
        link.ready.clear()
        tasks = [asyncio.create_task(link.exchange(ADDRESS, f"{each}", runtime.now() + 60.0)) for each in range(9)]
        await asyncio.sleep(0)
        tasks[0].cancel()
        link.ready.set()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(done[0], asyncio.CancelledError)
        assert done[1:] == [f"{each}" for each in range(1, 9)]
        assert sorted(link.made[-1].carried) == done[1:]
        assert await link.exchange(ADDRESS, "listing", runtime.now() + 60.0, alone=True) == "listing"
        assert [line.open for line in link.made] == [True, False]
        await link.close()
        assert not link.made[0].open

    asyncio.run(asyncio.wait_for(scene(), 60.0))


def test_what_nobody_waits_for_goes_by_a_line_that_is_there() -> None:
    """So it waits for no connection; and its line carries the next request, up to as many as it may owe."""
    link, told = FakeLink(ThreadsRuntime()), list[str | None]()
    assert not link.send(told.append)
    link.ask("first")
    for _ in range(MOST_OWED):
        assert link.send(told.append)
    assert not link.send(told.append)
    assert link.ask("last") == "last"
    assert link.carried() == [["first", *["sent"] * MOST_OWED, "last"]]
    drive(link.close())
    assert told == [None] * MOST_OWED


@pytest.mark.parametrize(("fault", "error"), [(Unsent("closed"), None), (TimeoutError(), OutcomeUnknown)])
def test_what_nobody_waits_for_is_sent_once(fault: Exception, error: type[Exception] | None) -> None:
    """If that goes wrong, its caller knows, and nobody else is told of it; what the line owed by then never comes."""
    link, told = FakeLink(ThreadsRuntime()), list[str | None]()
    link.ask()
    assert link.send(told.append)
    link.faults.append(fault)
    with pytest.raises(error) if error else contextlib.nullcontext():
        assert not link.send(told.append)
    assert told == [None]
    assert not link.made[0].open


@pytest.mark.parametrize("fault", ["", ConnectionResetError("gone")])
def test_replies_that_nobody_takes_are_collected(fault: Exception | str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the lines that nobody has just used; one that breaks tells that none comes."""
    link, told = FakeLink(ThreadsRuntime()), list[str | None]()
    link.ask()
    assert link.send(told.append)
    monkeypatch.setattr("tenure.transport.pool.REST", 3600.0)
    link.collect_owed()
    assert told == []
    monkeypatch.setattr("tenure.transport.pool.REST", 0.0)
    link.faults.append(fault)
    link.collect_owed()
    assert told == ([None] if fault else ["sent"])
    assert link.made[0].open is not bool(fault)
    link.collect_owed()
    assert len(told) == 1


def _keep(_link: object, pool: ConnectionPool[Any], line: Any) -> None:  # noqa: ANN401 - a line of the link
    pool.put_back(line)


def _try_again(*_: object, new: bool) -> None: ...


def _never_reached(link: FakeLink, *args: Any, new: bool) -> None:  # noqa: ANN401 - those of the method
    FAIL(link, *args, new=False)


FAIL: Any = cast("Any", ServerLink)._fail


@pytest.mark.parametrize(
    ("method", "bug", "test"),
    [
        ("_put_back", _keep, partial(test_no_line_is_used_again_while_a_reply_is_due, KeyboardInterrupt())),
        ("_put_back", _keep, test_a_line_that_the_server_ends_carries_nothing_more),
        ("_fail", _try_again, partial(test_a_request_that_was_sent_is_never_sent_again, TimeoutError())),
        ("_fail", _never_reached, test_a_request_that_was_not_sent_goes_once_to_a_new_line),
    ],
)
def test_a_planted_bug_is_noticed(
    monkeypatch: pytest.MonkeyPatch, method: str, bug: Callable[..., None], test: Callable[[], None]
) -> None:
    """A line kept with a reply due, or at its end; a request that was sent, sent again; tries without an end."""
    monkeypatch.setattr(ServerLink, method, bug)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        test()
