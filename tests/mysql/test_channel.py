"""The channel of a client: each message is heard once, and a client whose session can't be woken polls."""

import asyncio
import logging
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any
from uuid import uuid4

import pytest

from tenure import AsyncClient, Client, UsageError
from tenure.contracts.messages import Notification, NotificationKind
from tenure.runtimes.threads import ThreadsRuntime, drive
from tenure.stores import table_codec
from tenure.stores.mysql import channel as channels
from tenure.stores.mysql.channel import MySqlChannel
from tenure.stores.mysql.connection import MySqlConnection
from tenure.stores.mysql.errors import INTERRUPTED, MySqlResult, MySqlServerError
from tenure.stores.mysql.link import MySqlLink
from tenure.stores.mysql.statements import MySqlStatements
from tenure.stores.mysql.threads import MySqlThreadLink
from tests.hazards.helpers import soon
from tests.servers import MariaDbServer, wait_until

TEST_TIMEOUT = 30.0


class KilledSession(MySqlConnection):
    """A session with one message, whose first DELETE is ended by KILL QUERY: before it, or after it is `done`.

    Unless it is `told`, the session reports no error then, as MariaDB does now and then.
    """

    def __init__(self, *, done: bool, told: bool) -> None:
        """Have one message."""
        super().__init__(None, "here", several=True)
        granted = Notification("", NotificationKind.GRANTED, "r1", 7)
        self.messages: list[tuple[Any, ...]] = [(1, table_codec.dump_notification(granted))]
        self._kills = 1
        self._done, self._told = done, told

    async def run(self, statements: Sequence[str], until: float) -> list[MySqlResult]:
        """Answer as the server does."""
        del until
        (statement,) = statements
        if not statement.startswith("DELETE"):
            return [MySqlResult(list(self.messages) if "payload" in statement else [(0,)], 1, 0)]
        killed, self._kills = self._kills > 0, self._kills - 1
        if not killed or self._done:
            self.messages.clear()
        if killed and self._told:
            raise MySqlServerError(INTERRUPTED, "Query execution was interrupted")
        return [MySqlResult((), 1, 0)]

    async def _execute(self, text: str, results: list[MySqlResult], until: float) -> None:
        raise NotImplementedError

    def send(self, statements: Sequence[str]) -> None:
        """Refuse: no channel sends without waiting."""
        raise NotImplementedError

    async def receive(self, until: float) -> list[MySqlResult]:
        """Refuse."""
        raise NotImplementedError

    def close(self) -> None:
        """Do nothing."""

    def interrupt(self) -> None:
        """Do nothing."""

    def is_stale(self) -> bool:
        """Return that it is not."""
        return False

    def _fileno(self) -> int:
        return -1


@pytest.mark.parametrize(("done", "told"), [(False, True), (True, True), (False, False)])
def test_a_message_is_delivered_once_whenever_the_session_is_woken(*, done: bool, told: bool) -> None:
    """A KILL QUERY that hits the DELETE of a message neither loses the message nor delivers it twice."""
    runtime, session, heard = ThreadsRuntime(), KilledSession(done=done, told=told), list[Notification]()
    channel = MySqlChannel(runtime, _no_link(), MySqlStatements("locks_"))
    channel._deliver = heard.append
    for _ in range(3):
        drive(channel._hear(session))
    assert [each.token for each in heard] == [7]
    assert session.messages == []


def _no_link() -> MySqlLink:
    return MySqlThreadLink.__new__(MySqlThreadLink)


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """Keep what is logged."""
    with caplog.at_level(logging.WARNING, "tenure"):
        yield caplog


