"""What docs/tokens.md shows of guards is what happens: each example runs on its database, and refuses a late holder."""

import re
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tenure.fencing.schema import fences_ddl
from tests.docs.test_readme import ROOT, run_example

if TYPE_CHECKING:
    from tests.servers import MariaDbServer, PostgresServer

PAGE = (ROOT / "docs" / "tokens.md").read_text("utf-8")
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
ACCOUNTS = "CREATE TABLE accounts (name VARCHAR(64) PRIMARY KEY, balance BIGINT NOT NULL)"
ANNA = "INSERT INTO accounts VALUES ('anna', 100)"
BALANCE = "SELECT balance FROM accounts"


def example(word: str) -> str:
    """Return the one example that has a word."""
    (found,) = (code for code in EXAMPLES if word in code)
    return str(found)


def run_late(code: str, folder: Path) -> None:
    """Run an example with a lock of another store, whose token is older than that of the fence: it is refused."""
    with pytest.raises(AssertionError, match="StaleTokenError"):
        run_example(code, folder, "memory://")


def test_the_guard_is_the_first_thing_on_the_page() -> None:
    """And there is an example for each driver."""
    assert re.findall(r"^## (.*)$", PAGE, re.MULTILINE)[0] == "The strongest fence"
    assert len(EXAMPLES) == 5


def test_the_example_of_sqlite(tmp_path: Path) -> None:
    """It pays once; a late holder pays nothing."""
    with sqlite3.connect(tmp_path / "shop.db") as database:
        for statement in (ACCOUNTS, ANNA, fences_ddl("sqlite")):
            database.execute(statement)
    code = example("sqlite3").replace("shop.db", str(tmp_path / "shop.db"))
    run_example(code, tmp_path, "memory://")
    database.execute("UPDATE tenure_fences SET token = token + 1000000000")
    database.commit()
    run_late(code, tmp_path)
    assert database.execute(BALANCE).fetchone() == (90,)
    database.close()


@pytest.mark.parametrize("word", ["psycopg.connect(", "sqlalchemy", "asyncio"])
def test_the_examples_of_postgresql(postgres_server: "PostgresServer", tmp_path: Path, word: str, space: str) -> None:
    """Each pays once; a late holder pays nothing."""
    import psycopg

    url = postgres_server.create_database(f"shop{space}")
    code = example(word)
    code = code.replace("postgresql+psycopg://app@db/shop", url.replace("postgresql://", "postgresql+psycopg://"))
    code = code.replace("postgresql://app@db/shop", url)
    with psycopg.connect(url, autocommit=True) as database:
        for statement in (ACCOUNTS, ANNA, fences_ddl("postgresql")):
            database.execute(statement.encode())
        run_example(code, tmp_path, "memory://")
        database.execute("UPDATE tenure_fences SET token = token + 1000000000")
        run_late(code, tmp_path)
        assert database.execute(BALANCE).fetchone() == (90,)


def test_the_example_of_mysql(mariadb_server: "MariaDbServer", tmp_path: Path, space: str) -> None:
    """It pays once; a late holder pays nothing."""
    name = f"shop{space}"
    mariadb_server.create_database(name)
    with mariadb_server.connect(database=name) as database, database.cursor() as cursor:
        for statement in (ACCOUNTS, ANNA, fences_ddl("mysql")):
            cursor.execute(statement)
        host, port = mariadb_server.address
        there = f'host="{host}", port={port}, user="root", database="{name}"'
        code = example("pymysql").replace('host="db", user="app", password="secret", database="shop"', there)
        run_example(code, tmp_path, "memory://")
        cursor.execute("UPDATE tenure_fences SET token = token + 1000000000")
        run_late(code, tmp_path)
        cursor.execute(BALANCE)
        assert cursor.fetchone() == (90,)
