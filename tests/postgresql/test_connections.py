"""The connections of a client: how many there are, which are dropped, and what a refused one is called."""

import asyncio
import socket
import sys
import threading
from collections.abc import Callable, Coroutine
from typing import Any
from urllib.parse import urlsplit

import pytest

from tenure import Client, LockTimeout, Outcome, StoreUnavailable
from tenure.contracts.runtime import Runtime
from tenure.runtimes.aio import AsyncioRuntime
from tenure.runtimes.threads import ThreadsRuntime, drive
from tenure.stores.postgresql import connection as connections
from tenure.stores.postgresql.aio import PgAsyncLink
from tenure.stores.postgresql.connection import PgStatement
from tenure.stores.postgresql.database import PgDatabase
from tenure.stores.postgresql.errors import PgServerError, to_store_error
from tenure.stores.postgresql.link import PgLink
from tenure.stores.postgresql.options import PgDeployment, deployment_of
from tenure.stores.postgresql.threads import PgThreadLink
from tenure_testing.conformance.kit import Kit
from tests.faults.scenes import API_FORMS, client_at, play
from tests.hazards.helpers import eventually
from tests.postgresql.servers import proxy_for, url_at
from tests.servers import PostgresServer

ONE = PgStatement("one", "SELECT 1")
SLEEP = PgStatement("sleep", "SELECT pg_sleep(60)")


def with_link(form: str, url: str, work: Callable[[PgLink, Runtime], Coroutine[Any, Any, None]]) -> None:
    """Run work with a link of one form of the API."""

    async def run(link: PgLink, runtime: Runtime) -> None:
        try:
            await work(link, runtime)
        finally:
            await link.close()

    if form == API_FORMS[0]:
        runtime = ThreadsRuntime()
        drive(run(PgThreadLink(runtime, deployment_of(urlsplit(url))), runtime))
    else:

        async def main() -> None:
            runtime = AsyncioRuntime()
            await run(PgAsyncLink(runtime, deployment_of(urlsplit(url))), runtime)

        asyncio.run(main())


class _Refused:
    """A connection of libpq that was refused with a message."""

    def __init__(self, message: str) -> None:
        self.error_message = f'connection to server at "127.0.0.1", port 5432 failed: FATAL:  {message}'.encode()


REFUSALS = {
    "the database system is starting up": True,
    "the database system is shutting down": True,
    "the database system is in recovery mode": True,
    "the database system is not yet accepting connections": True,
    "sorry, too many clients already": True,
    "remaining connection slots are reserved for non-replication superuser connections": True,
    'too many connections for role "database"': True,
    'too many connections for database "tenure"': True,
    'database "too" is not currently accepting connections': True,
    'database "tenure" does not exist': False,
    'role "tenure" does not exist': False,
    'role "tenure" is not permitted to log in': False,
    'permission denied for database "tenure"': False,
    'password authentication failed for user "tenure"': False,
    'no pg_hba.conf entry for host "127.0.0.1", user "tenure", database "postgres", no encryption': False,
}
"""What a server says when it refuses a connection, and whether that passes."""


@pytest.mark.parametrize("said", REFUSALS)
def test_a_refused_connection_is_retried_if_that_helps(said: str) -> None:
    """What passes by itself is tried again; what somebody must repair is reported at once."""
    error = connections._connect_error(_Refused(said))  # type: ignore[arg-type]
    passes = not isinstance(error, PgServerError) or isinstance(to_store_error("h:1", error), StoreUnavailable)
    assert passes == REFUSALS[said], error


@pytest.mark.parametrize("form", API_FORMS)
def test_a_client_waits_for_a_free_connection(postgres_server: PostgresServer, form: str) -> None:
    """A limit of a role on its connections passes: an acquisition goes on as soon as one is free."""
    url = postgres_server.create_user(f"limited_{form}", "secret")
    postgres_server.execute(f'GRANT CREATE ON DATABASE postgres TO "limited_{form}"')
    postgres_server.execute(f'ALTER ROLE "limited_{form}" CONNECTION LIMIT 0')

    async def scene(kit: Kit) -> None:
        client = client_at(kit, f"{url}?schema=limited_{form}")
        running = kit.start(lambda: client.lock("name", ttl=20).acquire())
        await kit.pause(0.2)
        assert not running.done()
        postgres_server.execute(f'ALTER ROLE "limited_{form}" CONNECTION LIMIT -1')
        assert await (await running.result()).release() is Outcome.RELEASED

    play(form, url, scene)


@pytest.mark.parametrize("form", API_FORMS)
def test_a_connection_that_the_server_ended_is_not_used(postgres_server: PostgresServer, form: str) -> None:
    """The end of an idle session costs nobody a request: not even an acquisition that is tried once."""

    async def work(link: PgLink, runtime: Runtime) -> None:
        await link.execute(PgStatement("name", "SET application_name = 'ended'"), (), runtime.now() + 10)
        (idle,) = link._pool.idle
        idle.used -= 1.0  # it was idle for longer than one is taken to be open
        for pid in postgres_server.clients("ended"):
            postgres_server.terminate(pid)
        eventually(lambda: _readable(idle.fileno()), "the word of the end")
        assert await link.execute(ONE, (), runtime.now() + 10) == [(b"1",)]

    with_link(form, postgres_server.url, work)


