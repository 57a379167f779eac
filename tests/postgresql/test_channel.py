"""Notifications: who is sent one, by which session, and what happens if none come."""

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, cast

import pytest

from tenure import Client, Outcome
from tenure.contracts.runtime import Datagrams
from tenure.runtimes.threads import drive
from tenure.stores.postgresql.channel import SELF_TEST, PgChannel
from tenure.stores.postgresql.connection import PgConnection
from tenure.stores.sql.errors import SqlBroken
from tenure_testing.conformance.kit import Kit
from tests.faults.scenes import API_FORMS, client_at, play
from tests.hazards.helpers import TEST_TIMEOUT, ObservedRuntime, eventually
from tests.planting import planted
from tests.servers import PgBouncer, PostgresServer

if TYPE_CHECKING:
    from tenure.stores.postgresql.link import PgLink

TTL = 20.0


def test_nobody_is_notified_who_does_not_wait(postgres_server: PostgresServer) -> None:
    """100 pairs without contention notify nobody: each notification takes one lock of the whole database."""
    postgres_server.execute("CREATE TABLE IF NOT EXISTS told (channel text)")
    postgres_server.execute(
        "CREATE OR REPLACE FUNCTION public.pg_notify(text, text) RETURNS void LANGUAGE sql AS "
        "$$ INSERT INTO public.told VALUES ($1); SELECT pg_catalog.pg_notify($1, $2) $$"
    )
    try:
        url = postgres_server.url
        postgres_server.execute("ALTER DATABASE postgres SET search_path = public, pg_catalog")
        with Client(url) as client, Client(url) as other:
            client.names()
            other.names()
            postgres_server.execute("TRUNCATE told")
            for number in range(100):
                client.lock(f"alone {number % 3}", ttl=TTL).acquire().release()
            assert postgres_server.execute("SELECT count(*) FROM told") == [(0,)]
            lease = client.lock("wanted", ttl=TTL).acquire()
            waiting = other.lock("wanted", ttl=TTL)
            thread = threading.Thread(target=lambda: waiting.acquire().release())
            thread.start()
            eventually(lambda: client.inspect("wanted").waiters, "a waiter")
            lease.release()
            thread.join()
            ((told,),) = postgres_server.execute("SELECT count(*) FROM told")
            assert told >= 1
    finally:
        postgres_server.execute("ALTER DATABASE postgres RESET search_path")
        postgres_server.execute("DROP FUNCTION public.pg_notify(text, text)")