def test_a_client_whose_session_cannot_be_woken_polls(
    mariadb_server: MariaDbServer, log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says so once, opens within its operation timeout, and its waiters get their locks."""

    async def end_nothing(*_: object) -> None:
        pass

    monkeypatch.setattr(MySqlChannel, "_end_sleep", end_nothing)
    name = uuid4().hex
    with Client(mariadb_server.url) as one, Client(mariadb_server.url) as other:
        lease = one.lock(name, ttl=20).acquire()
        tokens: list[int] = []
        thread = threading.Thread(target=lambda: tokens.append(_take(other, name)))
        thread.start()
        until = time.monotonic() + TEST_TIMEOUT
        while not one.inspect(name).waiters:
            assert time.monotonic() < until
            time.sleep(0.005)
        lease.release()
        thread.join(TEST_TIMEOUT)
        assert tokens[0] > lease.token
    assert log.text.count("can be woken by KILL QUERY") == 2  # once a client


@pytest.mark.parametrize("form", ["threads", "asyncio"])
def test_a_session_that_cannot_be_woken_is_tested_again(
    mariadb_server: MariaDbServer, log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """A server that is slow while a client opens costs the client its channel for a while, and not for good."""
    end_sleep, slow = MySqlChannel._end_sleep, [True]

    async def end_maybe(channel: MySqlChannel, session: int, until: float) -> None:
        if not slow[0]:
            await end_sleep(channel, session, until)

    monkeypatch.setattr(MySqlChannel, "_end_sleep", end_maybe)
    monkeypatch.setattr(channels, "FIRST_RETEST", 0.05)
    name = uuid4().hex

    def use_threads() -> None:
        with Client(mariadb_server.url) as client:
            client.lock(name).acquire().release()
            with pytest.raises(UsageError, match="linger"):
                client.lock(name, linger=1.0).acquire()
            slow[0] = False
            wait_until(lambda: "can be woken now" in log.text, "a test that succeeds")
            with client.lock(name, linger=1.0) as lease, Client(mariadb_server.url) as other:
                waiter = threading.Thread(target=lambda: _take(other, name))
                waiter.start()
                wait_until(lambda: client.inspect(name).waiters, "a waiter")
                assert lease.release().kept
                waiter.join(TEST_TIMEOUT)

    async def use_asyncio() -> None:
        async with AsyncClient(mariadb_server.url) as client:
            await (await client.lock(name).acquire()).release()
            with pytest.raises(UsageError, match="linger"):
                await client.lock(name, linger=1.0).acquire()
            slow[0] = False
            await soon(lambda: "can be woken now" in log.text, "a test that succeeds")
            await (await client.lock(name, linger=1.0).acquire()).release()

    use_threads() if form == "threads" else asyncio.run(use_asyncio())
    assert log.text.count("can be woken by KILL QUERY") == 1


def test_a_client_closes_while_its_session_is_tested_again(
    mariadb_server: MariaDbServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task that tests is the client's, and ends with it."""

    async def end_nothing(*_: object) -> None:
        pass

    monkeypatch.setattr(MySqlChannel, "_end_sleep", end_nothing)
    monkeypatch.setattr(channels, "FIRST_RETEST", 0.001)
    client = Client(mariadb_server.url)
    client.lock(uuid4().hex).acquire().release()
    wait_until(lambda: any(each.name == "tenure-mysql-self-test" for each in threading.enumerate()), "another test")
    client.close()
    wait_until(
        lambda: not any(each.name.startswith("tenure-mysql") for each in threading.enumerate()),
        "the end of its threads",
    )


def test_a_slow_machine_is_not_taken_for_a_proxy(
    mariadb_server: MariaDbServer, log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A self-test that is late with its KILL QUERY still finds that it works."""
    end_sleep = MySqlChannel._end_sleep

    async def end_late(channel: MySqlChannel, session: int, until: float) -> None:
        time.sleep(0.7)  # noqa: ASYNC251 - in this runtime it is the thread that is late
        await end_sleep(channel, session, until)

    monkeypatch.setattr(MySqlChannel, "_end_sleep", end_late)
    with Client(mariadb_server.url, operation_timeout=10) as client:
        client.lock(uuid4().hex).acquire().release()
    assert "can be woken" not in log.text


@pytest.mark.parametrize("woken", [0, 1])
def test_a_client_closes_though_its_session_misses_the_first_wake_up(
    mariadb_server: MariaDbServer, monkeypatch: pytest.MonkeyPatch, woken: int
) -> None:
    """A KILL QUERY that came just before the sleep is sent again; if none works, the connection is broken."""
    monkeypatch.setattr(channels, "SLEEP", 600.0)
    client = Client(mariadb_server.url)
    client.lock(uuid4().hex).acquire().release()
    wake, calls = MySqlChannel.wake, list[float]()

    async def wake_later(channel: MySqlChannel, names: Sequence[str], until: float) -> None:
        calls.append(until)
        if woken and len(calls) > woken:
            await wake(channel, names, until)

    monkeypatch.setattr(MySqlChannel, "wake", wake_later)
    closing = threading.Thread(target=client.close, daemon=True)
    closing.start()
    closing.join(TEST_TIMEOUT)
    assert not closing.is_alive()
    assert len(calls) > 1


def _take(client: Client, name: str) -> int:
    with client.lock(name, ttl=20, timeout=TEST_TIMEOUT) as lease:
        return lease.token
