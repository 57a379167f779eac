"""What `tenure schema` prints is what the databases need, and no more."""

import sqlite3
from typing import TYPE_CHECKING, Any

import psycopg
import pymysql
import pytest

import tenure
from tenure.cli import run_app
from tenure.cli.output import Status
from tenure.fencing.schema import quoted_table

if TYPE_CHECKING:
    from tests.servers import MariaDbServer, PostgresServer

PASSWORD = "a-secret"  # noqa: S105 - of a server of this test


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Return what the command prints."""
    assert run_app(["schema", *arguments]) == 0
    return capsys.readouterr().out


def guard(connection: Any, table: str) -> None:  # noqa: ANN401 - of any driver
    """Guard a transaction twice, and commit."""
    with tenure.Client(f"memory://{table}") as client, client.lock("a name") as lease:
        lease.guard(connection, table=table)
        lease.guard(connection, table=table)
        connection.commit()


def test_the_schema_of_sqlite_is_the_table_of_fences(capsys: pytest.CaptureFixture[str]) -> None:
    """The lock file makes its own tables."""
    sql = printed(capsys, "sqlite", "--prefix", "shop_")
    with sqlite3.connect(":memory:") as connection:
        connection.executescript(sql)
        connection.executescript(sql)
        guard(connection, "shop_fences")
        assert connection.execute("SELECT count(*) FROM sqlite_master WHERE sql IS NOT NULL").fetchone() == (1,)
    connection.close()


@pytest.mark.parametrize("schema", ["", "Shop", "select"])
def test_a_role_of_postgresql_has_what_it_needs(
    postgres_server: "PostgresServer", capsys: pytest.CaptureFixture[str], space: str, schema: str
) -> None:
    """An administrator runs the statements, twice; a user of the role raises fences, and may not make tables."""
    role = f"app_{space[:12]}"
    url = postgres_server.create_user(role, PASSWORD)
    options = ["--schema", schema] if schema else []
    sql = printed(capsys, "postgresql", *options, "--prefix", f"p{space[:8]}_", "--role", role)
    postgres_server.execute(sql)
    postgres_server.execute(sql)
    table = f"{schema}.p{space[:8]}_fences" if schema else f"p{space[:8]}_fences"
    with psycopg.connect(url) as connection:
        guard(connection, table)
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute(f"DELETE FROM {quoted_table('postgresql', table)}".encode())  # noqa: S608 - of this test


def test_a_user_of_mysql_has_what_it_needs(
    mariadb_server: "MariaDbServer", capsys: pytest.CaptureFixture[str], space: str
) -> None:
    """An administrator runs the statements; the user raises fences, and may not delete them."""
    user, prefix = f"app_{space[:12]}", f"p{space[:8]}_"
    mariadb_server.create_user(user, PASSWORD)
    sql = printed(capsys, "mysql", "--schema", "tenure", "--prefix", prefix, "--role", user)
    for statement in filter(str.strip, sql.split(";\n")):
        mariadb_server.execute(statement)
    host, port = mariadb_server.address
    connection = pymysql.connect(host=host, port=port, user=user, password=PASSWORD, database="tenure")
    guard(connection, f"tenure.{prefix}fences")
    with pytest.raises(pymysql.MySQLError, match="denied"):
        connection.cursor().execute(f"DELETE FROM {prefix}fences")  # noqa: S608 - a name of this test
    connection.close()


def test_rights_are_printed_for_a_role_only(capsys: pytest.CaptureFixture[str]) -> None:
    """A host of a user of MySQL can be named."""
    assert "GRANT" not in printed(capsys, "postgresql")
    for role, user in (("app@10.0.0.%", "'app'@'10.0.0.%'"), ("app", "'app'@'%'")):
        rights = [line for line in printed(capsys, "mysql", "--role", role).splitlines() if line.startswith("GRANT")]
        assert len(rights) > 1
        assert all(line.endswith(f" TO {user};") for line in rights)


@pytest.mark.parametrize(
    "arguments",
    [
        ["oracle"],
        ["sqlite", "--role", "a"],
        ["sqlite", "--schema", "a"],
        ["mysql", "--schema", "a`b"],
        ["mysql", "--prefix", "1"],
        ["postgresql", "--schema", "a.b"],
        ["postgresql", "--role", 'a"; DROP TABLE b'],
        ["mysql", "--role", "a'b"],
    ],
)
def test_what_cannot_be_a_name_is_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is printed that could be run."""
    assert run_app(["schema", *arguments]) == Status.USAGE
    assert not capsys.readouterr().out
