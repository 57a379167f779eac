"""A URL says how to reach an ensemble, and what cannot be right is told without the password."""

import ssl
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tenure.errors import UsageError
from tenure.stores.urls import store_source
from tenure.stores.zookeeper.options import ZooKeeperAccess, access_of
from tests.servers import Certificates


def read(url: str) -> ZooKeeperAccess:
    """Read a URL."""
    return access_of(urlsplit(url))


def test_kazoo_has_to_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who lacks it reads what to install."""

    def find(name: str) -> str | None:
        return None if name == "kazoo" else name

    monkeypatch.setattr("tenure.stores.zookeeper.find_spec", find)
    with pytest.raises(UsageError, match=r"pip install 'tenure\[zookeeper\]'"):
        store_source("zookeeper://a")


@pytest.mark.parametrize("kazoo", ["2.10.0", "2.9", "1.0rc1"])
def test_an_old_kazoo_is_refused(monkeypatch: pytest.MonkeyPatch, kazoo: str) -> None:
    """Before it is used: an older one never connects."""
    monkeypatch.setattr("tenure.stores.zookeeper.version", {"kazoo": kazoo}.get)
    with pytest.raises(UsageError, match=rf"2\.11 or later, and this is {kazoo}"):
        store_source("zookeeper://a")


@pytest.mark.parametrize("kazoo", ["2.11.0", "2.12rc1", "3.0", "10.1.dev0"])
def test_a_newer_kazoo_will_do(monkeypatch: pytest.MonkeyPatch, kazoo: str) -> None:
    """Whatever it is called."""
    monkeypatch.setattr("tenure.stores.zookeeper.version", {"kazoo": kazoo}.get)
    assert store_source("zookeeper://a")


def test_hosts_and_path() -> None:
    """Several hosts share a path, below which all nodes are; a port is the usual one if it is left out."""
    access = read("zookeeper://a,b:2182,[::1]:2183,[::1]/apps/one")
    assert access.hosts == "a:2181,b:2182,[::1]:2183,[::1]:2181"
    assert access.root == "/apps/one/tenure"
    assert access.title == "ZooKeeper at a:2181,b:2182,[::1]:2183,[::1]:2181/apps/one"
    assert read("zookeeper://").hosts == "localhost:2181"
    assert read("zookeeper://a").options == {"timeout": 30.0}


@pytest.mark.parametrize("scheme", ["zookeeper", "etcd"])
def test_two_ports_are_one_too_many(scheme: str) -> None:
    """Said when the URL is read, not when a name is looked up that nobody meant."""
    with pytest.raises(UsageError, match=r"URL (has two ports|is not valid)"):
        store_source(f"{scheme}://host:1:2")


def test_a_login_is_a_digest_or_sasl() -> None:
    """The title tells nothing of it."""
    access = read("zookeeper://me:p%40ss%3A@a/x?session_timeout=12.5&acl=creator")
    assert access.options == {"timeout": 12.5, "auth_data": [("digest", "me:p@ss:")]}
    assert access.private
    assert "p@ss" not in repr(access)
    sasl = read("zookeeper://me:secret@a?sasl_mechanism=digest-md5")
    assert sasl.options["sasl_options"] == {"mechanism": "DIGEST-MD5", "username": "me", "password": "secret"}
    kerberos = read("zookeeper://a?sasl_mechanism=GSSAPI&sasl_service=zk")
    assert kerberos.options["sasl_options"] == {"mechanism": "GSSAPI", "service": "zk"}


def test_tls(tmp_path: Path) -> None:
    """Certificates and the names in them are checked, unless it is said that they are not."""
    ca = Certificates(tmp_path).authority
    assert read("zookeeper://a").tls is None
    strict = read(f"zookeeper://a?use_ssl=true&ca={ca}").tls
    assert strict is not None
    assert (strict.check_hostname, strict.verify_mode) == (True, ssl.CERT_REQUIRED)
    named = read(f"zookeeper://a?use_ssl=true&ca={ca}&check_hostname=false").tls
    assert named is not None
    assert (named.check_hostname, named.verify_mode) == (False, ssl.CERT_REQUIRED)
    lax = read("zookeeper://a?use_ssl=true&verify_certs=false").tls
    assert lax is not None
    assert (lax.check_hostname, lax.verify_mode) == (False, ssl.CERT_NONE)


@pytest.mark.parametrize(
    "url",
    [
        "zookeeper://a:secret",
        "zookeeper://a:0",
        "zookeeper://a:²",
        "zookeeper://secret@a",
        "zookeeper://a/b/../secret",
        "zookeeper://a/secret@b",
        "zookeeper://a?secret@b=1",
        "zookeeper://a#secret",
        "zookeeper://a?session_timeout=secret",
        "zookeeper://a?session_timeout=0",
        "zookeeper://a?acl=secret",
        "zookeeper://a?acl=creator",
        "zookeeper://a?sasl_service=secret",
        "zookeeper://a?sasl_mechanism=/secret",
        "zookeeper://a?sasl_mechanism=DIGEST-MD5",
        "zookeeper://me:secret@a?sasl_mechanism=CRAM-MD5",
        "zookeeper://a?ca=/secret",
        "zookeeper://a?keyfile_password=secret",
        "zookeeper://a?use_ssl=true&certfile=/etc/hostname",
        "zookeeper://a?use_ssl=true&verify_certs=no&check_hostname=yes",
        "zookeeper://a?timeout=1",
    ],
)
def test_what_cannot_be_right_is_told(url: str) -> None:
    """The message repeats no value, for that may be a password."""
    with pytest.raises(UsageError) as caught:
        store_source(url)
    assert "secret" not in str(caught.value)