def _readable(descriptor: int) -> bool:
    with socket.socket(fileno=descriptor) as copy:
        try:
            return bool(copy.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        except BlockingIOError:
            return False
        finally:
            copy.detach()


def test_each_address_of_a_host_is_tried(postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """In asyncio a host whose first address refuses is reached by its second; in threads libpq itself does so."""
    there = socket.getaddrinfo

    def two(host: object, *args: Any, **options: Any) -> Any:  # noqa: ANN401 - as getaddrinfo has it
        if host != "two.example":
            return there(host, *args, **options)  # type: ignore[arg-type]
        if args[4:] == (socket.AI_NUMERICHOST,):
            raise socket.gaierror
        found = there("127.0.0.1", *args, **options)
        return [(*found[0][:4], ("127.0.0.2", postgres_server.port)), *found]

    monkeypatch.setattr(socket, "getaddrinfo", two)

    async def work(link: PgLink, runtime: Runtime) -> None:
        assert await link.execute(ONE, (), runtime.now() + 10) == [(b"1",)]

    with_link(API_FORMS[1], f"postgresql://tenure@two.example:{postgres_server.port}/postgres", work)


def test_connections_are_bounded_however_many_threads_begin(postgres_server: PostgresServer) -> None:
    """No more connections than ?connections= carry requests, and one more listens."""
    url = f"{postgres_server.url}?connections=2&application_name=bounded"
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    most = 0
    try:
        with Client(url) as client:
            client.names()
            start = threading.Barrier(12)

            def lock(number: int) -> None:
                start.wait()
                for _ in range(5):
                    client.lock(f"bounded {number}").acquire().release()

            threads = [threading.Thread(target=lock, args=(number,)) for number in range(12)]
            for thread in threads:
                thread.start()
            while any(thread.is_alive() for thread in threads):
                most = max(most, len(postgres_server.clients("bounded")))
            for thread in threads:
                thread.join()
    finally:
        sys.setswitchinterval(before)
    assert 2 <= most <= 3
    eventually(lambda: not postgres_server.clients("bounded"), "the end of all sessions")


@pytest.mark.parametrize("form", API_FORMS)
def test_connections_end_with_their_client(postgres_server: PostgresServer, form: str) -> None:
    """A client that is closed leaves no session, also after errors, and while a request has no reply."""
    url = f"{postgres_server.url}?application_name=closed-{form}"

    async def scene(kit: Kit) -> None:
        client = client_at(kit, url, operation_timeout=0.5, retry_for=0.5)
        lease = await client.lock("name", ttl=20).acquire()
        with pytest.raises(LockTimeout):
            await client.lock("name", ttl=20).acquire(timeout=0.05)
        for pid in postgres_server.clients(f"closed-{form}"):
            postgres_server.terminate(pid)
        assert await lease.release() in (Outcome.RELEASED, Outcome.UNKNOWN)
        await client.names()
        await client.close()
        eventually(lambda: not postgres_server.clients(f"closed-{form}"), "the end of all sessions")

    play(form, url, scene)


@pytest.mark.parametrize("form", API_FORMS)
def test_the_server_notices_that_a_client_gave_up(postgres_server: PostgresServer, form: str) -> None:
    """A statement whose client timed out does not occupy a session of the server until it ends by itself."""
    url = f"{postgres_server.url}?application_name=gave-up-{form}"

    async def work(link: PgLink, runtime: Runtime) -> None:
        await link.execute(ONE, (), runtime.now() + 10)
        with pytest.raises(StoreUnavailable, match="did not answer"):
            await link.execute(SLEEP, (), runtime.now() + 0.2)
        eventually(lambda: not postgres_server.clients(f"gave-up-{form}"), "the end of the session", 10.0)

    with_link(form, url, work)


@pytest.mark.parametrize("form", API_FORMS)
@pytest.mark.parametrize("state", ["40001", "40P01", "55P03"])
def test_a_conflict_is_retried(form: str, state: str) -> None:
    """A transaction that failed because of another one is tried again inside, for nothing was done."""
    conflicts = [PgServerError(state, "conflict", fatal=False)] * 2

    async def work(link: PgLink, runtime: Runtime) -> None:
        async def execute(*_: object) -> list[tuple[bytes]]:
            if conflicts:
                raise conflicts.pop()
            return [(b"1",)]

        link.execute = execute  # type: ignore[method-assign, assignment]
        deployment = deployment_of(urlsplit("postgresql://127.0.0.1"))

        def make(_runtime: Runtime, _deployment: PgDeployment) -> PgLink:
            return link

        tables = PgDatabase(runtime, deployment, make)
        assert await tables._run(ONE, (), runtime.now() + 10) == [(b"1",)]

    with_link(form, "postgresql://127.0.0.1", work)


@pytest.mark.parametrize("form", API_FORMS)
def test_no_reply_is_taken_for_that_of_another_request(postgres_server: PostgresServer, form: str) -> None:
    """A connection on which a request timed out is never used again, though its reply comes later."""

    async def work(link: PgLink, runtime: Runtime) -> None:
        with proxy_for(postgres_server) as proxy:
            slow = type(link)(runtime, deployment_of(urlsplit(url_at(proxy.address))))
            await slow.execute(ONE, (), runtime.now() + 10)
            proxy.delay(down=0.3)
            with pytest.raises(StoreUnavailable, match="did not answer"):
                await slow.execute(PgStatement("two", "SELECT 2"), (), runtime.now() + 0.1)
            assert not slow._pool.idle
            proxy.heal()
            assert await slow.execute(ONE, (), runtime.now() + 10) == [(b"1",)]
            await slow.close()

    with_link(form, postgres_server.url, work)
