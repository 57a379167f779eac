"""The bytes of memcached's protocol, the records of names, and the keys: pure functions."""

from itertools import chain, pairwise
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.errors import UsageError
from tenure.stores.memcached.keys import MOST_NAME, key_of, name_in, server_of, stands_in_key
from tenure.stores.memcached.options import PORT, deployment_of
from tenure.stores.memcached.protocol import (
    MemcachedConversation,
    MemcachedRequest,
    MetaReply,
    pack_add,
    pack_look,
    pack_swap,
)
from tenure.stores.memcached.records import (
    LONGEST_ITEM,
    RETENTION,
    LockRecord,
    RecordState,
    longest_ttl,
    next_token,
    record_of,
    whole_seconds,
)
from tenure.transport.link import ServerAddress

names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=512).filter(
    lambda name: len(name.encode()) <= 512
)


def test_the_commands_are_those_of_the_server() -> None:
    """Add and swap store with a condition and for a time; each asks for the new CAS value."""
    assert pack_add(b"key", b"data", 7) == b"ms key 4 ME T7 c\r\ndata\r\n"
    assert pack_swap(b"key", b"", 7, b"12") == b"ms key 0 C12 T7 c\r\n\r\n"
    assert pack_look(b"key") == b"mg key v c t\r\n"


REPLIES = [
    MetaReply(b"HD", b"c12"),
    MetaReply(b"VA", b"c12 t30", b"with\r\nEN\r\nlines"),
    MetaReply(b"EN"),
    MetaReply(b"VA", b"c1 t2", b""),
    MetaReply(b"STAT", b"pid 12"),
    MetaReply(b"SERVER_ERROR", b"out of memory storing object"),
]
COUNTS = [1, 2, 2, 1]
"""How many replies each request expects."""
BYTES = (
    b"HD c12\r\nVA 15 c12 t30\r\nwith\r\nEN\r\nlines\r\nEN\r\nVA 0 c1 t2\r\n\r\nSTAT pid 12\r\n"
    b"SERVER_ERROR out of memory storing object\r\n"
)


@given(st.lists(st.integers(0, len(BYTES)), max_size=8))
def test_replies_are_read_however_they_are_cut(cuts: list[int]) -> None:
    """However many pieces the bytes come in, each request gets its own replies, and data is not taken for replies."""
    conversation, found = MemcachedConversation(), list[list[MetaReply]]()
    for count in COUNTS:
        conversation.pack(MemcachedRequest(b"", count))
    for begin, end in pairwise(sorted({0, *cuts, len(BYTES)})):
        assert not conversation.goes_on()
        conversation.feed(BYTES[begin:end])
        while (answer := conversation.reply()) is not None:
            found.append(answer.replies)
    assert [len(each) for each in found] == COUNTS
    assert list(chain.from_iterable(found)) == REPLIES
    assert conversation.goes_on()


@pytest.mark.parametrize("said", [b"x" * 5000, b"VA many c1\r\n", b"VA -1 c1\r\n"])
def test_what_is_not_memcached_is_refused(said: bytes) -> None:
    """A line without an end, or a value without a size, is an error and no endless wait."""
    conversation = MemcachedConversation()
    conversation.pack(MemcachedRequest(pack_look(b"key")))
    conversation.feed(said)
    with pytest.raises(ValueError, match="it sent"):
        conversation.reply()
    assert not conversation.goes_on()


def test_what_was_not_asked_for_ends_a_conversation() -> None:
    """Nobody knows to which request it belongs."""
    conversation = MemcachedConversation()
    conversation.feed(b"EN\r\n")
    assert not conversation.goes_on()
    with pytest.raises(ValueError, match="a reply to nothing"):
        conversation.reply()


def test_a_refusal_may_shift_the_replies_of_later_requests() -> None:
    """Whoever sent the command learns of it; the others are told that the conversation is over."""
    conversation = MemcachedConversation()
    for _ in range(2):
        conversation.pack(MemcachedRequest(pack_look(b"key")))
    conversation.feed(b"CLIENT_ERROR bad data chunk\r\nERROR\r\n")
    answer = conversation.reply()
    assert answer is not None
    assert answer.replies == [MetaReply(b"CLIENT_ERROR", b"bad data chunk")]
    assert not conversation.goes_on()
    with pytest.raises(ValueError, match="refused an earlier command"):
        conversation.reply()


@pytest.mark.parametrize(
    ("count", "lines", "goes_on"),
    [
        (2, [b"CLIENT_ERROR bad data chunk"], False),
        (2, [b"SERVER_ERROR out of memory", b"SERVER_ERROR out of memory"], True),
        (0, [b"STAT a 1", b"END"], True),
        (0, [b"key=tenure%3Aname exp=1", b"ERROR"], False),
    ],
)
def test_an_answer_ends_where_the_server_ends_it(count: int, lines: list[bytes], goes_on: bool) -> None:
    """After an error of the protocol nobody knows what the next line answers; after one of the server it is known."""
    conversation = MemcachedConversation()
    conversation.pack(MemcachedRequest(b"", count))
    for line in lines:
        assert conversation.reply() is None
        conversation.feed(line + b"\r\n")
    answer = conversation.reply()
    assert answer is not None
    assert [each.line().encode() for each in answer.replies] == lines
    assert conversation.goes_on() is goes_on


