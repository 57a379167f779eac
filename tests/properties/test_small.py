"""What holds for every input of the small, pure parts: codec, limits, deadlines."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.contracts.deadlines import DRIFT, EPSILON, micros, seconds, valid_until
from tenure.contracts.limits import LONGEST, NAME_BYTES, check_duration, check_name, check_timeout
from tenure.contracts.messages import AcquireRequest, Notification, NotificationKind
from tenure.errors import UsageError
from tenure.stores import table_codec as codec
from tenure.table.state import Holder, NameState, Queue, Waiter
from tests.properties import thorough

texts = st.text(st.characters(codec="utf-8"), max_size=20)
identifiers = st.text("0123456789abcdef-", max_size=40)
instants = st.integers(0, 2**53 - 1)
requests = st.builds(
    AcquireRequest,
    st.just("name"),
    identifiers,
    identifiers,
    texts,
    instants,
    instants,
    instants,
    instants,
    instants,
    instants,
    instants,
    st.booleans(),
    instants,
    st.booleans(),
)
holders = st.builds(
    Holder, identifiers, identifiers, texts, instants, instants, instants, instants, instants, instants, st.booleans()
)
states = st.builds(
    NameState,
    instants,
    instants,
    st.lists(holders, max_size=3),
    st.lists(
        st.builds(Waiter, requests, instants, instants), max_size=3, unique_by=lambda each: each.request.request_id
    ).map(Queue),
    instants,
    instants,
    st.dictionaries(identifiers, instants, max_size=3),
    identifiers,
    instants,
)
numbers = st.one_of(st.floats(), st.integers(), st.booleans(), st.none(), texts)


@given(states)
@thorough(200)
def test_a_state_comes_back_as_it_was_stored(state: NameState) -> None:
    """A state that is encoded and decoded is the same."""
    assert codec.load("name", state.counter, codec.dump(state)) == state


@given(st.builds(Notification, identifiers, st.sampled_from(NotificationKind), identifiers, instants, instants))
@thorough(200)
def test_a_notice_arrives_as_it_was_sent(notification: Notification) -> None:
    """A notification that is encoded and decoded is the same."""
    assert codec.load_notification(notification.channel, codec.dump_notification(notification)) == notification


@given(st.binary(max_size=60))
@thorough(200)
def test_a_datagram_that_is_no_notice_is_refused(datagram: bytes) -> None:
    """Whatever arrives is a notification, or ValueError or TypeError, and nothing else."""
    try:
        notification = codec.load_notification("channel", datagram)
    except (ValueError, TypeError):
        return
    assert isinstance(notification.kind, NotificationKind)


@given(st.one_of(st.text(), st.text(st.characters()), st.binary(), st.integers(), st.none()))
@thorough(200)
def test_a_name_is_taken_as_it_is_or_refused(name: object) -> None:
    """A name is a non-empty str of up to 512 bytes of UTF-8, and everything else is a UsageError."""
    try:
        fits = isinstance(name, str) and 0 < len(name.encode()) <= NAME_BYTES
    except UnicodeEncodeError:
        fits = False
    if fits:
        assert check_name(name) is name
    else:
        with pytest.raises(UsageError, match="a lock name"):
            check_name(name)


@given(st.integers(NAME_BYTES - 4, NAME_BYTES + 4), st.sampled_from(["x", "é", "名", "🔒"]))
@thorough(100)
def test_the_length_of_a_name_is_counted_in_bytes(size: int, character: str) -> None:
    """A name may have 512 bytes, of which a character may take up to four."""
    name = character * (size // len(character.encode()))
    if len(name.encode()) <= NAME_BYTES:
        assert check_name(name) == name
    else:
        with pytest.raises(UsageError, match="up to 512 bytes"):
            check_name(name)


@given(numbers, st.sampled_from([0.0, 0.05]))
@thorough(300)
def test_a_duration_is_taken_or_refused(value: object, least: float) -> None:
    """A duration is a finite number of seconds within its limits, no bool, and everything else is a UsageError."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if isinstance(value, (int, float)) and is_number and least <= value <= LONGEST:
        checked = check_duration(value, "ttl", least)
        assert isinstance(checked, float)
        assert checked == value
    else:
        with pytest.raises(UsageError, match="ttl must be a number of seconds"):
            check_duration(value, "ttl", least)


@given(numbers)
@thorough(200)
def test_a_timeout_may_be_none(value: object) -> None:
    """A timeout is None, or a duration from 0."""
    if value is None:
        assert check_timeout(value) is None
        return
    try:
        expected = check_duration(value, "timeout")
    except UsageError:
        with pytest.raises(UsageError, match="timeout"):
            check_timeout(value)
    else:
        assert check_timeout(value) == expected


@given(
    sent=st.floats(0, 1e8),
    ttl=st.floats(0.05, LONGEST),
    drift=st.floats(-DRIFT / 2, DRIFT / 2),
    travel=st.floats(0, 10),
)
@thorough(300)
def test_a_holder_stops_believing_before_the_store_does(sent: float, ttl: float, drift: float, travel: float) -> None:
    """However long a request travels, a holder's deadline is over when the store's clock, drifting, ends the lease."""
    until = valid_until(sent, micros(ttl))
    granted = sent + travel
    rate = 1 + drift  # seconds of the store's clock in a second of the holder's
    ends = granted + seconds(micros(ttl)) / rate
    assert until < ends
    assert until < sent + ttl


@given(st.floats(0, LONGEST))
@thorough(200)
def test_microseconds_lose_nothing_that_matters(duration: float) -> None:
    """A duration is kept to the microsecond, far below what a deadline allows for."""
    assert math.isclose(seconds(micros(duration)), duration, abs_tol=1e-6)
    assert abs(seconds(micros(duration)) - duration) < EPSILON
