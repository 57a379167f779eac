"""MySQL URLs, engines and factories: what they mean, and one clear sentence for what they can't."""

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import trustme
from sqlalchemy import URL, create_engine
from sqlalchemy.ext.asyncio import create_async_engine

from tenure import UsageError
from tenure.stores.mysql import mysql_source, mysql_url_source, source_of_engine
from tenure.stores.mysql.options import deployment_of, deployment_of_engine

SECRET = "s3cr€t/?"  # noqa: S105 - of a URL that reaches nothing


def test_a_url_says_everything() -> None:
    """Hosts, login, database and options come from the URL."""
    deployment = deployment_of(
        urlsplit(
            "mysql://app:s%C3%A4%2F@db1,[::1]:3307/locks?prefix=x_&connections=3&guard=strict&notify=off&max_ttl=9"
        )
    )
    assert deployment.hosts == [("db1", 3306), ("::1", 3307)]
    assert (deployment.user, deployment.password, deployment.database) == ("app", "sä/", "locks")
    assert (deployment.prefix, deployment.connections, deployment.strict) == ("x_", 3, True)
    assert (deployment.notify, deployment.max_ttl, deployment.tls) == ("off", 9.0, None)


def test_a_socket_replaces_the_hosts() -> None:
    """`?unix_socket=` is the one server."""
    assert deployment_of(urlsplit("mysql:///locks?unix_socket=/run/m.sock")).hosts == [("/run/m.sock", 3306)]


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("mysql://host", "one database"),
        ("mysql://host/a/b", "one database"),
        ("mysql://host/db?prefix=a-b", "prefix"),
        ("mysql://host/db?prefix=", "prefix"),
        ("mysql://host/db?connections=0", "connections"),
        ("mysql://host/db?guard=perhaps", "guard"),
        ("mysql://host/db?notify=1", "notify"),
        ("mysql://host/db?unix_socket=m.sock", "unix_socket"),
        ("mysql://host/db?conections=4", "did you mean connections"),
        ("mysql://host:x/db", "port"),
        ("mysql://host/db?ssl_ca=/missing.pem", "PEM"),
        ("mysql://host/db?ssl_verify_identity=perhaps", "ssl_verify_identity"),
    ],
)
def test_a_wrong_url_gets_one_sentence(url: str, says: str) -> None:
    """What is wrong is named, and the password of the URL is not repeated."""
    with pytest.raises(UsageError, match=says) as caught:
        mysql_url_source(urlsplit(url.replace("//host", "//app:hidden@host")))
    assert "hidden" not in str(caught.value)


def test_tls_checks_what_was_asked_for(tmp_path: Path) -> None:
    """`ssl=true` encrypts, `ssl_verify_identity` checks the host as well; `ssl=false` wins."""
    encrypting = deployment_of(urlsplit("mysql://host/db?ssl=true")).tls
    assert encrypting is not None
    assert not encrypting.check_hostname
    checking = deployment_of(urlsplit("mysql://host/db?ssl_verify_identity=true")).tls
    assert checking is not None
    assert checking.check_hostname
    assert deployment_of(urlsplit(f"mysql://host/db?ssl=false&ssl_ca={tmp_path}")).tls is None


@pytest.mark.parametrize("driver", ["pymysql", "asyncmy"])
def test_an_engine_is_taken_over(driver: str) -> None:
    """The server and the login of an engine are used, and its password is not shown."""
    url = URL.create(f"mysql+{driver}", "app", SECRET, "db1", 3307, "locks")
    engine = create_async_engine(url) if driver == "asyncmy" else create_engine(url)
    deployment = deployment_of_engine(engine)
    assert deployment.hosts == [("db1", 3307)]
    assert (deployment.user, deployment.password, deployment.database) == ("app", SECRET, "locks")
    assert SECRET not in repr(deployment) + source_of_engine(engine).title


@pytest.mark.parametrize(
    "arguments",
    [
        {"connect_args": {"init_command": "SET ROLE locks"}},
        {"connect_args": {"ssl": {"ca": "/ca.pem", "cipher": "AES"}}},
        {"connect_args": {"auth_plugin_map": {}}},
        {"creator": object},
    ],
)
def test_what_only_the_driver_understands_is_left_to_the_engine(arguments: dict[str, Any]) -> None:
    """An engine of a driver whose connections serve makes them itself; one of another driver is refused."""
    deployment = deployment_of_engine(create_engine("mysql+pymysql://app@db1/locks", **arguments))
    assert deployment.connect is not None
    assert not deployment.hosts
    engine = create_engine("mysql+pymysql://app@db1/locks", **arguments)
    engine.dialect.driver = "mysqldb"
    with pytest.raises(UsageError, match="cannot use connections of mysqldb"):
        deployment_of_engine(engine)


def test_arguments_of_an_engine_go_before_its_url(tmp_path: Path) -> None:
    """`connect_args` names the server, and TLS is checked as the driver checks it."""
    authority = str(tmp_path / "ca.pem")
    trustme.CA().cert_pem.write_to_path(authority)
    engine = create_engine(
        "mysql+pymysql://app@db1/locks",
        connect_args={"host": "db2", "port": 3308, "ssl": {"ca": authority}, "read_timeout": 3},
    )
    deployment = deployment_of_engine(engine)
    assert deployment.hosts == [("db2", 3308)]
    assert deployment.tls is not None
    assert deployment.tls.check_hostname
    engine = create_engine("mysql+pymysql://app@db1/locks", connect_args={"ssl_ca": authority})
    deployment = deployment_of_engine(engine)
    assert deployment.tls is not None
    assert not deployment.tls.check_hostname


def test_what_is_no_engine_is_refused() -> None:
    """An engine of another database, an engine without a database, and anything else get one sentence."""
    with pytest.raises(UsageError, match="no engine of SQLAlchemy for MySQL"):
        source_of_engine(create_engine("sqlite://"))
    with pytest.raises(UsageError, match="names no database"):
        source_of_engine(create_engine("mysql+pymysql://db1"))
    with pytest.raises(UsageError, match="must be a function"):
        mysql_source("mysql://host/db")  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
