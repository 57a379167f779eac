"""Lost replies: whatever statement's reply is swallowed, the answer is right and nothing stays behind."""

from contextlib import suppress

import pytest

from tenure import LockTimeout, Outcome, OutcomeUnknown, StoreUnavailable
from tenure_testing.conformance.kit import Kit
from tests.faults.scenes import API_FORMS, client_at, play
from tests.faults.tally import ROUNDS, Crowd
from tests.postgresql.servers import proxy_for, url_at
from tests.servers import PostgresServer, Proxy

TTL = 20.0

STATEMENTS = ("acquire", "release", "renew", "read", "write", "names", "look", "settings", "lock", "listen")
FAULTS = {"swallow": Proxy.swallow, "lose": Proxy.lose}


@pytest.mark.parametrize("form", API_FORMS)
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("statement", STATEMENTS)
def test_a_statement_without_a_reply(postgres_server: PostgresServer, statement: str, fault: str, form: str) -> None:
    """The user gets the lease, the hand-off and the release whichever statement is lost on its way, or its reply."""

    async def scene(kit: Kit) -> None:
        with proxy_for(postgres_server) as proxy:
            ours = client_at(kit, url_at(proxy.address), operation_timeout=2.0)
            theirs = client_at(kit, postgres_server.url, operation_timeout=2.0)
            FAULTS[fault](proxy, containing=f"tenure_{statement}".encode())
            lease = await ours.lock("name", ttl=TTL).acquire()
            lease.check()
            waiting = kit.start(lambda: theirs.lock("name", ttl=TTL).acquire())
            await kit.waiters(theirs, "name", 1)
            FAULTS[fault](proxy, containing=f"tenure_{statement}".encode())
            with suppress(OutcomeUnknown):  # it says so, and the renewer goes on
                assert await lease.extend(TTL) > TTL / 2
            assert await lease.release() is Outcome.RELEASED
            next_lease = await waiting.result()
            assert next_lease.token > lease.token
            waiting = kit.start(lambda: ours.lock("name", ttl=TTL).acquire())
            await kit.waiters(theirs, "name", 1)
            assert await next_lease.release() is Outcome.RELEASED
            again = await waiting.result()
            again.check()
            assert await again.release() is Outcome.RELEASED
            await ours.names()
            view = await theirs.inspect("name")
            assert not view.holders
            assert not view.waiters
            proxy.heal()

    play(form, postgres_server.url, scene)


@pytest.mark.parametrize("form", API_FORMS)
def test_a_try_without_a_reply_leaves_nothing(postgres_server: PostgresServer, form: str) -> None:
    """An acquisition that is tried once says that its outcome is unknown, and gives back what it may have got."""

    async def scene(kit: Kit) -> None:
        with proxy_for(postgres_server) as proxy:
            client = client_at(kit, url_at(proxy.address), operation_timeout=2.0)
            other = client_at(kit, postgres_server.url)
            await client.names()
            proxy.swallow(containing=b"tenure_acquire")
            with pytest.raises(StoreUnavailable, match="did not answer"):
                await client.lock("name", ttl=TTL).try_acquire()
            await kit.free(other, "name")

    play(form, postgres_server.url, scene)


@pytest.mark.parametrize("form", API_FORMS)
@pytest.mark.parametrize("names", [["hot"], ["one", "two", "three", "four"]], ids=["contended", "spread"])
@pytest.mark.timeout(600)
def test_ten_thousand_acquisitions_with_swallowed_replies(
    postgres_server: PostgresServer, names: list[str], form: str
) -> None:
    """Of many acquisitions none leaves an orphan or gets a wrong answer, and the numbers they protect are right."""
    with proxy_for(postgres_server, seed=7) as proxy:
        url, to = url_at(proxy.address), postgres_server.url
        Crowd(names, ROUNDS).go_through(proxy, url, form, to=to, clients=4, swallowed=0.02, lost=0.004)


@pytest.mark.parametrize("form", API_FORMS)
def test_a_request_that_a_paused_server_carries_out_later_leaves_nothing(
    postgres_server: PostgresServer, form: str
) -> None:
    """A server that stands still and goes on after its client gave up keeps no name, and nobody waits in its queue."""

    async def scene(kit: Kit) -> None:
        client = client_at(kit, postgres_server.url, operation_timeout=0.3, retry_for=0.6)
        other = client_at(kit, postgres_server.url)
        await client.lock("warm", ttl=TTL).acquire()
        held = await other.lock("held", ttl=TTL).acquire()
        postgres_server.pause()
        try:
            with pytest.raises(StoreUnavailable):
                await client.lock("free", ttl=3.0).acquire()
            with pytest.raises((StoreUnavailable, LockTimeout)):
                await client.lock("held", ttl=3.0).acquire(timeout=0.6)
        finally:
            postgres_server.resume()
        await kit.free(other, "free")
        await kit.waiters(other, "held", 0)
        assert await held.release() is Outcome.RELEASED
        lease = await other.lock("free", ttl=TTL).acquire()
        assert await lease.release() is Outcome.RELEASED

    play(form, postgres_server.url, scene)
