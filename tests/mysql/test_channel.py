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
from tenure.stores.mysql import link as links
from tenure.stores.mysql.channel import MySqlChannel
from tenure.stores.mysql.connection import MySqlConnection
from tenure.stores.mysql.errors import INTERRUPTED, MySqlResult, MySqlServerError
from tenure.stores.mysql.link import MySqlLink
from tenure.stores.mysql.options import MySqlDeployment
from tenure.stores.mysql.statements import MySqlStatements, end_sleep
from tenure.stores.mysql.threads import MySqlThreadLink
from tenure.stores.sql.errors import SqlBroken
from tests.hazards.helpers import soon
from tests.planting import module_with
from tests.servers import MariaDbServer, wait_until
from tests.servers.mariadb import DATABASE, PASSWORD, USER

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
        """Answer as the server does: killed between two statements of one request, it says that another reply comes."""
        del until
        if len(statements) > 1 and self._kills > 0:
            raise SqlBroken("the second reply has not come in time")
        return [self._answer(statement) for statement in statements]

    def _answer(self, statement: str) -> MySqlResult:
        if not statement.startswith("DELETE"):
            return MySqlResult(list(self.messages) if "payload" in statement else [(0,)], 1, 0)
        killed, self._kills = self._kills > 0, self._kills - 1
        if not killed or self._done:
            self.messages.clear()
        if killed and self._told:
            raise MySqlServerError(INTERRUPTED, "Query execution was interrupted")
        return MySqlResult((), 1, 0)

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


def wakes_behind_another(server: MariaDbServer, within: float) -> bool:
    """Run a statement, and kills: of nobody, and of a session that sleeps. Return whether its sleep ends in time."""
    runtime, channel, ended = ThreadsRuntime(), f"tenure_{uuid4().hex}", threading.Event()
    link = MySqlThreadLink(runtime, MySqlDeployment([server.address], USER, PASSWORD, DATABASE))
    until = runtime.now() + TEST_TIMEOUT

    def sleep() -> None:
        lock = f"SELECT GET_LOCK('{channel}', 9)"
        with pytest.raises(MySqlServerError, match="interrupted"):
            drive(link.run((lock, "SELECT SLEEP(600) FROM (SELECT 1) AS t"), until))
        ended.set()

    sleeps = "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE ID = IS_USED_LOCK(%s) AND STATE = 'User sleep'"
    sleeper = threading.Thread(target=sleep)
    sleeper.start()
    wait_until(lambda: server.execute(sleeps, channel) == [(1,)], "the sleep")
    found = drive(link.run(("SELECT 7",), until, kills=(end_sleep("tenure_nobody"), end_sleep(channel))))
    assert [each.rows for each in found] == [((7,),)]
    woken = ended.wait(within)
    if not woken:
        drive(link.run((end_sleep(channel),), until))
    sleeper.join(TEST_TIMEOUT)
    drive(link.close())
    return woken


def test_a_waiter_is_woken_though_another_is_gone(mariadb_server: MariaDbServer) -> None:
    """A KILL QUERY that finds no session fails, and neither the statements before it nor those behind it do."""
    assert wakes_behind_another(mariadb_server, TEST_TIMEOUT)


def test_a_kill_that_ends_the_others_would_be_noticed(
    mariadb_server: MariaDbServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest is not sent once one has failed."""
    wrong = module_with(links, ("kills[failed + 1 :]", "()"))
    monkeypatch.setattr(links, "_run_with_kills", vars(wrong)["_run_with_kills"])
    assert not wakes_behind_another(mariadb_server, 0.5)


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

    async def wake_nobody(*_: object) -> None:
        pass

    monkeypatch.setattr(MySqlChannel, "wake", wake_nobody)
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
    wake, slow = MySqlChannel.wake, [True]

    async def wake_perhaps(channel: MySqlChannel, name: str, until: float) -> None:
        if not slow[0]:
            await wake(channel, name, until)

    monkeypatch.setattr(MySqlChannel, "wake", wake_perhaps)
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
    """The task that tests is the client's, and ends with it, in the middle of a sleep."""

    async def wake_nobody(*_: object) -> None:
        pass

    monkeypatch.setattr(MySqlChannel, "wake", wake_nobody)
    monkeypatch.setattr(channels, "FIRST_RETEST", 0.001)
    for each in ("ANSWERING", "ENDING", "TEST_SLEEP"):
        monkeypatch.setattr(channels, each, 600.0)
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
    wake = MySqlChannel.wake

    async def wake_late(channel: MySqlChannel, name: str, until: float) -> None:
        time.sleep(0.7)  # noqa: ASYNC251 - in this runtime it is the thread that is late
        await wake(channel, name, until)

    monkeypatch.setattr(MySqlChannel, "wake", wake_late)
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

    async def wake_later(channel: MySqlChannel, name: str, until: float) -> None:
        calls.append(until)
        if woken and len(calls) > woken:
            await wake(channel, name, until)

    monkeypatch.setattr(MySqlChannel, "wake", wake_later)
    closing = threading.Thread(target=client.close, daemon=True)
    closing.start()
    closing.join(TEST_TIMEOUT)
    assert not closing.is_alive()
    assert len(calls) > 1


def _take(client: Client, name: str) -> int:
    with client.lock(name, ttl=20, timeout=TEST_TIMEOUT) as lease:
        return lease.token
