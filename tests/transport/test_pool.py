"""Which of several connections a thread gets, and which are closed."""

import pytest

from holdfast.transport.pool import LONGEST_IDLE, SURELY_OPEN, ConnectionPool

SOON = SURELY_OPEN / 2
LATER = 10 * SURELY_OPEN


class Connection:
    """Notes what is done with it."""

    def __init__(self) -> None:
        self.used = 0.0
        self.stale = self.closed = self.abandoned = False
        self.looks = 0

    def is_stale(self) -> bool:
        """Count the looks."""
        self.looks += 1
        return self.stale

    def close(self) -> None:
        """Note it."""
        self.closed = True

    def abandon(self) -> None:
        """Note it."""
        self.abandoned = True


@pytest.fixture
def pool() -> ConnectionPool[Connection]:
    """Make a pool without connections."""
    return ConnectionPool()


def idle(pool: ConnectionPool[Connection], *instants: float) -> list[Connection]:
    """Have connections in the pool that were used at these instants."""
    made = [Connection() for _ in instants]
    for connection, instant in zip(made, instants, strict=True):
        pool.add(connection, instant)
        pool.put_back(connection)
    return made


def test_none_is_taken_where_there_is_none(pool: ConnectionPool[Connection]) -> None:
    """The caller has to connect."""
    assert pool.take(0.0) is None


def test_the_last_one_is_taken(pool: ConnectionPool[Connection]) -> None:
    """And noted as used now. The other stays."""
    first, last = idle(pool, 0.0, 0.0)
    assert pool.take(SOON) is last
    assert last.used == SOON
    assert list(pool.idle) == [first]


def test_one_that_was_just_used_is_not_looked_at(pool: ConnectionPool[Connection]) -> None:
    """The look costs a system call on the way of every request."""
    (connection,) = idle(pool, 0.0)
    connection.stale = True
    assert pool.take(SOON) is connection
    assert connection.looks == 0


def test_one_that_the_server_closed_is_not_taken(pool: ConnectionPool[Connection]) -> None:
    """The next one is."""
    good, stale = idle(pool, 0.0, 0.0)
    stale.stale = True
    assert pool.take(LATER) is good
    assert stale.closed
    assert stale not in pool.all


def test_one_that_was_idle_for_long_is_not_taken(pool: ConnectionPool[Connection]) -> None:
    """However good it looks."""
    (old,) = idle(pool, 0.0)
    assert pool.take(LONGEST_IDLE) is None
    assert old.closed


def test_what_a_rush_has_left_is_closed(pool: ConnectionPool[Connection]) -> None:
    """Though another is in use all the time."""
    rush = idle(pool, 0.0, 0.0, 0.0)
    (used,) = idle(pool, LONGEST_IDLE)
    assert pool.take(LONGEST_IDLE + SOON) is used
    assert all(each.closed for each in rush)
    assert not pool.idle


def test_a_dead_one_takes_the_likely_dead_with_it(pool: ConnectionPool[Connection]) -> None:
    """Those that had no reply since it was taken; the others are known to work."""
    before, dead, since = idle(pool, 0.0, 1.0, 2.0)
    pool.idle.remove(dead)
    pool.lose(dead)
    assert before.closed
    assert dead.closed
    assert list(pool.idle) == [since]


def test_a_closed_pool_keeps_none(pool: ConnectionPool[Connection]) -> None:
    """Idle ones are closed at once, the others when they are put back."""
    lying, taken = idle(pool, 0.0, 0.0)
    assert pool.take(SOON) is taken
    pool.close()
    assert lying.closed
    assert not taken.closed
    pool.put_back(taken)
    assert taken.closed


def test_a_forked_child_abandons_all(pool: ConnectionPool[Connection]) -> None:
    """Those in use too, and closes none of the parent's."""
    lying, taken = idle(pool, 0.0, 0.0)
    assert pool.take(SOON) is taken
    pool.abandon()
    assert lying.abandoned
    assert taken.abandoned
    assert not lying.closed
    assert not taken.closed


def test_a_connection_that_stays_is_closed_with_the_pool(pool: ConnectionPool[Connection]) -> None:
    """Also if another thread closes the pool while this one closes the connections that were not used for long."""
    young, old = idle(pool, LATER, 0.0)

    def close() -> None:
        pool.close()

    old.close = close  # type: ignore[method-assign]
    pool.drop_idle(SOON)
    assert young.closed
    assert not pool.idle
