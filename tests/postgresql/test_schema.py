"""The tables: who makes them, what is said if they are missing, and which clock they read."""

import re
import subprocess
import sys
import threading

import pytest

from tenure import Client, StoreError
from tenure.stores.postgresql.schema import SCHEMA, expand
from tests.faults.scenes import API_FORMS
from tests.postgresql.servers import PASSWORD, tables_for
from tests.servers import PostgresServer
from tests.wrong_servers import complaint

LOCK = """
import sys, tenure
sys.stdin.readline()
with tenure.Client(sys.argv[1], advice=False) as client:
    with client.lock("migrated", ttl=20) as lease:
        print(lease.token)
"""

COPY = b"""
INSERT INTO swept.tenure_names SELECT (jsonb_populate_record(one, jsonb_build_object(
    'name', 'old' || n, 'counter', 4000000000000000 + n, 'idle_after', 0
))).* FROM swept.tenure_names AS one, generate_series(1, 100000) AS n
"""
"""Makes 100,000 old rows of one that is new."""


def test_no_time_is_that_of_a_transaction() -> None:
    """The SQL reads the clock when it writes, and keeps instants as whole microseconds."""
    sql = expand(SCHEMA, "locks", "tenure_").lower()
    assert "clock_timestamp()" in sql
    for wrong in ("now()", "current_timestamp", "localtimestamp", "statement_timestamp", "transaction_timestamp"):
        assert not re.search(rf"(?<![a-z_]){re.escape(wrong)}", sql), wrong
    assert not re.search(r"\btimestamp\b|\btimestamptz\b|\binterval\b|\bfloat\b|\breal\b", sql)


