"""The etcd servers of the fixtures work as their names say."""

import ssl
from pathlib import Path

import pytest

from tests.servers import Certificates, EtcdEnsemble, EtcdServer, ServerFailedError
from tests.servers.etcd import EtcdError, encoded, find_program


def put(server: EtcdServer, key: str) -> None:
    """Write a key."""
    server.command("kv/put", key=encoded(key), value=encoded("value"))


def test_a_server_keeps_its_data(tmp_path: Path) -> None:
    """A server has its data and its port after a crash."""
    with EtcdServer(tmp_path / "etcd") as server:
        url = server.url
        put(server, "kept/a")
        server.kill()
        server.start()
        assert server.keys("kept/") == ["kept/a"]
        assert server.url == url == f"etcd://127.0.0.1:{server.port}"


def test_what_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The error without etcd names the package to install."""
    monkeypatch.delenv("TENURE_ETCD", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ServerFailedError, match="etcd-server"):
        find_program()


def test_the_present_survives_a_compaction(etcd_server: EtcdServer) -> None:
    """A compaction keeps the present keys; a range at an older revision fails."""
    put(etcd_server, "compacted")
    before = etcd_server.revision()
    put(etcd_server, "compacted")
    etcd_server.compact()
    assert etcd_server.keys("compacted") == ["compacted"]
    with pytest.raises(EtcdError, match="compacted"):
        etcd_server.command("kv/range", key=encoded("compacted"), revision=str(before))


def test_a_lease_can_be_ended_early(etcd_server: EtcdServer) -> None:
    """The revocation of a lease deletes its keys."""
    lease = etcd_server.command("lease/grant", TTL="600")["ID"]
    etcd_server.command("kv/put", key=encoded("leased"), lease=lease)
    assert lease in etcd_server.leases()
    etcd_server.revoke(lease)
    assert etcd_server.keys("leased") == []


def test_clients_may_speak_tls(tmp_path: Path) -> None:
    """A client that trusts the authority is served; another client rejects the server."""
    with EtcdServer(tmp_path / "etcd", certificates=Certificates(tmp_path / "certificates")) as server:
        assert server.url.startswith("etcds://")
        put(server, "a")
        server.certificates = Certificates(tmp_path / "others")
        with pytest.raises(ssl.SSLCertVerificationError):
            put(server, "a")


def test_only_known_users_are_let_in(tmp_path: Path) -> None:
    """A server with users refuses a client without a login, also after a restart."""
    with EtcdServer(tmp_path / "etcd", login=("app", "a-secret"), prefix="app/") as server:
        server.kill()
        server.start()
        put(server, "app/a")
        assert server.url_for("app", "a-secret") == f"etcd://app:a-secret@127.0.0.1:{server.port}"
        with pytest.raises(EtcdError, match="user name is empty"):
            server._post("kv/range", {"key": encoded("app/a")}, {}, 30.0)


def test_an_ensemble_elects_another_leader(etcd_ensemble: EtcdEnsemble) -> None:
    """An ensemble continues without its leader, and `mend` brings the leader back."""
    put(etcd_ensemble.leader(), "ensemble/a")
    old = etcd_ensemble.kill_leader()
    new = etcd_ensemble.await_another_leader(old)
    assert new.keys("ensemble/") == ["ensemble/a"]
    etcd_ensemble.mend()
    assert len(etcd_ensemble.followers()) == 2
    assert etcd_ensemble.url == "etcd://" + ",".join(f"127.0.0.1:{each.port}" for each in etcd_ensemble.servers)


def test_a_paused_leader_is_replaced(etcd_ensemble: EtcdEnsemble) -> None:
    """The other servers elect a new leader while the old one is paused."""
    old = etcd_ensemble.leader()
    old.pause()
    assert etcd_ensemble.await_another_leader(old) is not old
    etcd_ensemble.mend()
    assert etcd_ensemble.is_complete()