@given(
    st.builds(
        LockRecord,
        st.sampled_from(RecordState),
        st.from_regex(r"[0-9a-f]{32}-[0-9a-f]{1,5}", fullmatch=True),
        *(st.integers(0, 2**53) for _ in range(4)),
        owner=st.text(st.characters(exclude_categories=["Cs"])),
        doubted=st.integers(0, 2**53),
        revoking=st.booleans(),
        name=st.text(st.characters(exclude_categories=["Cs"])),
    )
)
def test_a_record_is_read_as_it_was_written(record: LockRecord) -> None:
    """Whatever the owner and the name contain."""
    assert record_of(record.to_bytes(), "name") == record


@pytest.mark.parametrize("data", [b"", b"7", b"form 1 0.1.0 \n", b"held r 1 1 1 1 1 0 0\n", b"\x80\x04K\x01."])
def test_what_tenure_did_not_write_is_no_record(data: bytes) -> None:
    """The value of another program is not read as a record."""
    with pytest.raises(ValueError, match=r".*"):
        record_of(data, "name")


@given(names)
def test_every_name_has_a_key_that_memcached_takes(name: str) -> None:
    """Up to 250 bytes, without spaces and control characters; a plain name can be read in its key."""
    key = key_of("p" * 64, name)
    assert len(key) <= 250
    assert all(33 <= byte <= 126 for byte in key)
    assert name_in(key.decode(), "p" * 64) == (name if stands_in_key(name) else "")


@given(names, names)
def test_names_have_keys_of_their_own(one: str, other: str) -> None:
    """Also a name that looks like the digest of another."""
    assert (key_of("p", one) == key_of("p", other)) == (one == other)
    digest = key_of("p", "n" * (MOST_NAME + 1)).decode().removeprefix("p:")
    assert key_of("p", digest) != key_of("p", "n" * (MOST_NAME + 1))


def test_a_server_that_is_removed_moves_only_its_own_names() -> None:
    """The order of the servers does not matter, each has a fair part, and the names of the others stay."""
    servers = [ServerAddress(f"10.0.0.{number}", PORT) for number in range(5)]
    keys = [key_of("tenure", f"name-{number}") for number in range(2000)]
    places = {key: server_of(key, servers) for key in keys}
    assert all(server_of(key, servers[::-1]) == place for key, place in places.items())
    for server in servers:
        mine = [key for key, place in places.items() if place == server]
        assert 300 < len(mine) < 500
        others = [each for each in servers if each != server]
        assert all(server_of(key, others) == places[key] for key in keys if key not in mine)


def test_an_item_lasts_for_its_lease_and_no_longer_than_memcached_allows() -> None:
    """Two seconds more than the ttl, rounded up; a ttl that is too long is granted for less."""
    assert [whole_seconds(micros) for micros in (1, 1_000_000, 1_000_001, 2_000_000)] == [3, 3, 4, 4]
    delay = 1000
    assert whole_seconds(longest_ttl(delay)) + delay + RETENTION == LONGEST_ITEM


def test_a_token_grows_and_no_mad_clock_counts() -> None:
    """A token is greater than the last, and at least the clock of the client, unless that shows a year after 2200."""
    assert next_token(0, 7) == next_token(6, 3) == 7
    assert next_token(6, 2**53) == 7


URLS = {
    "memcached://host": "memcached://host:11211/tenure",
    "memcached://": "memcached://localhost:11211/tenure",
    "memcached://a,b:1,[::1]:2/locks": "memcached://a:11211,b:1,[::1]:2/locks",
    "memcached://a/?connect_timeout=0.5": "memcached://a:11211/tenure",
}


@pytest.mark.parametrize(("url", "title"), URLS.items())
def test_a_url_names_servers_and_a_prefix(url: str, title: str) -> None:
    """The title shows what was understood."""
    assert deployment_of(urlsplit(url)).title() == title


REFUSED = {
    "memcached://user:secret@host": "takes no user and no password",
    "memcached://host:x": "host or a port .* is not valid",
    "memcached://a,a": "names a server twice",
    "memcached://a/with%20space": "prefix .* visible ASCII",
    f"memcached://a/{'x' * 65}": "prefix .* up to 64",
    "memcached://a?connect_timeout=never": "must be a number of seconds",
    "memcached://a?timeout=1": "did you mean connect_timeout",
    "memcached://a#b": "nothing after `#`",
}


@pytest.mark.parametrize(("url", "why"), REFUSED.items())
def test_a_url_that_cannot_be_understood_is_refused(url: str, why: str) -> None:
    """The error says what is allowed, and repeats no password."""
    with pytest.raises(UsageError, match=why) as caught:
        deployment_of(urlsplit(url))
    assert "secret" not in str(caught.value)
