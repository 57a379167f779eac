"""A SASL login is what the URL says, and whoever is refused is told so without a password."""

from collections.abc import Iterator

import pytest

import tenure
from tenure.errors import StoreUnavailable
from tests.servers import ZooKeeperServer
from tests.zookeeper.conftest import MakeMember
from tests.zookeeper.worlds import Member, World, hand_over, refusal

USER, PASSWORD = "me", "se/cr@et"
WRITTEN = "se%2Fcr%40et"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    """Run a server that takes nobody who has not logged in."""
    with ZooKeeperServer(tmp_path_factory.mktemp("zookeeper-sasl"), users={USER: PASSWORD}) as server:
        yield server


def login(server: ZooKeeperServer, user: str = USER, password: str = WRITTEN) -> str:
    """Return the URL with a login."""
    return server.url.replace("://", f"://{user}:{password}@")


def test_who_logs_in_is_served(world: World, server: ZooKeeperServer) -> None:
    """A lock is held, waited for and handed on."""
    hand_over(world, f"{login(server)}/sasl?sasl_mechanism=DIGEST-MD5")


def test_what_is_private_belongs_to_the_login(member: MakeMember, server: ZooKeeperServer) -> None:
    """With acl=creator, who logged in by SASL owns what it makes; the login holds on another connection, too."""
    options = {"sasl_mechanism": "DIGEST-MD5", "acl": "creator"}
    one, two = member(f"{login(server)}/private", **options), member(f"{login(server)}/private", **options)
    one.join("private", "a1")
    handler = one.directory._session.link._handler
    assert handler is not None
    handler.break_off()
    one.await_gaps(1)
    assert two.requests("private") == one.requests("private") == ["a1"]


@pytest.mark.parametrize("user", [USER, "stranger"])
def test_a_wrong_login_is_refused(world: World, server: ZooKeeperServer, user: str) -> None:
    """Whoever is refused is told so at once, without the password."""
    refused = refusal(world, login(server, user, "wr%2Fong"), sasl_mechanism="DIGEST-MD5")
    assert "refused the login" in refused
    assert not any(each in refused for each in (PASSWORD, WRITTEN, "wr/ong", "wr%2Fong"))


def test_who_does_not_log_in_is_told(world: World, server: ZooKeeperServer) -> None:
    """A digest is no SASL login."""
    for url in (server.url, login(server)):
        assert "SASL" in refusal(world, url)


def test_servers_without_sasl_do_not_answer_a_login(
    world: World, zookeeper_server: ZooKeeperServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who logs in there is told in time what it may be."""
    monkeypatch.setattr("tenure.stores.zookeeper.link.CLOSING", 0.2)
    one = Member(world, login(zookeeper_server), sasl_mechanism="DIGEST-MD5", session_timeout="30")
    with pytest.raises(StoreUnavailable, match="whether they accept SASL logins"):
        world.run(one.directory.open(one.notes, one.soon(1.0)))
    one.close()


@pytest.mark.parametrize(
    ("module", "mechanism", "install"),
    [("puresasl", "DIGEST-MD5", r"\[zookeeper-sasl\]"), ("kerberos", "GSSAPI", "kerberos")],
)
def test_what_is_missing_is_told(monkeypatch: pytest.MonkeyPatch, module: str, mechanism: str, install: str) -> None:
    """Who lacks a module reads what to install."""

    def find(name: str) -> str | None:
        return None if name == module else name

    monkeypatch.setattr("tenure.stores.zookeeper.find_spec", find)
    with pytest.raises(tenure.UsageError, match=install):
        tenure.Client(f"zookeeper://me:secret@127.0.0.1:1?sasl_mechanism={mechanism}")