@pytest.mark.parametrize("form", API_FORMS)
def test_a_session_that_hears_nothing_is_no_channel(
    postgres_server: PostgresServer, form: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A client whose session does not hear its own notification polls, says so once, and is served."""

    def hear(_: PgConnection) -> list[bytes]:
        return []

    monkeypatch.setattr(PgConnection, "hear", hear)

    async def scene(kit: Kit) -> None:
        ours, theirs = client_at(kit, postgres_server.url), client_at(kit, postgres_server.url)
        lease = await ours.lock("name", ttl=TTL).acquire()
        waiting = kit.start(lambda: theirs.lock("name", ttl=TTL).acquire())
        await kit.waiters(ours, "name", 1)
        assert await lease.release() is Outcome.RELEASED
        assert await (await waiting.result()).release() is Outcome.RELEASED

    play(form, postgres_server.url, scene)
    said = [record for record in caplog.records if record.levelno == logging.WARNING and "poll" in record.message]
    assert len(said) == 2, "once a client"


@pytest.mark.parametrize("form", API_FORMS)
def test_a_message_of_others_is_ignored(postgres_server: PostgresServer, form: str) -> None:
    """What anybody else sends to the channel of a client does not end it."""
    mine = f"strange-{form}"

    async def scene(kit: Kit) -> None:
        waiter = client_at(kit, f"{postgres_server.url}?application_name={mine}")
        holder = client_at(kit, postgres_server.url)
        lease = await holder.lock("name", ttl=TTL).acquire()
        waiting = kit.start(lambda: waiter.lock("name", ttl=TTL).acquire())
        await kit.waiters(holder, "name", 1)
        channel = waiter.session().channel
        for words in ("", "x", "[", "[1,2,3,4,5]", '["granted","x",1,1,1]', "null", "9" * 5000, "[" * 5000):
            postgres_server.execute("SELECT pg_notify(%s, %s)", channel, words)
        assert await lease.release() is Outcome.RELEASED
        assert await (await waiting.result()).release() is Outcome.RELEASED

    play(form, postgres_server.url, scene)


# -- a pooler ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", API_FORMS)
def test_many_clients_behind_a_pooler_of_two(pgbouncer: PgBouncer, form: str, caplog: pytest.LogCaptureFixture) -> None:
    """32 clients that contend through PgBouncer are all served; its sessions keep no lock, setting or statement."""

    async def scene(kit: Kit) -> None:
        clients = [client_at(kit, f"{pgbouncer.url}?connections=2", operation_timeout=10.0) for _ in range(32)]
        inside: list[int] = []

        async def work(number: int) -> int:
            async with clients[number].lock("hot", ttl=TTL) as lease:
                inside.append(number)
                assert inside == [number]
                await kit.pause(0.001)
                inside.remove(number)
                return lease.token

        running = [kit.start(lambda number=number: work(number)) for number in range(32)]  # type: ignore[misc]
        tokens = [await each.result(60) for each in running]
        assert len(set(tokens)) == 32

    play(form, pgbouncer.url, scene)
    said = [record for record in caplog.records if "connection pooler" in record.message]
    assert len(said) == 32, "once a client"
    with pgbouncer.postgres.connect(pgbouncer.url, prepare_threshold=None) as session:
        for setting in ("statement_timeout", "lock_timeout", "jit", "default_transaction_isolation"):
            row = session.execute("SELECT setting = reset_val FROM pg_settings WHERE name = %s", (setting,)).fetchone()
            assert row == (True,), setting
        assert session.execute("SELECT count(*) FROM pg_prepared_statements").fetchone() == (0,)
    held = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory'"
    eventually(lambda: not pgbouncer.postgres.execute(held), "no advisory lock in any session")


@pytest.mark.parametrize("form", API_FORMS)
def test_a_channel_does_not_come_back_through_a_pooler(
    postgres_server: PostgresServer, pgbouncer: PgBouncer, form: str
) -> None:
    """A channel whose address leads to a pooler now leaves nothing in the pooler's sessions."""
    del form
    import asyncio
    from urllib.parse import urlsplit

    from tenure.runtimes.aio import AsyncioRuntime
    from tenure.stores.postgresql.aio import PgAsyncLink
    from tenure.stores.postgresql.options import deployment_of

    async def main() -> None:
        runtime = AsyncioRuntime()
        direct = PgAsyncLink(runtime, deployment_of(urlsplit(postgres_server.url)))
        channel = PgChannel(runtime, direct)
        assert await channel.open(lambda _: None, runtime.now() + 10)
        through = PgAsyncLink(runtime, deployment_of(urlsplit(pgbouncer.url)))
        tried = asyncio.Event()
        dial = through.dial

        async def noted(until: float) -> PgConnection:
            connection = await dial(until)
            asyncio.get_running_loop().call_later(0.2, tried.set)
            return connection

        through.dial = noted  # type: ignore[method-assign]
        channel._link = through
        channel._lost(OSError("cut"))
        await tried.wait()
        held = postgres_server.execute(
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid IN "
            "(SELECT pid FROM pg_stat_activity WHERE query LIKE %s)",
            "%pg_advisory_lock(%",
        )
        assert held == [(0,)]
        await channel.close()
        await direct.close()
        await through.close()

    asyncio.run(main())


class Session:
    """A session that hears its self-test, and is lost after that if it is `brief`."""

    pooled = False
    place = "a server"

    def __init__(self, *, brief: bool) -> None:
        self._brief = brief
        self._heard = False

    def execute(self, *_: object) -> None:
        """Do nothing."""

    def hear(self) -> list[bytes]:
        """Return what has come."""
        if self._heard and self._brief:
            raise SqlBroken("the session was ended")
        self._heard = True
        return [SELF_TEST]

    def close(self) -> None:
        """Disconnect."""


class Link:
    """A link whose first session is brief."""

    facts = None

    def __init__(self) -> None:
        self._brief = True

    async def dial(self, _until: float) -> Session:
        """Connect."""
        session, self._brief = Session(brief=self._brief), False
        return session

    async def run(self, *_: object) -> None:
        """Do nothing."""


class HastyRuntime(ObservedRuntime):
    """A runtime whose listening thread goes as far as it can before `listen` returns."""

    def __init__(self) -> None:
        super().__init__()
        self.listened = self.stopped = 0

    def listen(self, source: Datagrams, receive: Callable[[bytes], None]) -> Callable[[], None]:
        """Have a thread take what has come, once."""

        def take() -> None:
            with suppress(BlockingIOError):
                receive(source.recv(1))

        self.listened += 1
        thread = threading.Thread(target=take)
        thread.start()
        eventually(lambda: not thread.is_alive() or self.is_waited_for(), "all it can do")
        return self._stop

    def _stop(self) -> None:
        self.stopped += 1


def listeners_left() -> int:
    """Lose a session as soon as it is listened to, and connect again; return how many listeners are left at the end."""
    runtime = HastyRuntime()
    channel = PgChannel(runtime, cast("PgLink", Link()))
    drive(channel.open(lambda _: None, runtime.now() + TEST_TIMEOUT))
    eventually(lambda: runtime.listened == 2, "another session")
    eventually(lambda: channel._reconnecting is not None and channel._reconnecting.ended(), "the end of that work")
    drive(channel.close())
    return runtime.listened - runtime.stopped


def test_a_session_that_is_lost_at_once_leaves_no_listener() -> None:
    """A thread that went on listening to a closed socket would find something there all the time."""
    assert listeners_left() == 0


@pytest.mark.parametrize("method", ["_listen", "_end"])
def test_a_listener_that_is_noted_too_late_is_found(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted bugs: the session is listened to, or its listener is taken, without the mutex."""
    monkeypatch.setattr(PgChannel, method, planted(PgChannel, method, "with self._mutex:", "if True:"))
    assert listeners_left()
