"""What a guard does at each isolation level, and when transactions deadlock."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import psycopg
import pymysql
import pytest

import tenure
from tests.fencing.conftest import database_of
from tests.fencing.kinds import PercentDriver
from tests.fencing.writers import TEST_TIMEOUT, Writer


@pytest.fixture
def postgres(request: pytest.FixtureRequest, tmp_path: Path) -> PercentDriver:
    """Return connections of psycopg."""
    return PercentDriver(database_of("postgresql", request, tmp_path))


@pytest.fixture
def mariadb(request: pytest.FixtureRequest, tmp_path: Path) -> PercentDriver:
    """Return connections of PyMySQL."""
    return PercentDriver(database_of("mariadb", request, tmp_path))


def side_by_side(kind: PercentDriver, account: str) -> Iterator[tuple[Writer, Writer]]:
    """Return two holders of an account of 100 whose fence is there."""
    kind.database.open_account(account, 100)
    with Writer(kind, account) as old, Writer(kind, account) as new:
        old.raises_fence(100)
        yield old, new


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_postgresql_refuses_a_snapshot_from_before_the_fence(postgres: PercentDriver, account: str, level: str) -> None:
    """The waiting transaction fails with the error 40001 of the database, and the same work succeeds in a new one."""
    for old, new in side_by_side(postgres, account):
        old.guard()
        new.execute(f"SET TRANSACTION ISOLATION LEVEL {level}")
        guarding = new.starts_to_guard()
        postgres.database.await_waiting()
        old.write(old.read() + 1)
        old.commit()
        with pytest.raises(psycopg.errors.SerializationFailure) as failed:
            guarding.result(TEST_TIMEOUT)
        assert "run the whole transaction again" in " ".join(failed.value.__notes__).replace("\n", " ")
        new.rollback()
        new.guard()
        new.write(new.read() + 1)
        new.commit()
        assert postgres.database.value_of(account) == 102


def test_mysql_reads_no_snapshot_from_before_the_fence(mariadb: PercentDriver, account: str) -> None:
    """At its default level the snapshot is of the first read after the guard, so the waiter reads what was written."""
    for old, new in side_by_side(mariadb, account):
        assert new.execute("SELECT @@tx_isolation") == "REPEATABLE-READ"
        new.rollback()
        old.guard()
        guarding = new.starts_to_guard()
        mariadb.database.await_waiting()
        old.write(101)
        old.commit()
        guarding.result(TEST_TIMEOUT)
        assert new.read() == 101
        new.rollback()


def test_a_read_before_the_guard_may_be_old(mariadb: PercentDriver, account: str) -> None:
    """This is why the guard comes first: a snapshot of MySQL that is older than the fence does not show the write."""
    for old, new in side_by_side(mariadb, account):
        old.guard()
        assert new.read() == 100
        guarding = new.starts_to_guard()
        mariadb.database.await_waiting()
        old.write(101)
        old.commit()
        guarding.result(TEST_TIMEOUT)
        assert new.read() == 100
        new.rollback()


def test_first_guards_of_different_names_do_not_deadlock(mariadb: PercentDriver, account: str) -> None:
    """Nor do they wait for each other: eight transactions are open at a time, each with a new name."""
    barrier = threading.Barrier(8)
    with tenure.Client(f"memory://{account}") as client, ThreadPoolExecutor(8) as threads:
        names = [f"{account}-{number}" for number in range(8)]
        assert all(threads.map(partial(guard_beside, client, mariadb, barrier), names))


def guard_beside(client: tenure.Client, kind: PercentDriver, barrier: threading.Barrier, name: str) -> bool:
    """Guard a transaction of a name, and commit when all others have guarded theirs."""
    with client.lock(name, ttl=120) as lease:
        connection = kind.database.connect()
        barrier.wait(TEST_TIMEOUT)
        lease.guard(connection)
        barrier.wait(TEST_TIMEOUT)
        connection.commit()
        connection.close()
    return True


def test_a_plain_update_and_insert_would_deadlock(mariadb: PercentDriver, account: str) -> None:
    """Planted: two transactions that find no row lock the same gap, and each waits for the other to insert."""
    first, second = (mariadb.database.connect() for _ in range(2))
    update = "UPDATE tenure_fences SET token = 1 WHERE name = %s"
    insert = "INSERT INTO tenure_fences VALUES (%s, 1, UTC_TIMESTAMP(6))"
    names = [(f"{account}-{number}".encode(),) for number in range(2)]
    for connection, name in zip((first, second), names, strict=True):
        connection.cursor().execute(update, name)
    with ThreadPoolExecutor(1) as thread:
        inserting = thread.submit(first.cursor().execute, insert, names[0])
        mariadb.database.await_waiting()
        ended = [
            error_of(partial(second.cursor().execute, insert, names[1])),
            error_of(partial(inserting.result, TEST_TIMEOUT)),
        ]
    assert sorted(ended) == [0, 1213]
    first.close()
    second.close()


def error_of(work: Callable[[], object]) -> int:
    """Return the number of the error of MySQL that ended some work; 0 if there was none."""
    try:
        work()
    except pymysql.MySQLError as error:
        return int(error.args[0])
    return 0


def test_many_may_wait_for_a_first_writer_that_gives_up(mariadb: PercentDriver, account: str) -> None:
    """The database then ends some of their transactions by deadlocks; each guard begins again, and is granted."""
    mariadb.database.open_account(account)
    with Writer(mariadb, account) as first:
        writers = [Writer(mariadb, account) for _ in range(5)]
        first.guard()
        with ExitStack() as opened:
            for writer in writers:
                opened.enter_context(writer)
            guarding = [writer.starts_to_guard() for writer in writers]
            mariadb.database.await_waiting(5)
            first.rollback()
            refused = sum(finish_one(writers, guarding) for _ in range(5))
    assert refused < 5


def finish_one(writers: list[Writer], guarding: list[Future[None]]) -> int:
    """Commit the next transaction whose guard is done; return 1 if it was refused, else 0."""
    done, _ = wait(guarding, TEST_TIMEOUT, FIRST_COMPLETED)
    future = next(iter(done))
    writer = writers.pop(guarding.index(future))
    guarding.remove(future)
    try:
        future.result()
    except tenure.StaleTokenError:
        writer.rollback()
        return 1
    writer.commit()
    return 0
