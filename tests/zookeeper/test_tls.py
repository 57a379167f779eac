"""TLS both ways: nobody talks to a server that it does not trust, nor a server to such a client."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import tenure
from tenure.errors import StoreUnavailable
from tests.servers import Certificates, ZooKeeperServer
from tests.zookeeper.conftest import MakeMember
from tests.zookeeper.worlds import Member, World, hand_over, refusal


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Make an authority of our own."""
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, certificates: Certificates) -> Iterator[ZooKeeperServer]:
    """Run a server whose clients show certificates."""
    with ZooKeeperServer(tmp_path_factory.mktemp("zookeeper-tls"), certificates=certificates) as server:
        yield server


def options(certificates: Certificates) -> dict[str, str]:
    """Return what a client is told that has a certificate."""
    own = {"certfile": certificates.certificate, "keyfile": certificates.key}
    return {"use_ssl": "true", "ca": str(certificates.authority), **{key: str(each) for key, each in own.items()}}


def test_locks_work_over_tls(world: World, server: ZooKeeperServer, certificates: Certificates) -> None:
    """A lock is held, waited for and handed on as without."""
    query = "&".join(f"{key}={value}" for key, value in options(certificates).items())
    hand_over(world, f"{server.url}/tls?{query}")


def test_what_came_in_one_record_is_read(
    member: MakeMember, server: ZooKeeperServer, certificates: Certificates
) -> None:
    """Many answers at once, and large ones, are all heard."""
    one = member(server.url, **options(certificates))
    entries = [one.join("many", f"a{n}") for n in range(30)]
    name = [("many", entry) for entry in entries]
    for _ in range(10):
        assert one.world.run(one.directory.check(name, one.until)) == [True] * len(name)


def test_a_server_that_nobody_trusts_is_refused(
    world: World, server: ZooKeeperServer, certificates: Certificates, tmp_path: Path
) -> None:
    """Its certificate must be by an authority that is trusted."""
    trusted = options(certificates)
    strange = trusted | {"ca": str(Certificates(tmp_path).authority)}
    assert "certificate is not trusted" in refusal(world, server.url, **strange)
    assert "certificate is not trusted" in refusal(world, server.url, use_ssl="true")


def test_a_client_that_has_no_certificate_is_told(
    world: World, server: ZooKeeperServer, certificates: Certificates, tmp_path: Path
) -> None:
    """The same if the server does not trust its certificate."""
    bare = {"use_ssl": "true", "ca": str(certificates.authority)}
    assert "TLS handshake failed" in refusal(world, server.url, **bare)
    other = options(Certificates(tmp_path))
    assert "TLS handshake failed" in refusal(world, server.url, **(other | bare))


def test_who_speaks_no_tls_to_a_server_that_does(world: World, server: ZooKeeperServer) -> None:
    """What it is told reminds of TLS."""
    one = Member(world, server.url)
    with pytest.raises(StoreUnavailable, match="use_ssl=true"):
        world.run(one.directory.open(one.notes, one.soon(1.0)))
    one.close()


def test_certificates_that_cannot_be_loaded(certificates: Certificates, tmp_path: Path) -> None:
    """They are refused with the URL, before anything is connected."""
    empty = tmp_path / "empty.pem"
    empty.touch()
    for wrong in ({"ca": empty}, {"certfile": empty}, {"keyfile": certificates.certificate}):
        query = "&".join(f"{key}={value}" for key, value in (options(certificates) | wrong).items())
        with pytest.raises(tenure.UsageError, match="cannot be loaded"):
            tenure.Client(f"zookeeper://127.0.0.1:1?{query}")
