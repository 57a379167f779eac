"""The programs of docs/sqlalchemy.md do what they say, on PostgreSQL, and a late holder is refused."""

import re
from pathlib import Path

import psycopg
import pytest

from tenure.fencing.schema import fences_ddl
from tests.docs.test_readme import ROOT, run_example
from tests.servers import PostgresServer

PROGRAMS = re.findall(
    r"^```python\n(.*?)^```$", (ROOT / "docs" / "sqlalchemy.md").read_text("utf-8"), re.MULTILINE | re.DOTALL
)
SHOWN = "postgresql+psycopg://app@db/shop"


def test_the_programs_of_the_page_run_in_order(postgres_server: PostgresServer, tmp_path: Path, space: str) -> None:
    """The blocking one and the one for asyncio; with a fence of a later holder, both fail."""
    url = postgres_server.create_database(f"shop{space}")
    here = url.replace("postgresql://", "postgresql+psycopg://")
    assert len(PROGRAMS) == 2
    assert all(SHOWN in each for each in PROGRAMS)
    silent = [each.replace("Client(engine)", "Client(engine, advice=False)") for each in PROGRAMS]  # fsync is off
    programs = [each.replace(SHOWN, here) for each in silent]
    with psycopg.connect(url, autocommit=True) as database:
        database.execute("CREATE TABLE accounts (name VARCHAR(64) PRIMARY KEY, balance BIGINT NOT NULL)")
        database.execute("INSERT INTO accounts VALUES ('anna', 100)")
        database.execute(fences_ddl("postgresql").encode())
        for program in programs:
            run_example(program, tmp_path, "")
        database.execute("UPDATE tenure_fences SET token = token + 1000000000")
        for program in programs:
            with pytest.raises(AssertionError, match="StaleTokenError"):
                run_example(program, tmp_path, "")
        assert database.execute("SELECT balance FROM accounts").fetchone() == (70,)
