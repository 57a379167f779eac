"""Which of several connections a thread gets, and which are closed."""

import sys
import threading
from collections import deque

import pytest

from tenure.transport.pool import LONGEST_IDLE, SURELY_OPEN, BoundedPool, ConnectionPool, Room

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


@pytest.fixture
def bounded() -> BoundedPool[Connection]:
    """Make a pool of at most two connections."""
    return BoundedPool(2, threading.Lock())


def test_room_is_taken_before_its_connection_is_made(bounded: BoundedPool[Connection]) -> None:
    """Callers that look at the same time get no more rooms than there are, however late they connect."""
    rooms = [bounded.find(0.0) for _ in range(3)]
    assert [isinstance(room, Room) for room in rooms] == [True, True, False]
    first, second, none = rooms
    assert none is None
    assert isinstance(first, Room)
    connection = Connection()
    bounded.fill(first, connection, 0.0)
    assert bounded.find(0.0) is None  # one is in use, the other is being made
    bounded.put_back(connection)
    assert bounded.find(0.0) is connection
    assert second is not None


def test_room_is_free_again_if_no_connection_was_made(bounded: BoundedPool[Connection]) -> None:
    """Whether its caller says so, or was interrupted before it could."""
    told, dropped = bounded.find(0.0), bounded.find(0.0)
    assert isinstance(told, Room)
    assert isinstance(dropped, Room)
    assert bounded.find(0.0) is None
    bounded.give_up(told)
    del dropped
    assert isinstance(bounded.find(0.0), Room)
    again = [bounded.find(0.0), bounded.find(0.0)]
    assert [isinstance(room, Room) for room in again] == [True, True]


def test_a_closed_connection_makes_room(bounded: BoundedPool[Connection]) -> None:
    """For one other."""
    rooms = [bounded.find(0.0), bounded.find(0.0)]
    connections = [Connection(), Connection()]
    for room, connection in zip(rooms, connections, strict=True):
        assert isinstance(room, Room)
        bounded.fill(room, connection, 0.0)
    assert bounded.find(0.0) is None
    bounded.discard(connections[0])
    room = bounded.find(0.0)
    assert isinstance(room, Room)
    assert bounded.find(0.0) is None


def test_threads_never_get_more_rooms_than_there_are(bounded: BoundedPool[Connection]) -> None:
    """Also if they look at the same instant."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(100):
            start, found = threading.Barrier(8), deque[Connection | Room]()

            def look(start: threading.Barrier = start, found: deque[Connection | Room] = found) -> None:
                start.wait()
                room = bounded.find(0.0)
                if room is not None:
                    found.append(room)

            threads = [threading.Thread(target=look) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert len(found) == 2
            found.clear()
    finally:
        sys.setswitchinterval(before)
