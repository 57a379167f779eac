"""Forks and the end of the interpreter."""

from collections.abc import Iterator

import pytest

from tenure import Client
from tests.hazards.helpers import Script, eventually
from tests.hazards.test_fork import PRELUDE
from tests.mysql.accounts import Account
from tests.postgresql.test_processes import ENDING, FORK, kill_a_waiter_with_a_child
from tests.servers import MariaDbServer

SESSIONS = """
client = tenure.Client(url, namespace="fork", advice=False)
lease = client.lock("name", ttl=20).acquire()
say("held"); sys.stdin.readline()
def child():
    global client, lease
    with client.lock("childs", timeout=30):
        say("child"); sys.stdin.readline()
    client.close()
    del client, lease; gc.collect()
pid = fork(child)
say(wait(pid))
lease.check(); lease.extend()
with client.lock("parents", timeout=30): pass
say("works"); sys.stdin.readline()
say(lease.release()); client.close()
"""

LOOP = """
client = tenure.AsyncClient(url, namespace="fork", advice=False)
async def child_main(lease):
    async with client.lock("childs", timeout=30):
        assert await client.lock("name").try_acquire() is None
        say("child"); sys.stdin.readline()
    try:
        await lease.release()
    except tenure.ForkedLeaseError:
        say("refused")
    await client.close()
async def main():
    lease = await client.lock("name", ttl=30).acquire()
    say("held"); sys.stdin.readline()
    pid = fork(lambda: asyncio.run(child_main(lease)))
    say(await asyncio.to_thread(wait, pid)); lease.check()
    async with client.lock("parents", timeout=30): pass
    say("works"); sys.stdin.readline()
    say(await lease.release()); await client.close()
import warnings; warnings.simplefilter("ignore", DeprecationWarning)
asyncio.run(main())
"""

FORMS = {"threads": (SESSIONS, ["0"]), "asyncio": (LOOP, ["refused", "0"])}
"""The script of each form of the API, and what it says at the end of its child."""


@pytest.fixture
def account(mariadb_server: MariaDbServer) -> Account:
    """Return a user and a database of this test's own."""
    return Account(mariadb_server)


@pytest.fixture
def onlooker(account: Account) -> Iterator[Client]:
    """Return a client of another process."""
    with Client(account.url, namespace="fork") as client:
        yield client


@pytest.mark.parametrize("form", FORMS)
def test_a_child_leaves_the_parents_sessions_alone(account: Account, form: str) -> None:
    """A child makes sessions of its own, and when it closes its client and ends, its parent's go on."""
    code, said = FORMS[form]
    script = Script(PRELUDE + code, account.url)
    assert script.hear() == "held"
    parents = account.sessions()
    assert len(parents) >= 2
    script.say()
    assert script.hear() == "child"
    assert len(account.sessions() - parents) >= 2
    assert parents <= account.sessions()
    script.say()
    assert [script.hear() for _ in said] == said
    assert script.hear() == "works"
    assert parents <= account.sessions()
    script.say()
    assert script.end() == ("Outcome.RELEASED\n", "")


def test_parent_and_child_exclude_each_other(account: Account) -> None:
    """A child of a fork excludes its parent, and cannot release its leases."""
    out, errors = Script(PRELUDE + FORK, account.url).end()
    assert not errors
    assert out.splitlines() == ["refused", "0", "Outcome.RELEASED"]


def test_a_dead_waiter_is_noticed_though_its_child_lives(account: Account, onlooker: Client) -> None:
    """The copy of a listening session that a child has inherited does not make its killed parent look alive."""
    kill_a_waiter_with_a_child(onlooker, account.url)


def test_the_end_of_the_interpreter_releases(account: Account, onlooker: Client) -> None:
    """A process that ends without closing its client leaves no name held, no session and no message."""
    onlooker.names()
    own = account.sessions()
    script = Script(PRELUDE + ENDING, account.url)
    out, errors = script.end()
    assert (out, script.status) == ("held\n", 0), errors
    assert "Traceback" not in errors
    assert not onlooker.inspect("ending").holders
    eventually(lambda: account.sessions() <= own, "the end of its sessions")