@pytest.mark.parametrize("count", [10, 30])
def test_starters_race_the_migration(postgres_server: PostgresServer, count: int) -> None:
    """However many clients make the tables at once, each then gets its lock, in turn."""
    url = postgres_server.create_database(f"raced{count}")
    tokens: list[int] = []
    errors: list[BaseException] = []
    start = threading.Barrier(count)

    def begin() -> None:
        with Client(f"{url}?schema=made&connections=1") as client:
            start.wait()
            try:
                with client.lock("migrated", ttl=20) as lease:
                    tokens.append(lease.token)
            except BaseException as error:  # noqa: BLE001 - the test reports it
                errors.append(error)

    threads = [threading.Thread(target=begin) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert tokens == sorted(set(tokens))
    assert len(tokens) == count


def test_processes_race_the_migration(postgres_server: PostgresServer) -> None:
    """Ten processes that start at once make the tables once."""
    url = postgres_server.create_database("raced_by_processes")
    racers = [
        subprocess.Popen(
            [sys.executable, "-W", "error", "-c", LOCK, f"{url}?connections=1"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(10)
    ]
    ended = [racer.communicate("go\n", timeout=60) for racer in racers[:1]]
    ended += [racer.communicate("go\n", timeout=60) for racer in racers[1:]]
    assert [errors for _, errors in ended] == [""] * 10
    assert len({int(out) for out, _ in ended}) == 10


@pytest.mark.parametrize("form", API_FORMS)
@pytest.mark.parametrize("query", ["", "?schema=absent"])
def test_a_role_that_may_not_make_tables_is_told_who_can(
    postgres_server: PostgresServer, form: str, query: str
) -> None:
    """The error names the command that prints the SQL, and is no error that passes."""
    name = f"poor_{form}_{len(query)}"
    postgres_server.create_user(name, PASSWORD)
    postgres_server.create_database(name)
    url = postgres_server.url_for(name, PASSWORD, name)
    error = complaint(form, f"{url}{query}")
    assert type(error) is StoreError
    assert "`tenure schema postgresql`" in str(error)
    assert "missing" in str(error)


def test_a_role_may_make_tables_in_a_schema_that_it_was_given(postgres_server: PostgresServer) -> None:
    """A role that owns a schema needs no right to make schemas."""
    url = postgres_server.create_user("tenant", PASSWORD)
    postgres_server.execute('CREATE SCHEMA given AUTHORIZATION "tenant"')
    with Client(f"{url}?schema=given", retry_for=0) as client, client.lock("name", ttl=20):
        assert postgres_server.execute("SELECT count(*) FROM given.tenure_names") == [(1,)]


@pytest.mark.parametrize("form", API_FORMS)
@pytest.mark.parametrize(
    "lacks", ["SELECT, UPDATE, DELETE, INSERT ON TABLE given.tenure_names", "USAGE ON SCHEMA given"]
)
def test_a_missing_right_is_named(postgres_server: PostgresServer, form: str, lacks: str) -> None:
    """The error says that rights are missing, and which command prints them."""
    schema = f"rights_{form}_{len(lacks)}"
    url = postgres_server.create_user(schema, PASSWORD)
    tables_for(postgres_server, schema, schema)
    postgres_server.execute(f'REVOKE {lacks.replace("given", schema)} FROM "{schema}"')
    error = complaint(form, f"{url}?schema={schema}")
    assert type(error) is StoreError
    assert "permission denied" in str(error)
    assert "least GRANTs" in str(error)


@pytest.mark.parametrize("form", API_FORMS)
def test_a_missing_function_is_made(postgres_server: PostgresServer, form: str) -> None:
    """The first client makes it, if its role may; else it says who can."""
    schema = f"missing_{form}"
    url = postgres_server.create_user(schema, PASSWORD)
    tables_for(postgres_server, schema, schema)
    postgres_server.execute(f"DROP FUNCTION {schema}.tenure_silence_factor(integer, bigint, bigint)")
    assert "`tenure schema postgresql`" in str(complaint(form, f"{url}?schema={schema}"))
    with Client(f"{postgres_server.url}?schema={schema}") as client, client.lock("name", ttl=20):
        pass


def test_a_client_that_may_make_nothing_goes_on_when_an_administrator_has(postgres_server: PostgresServer) -> None:
    """Until then it says what is missing and who can make it; what is left of its tables is used as before."""
    url = postgres_server.create_user("bounded", PASSWORD)
    tables_for(postgres_server, "bounded", "bounded")
    with Client(f"{url}?schema=bounded&max_ttl=1", retry_for=0) as client:
        client.lock("name", ttl=1).acquire().release()
        postgres_server.execute("DROP ROUTINE bounded.tenure_acquire")
        with pytest.raises(StoreError, match="`tenure schema postgresql`"):
            client.lock("name", ttl=1).acquire()
        assert client.names() == []
        tables_for(postgres_server, "bounded", "bounded")
        client.lock("name", ttl=1).acquire(timeout=30).release()


def test_old_rows_are_swept_in_parts(postgres_server: PostgresServer) -> None:
    """One statement looks at some hundred rows of 100,000; and no token is issued again after that."""
    tables_for(postgres_server, "tenure", "swept")
    with Client(f"{postgres_server.url}?schema=swept") as client:
        client.lock("copied", ttl=20).acquire().release()
    with postgres_server.connect() as connection:
        connection.execute(COPY)
        last, sweep = "", expand("SELECT @sweep(%s, 500, 120000000, 1)", "swept", "tenure_")
        for _ in range(3):
            ((before,),) = connection.execute("SELECT count(*) FROM swept.tenure_names").fetchall()
            ((last,),) = connection.execute(sweep.encode(), (last,)).fetchall()
            ((after,),) = connection.execute("SELECT count(*) FROM swept.tenure_names").fetchall()
            assert 499 <= before - after <= 500  # one of them is new
            assert last
    with Client(f"{postgres_server.url}?schema=swept") as client, client.lock("new", ttl=20) as lease:
        assert lease.token > 4000000000000000
        with client.lock("old1", ttl=20) as again:
            assert again.token > 4000000000000000
